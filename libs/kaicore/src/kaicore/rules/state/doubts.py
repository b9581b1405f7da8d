"""Uncertainty in the log about a node's zones: pods that are not observed yet, and pods that may end.

A pod that has run for a while is assumed to stay in the moment in which another one is decided on. Of those that run
for seconds, some end in that moment, and their kubelet frees their resources before the API reports it (decision 0112).
"""

from kaicore.rules.engine.constraints.doubts import EndingPods
from kaicore.rules.numa.arrivals import Arrival
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.early_release import LAG_US
from kaicore.rules.state.pod_entry import PodEntry, Stage

#: Pods that have run for longer are not taken to end in the very moment of a decision, microseconds.
YOUNG_US = 60_000_000


class StateDoubts:
    """The open matters of a state at one moment (`kaicore.rules.engine.constraints.doubts.OpenMatters`).

    To be asked only where there are exporters: without observations, no doubt would end.
    """

    def __init__(self, state: ClusterState, *, now: int) -> None:
        """Args:
        state: not changed.
        now: microseconds since the epoch.
        """
        self._state = state
        self._now = now

    def arrivals(self, row: int) -> tuple[Arrival, ...]:
        """See `OpenMatters`."""
        state = self._state
        node = state.columns.names[row]
        pods = state.charges.on_node.get(node, ())
        if not any(self._is_open(state.pods[uid]) for uid in pods):
            return ()
        ended = state.early_releases.ended.get(node, ())
        return tuple(
            Arrival(
                state.classes[entry.class_key].aligned,
                entry.zone_charge,
                entry.pod.created_at,
                shaken=any(one.ended_at > entry.decided_at for one in ended),
                may_end=entry.stage is not Stage.PLACED,
            )
            for entry in state.charges.held_on(node)
            if self._is_open(entry)
        )

    def ending(self, row: int) -> EndingPods:
        """See `OpenMatters`."""
        zones = int(self._state.columns.zones.zone_count[row])
        amounts: dict[str, list[int]] = {}
        ends = []
        for entry in self._state.charges.held_on(self._state.columns.names[row]):
            if self._is_open(entry):
                ends.append(entry.started_at + LAG_US)
            elif entry.leaving or not entry.started_at or self._now < entry.started_at + YOUNG_US:
                for zone, resource, amount in entry.zone_charge.split:
                    amounts.setdefault(resource, [0] * zones)[zone] += amount
                ends.append(entry.started_at + YOUNG_US)
        until = min((at for at in ends if at > self._now), default=0)
        return EndingPods({resource: tuple(figures) for resource, figures in sorted(amounts.items())}, until)

    def _is_open(self, entry: PodEntry) -> bool:
        """Tell whether a pod was decided on, and what its kubelet gave it is not observed but may yet be.

        One that was not observed within some seconds of its start will hardly be: its prediction stands.
        """
        if entry.observed is not None or entry.predicted is None:
            return False
        return not entry.started_at or self._now < entry.started_at + LAG_US
