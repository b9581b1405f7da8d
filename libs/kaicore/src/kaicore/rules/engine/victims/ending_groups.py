"""Running groups, as columns over their pods by node. The end of one may make room for others."""

from collections.abc import Sequence

import numpy as np

from kaicore.rules.engine.placement.feasible_nodes import FeasibleNodes
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.share_fit import reservation_class
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.work.workload import Workload
from kaicore.rules.model.pod import Pod


def stays(pod: Pod) -> bool:
    """Tell whether a pod does not end to make room: one that is gone comes back at once, on the same node."""
    return pod.owner is not None and pod.owner.kind in ("DaemonSet", "Node")


class EndingGroups:
    """Running groups in the order in which their end is preferred: of few pods, of old groups, by name."""

    def __init__(self, session: Session) -> None:
        columns = session.nodes.columns
        workloads = [
            workload
            for workload in session.cycle_input.workloads.values()
            if workload.active and _may_end(workload, columns)
        ]
        self._workloads = sorted(workloads, key=_preference)
        self._session = session
        #: By GPU group, the running groups that share it.
        self._sharers: dict[str, list[Workload]] = {}
        held: dict[tuple[int, int], np.ndarray] = {}
        vectors: dict[str, np.ndarray] = {}
        for number, workload in enumerate(self._workloads):
            for members in (workload.active, workload.leaving):
                for member in members.values():
                    if member.class_key not in vectors:
                        vectors[member.class_key] = columns.vector(member.requests)
                    key = number, columns.rows[member.node]
                    amounts = vectors[member.class_key]
                    for part in member.gpus:
                        sharers = self._sharers.setdefault(part.group, [])
                        if not sharers or sharers[-1] is not workload:
                            sharers.append(workload)
                    if member.gpus:
                        # What holds its GPUs goes, too, if no others share these.
                        amounts = amounts + len(member.gpus) * columns.vector(reservation_class().requests)
                    held[key] = held[key] + amounts if key in held else amounts
        self._groups = np.array([number for number, _ in held], np.int64)
        self._rows = np.array([row for _, row in held], np.int64)
        self._held = np.array(list(held.values()), np.int64).reshape(len(held), columns.used.shape[1])

    def promising(self, feasible_by_class: Sequence[tuple[FeasibleNodes, int]], *, anywhere: bool) -> list[Workload]:
        """Return the groups that, once ended, leave enough on the nodes as a whole, in order of preference.

        Args:
            feasible_by_class: of the classes that are to start, each with how many of its pods.
            anywhere: what stands in the way is no node's, so that it may be the end of any group that helps.
        """
        columns = self._session.nodes.columns
        possible = np.ones(len(self._workloads), np.bool_)
        if not anywhere and not any(feasible.non_monotonic for feasible, _ in feasible_by_class):
            idle = columns.allocatable - columns.used
            helped = np.zeros(len(self._workloads), np.bool_)
            for feasible, count in feasible_by_class:
                asked = np.flatnonzero(feasible.need)
                need, usable = feasible.need[asked], feasible.eligible
                now = np.maximum((idle[:, asked] // need).min(axis=1), 0) * usable
                then = idle[self._rows][:, asked] + self._held[:, asked]
                more = np.maximum((then // need).min(axis=1), 0) * usable[self._rows] - now[self._rows]
                gained = np.zeros(len(self._workloads), np.int64)
                np.add.at(gained, self._groups, more)
                possible &= int(now.sum()) + gained >= count
                # Nodes may have enough as a whole and not on their zones: then it takes an end on one that is usable.
                helped[self._groups[usable[self._rows] & (then >= need).all(axis=1)]] = True
            possible &= helped
        return [self._workloads[number] for number in np.flatnonzero(possible).tolist()]

    def sharing_together(self) -> list[list[Workload]]:
        """Return the groups that share a GPU with others, by GPU, fewest first: no single end frees the whole GPU."""
        several = (sharers for sharers in self._sharers.values() if len(sharers) > 1)
        return sorted(several, key=lambda sharers: (len(sharers), [_preference(one) for one in sharers]))


def _may_end(workload: Workload, columns: NodeColumns) -> bool:
    pod = next(iter(workload.active.values())).pod
    # The end of a reservation pod makes no room: others share its GPU.
    return not columns.gpus.is_reservation(pod) and not stays(pod)


def _preference(workload: Workload) -> tuple[int, int, str, str, str]:
    group = workload.group
    pods = len(workload.active) + len(workload.leaving)
    return pods, group.created_at, group.namespace, group.name, group.key
