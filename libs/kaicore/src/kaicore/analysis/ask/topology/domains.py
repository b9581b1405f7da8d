"""The domains of topologies: capacity, use, and the room that is left.

Room is counted in slots for pods of one shape, as people and manifests write it. A group's pods are assigned to domains
in Kueue's form.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kaicore.analysis.ask.topology.answers import (
    DomainAnswer,
    DomainResource,
    LevelAnswer,
    PodSetAssignment,
    SegmentCount,
    TopologiesAnswer,
    TopologyAnswer,
    TopologyAssignments,
    TopologyQuestion,
)
from kaicore.analysis.json_spelling import LogPlace, place_of, time_text
from kaicore.errors import InvalidObject, UnknownSubject, raised
from kaicore.rules.engine.constraints.node_matching import affine, selected, tolerates
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import node_requests
from kaicore.rules.model.group import Group
from kaicore.rules.model.node import HOSTNAME
from kaicore.rules.model.pod import Amounts, Pod
from kaicore.rules.model.quantity import CPU, MEMORY, PODS, exact_amount, parse_amount
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.queues.tree import GPU, gpus_per_unit
from kaicore.rules.state.views import ClusterView, FleetView, WorkView
from kaicore.rules.topology.book import TopologyBook, TopologyKey
from kaicore.rules.topology.published import (
    AssignedDomain,
    Document,
    as_domains,
    as_slices,
    sizes_to_show,
    slots,
)
from kaicore.rules.topology.resolve import Resolved, resolve
from kaicore.rules.topology.tree import TopologyColumns, TopologyTree
from kaicore.spelling import did_you_mean

#: How a question is called in errors.
_QUESTION = "question"

#: More nodes than a segment can have.
_MOST_NODES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Slot:
    """The requests of one pod.

    Attributes:
        requests: amounts; `gpu` for GPUs of all kinds.
        pod: its selector, affinity and tolerations count; without one every node's taints are tolerated.
    """

    requests: Amounts
    pod: Pod | None = None

    def takes(self, columns: NodeColumns) -> Flags:
        """Return the rows that the pod may go to, whatever is free there."""
        if self.pod is None:
            return np.ones(len(columns.present), np.bool_)
        tolerations = self.pod.tolerations
        tolerated, _ = columns.taints_where(lambda taint: tolerates(tolerations, taint))
        return selected(columns, self.pod.node_selector) & affine(columns, self.pod.node_affinity) & tolerated


def read_slot(text: str, manifest: str, resources: Collection[str]) -> Slot | None:
    """Read the request of one pod; None without any.

    Raises InvalidObject: it is malformed, asks for nothing, or names a resource that no node has.

    Args:
        text: such as `gpu=8,cpu=16`.
        manifest: of a Pod, as JSON, instead.
    """
    if text and manifest:
        raise InvalidObject(_QUESTION, "slots", text, "is said together with a pod")
    if manifest:
        return _of_pod(manifest)
    return Slot(_amounts(text, resources)) if text else None


def _of_pod(manifest: str) -> Slot:
    # Few questions bring a manifest, and reading one takes a third of what they import.
    from kaicore.kube.kinds import table  # noqa: PLC0415

    pod = table.POD.normalize(table.POD.decode(manifest.encode()), raised)
    assert isinstance(pod, Pod)
    return Slot(node_requests(pod), pod)


def _amounts(text: str, resources: Collection[str]) -> Amounts:
    amounts: Amounts = {}
    for part in text.split(","):
        resource, equals, amount = (piece.strip() for piece in part.partition("="))
        if not resource or not equals:
            raise InvalidObject(_QUESTION, "slots", part, "is no RESOURCE=AMOUNT, such as gpu=8")
        if resource in amounts:
            raise InvalidObject(_QUESTION, "slots", text, f"says {resource} twice")
        if resource not in resources and resource != GPU:
            close = did_you_mean(resource, {*resources, GPU})
            raise InvalidObject(_QUESTION, "slots", resource, f"is a resource that no node has{close}")
        amounts[resource] = parse_amount(amount, resource=resource, subject=_QUESTION, field=f"slots.{resource}")
    if not any(amounts.values()):
        raise InvalidObject(_QUESTION, "slots", text, "asks for nothing")
    return amounts


def read_sizes(text: str) -> tuple[int, ...]:
    """Read sizes of segments, such as `4,18`, in order.

    Raises InvalidObject: one is no number of 1 or more.
    """
    return tuple(sorted(set(_sizes(text.split(","))))) if text else ()


def _sizes(parts: Iterable[str]) -> Iterable[int]:
    for part in parts:
        digits = part.strip()
        if not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= _MOST_NODES):
            raise InvalidObject(_QUESTION, "segments", part, "is no number of nodes, 1 or more")
        yield int(digits)


#: Kueue's versions, and how each writes an assignment.
VERSIONS: dict[str, Callable[..., Document]] = {"v1beta2": as_slices, "v1beta1": as_domains}


def topology_assignments(
    state: ClusterView, kind: str, namespace: str, name: str, *, version: str
) -> TopologyAssignments:
    """Return where the pods of a group are that have a node, by pod set.

    Args:
        kind: of the group's object, with its API group or without.

    Raises:
        InvalidObject: there is no such version.
        UnknownSubject: there is no such group, or it asks for no known topology.
    """
    if version not in VERSIONS:
        raise InvalidObject("question", "version", version, f"is none of {', '.join(VERSIONS)}")
    group = _group(state, kind, namespace, name)
    resolved = resolve(group.sets, state.network_topologies, group=f"{kind} {namespace}/{name}")
    if not isinstance(resolved, Resolved):
        why = "it asks for no topology" if resolved is None else str(resolved)
        raise UnknownSubject(f"{kind} {namespace}/{name} has no topology assignment: {why}")
    levels, depth = _levels(state, resolved.topology)
    paths = state.network_topologies.tree(resolved.topology)
    counts: dict[str, Counter[tuple[str, ...]]] = {}
    outside = 0
    for uid in state.group_table.pods_of(group.key):
        entry = state.pods.get(uid)
        if entry is None or not entry.charged:
            continue
        path = paths.path_of(entry.node)
        if len(path) < depth:
            outside += 1
            continue
        values = path[-1:] if levels == [HOSTNAME] else path[:depth]
        counts.setdefault(entry.pod_set, Counter())[values] += 1
    write = VERSIONS[version]
    return TopologyAssignments(
        group=group.key,
        topology=f"{resolved.topology.kind}/{resolved.topology.name}".rstrip("/"),
        position=state.position,
        recorded_at=time_text(state.recorded_at),
        outside=outside,
        pod_set_assignments=[
            PodSetAssignment(
                name=pod_set or "main",
                topology_assignment=write(levels, [AssignedDomain(*one) for one in counts[pod_set].items()]),
            )
            for pod_set in sorted(counts)
        ],
    )


def _group(state: WorkView, kind: str, namespace: str, name: str) -> Group:
    for _, group in sorted(state.groups.items()):
        is_named = (group.namespace, group.name) == (namespace, name)
        if is_named and kind in (group.origin, group.origin.partition(".")[0]):
            return group
    raise UnknownSubject(f"the log knows of no group {kind} {namespace}/{name}")


def _levels(state: FleetView, key: TopologyKey) -> tuple[list[str], int]:
    """Return the levels that an assignment names, and how many values lead to a domain of the lowest.

    Only the hostname where that is the lowest level, as Kueue has it; all of them where the definition ends above.
    """
    all_levels = state.network_topologies.paths(key).levels
    definition = state.network_topologies.definitions.get(key)
    if definition is not None and definition.levels and definition.levels[-1].keys:
        return [level.name for level in definition.levels], len(definition.levels)
    return [HOSTNAME], len(all_levels)


_NOWHERE = LogPlace(cluster="", position=0, recorded_at="")

#: Kinds of pods that an idle node may have: those that come with every node.
_COMES_WITH_THE_NODE = frozenset({"DaemonSet", "Node"})


def topologies_of(state: FleetView, wanted: TopologyQuestion) -> TopologiesAnswer:
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
        place_of(state),
    )


def comes_with_the_node(pod: Pod) -> bool:
    """Tell whether a pod is there because the node is: a DaemonSet's, or one of the kubelet's own."""
    return pod.owner is not None and pod.owner.kind in _COMES_WITH_THE_NODE


def topologies(
    book: TopologyBook,
    columns: NodeColumns,
    occupied: Iterable[str],
    wanted: TopologyQuestion,
    place: LogPlace = _NOWHERE,
) -> TopologiesAnswer:
    """Return topologies over nodes.

    Args:
        columns: the nodes, with what is used of them.
        occupied: names of nodes that are not idle.
        place: in a cluster's log; none for manifests.

    Raises:
        InvalidObject: the question makes no sense.
        UnknownSubject: there is no topology of the name.
    """
    slot = read_slot(wanted.slots, wanted.pod, columns.resources)
    rows = _rows(columns, occupied, slot)
    sizes = read_sizes(wanted.segments)
    keys = _wanted(book.topologies(), wanted.topology)
    answers = [_topology(key, book.tree(key), rows, sizes, single=wanted.nodes) for key in keys]
    requests = {} if slot is None else slot.requests
    return TopologiesAnswer(
        **place,
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
class _Rows:
    """The nodes by row, among all that have ever been, with amounts of each resource in the answer, and slots."""

    names: list[str]
    present: Flags
    available: Flags
    idle: Flags
    resources: dict[str, tuple[Ints, Ints, Ints]]
    slots: Ints | None


def _rows(columns: NodeColumns, occupied: Iterable[str], slot: Slot | None) -> _Rows:
    rows = len(columns.names)
    present = columns.present[:rows]
    available = present & columns.ready[:rows] & ~columns.unschedulable[:rows]
    idle = available.copy()
    idle[[columns.rows[name] for name in occupied if name in columns.rows]] = False
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
        usable = np.where(available, np.maximum(free[resource], 0), 0)
        resources[resource] = (allocatable, np.where(present, used, 0), usable)
    fitting = None
    if slot is not None:
        room = np.column_stack([free[resource] for resource in asked])
        takes = available & slot.takes(columns)[:rows]
        fitting = slots(room, np.array(list(asked.values()), np.int64), takes)
    amounts = {resource: resources[resource] for resource in shown}
    return _Rows(columns.names, present, available, idle, amounts, fitting)


def _topology(
    key: TopologyKey, tree: TopologyTree, rows: _Rows, sizes: Sequence[int], *, single: bool
) -> TopologyAnswer:
    """Return a topology; with the level of single nodes only if `single`."""
    columns = tree.columns(rows.names)
    depths = len(columns.levels)
    has_single = depths > 1 and not columns.levels[-1].keys
    counts = columns.sums(rows.present.astype(np.int64))
    sizes = sizes or sizes_to_show(max((int(one.max(initial=0)) for one in counts), default=0))
    sums = _Sums(columns, rows, sizes)
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
    nodes, problems = int(rows.present.sum()), list(tree.problems)
    return TopologyAnswer.copied(key, nodes=nodes, problems=problems, levels=levels, domains=top)


class _Sums:
    """The sums over the rows of each domain, by level."""

    def __init__(self, columns: TopologyColumns, rows: _Rows, sizes: Sequence[int]) -> None:
        self._columns = columns
        self.sizes = sizes
        self._nodes, self._available, self.idle = (
            columns.sums(flags.astype(np.int64)) for flags in (rows.present, rows.available, rows.idle)
        )
        self._resources = {
            resource: tuple(columns.sums(values) for values in kinds) for resource, kinds in rows.resources.items()
        }
        self.slots = None if rows.slots is None else columns.sums(rows.slots)

    def domain(self, depth: int, number: int) -> DomainAnswer:
        """Return a domain without those in it."""
        amounts = []
        for resource, kinds in self._resources.items():
            allocatable, used, free = (exact_amount(resource, int(values[depth][number])) for values in kinds)
            amounts.append(DomainResource(resource=resource, allocatable=allocatable, used=used, free=free))
        idle = self.idle[depth][number]
        return DomainAnswer(
            name=self._columns.domains[depth][number][-1],
            level=self._columns.levels[depth].name,
            nodes=int(self._nodes[depth][number]),
            available=int(self._available[depth][number]),
            idle=int(idle),
            resources=amounts,
            segments=[SegmentCount(size=size, count=int(idle // size)) for size in self.sizes],
            slots=None if self.slots is None else int(self.slots[depth][number]),
            domains=[],
        )


def _level(tree: TopologyTree, columns: TopologyColumns, sums: _Sums, depth: int) -> LevelAnswer:
    level, domains = columns.levels[depth], columns.domains[depth]
    counts = [SegmentCount(size=size, count=int((sums.idle[depth] // size).sum())) for size in sums.sizes]
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
