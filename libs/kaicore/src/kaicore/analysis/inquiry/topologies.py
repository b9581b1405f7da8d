"""The domains of topologies: capacity, use, and the room that is left."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kaicore.analysis.inquiry.json_spelling import time_text
from kaicore.analysis.inquiry.topology_answers import (
    DomainAnswer,
    DomainResource,
    LevelAnswer,
    SegmentCount,
    TopologiesAnswer,
    TopologyAnswer,
    TopologyQuestion,
)
from kaicore.analysis.inquiry.topology_slots import Slot, read_sizes, read_slot
from kaicore.errors import UnknownSubject
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.quantity import CPU, MEMORY, PODS, exact_amount
from kaicore.rules.numa.zone_arrays import Flags, Ints
from kaicore.rules.queues.resources import GPU, gpus_per_unit
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.topology.book import TopologyBook, TopologyKey
from kaicore.rules.topology.capacity import segments, sizes_to_show, slots
from kaicore.rules.topology.tree import TopologyColumns, TopologyTree
from kaicore.spelling import did_you_mean

#: Kinds whose pods are on a node that is idle: those that come with every node.
_COMES_WITH_THE_NODE = frozenset({"DaemonSet", "Node"})


def topologies_of(state: ClusterState, wanted: TopologyQuestion) -> TopologiesAnswer:
    """Return the topologies of a cluster.

    Raises:
        InvalidObject: the question makes no sense.
        UnknownSubject: there is no topology of the name.
    """
    occupied = {
        node
        for node, uids in state.charges.on_node.items()
        if any(not comes_with_the_node(state.pods[uid].pod) for uid in uids)
    }
    return topologies(
        state.network_topologies,
        state.columns,
        occupied,
        wanted,
        cluster=state.cluster,
        position=state.position,
        recorded_at=time_text(state.recorded_at),
    )


def comes_with_the_node(pod: Pod) -> bool:
    """Tell whether a pod is there because the node is: a DaemonSet's, or one of the kubelet's own."""
    return pod.owner is not None and pod.owner.kind in _COMES_WITH_THE_NODE


def topologies(
    book: TopologyBook,
    columns: NodeColumns,
    occupied: Iterable[str],
    wanted: TopologyQuestion,
    *,
    cluster: str = "",
    position: int = 0,
    recorded_at: str = "",
) -> TopologiesAnswer:
    """Return topologies over nodes.

    Args:
        book: the topologies.
        columns: the nodes, with what is used of them.
        occupied: names of nodes that are not idle.
        wanted: what is to be told.
        cluster: of the answer.
        position: of the answer.
        recorded_at: of the event there.

    Raises:
        InvalidObject: the question makes no sense.
        UnknownSubject: there is no topology of the name.
    """
    nodes = _Nodes.of(columns, occupied)
    slot = read_slot(wanted.slots, wanted.pod, columns.resources)
    figures = _figures(columns, nodes, slot)
    sizes = read_sizes(wanted.segments)
    keys = _wanted(book.topologies(), wanted.topology)
    answers = [_topology(key, book.tree(key), nodes, figures, sizes, single=wanted.nodes) for key in keys]
    requests = {} if slot is None else slot.requests
    return TopologiesAnswer(
        cluster=cluster,
        position=position,
        recorded_at=recorded_at,
        slot={resource: exact_amount(resource, amount) for resource, amount in sorted(requests.items())},
        topologies=answers,
    )


def _wanted(keys: Sequence[TopologyKey], name: str) -> list[TopologyKey]:
    if not name:
        return list(keys)
    named = [key for key in keys if name in (key.name, key.kind, f"{key.kind}/{key.name}")]
    if not named:
        names = {key.name or key.kind for key in keys}
        there_are = ", ".join(sorted(names)) or "none"
        raise UnknownSubject(f"no topology {name!r}{did_you_mean(name, names)} (there are: {there_are})")
    return named


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The nodes that there are, by row: all that have ever been."""

    names: list[str]
    present: Flags
    available: Flags
    idle: Flags

    @classmethod
    def of(cls, columns: NodeColumns, occupied: Iterable[str]) -> "_Nodes":
        rows = len(columns.names)
        present = columns.present[:rows]
        available = present & columns.ready[:rows] & ~columns.unschedulable[:rows]
        idle = available.copy()
        idle[[columns.rows[name] for name in occupied if name in columns.rows]] = False
        return cls(columns.names, present, available, idle)


@dataclass(frozen=True, slots=True)
class _Figures:
    """Amounts by row, of each resource that is told; and slots by row."""

    resources: dict[str, tuple[Ints, Ints, Ints]]
    slots: Ints | None


def _figures(columns: NodeColumns, nodes: _Nodes, slot: Slot | None) -> _Figures:
    rows = len(nodes.names)
    weights = {GPU: {name: weight for name in columns.resources if (weight := gpus_per_unit(name))}}
    asked = {} if slot is None else {name: amount for name, amount in slot.requests.items() if amount}
    shown = [CPU, MEMORY, *([GPU] if weights[GPU] else []), *sorted(asked.keys() - {CPU, MEMORY, GPU, PODS})]
    resources = {}
    free = {}
    for resource in {*shown, *asked}:
        allocatable, used = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        for name, weight in weights.get(resource, {resource: 1}).items():
            column = columns.resources.get(name)
            if column is not None:
                allocatable += weight * columns.allocatable[:rows, column]
                used += weight * columns.used[:rows, column]
        free[resource] = allocatable - used
        usable = np.where(nodes.available, np.maximum(free[resource], 0), 0)
        resources[resource] = (allocatable, np.where(nodes.present, used, 0), usable)
    fitting = None
    if slot is not None:
        room = np.column_stack([free[resource] for resource in asked])
        takes = nodes.available & slot.takes(columns)[:rows]
        fitting = slots(room, np.array(list(asked.values()), np.int64), takes)
    return _Figures({resource: resources[resource] for resource in shown}, fitting)


def _topology(
    key: TopologyKey, tree: TopologyTree, nodes: _Nodes, figures: _Figures, sizes: Sequence[int], *, single: bool
) -> TopologyAnswer:
    """Return a topology; with the level of single nodes only if `single`."""
    columns = tree.columns(nodes.names)
    depths = len(columns.levels)
    has_single = depths > 1 and not columns.levels[-1].keys
    counts = columns.sums(nodes.present.astype(np.int64))
    sizes = sizes or sizes_to_show(max((int(one.max(initial=0)) for one in counts), default=0))
    sums = _Sums(columns, nodes, figures, sizes)
    levels = [_level(tree, columns, sums, depth) for depth in range(depths)]
    above: list[DomainAnswer] = []
    top: list[DomainAnswer] = above
    for depth in range(depths - has_single if not single else depths):
        here = [sums.domain(depth, number) for number in range(len(columns.domains[depth]))]
        if depth == 0:
            top = here
        else:
            for domain, parent in zip(here, columns.parents[depth], strict=True):
                above[parent].domains.append(domain)
        above = here
    present = int(nodes.present.sum())
    return TopologyAnswer(
        kind=key.kind, name=key.name, nodes=present, problems=list(tree.problems), levels=levels, domains=top
    )


class _Sums:
    """What is summed over the rows of each domain, by level."""

    def __init__(self, columns: TopologyColumns, nodes: _Nodes, figures: _Figures, sizes: Sequence[int]) -> None:
        self._columns = columns
        self.sizes = sizes
        self._nodes, self._available, self.idle = (
            columns.sums(flags.astype(np.int64)) for flags in (nodes.present, nodes.available, nodes.idle)
        )
        self._resources = {
            resource: tuple(columns.sums(values) for values in kinds) for resource, kinds in figures.resources.items()
        }
        self.slots = None if figures.slots is None else columns.sums(figures.slots)

    def domain(self, depth: int, number: int) -> DomainAnswer:
        """Return a domain without those in it."""
        amounts = [
            DomainResource(resource=resource, allocatable=allocatable, used=used, free=free)
            for resource, kinds in self._resources.items()
            for allocatable, used, free in [
                [exact_amount(resource, int(values[depth][number])) for values in kinds],
            ]
        ]
        idle = self.idle[depth][number]
        return DomainAnswer(
            name=self._columns.domains[depth][number][-1],
            level=self._columns.levels[depth].name,
            nodes=int(self._nodes[depth][number]),
            available=int(self._available[depth][number]),
            idle=int(idle),
            resources=amounts,
            segments=[SegmentCount(size=size, count=int(segments(idle, size))) for size in self.sizes],
            slots=None if self.slots is None else int(self.slots[depth][number]),
            domains=[],
        )


def _level(tree: TopologyTree, columns: TopologyColumns, sums: _Sums, depth: int) -> LevelAnswer:
    level, domains = columns.levels[depth], columns.domains[depth]
    counts = [SegmentCount(size=size, count=int(segments(sums.idle[depth], size).sum())) for size in sums.sizes]
    fitting = None if sums.slots is None else sums.slots[depth]
    most = int(fitting.argmax()) if fitting is not None and len(domains) else -1
    return LevelAnswer(
        name=level.name,
        aliases=list(level.aliases),
        labels=list(level.keys),
        domains=len(domains),
        outside=tree.outside[depth],
        segments=counts,
        slots=None if fitting is None else int(fitting.sum()),
        most_slots=0 if fitting is None or most < 0 else int(fitting[most]),
        most_slots_in=list(domains[most]) if most >= 0 else [],
    )
