"""Memory of rows without some of their pods, from search to search and from cycle to cycle.

On a full cluster every cycle asks for victims on the same nodes again, and few of these have changed. Whether a row
takes a pod once some of its own pods are gone depends on: the state of the row with all its charges, the amounts of
those pods there, the order in which they go, the requests of the pod, and the shard's settings. The keys here contain
all of that, so no entry ever becomes outdated. They contain no times, because no answer depends on one. Rules that look
beyond the row (about other pods, volumes) are never remembered.
"""

from collections.abc import Sequence

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.placement.feasible_nodes import FeasibleNodes
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.workload import Member
from kaicore.rules.numa.row_memory import HeldOfRow

#: By the numbers of the pods that are gone, whether the row takes a pod.
Taken = dict[tuple[int, ...], bool]
#: So many answers are kept, of about 150 bytes; then it begins anew.
_MOST = 400_000


class RelievedRows:
    """The answers about one class of pods, on the columns of one cycle."""

    def __init__(self, columns: NodeColumns, pod_class: PodClass, config: EngineConfig) -> None:
        self._columns = columns
        self._memory = memory = columns.zones.remembered.relieved
        if memory.count > _MOST:
            memory.clear()
        asking = (
            tuple(columns.resources),
            tuple(pod_class.requests.items()),
            pod_class.aligned,
            pod_class.counted,
            pod_class.numa_policy,
            config.numa,
            config.evaluator,
            config.reconstruct_available,
            config.ignore_list,
        )
        self._rows: dict[object, Taken] = memory.by_asking.setdefault(asking, {})

    def of(self, row: int, feasible: FeasibleNodes) -> Taken:
        """Return what is remembered of a row as it is now; to be looked up, and added to by `remember`."""
        columns = self._columns
        key = (
            bool(feasible.eligible[row]),
            columns.likeness(row, published=True),
            columns.allocatable[row].tobytes(),
            columns.used[row].tobytes(),
        )
        taken = self._rows.get(key)
        if taken is None:
            taken = self._rows[key] = {}
        return taken

    def numbers(self, members: Sequence[Member]) -> tuple[int, ...]:
        """Return a number for what each pod holds of its node; equal for pods that hold the same of it."""
        return tuple([self._number(member) for member in members])

    def zones(self, members: Sequence[Member]) -> frozenset[int]:
        """Return the zones that pods hold anything of."""
        return frozenset().union(*[self._holding(member).zones for member in members])

    def _number(self, member: Member) -> int:
        return self._holding(member).number

    def _holding(self, member: Member) -> HeldOfRow:
        by_uid, charge = self._memory.by_uid, member.zone_charge
        seen = by_uid.get(member.pod.uid)
        if seen is not None and seen.charge is charge and seen.releasing == member.releasing:
            return seen
        number = self._memory.number((tuple(member.requests.items()), charge, member.releasing))
        zones = frozenset([zone for zone, _, _ in charge.split])
        holding = by_uid[member.pod.uid] = HeldOfRow(charge, member.releasing, number, zones)
        return holding

    def remember(self, taken: Taken, gone: tuple[int, ...], answer: bool) -> None:
        """Remember whether a row takes a pod once the pods of some numbers are gone."""
        taken[gone] = answer
        self._memory.count += 1
