"""Reservations of nodes: those that stand, with what is in their way, and one that is asked for, before it is made."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import msgspec

from kaicore.analysis.json_spelling import Answer, AsOf, place_of, time_text
from kaicore.errors import InvalidObject, raised
from kaicore.kube.kinds.table import RESERVATION
from kaicore.rules.deciding.decided_classes import queue_names
from kaicore.rules.deciding.reserved_nodes import nodes_of, strangers
from kaicore.rules.deciding.run_length import limits_of
from kaicore.rules.events.reasons.base import plural
from kaicore.rules.model.gpu_share import GPU, gpus_text
from kaicore.rules.model.node import Node
from kaicore.rules.model.queue import CLUSTER_QUEUE_PREFIX
from kaicore.rules.model.reservation import NodeReservation, Window, whom_text
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import PodEntry, gpus_asked

#: Windows are listed for so long.
SHOWN_US = 28 * 24 * 3_600_000_000
#: Windows of both are compared for so long.
_AHEAD_US = 366 * 24 * 3_600_000_000
#: So many windows of a plan are named.
_FIRST = 4
#: A node on which work cannot start comes after all others, whatever they would displace.
_NO_USE = 1_000_000


class ReservationQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation that is asked for.

    Attributes:
        queue, namespace, work: for whom it is; with neither, it is for maintenance.
        nodes: names, divided by commas; empty where they are to be chosen.
        labels: of the nodes that may be chosen, `key=value`, divided by commas.
        gpus: how many GPUs the chosen nodes have at least; 0 where nodes are counted.
        count: how many nodes are chosen; 0 for all that have the labels.
        within: label of the domain in which all chosen nodes are; empty for any nodes.
        start, end: of its first window, RFC 3339.
        recurrence, time_zone: see `kaicore.rules.model.reservation.NodeReservation`.
        notice: a duration such as 30m; empty for an hour.
        drain_by: when all other work has left the nodes, RFC 3339; empty where nothing is evicted.
    """

    name: str
    start: str
    end: str
    queue: str = ""
    namespace: str = ""
    work: str = ""
    nodes: str = ""
    labels: str = ""
    gpus: int = 0
    count: int = 0
    within: str = ""
    recurrence: str = ""
    time_zone: str = ""
    notice: str = ""
    drain_by: str = ""


class InTheWayRow(Answer, frozen=True, kw_only=True):
    """A pod that is on a reserved node, that the reservation is not for, and that does not end before a window.

    Attributes:
        ends_at: by its declared limit; empty where it has none.
    """

    node: str
    namespace: str
    name: str
    queue: str
    gpus: str
    ends_at: str


class WindowRow(Answer, frozen=True, kw_only=True):
    """A window of a reservation."""

    start: str
    end: str


class ReservationRow(Answer, frozen=True, kw_only=True):
    """A reservation that stands.

    Attributes:
        state: Active in a window, Planned before one, Over after the last.
        start, end: of that window; of the first, where it is over.
        time_zone: by which it recurs; empty for UTC.
        drain_by: when all other work has left; empty where nothing is evicted.
        missing: nodes that it names and that are not there, or not ready.
        in_the_way: pods on its nodes that it is not for, and that are there when the window begins.
        first: its first window, from which a recurrence counts.
        windows: those of the next four weeks.
    """

    name: str
    state: str
    queue: str
    namespace: str
    work: str
    start: str
    end: str
    recurrence: str
    time_zone: str
    drain_by: str
    nodes: list[str]
    missing: list[str]
    gpus: int
    in_the_way: list[InTheWayRow]
    first: WindowRow
    windows: list[WindowRow]

    @property
    def whom(self) -> str:
        """For whom it is, for people."""
        drained = f", drained by {self.drain_by[:16].replace('T', ' ')} UTC" if self.drain_by else ""
        return whom_text(self.queue, self.namespace, self.work) + drained


class ReservationsAnswer(AsOf, frozen=True, kw_only=True):
    """The reservations of a cluster, the next one first."""

    reservations: list[ReservationRow]


class ReservationPlan(AsOf, frozen=True, kw_only=True):
    """A reservation before it is made.

    Attributes:
        refusal: why it cannot be; empty if it can.
        displaces: pods that are on its nodes when its first window begins.
        windows: the first ones.
        manifest: the object, for the API server; empty where it is refused.
    """

    refusal: str
    nodes: list[str]
    gpus: int
    displaces: list[InTheWayRow]
    windows: list[WindowRow]
    manifest: dict[str, object]


def standing_reservations(state: ClusterState, *, now: int = 0) -> ReservationsAnswer:
    """Return the reservations of a cluster as its log knows them, at a time since its last event (0: at that event)."""
    now = max(now, state.recorded_at)
    rows = []
    for _, one in sorted(state.reservations.items()):
        window = one.window(now)
        shown = window or Window(one.start, one.end)
        nodes = nodes_of(state, one)
        ready = {node.name for node in nodes if state.columns.ready[state.columns.row(node.name)]}
        rows.append(
            ReservationRow.copied(
                one,
                state="Over" if window is None else "Active" if window.start <= now else "Planned",
                start=time_text(shown.start),
                end=time_text(shown.end),
                drain_by=time_text(one.drain_by) if one.drain_by else "",
                nodes=[node.name for node in nodes],
                missing=sorted({*one.nodes, *(node.name for node in nodes)} - ready),
                gpus=sum(map(_gpus, nodes)),
                in_the_way=[] if window is None else list(_in_the_way(state, one, nodes, window)),
                first=_row(Window(one.start, one.end)),
                windows=list(map(_row, one.windows(now, now + SHOWN_US))),
            )
        )
    rows.sort(key=lambda row: (row.state == "Over", row.start, row.name))
    return ReservationsAnswer(
        **place_of(state),
        reservations=rows,
    )


def _row(window: Window) -> WindowRow:
    return WindowRow(start=time_text(window.start), end=time_text(window.end))


def planned_reservation(state: ClusterState, asked: ReservationQuestion) -> ReservationPlan:
    """Return what a reservation would be, and what would be in its way.

    Nodes are chosen so that it displaces the fewest GPUs; of equal ones, the first by name.
    Raises InvalidObject: the question makes no sense.
    """
    labels = _labels(asked)
    named = sorted({name.strip() for name in asked.nodes.split(",")} - {""})
    draft = reservation_of(_manifest(asked, named or ["chosen"]))
    if named:
        known = {node.name for node in _present(state)}
        missing = [name for name in named if name not in known]
        chosen, problem = named, f"no node {missing[0]}" if missing else ""
    else:
        chosen, problem = _chosen(state, asked, draft, labels)
    manifest = _manifest(asked, chosen or ["none"])
    one = reservation_of(manifest)
    problem = problem or next(_problems(state, one), "") or next(_conflicts(state, one), "")
    nodes = [node for node in _present(state) if node.name in chosen]
    window = one.window(state.recorded_at)
    if window is None:
        problem = problem or "its last window is over"
    return ReservationPlan(
        **place_of(state),
        refusal=problem,
        nodes=chosen,
        gpus=sum(map(_gpus, nodes)),
        displaces=[] if window is None else list(_in_the_way(state, one, nodes, window)),
        windows=list(map(_row, one.windows(one.start, one.start + _AHEAD_US)[:_FIRST])),
        manifest={} if problem else manifest,
    )


def _manifest(asked: ReservationQuestion, nodes: list[str]) -> dict[str, object]:
    whom = {name: value for name in ("queue", "namespace", "work") if (value := getattr(asked, name))}
    optional: dict[str, object] = {
        "for": whom,
        "recurrence": asked.recurrence,
        "timeZone": asked.time_zone,
        "notice": asked.notice,
        "drainBy": asked.drain_by,
    }
    spec: dict[str, object] = {"nodes": sorted(nodes), "start": asked.start, "end": asked.end}
    spec |= {name: value for name, value in optional.items() if value}
    return {
        "apiVersion": "kai.scheduler/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": asked.name},
        "spec": spec,
    }


def reservation_of(manifest: dict[str, object]) -> NodeReservation:
    """Return the model of a Reservation's manifest. Raises InvalidObject: it makes no sense."""
    model = RESERVATION.normalize(RESERVATION.decode(msgspec.json.encode(manifest)), raised)
    assert isinstance(model, NodeReservation)
    return model


def _labels(asked: ReservationQuestion) -> dict[str, str]:
    if asked.gpus < 0 or asked.count < 0:
        raise InvalidObject("reservation", "gpus, count", f"{asked.gpus}, {asked.count}", "must not be negative")
    pairs = [one.strip().partition("=") for one in asked.labels.split(",") if one.strip()]
    if any(not (key and equals) for key, equals, _ in pairs):
        raise InvalidObject("reservation", "labels", asked.labels, "must be key=value, divided by commas")
    if asked.nodes and (pairs or asked.gpus or asked.count or asked.within):
        raise InvalidObject("reservation", "nodes", asked.nodes, "are named: no labels, GPUs, count or domain besides")
    if not (asked.nodes or pairs or asked.gpus or asked.count or asked.within):
        raise InvalidObject("reservation", "nodes", "", "say which: names, labels, GPUs, or a count of nodes")
    return {key: value for key, _, value in pairs}


def _chosen(
    state: ClusterState, asked: ReservationQuestion, draft: NodeReservation, labels: Mapping[str, str]
) -> tuple[list[str], str]:
    """Return the nodes that are chosen, or none and why; all that have the labels where no number is asked for."""
    labelled = [node for node in _present(state) if labels.items() <= node.labels.items()]
    if not labelled:
        return [], f"no node has {', '.join(f'{key}={value}' for key, value in labels.items()) or 'been seen'}"
    if not (asked.gpus or asked.count or asked.within):
        # A rack's maintenance is for its broken nodes, too.
        return sorted(node.name for node in labelled), ""
    taken = {name for other in _overlapping(state, draft) for name in (node.name for node in nodes_of(state, other))}
    free = [node for node in labelled if node.name not in taken and state.columns.ready[state.columns.row(node.name)]]
    window = draft.window(state.recorded_at)
    lost = Counter[str]()
    if window is not None:
        limit_of = limits_of(state)
        for node in free:
            for entry in strangers(state, draft, node):
                if not 0 <= end_by_limit(entry, limit_of(entry)) <= window.start:
                    lost[node.name] += 1 + gpus_asked(entry)
            if not draft.maintenance and (node.unschedulable or any(state.node_trials.of_node(node.name))):
                lost[node.name] += _NO_USE
    domains: dict[str, list[Node]] = {}
    for node in sorted(free, key=lambda node: (lost[node.name], node.name)):
        domain = node.labels.get(asked.within, "") if asked.within else "all"
        if domain:
            domains.setdefault(domain, []).append(node)
    found = [some for nodes in domains.values() if (some := _enough(nodes, asked))]
    if not found:
        within = f" in one {asked.within}" if asked.within else ""
        wanted = f"{asked.gpus} GPUs" if asked.gpus else plural(asked.count or 1, "node")
        have = max((sum(map(_gpus, nodes)) if asked.gpus else len(nodes) for nodes in domains.values()), default=0)
        return [], f"{wanted} cannot be had{within} beside other reservations: {have} at most"
    best = min(found, key=lambda nodes: (sum(lost[node.name] for node in nodes), len(nodes), nodes[0].name))
    return sorted(node.name for node in best), ""


def _enough(nodes: list[Node], asked: ReservationQuestion) -> list[Node]:
    """Return the first nodes that are enough; none if all are too few."""
    if asked.gpus:
        gpus = 0
        with_gpus = [node for node in nodes if _gpus(node)]
        for number, node in enumerate(with_gpus, start=1):
            gpus += _gpus(node)
            if gpus >= asked.gpus:
                return with_gpus[:number]
        return []
    return nodes[: asked.count or len(nodes)] if len(nodes) >= asked.count else []


def _problems(state: ClusterState, one: NodeReservation) -> Iterator[str]:
    """Yield what is wrong with a reservation of its own."""
    queues = {queue.name for queue in state.queue_registry.tree.queues}
    named = (queue for entry in state.pods.values() for queue in queue_names(state, entry))
    if one.queue and one.queue not in {name.removeprefix(CLUSTER_QUEUE_PREFIX) for name in queues}.union(queues, named):
        yield f"there is no queue {one.queue}, and no work that names it"
    if one.recurrence and (first := one.first_of_rule()) != one.start:
        then = "never" if first is None else f"at {time_text(first)} first"
        rule = f"{one.recurrence} in {one.time_zone or 'UTC'}"
        yield f"its start, {time_text(one.start)}, is not among its windows: {rule} begins {then}"
    if any(earlier.end > later.start for earlier, later in pairwise(one.windows(one.start, one.start + _AHEAD_US))):
        yield "one of its windows begins before the one before it has ended"


def _conflicts(state: ClusterState, one: NodeReservation) -> Iterator[str]:
    for other in _overlapping(state, one):
        if one.drain_by and other.maintenance and not other.drain_by:
            # What is drained may be for a window that is planned already.
            continue
        both = [node.name for node in nodes_of(state, other) if node.name in one.nodes]
        if both and other.name != one.name:
            yield f"node {both[0]} is reserved by {other.name} then"
    if one.name in state.reservations:
        yield f"there is a reservation {one.name} already"


def _overlapping(state: ClusterState, one: NodeReservation) -> Iterator[NodeReservation]:
    """Yield reservations of which a window touches one of another reservation's within a year."""
    begin = max(state.recorded_at, one.start)
    own = one.windows(begin, begin + _AHEAD_US)
    for _, other in sorted(state.reservations.items()):
        both = sorted([*own, *other.windows(begin, begin + _AHEAD_US)])
        if any(earlier.end > later.start for earlier, later in pairwise(both)):
            yield other


def _present(state: ClusterState) -> list[Node]:
    nodes = (state.columns.facts[row] for _, row in sorted(state.columns.rows.items()))
    return [node for node in nodes if node is not None]


def _gpus(node: Node) -> int:
    return node.allocatable.get(GPU, 0)


def _in_the_way(
    state: ClusterState, one: NodeReservation, nodes: Iterable[Node], window: Window
) -> Iterator[InTheWayRow]:
    limit_of = limits_of(state)
    for node in nodes:
        for entry in strangers(state, one, node):
            end = end_by_limit(entry, limit_of(entry))
            if 0 <= end <= window.start:
                continue
            yield InTheWayRow(
                node=node.name,
                namespace=entry.pod.namespace,
                name=entry.pod.name,
                queue=state.queue_registry.tree.name_for(*state.queue_of(entry)),
                gpus=gpus_text(gpus_asked(entry)),
                ends_at=time_text(end) if end >= 0 else "",
            )


def end_by_limit(entry: PodEntry, limit_us: int) -> int:
    """Return when a pod ends by its limit; -1 without one."""
    return (entry.started_at or entry.placed_at) + limit_us if limit_us >= 0 else -1
