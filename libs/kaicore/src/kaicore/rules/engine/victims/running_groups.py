"""The groups that run and may be preempted, looked up once for all evicting actions of a cycle."""

from collections.abc import Callable

from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.workload import Workload

#: What of a group tells which queue pays for it, and its priority.
_Kind = tuple[str, str, int]


class RunningGroups:
    """The groups that run, are of our scheduler and may be preempted.

    Attributes:
        workloads: all of them, in the order of the input.
    """

    def __init__(self, cycle_input: CycleInput, *, scheduler_name: str) -> None:
        self.workloads: list[Workload] = []
        self._kinds: list[_Kind] = []
        for workload in cycle_input.workloads.values():
            group = workload.group
            if workload.active and group.preemptible:
                first = next(iter(workload.active.values()))
                if first.pod.scheduler_name == scheduler_name:
                    self.workloads.append(workload)
                    self._kinds.append((group.queue, "" if group.queue else group.namespace, group.priority))
        #: One group of each queue and priority.
        self._examples = dict(zip(reversed(self._kinds), reversed(self.workloads), strict=True))

    def where(self, holds: Callable[[Workload], bool]) -> list[Workload]:
        """Return the groups of which something holds that depends on nothing but their queue and priority."""
        kinds = {kind for kind, workload in self._examples.items() if holds(workload)}
        if len(kinds) == len(self._examples):
            return self.workloads
        if not kinds:
            return []
        return [workload for kind, workload in zip(self._kinds, self.workloads, strict=True) if kind in kinds]
