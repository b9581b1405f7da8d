"""The files in which a kubelet keeps what its resource managers gave: here only their times tell anything.

A real kubelet writes `cpu_manager_state`, `memory_manager_state` and the device manager's `kubelet_internal_checkpoint`
whenever what they hold changes, and who watches podresources looks at their times before it asks. What a simulated
kubelet holds is in the fleet's journal (`checkpoint`); these files are empty.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

from kai_simulator.fleet.kubelet import Kubelet

CPU_STATE = "cpu_manager_state"
MEMORY_STATE = "memory_manager_state"
DEVICE_CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"


class StateFiles:
    """The state files of one node, in what is the kubelet's root directory to those who look at them."""

    def __init__(self, directory: Path, kubelet: Kubelet) -> None:
        """Write them for the first time; a kubelet whose managers have policy `none` has them too.

        Raises:
            OSError: they cannot be written.
        """
        self._directory = directory
        (directory / DEVICE_CHECKPOINT).parent.mkdir(exist_ok=True)
        self._holders = _holders(kubelet)
        for name in self._holders:
            (directory / name).touch()

    def changed(self, kubelet: Kubelet) -> None:
        """Write the files of the managers that gave something, or took it back, since they were last written."""
        before, self._holders = self._holders, _holders(kubelet)
        now = time.time_ns()
        for name, holders in self._holders.items():
            if holders != before[name]:
                # Who removes the files does not look at them.
                with suppress(OSError):
                    os.utime(self._directory / name, ns=(now, now))


def _holders(kubelet: Kubelet) -> dict[str, frozenset[str]]:
    """Which pods hold something, by file; what a pod holds does not change while it runs."""
    kubelet.sweep()
    managers = kubelet.managers
    return {
        CPU_STATE: frozenset(managers.cpus.assigned),
        MEMORY_STATE: frozenset(managers.memory.assigned),
        DEVICE_CHECKPOINT: frozenset(managers.devices.assigned),
    }
