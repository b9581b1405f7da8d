"""The cheapest victims on one node that let the node take a pod.

The needs of a node are computed once for equal nodes. `EngineConfig.search_steps` bounds the sets of victims that are
tried.

Answers are remembered from search to search and from cycle to cycle, because a full cluster asks for victims on the
same nodes again, and few of these have changed. Whether a row takes a pod once some of its own pods are gone depends
on: the state of the row with all its charges, the amounts of those pods there, the order in which they go, the requests
of the pod, and the shard's settings. The keys contain all of that, so no answer ever becomes outdated. They contain no
times, because no answer depends on one. Rules that look beyond the row (about other pods, volumes) are never
remembered.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.placement.feasible_nodes import FeasibleNodes
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.placer import Placer
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.victims.candidates import Candidates
from kaicore.rules.engine.victims.eviction_cost import POD
from kaicore.rules.engine.victims.victim_set import VictimSet, name_of
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.numa.columns import Flags, HeldOfRow

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
        return tuple([self._holding(member).number for member in members])

    def zones(self, members: Sequence[Member]) -> frozenset[int]:
        """Return the zones that pods hold anything of."""
        return frozenset().union(*[self._holding(member).zones for member in members])

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


#: Most victim sets on a node for which every pair is tried.
_MOST_FOR_PAIRS = 12

#: A cost, and the indexes of the victim sets that have it together.
_Choice = tuple[int, tuple[int, ...]]


class NodeVictims:
    """The victims of one search, node by node, on the future's nodes."""

    def __init__(self, session: Session, candidates: Candidates, placer: Placer) -> None:
        self._session = session
        self._candidates = candidates
        self._placer = placer
        #: What was chosen, by all that it depends on.
        self._chosen: dict[object, _Choice | None] = {}
        self._relieved: dict[str, RelievedRows] = {}

    def lower_bounds(self, pod_class: PodClass) -> list[tuple[int, int]]:
        """Return the rows where evicting may help a class, as a sorted list, which is a heap.

        Of each row there is the cost below which evicting cannot help, and the place of its name.
        """
        feasible_nodes = self._placer.feasible_nodes(pod_class)
        columns = self._placer.statement.columns
        requested = np.flatnonzero(feasible_nodes.need)
        total, most, least = self._candidates.sums()
        idle = (columns.allocatable - columns.used)[:, requested]
        missing = np.maximum(feasible_nodes.need[requested] - idle, 0)
        possible: Flags = feasible_nodes.eligible & (missing <= total[:, requested]).all(axis=1) & total.any(axis=1)
        rows = np.flatnonzero(possible)
        pods = np.maximum(-(-missing[rows] // np.maximum(most[rows][:, requested], 1)).max(axis=1), 1)
        # One gang may free many pods' room on a node at once, so one set's cost is the least there is.
        places = columns.name_order()[rows]
        bounds = zip(rows.tolist(), pods.tolist(), places.tolist(), strict=True)
        return sorted((least[row] + (count - 1) * POD, place) for row, count, place in bounds)

    def cheapest(self, member: Member, row: int) -> tuple[int, tuple[VictimSet, ...]] | None:
        """Return the cheapest sets found that, once evicted, let a row take a pod, with their cost; None for none."""
        pod_class = self._session.pods.class_of(member)
        feasible_nodes = self._placer.feasible_nodes(pod_class)
        if feasible_nodes.takes(row):
            return 0, ()
        victim_sets = self._victim_sets(row)
        if not victim_sets:
            return None
        rows = self._placer.statement.columns.rows
        on_row = [[other for other in one.members if rows[other.node] == row] for one in victim_sets]
        key = self._key(pod_class, row, victim_sets, on_row)
        # Rules about other pods look beyond the node.
        if key not in self._chosen or not self._is_of_row(feasible_nodes, row):
            self._chosen[key] = self._choose(feasible_nodes, pod_class, row, victim_sets, on_row)
        chosen = self._chosen[key]
        return None if chosen is None else (chosen[0], tuple(victim_sets[index] for index in chosen[1]))

    def _victim_sets(self, row: int) -> list[VictimSet]:
        """Return the distinct sets that have pods on a row, the cheapest first."""
        distinct: dict[tuple[str, ...], VictimSet] = {}
        for member in sorted(self._candidates.on_row.get(row, {}).values(), key=name_of):
            victim_set = self._candidates.victim_set(member)
            if victim_set is not None:
                distinct.setdefault(tuple(sorted(one.pod.uid for one in victim_set.members)), victim_set)
        return sorted(distinct.values(), key=lambda victim_set: victim_set.key)

    def _key(
        self, pod_class: PodClass, row: int, victim_sets: Sequence[VictimSet], on_row: Sequence[Sequence[Member]]
    ) -> object:
        """Return a key that is equal where the same sets are the cheapest."""
        columns = self._placer.statement.columns
        return (
            pod_class.key,
            columns.likeness(row),
            columns.allocatable[row].tobytes(),
            columns.used[row].tobytes(),
            tuple(
                (one.cost, one.shrinks, tuple((other.class_key, other.zone_charge) for other in members))
                for one, members in zip(victim_sets, on_row, strict=True)
            ),
        )

    def _choose(
        self,
        feasible_nodes: FeasibleNodes,
        pod_class: PodClass,
        row: int,
        victim_sets: Sequence[VictimSet],
        on_row: Sequence[Sequence[Member]],
    ) -> _Choice | None:
        """Look for the cheapest of the sets that, once evicted, let a row take a pod."""
        relieved = self._relieved_rows(pod_class)
        # Rules about other pods look beyond the row.
        kept = relieved.of(row, feasible_nodes) if self._is_of_row(feasible_nodes, row) else None
        numbers = [relieved.numbers(members) for members in on_row]
        # A pod that is in several sets is evicted once.
        apart = sum(map(len, on_row)) == len({other.pod.uid for members in on_row for other in members})

        def fits(chosen: Sequence[int]) -> bool:
            self._session.count_tried()
            if kept is None or not apart:
                return self._takes_without(chosen, pod_class, row, on_row)
            gone = tuple([number for index in chosen for number in numbers[index]])
            answer = kept.get(gone)
            if answer is None:
                answer = self._takes_without(chosen, pod_class, row, on_row)
                relieved.remember(kept, gone, answer)
            return answer

        def cost(chosen: Sequence[int]) -> int:
            return sum(victim_sets[index].cost for index in chosen)

        everything = list(range(len(victim_sets)))
        if self._session.steps_left <= 0 or not fits(everything):
            return None
        best = everything
        for order in _orders([relieved.zones(members) for members in on_row]):
            chosen: list[int] = []
            for index in order:
                chosen.append(index)
                if fits(chosen):
                    break
            for index in sorted(chosen, key=lambda index: victim_sets[index].key, reverse=True):
                without = [other for other in chosen if other != index]
                if without != chosen and fits(without):
                    chosen = without
            if (cost(chosen), sorted(chosen)) < (cost(best), sorted(best)):
                best = chosen
        for few in sorted(_singles_and_pairs(len(victim_sets)), key=lambda few: (cost(few), few)):
            if cost(few) >= cost(best):
                break
            if fits(few):
                best = list(few)
                break
        return cost(best), tuple(sorted(best, key=lambda index: victim_sets[index].key))

    def _is_of_row(self, feasible_nodes: FeasibleNodes, row: int) -> bool:
        """Tell whether nothing but the row's amounts decides; parts of GPUs are not among them."""
        if feasible_nodes.non_monotonic or feasible_nodes.share is not None:
            return False
        return not self._placer.statement.columns.gpus.has(row)

    def _takes_without(
        self, chosen: Sequence[int], pod_class: PodClass, row: int, on_row: Sequence[Sequence[Member]]
    ) -> bool:
        """Tell whether a row takes a pod once the chosen sets are gone; everything is left as it is."""
        statement = self._placer.statement
        savepoint = statement.savepoint()
        for other in {other.pod.uid: other for index in chosen for other in on_row[index]}.values():
            statement.evict(self._session.pods.charge_of(other))
        taken = self._placer.feasible_nodes(pod_class).takes(row)
        statement.rollback(savepoint)
        return taken

    def _relieved_rows(self, pod_class: PodClass) -> RelievedRows:
        relieved = self._relieved.get(pod_class.key)
        if relieved is None:
            columns, config = self._placer.statement.columns, self._session.config
            relieved = self._relieved[pod_class.key] = RelievedRows(columns, pod_class, config)
        return relieved


def _orders(zones: Sequence[frozenset[int]]) -> Iterator[list[int]]:
    """Yield in which orders victims are added: the cheapest first, and for each zone those that hold it first.

    Args: zones: of which the pods on the node of each set hold anything, the cheapest set first.
    """
    by_cost = list(range(len(zones)))
    yield by_cost
    for zone in sorted(set().union(*zones)):
        yield sorted(by_cost, key=lambda index: (zone not in zones[index], len(zones[index]), index))


def _singles_and_pairs(count: int) -> list[tuple[int, ...]]:
    few: list[tuple[int, ...]] = [(index,) for index in range(count)]
    if count <= _MOST_FOR_PAIRS:
        few += [(one, other) for one in range(count) for other in range(one + 1, count)]
    return few
