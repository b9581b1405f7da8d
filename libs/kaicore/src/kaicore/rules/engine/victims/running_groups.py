"""The running groups that may be preempted, indexed by queue and priority."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from kaicore.rules.engine.work.workload import Workload

#: The scheduler of a group's pods, its queue, its namespace where it names no queue, and its priority.
Kind = tuple[str, str, str, int]


def kind_of(workload: Workload) -> Kind | None:
    """Return what kind of running group this is; None if nothing of it runs, or it may not be preempted."""
    group = workload.group
    if not workload.active or not group.preemptible:
        return None
    first = next(iter(workload.active.values()))
    return first.pod.scheduler_name, group.queue, "" if group.queue else group.namespace, group.priority


class RunningGroups:
    """Those of one scheduler."""

    def __init__(self, running: Mapping[Kind, Mapping[str, Workload]], *, scheduler_name: str) -> None:
        """Args:
        running: groups by kind and key.
        scheduler_name: the scheduler of the pods.
        """
        self._kinds = [of_kind for kind, of_kind in sorted(running.items()) if of_kind and kind[0] == scheduler_name]

    @cached_property
    def workloads(self) -> list[Workload]:
        """All of them."""
        return [workload for of_kind in self._kinds for workload in of_kind.values()]

    def any_where(self, holds: Callable[[Workload], bool]) -> bool:
        """Tell whether something holds of any group that depends on nothing but its queue and priority."""
        return next(self._where(holds), None) is not None

    def where(self, holds: Callable[[Workload], bool]) -> list[Workload]:
        """Return the groups of which something holds that depends on nothing but their queue and priority."""
        return [workload for of_kind in self._where(holds) for workload in of_kind.values()]

    def _where(self, holds: Callable[[Workload], bool]) -> Iterator[Mapping[str, Workload]]:
        return (of_kind for of_kind in self._kinds if holds(next(iter(of_kind.values()))))
