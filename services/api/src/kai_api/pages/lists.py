"""Lists of jobs, pods and nodes: filters, order and page are of the address, and only a page's rows are worked out.

The page of reservations: who has which nodes when, as a calendar of four weeks.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, NamedTuple

from fastapi import Query
from kaicore.analysis.ask.counterfactuals.reservations import SHOWN_US, ReservationRow, standing_reservations
from kaicore.analysis.ask.listing import counts_by_stage, is_there, pod_message, pod_status
from kaicore.analysis.ask.projections.capacity import GpuColumns, gpu_columns
from kaicore.analysis.json_spelling import duration_text, time_text
from kaicore.errors import InvalidObject
from kaicore.rules.groups.membership import POD
from kaicore.rules.model.gpu_share import gpus_text
from kaicore.rules.model.quantity import CPU, MEMORY, format_amount
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage, gpus_asked
from kaicore.rules.state.views import ClusterView
from kaicore.runtime.access.scopes import View

from kai_api.answering import redacted
from kai_api.pages.frame import page_of
from kai_api.pages.problems import NODE_PROBLEMS
from kai_api.pages.queues import starving

#: Rows of one page.
PAGE_ROWS = 100


#: Which page of a list; larger numbers are no page of anything.
PageNumber = Annotated[int, Query(ge=1, le=1_000_000)]


class Wanted(NamedTuple):
    """A selection of rows; an empty text lets all through.

    Attributes:
        name: part of the name, or of `namespace/name`.
        state: a word of the list's states.
        order: a word of `ORDERS`.
        number: of the page, from 1.
    """

    name: str = ""
    namespace: str = ""
    queue: str = ""
    node: str = ""
    state: str = ""
    order: str = ""
    number: PageNumber = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """A cell of a list; `parts` and `query` are of the address that it leads to, where it leads anywhere."""

    text: str
    parts: tuple[str, ...] = ()
    query: tuple[tuple[str, str], ...] = ()


_NONE = Entry("–")  # noqa: RUF001  # as all tables have it


@dataclass(frozen=True, slots=True)
class ListPage:
    """A page of a list.

    Attributes:
        kind: jobs, pods or nodes.
        filters: fields that it can be filtered by, each with what it is filtered by now.
        states: words for how things stand, and how many of the rows that the other filters let through stand so.
        columns: headings, and whether numbers are below.
        total: rows over all pages.
    """

    kind: str
    filters: tuple[tuple[str, str], ...]
    states: tuple[tuple[str, int], ...]
    state: str
    orders: tuple[str, ...]
    order: str
    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[Entry, ...], ...]
    total: int
    page: int
    pages: int


class _Thing(NamedTuple):
    """A thing with a row: the words for its state, its age and GPUs for the order, and the row's maker."""

    name: str
    states: Collection[str]
    created_at: int
    gpus: int
    row: Callable[[], tuple[Entry, ...]] = tuple


#: The orders of rows, by the word in the address.
ORDERS: dict[str, Callable[[_Thing], tuple[int, str]]] = {
    "name": lambda one: (0, one.name),
    "oldest": lambda one: (one.created_at, one.name),
    "newest": lambda one: (-one.created_at, one.name),
    "most GPUs": lambda one: (-one.gpus, one.name),
}
_COLUMNS = {
    "jobs": ("Job", "Queue", "State", "#GPUs", "#Waiting", "#Running", "#Priority", "#Age", "Why"),
    "pods": ("Pod", "Queue", "State", "Node", "#GPUs", "#Age", "Why"),
    "nodes": ("Node", "State", "#GPUs", "#Stranded", "#CPU", "#Memory", "#Pods", "#Rejected classes"),
}
_FILTERS = {
    "jobs": ("name", "namespace", "queue"),
    "pods": ("name", "namespace", "queue", "node"),
    "nodes": ("name",),
}


def list_page(state: ClusterView, kind: str, wanted: Wanted, view: View) -> ListPage:
    """Return a page of a list. Raises InvalidObject: there is no such order."""
    order = wanted.order or "name"
    if order not in ORDERS:
        raise InvalidObject(kind, "order", order[:100], f"is none of {', '.join(ORDERS)}")
    things = {"jobs": _jobs, "pods": _pods, "nodes": _nodes}[kind](state, wanted, view)
    counts = Counter(word for thing in things for word in thing.states)
    chosen = [thing for thing in things if wanted.state in ("", *thing.states)]
    chosen.sort(key=ORDERS[order])
    shown, number, pages = page_of(chosen, wanted.number, PAGE_ROWS)
    return ListPage(
        kind=kind,
        filters=tuple((name, str(getattr(wanted, name))) for name in _FILTERS[kind]),
        states=tuple(sorted({wanted.state: 0, **counts}.items() if wanted.state else counts.items())),
        state=wanted.state,
        orders=tuple(ORDERS),
        order=order,
        columns=tuple((name.removeprefix("#"), name.startswith("#")) for name in _COLUMNS[kind]),
        rows=tuple(thing.row() for thing in shown),
        total=len(chosen),
        page=number,
        pages=pages,
    )


def _queue(name: str) -> Entry:
    return Entry(name, ("jobs",), (("queue", name),)) if name else _NONE


def _admitted(state: ClusterView, wanted: Wanted, view: View) -> list[PodEntry]:
    """Return the pods that filters other than by name let through."""
    return [
        entry
        for entry in state.pods.values()
        if wanted.namespace in ("", entry.pod.namespace)
        and wanted.node in ("", entry.node)
        and wanted.queue in ("", state.queue_of(entry)[0])
        and (view.whole or view.sees(entry.pod.namespace))
        and is_there(entry)
    ]


def _message(state: ClusterView, entry: PodEntry, view: View) -> str:
    text = pod_message(state, entry)
    return text if view.whole else str(redacted(text, view))


def _age(state: ClusterView, created_at: int) -> str:
    return duration_text(state.recorded_at / 1e6 - created_at)


def _pods(state: ClusterView, wanted: Wanted, view: View) -> list[_Thing]:
    return [
        _Thing(
            entry.pod.subject,
            (pod_status(entry),),
            entry.pod.created_at,
            gpus_asked(entry),
            partial(_pod, state, entry, view),
        )
        for entry in _admitted(state, wanted, view)
        if wanted.name in entry.pod.subject
    ]


def _pod(state: ClusterView, entry: PodEntry, view: View) -> tuple[Entry, ...]:
    pod = entry.pod
    return (
        Entry(pod.subject, ("stories", "Pod", pod.namespace, pod.name)),
        _queue(state.queue_of(entry)[0]),
        Entry(pod_status(entry)),
        Entry(entry.node, ("nodes", entry.node) if view.whole else ()) if entry.node else _NONE,
        Entry(gpus_text(gpus_asked(entry))),
        Entry(_age(state, pod.created_at)),
        Entry(_message(state, entry, view)),
    )


def _jobs(state: ClusterView, wanted: Wanted, view: View) -> list[_Thing]:
    members = defaultdict[str, list[PodEntry]](list)
    for entry in _admitted(state, wanted, view):
        members[entry.group or entry.pod.uid].append(entry)
    starve, made = starving(state), []
    for key, entries in members.items():
        group, pod = state.groups.get(key), entries[0].pod
        alone = group is None or group.origin == POD or key.startswith(f"{POD}/")
        kind, name = ("Pod", pod.name) if alone or group is None else (group.origin.partition(".")[0], group.name)
        full = f"{pod.namespace}/{name}"
        if wanted.name not in full:
            continue
        counts = counts_by_stage(entries)
        states = [word for word in ("waiting", "running", "leaving") if counts[word]] or ["ended"]
        job = _Thing(
            full,
            (*states, "starving") if key in starve else states,
            min(entry.pod.created_at for entry in entries),
            sum(gpus_asked(entry) for entry in entries if entry.stage is not Stage.FINISHED),
        )
        where = ("stories", kind, pod.namespace, name)
        made.append(job._replace(row=partial(_job, state, job, entries, view, where=where)))
    return made


def _job(
    state: ClusterView, job: _Thing, entries: Sequence[PodEntry], view: View, *, where: tuple[str, ...]
) -> tuple[Entry, ...]:
    counts, group = counts_by_stage(entries), state.groups.get(entries[0].group)
    waits = next((entry for entry in entries if entry.stage is Stage.WAITING), None)
    return (
        Entry(job.name, where),
        _queue(state.queue_of(entries[0])[0]),
        Entry(", ".join(job.states)),
        Entry(gpus_text(job.gpus)),
        Entry(str(counts["waiting"])),
        Entry(str(counts["running"])),
        Entry(str(0 if group is None else group.priority)),
        Entry(_age(state, job.created_at)),
        Entry("" if waits is None else _message(state, waits, view)),
    )


def _nodes(state: ClusterView, wanted: Wanted, _: View) -> list[_Thing]:
    gpus, columns = gpu_columns(state), state.columns
    marked = {word: nodes_of(state) for word, (nodes_of, _) in NODE_PROBLEMS.items()}
    made = []
    for name, at in columns.rows.items():
        node = columns.facts[at]
        if node is None or wanted.name not in name:
            continue
        states = [word for word, nodes in marked.items() if name in nodes]
        if node.unschedulable:
            states.append("cordoned")
        if gpus.available[at]:
            used = int(gpus.held[at] + gpus.releasing[at])
            states.append("idle" if not used else "full" if used >= gpus.total[at] else "partly used")
        made.append(_Thing(name, states, 0, int(gpus.total[at]), partial(_node, state, gpus, at, states)))
    return made


def _node(state: ClusterView, gpus: GpuColumns, row: int, states: Sequence[str]) -> tuple[Entry, ...]:
    columns, name = state.columns, state.columns.names[row]

    def use(resource: str) -> Entry:
        column = columns.resources.get(resource)
        if column is None:
            return _NONE
        used, there_is = (int(table[row, column]) for table in (columns.used, columns.allocatable))
        return Entry(f"{format_amount(resource, used)} of {format_amount(resource, there_is)}")

    held = int(gpus.held[row] + gpus.releasing[row])
    return (
        Entry(name, ("nodes", name)),
        Entry(", ".join(states)),
        Entry(f"{gpus_text(held)} of {gpus_text(int(gpus.total[row]))}"),
        Entry(gpus_text(int(gpus.stranded[row]))),
        use(CPU),
        use(MEMORY),
        Entry(str(len(state.charges.on_node.get(name, ()))), ("pods",), (("node", name),)),
        Entry(str(sum(one.count > 0 for one in state.rejections.by_node.get(name, {}).values()))),
    )


class WindowSpan(NamedTuple):
    """A window, as percentages of the four weeks."""

    start: float
    width: float
    text: str


class ReservationLine(NamedTuple):
    """A reservation on the page."""

    row: ReservationRow
    spans: list[WindowSpan]


class ReservationsPage(NamedTuple):
    """The reservations of a cluster at a moment; `begin` and `end` are those of the four weeks."""

    begin: str
    end: str
    rows: list[ReservationLine]


def reservations_page(state: ClusterState, *, now: int) -> ReservationsPage:
    """Return the page's model."""
    answer, now = standing_reservations(state, now=now), max(now, state.recorded_at)
    begin = now / 1_000_000

    def span(start: str, end: str) -> WindowSpan:
        first, last = (
            min(max((datetime.fromisoformat(one).timestamp() - begin) * 1e8 / SHOWN_US, 0.0), 100.0)
            for one in (start, end)
        )
        text = f"{start[:16].replace('T', ' ')} to {end[:16].replace('T', ' ')}"
        return WindowSpan(round(first, 2), round(max(last - first, 0.4), 2), text)

    lines = [ReservationLine(row, [span(one.start, one.end) for one in row.windows]) for row in answer.reservations]
    return ReservationsPage(time_text(now)[:16].replace("T", " "), time_text(now + SHOWN_US)[:10], lines)
