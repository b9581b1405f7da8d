"""The page of queues: their tree, and what they held and deserved over time.

The tree has what each queue deserves, holds and waits for of one resource. Charts are small, and have one scale.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kaicore.analysis.ask.listing import queues_of
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.gpu_share import SHARED_GPU, SHARED_IN, WHOLE, gpus_text
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import format_amount, is_memory
from kaicore.rules.queues.division import HOUR_US
from kaicore.rules.queues.tree import GPU, UNLIMITED, counted, is_gpu
from kaicore.rules.state.views import ClusterView, FleetView, QueuesView

#: How far back a chart may look, by name, seconds; the longer ones are read from the hours that the state keeps.
SPANS = {"1h": 3600, "6h": 6 * 3600, "1d": 86_400, "7d": 7 * 86_400}
_BY_REPORTS = ("1h", "6h")
#: Points of a chart by reports, and queues that have charts.
_POINTS, _MOST_QUEUES = 96, 24
#: Size of a chart's drawing.
_WIDTH, _HEIGHT = 240, 56


@dataclass(frozen=True, slots=True)
class QueueChart:
    """One queue's chart.

    Attributes:
        allocated: outline of what it held, as an SVG path.
        deserved: line of its fair share, likewise; empty where it is not known.
        last: what it held at the end, for people.
        most: the most that it held, for people.
        values: what it held at each point, for people.
    """

    name: str
    allocated: str
    deserved: str
    last: str
    most: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueueCharts:
    """Charts over one span of time.

    Attributes:
        times: of the points, microseconds since the epoch.
        top: what the full height stands for, for people.
    """

    span: str
    spans: tuple[str, ...]
    began: int
    ended: int
    times: tuple[int, ...]
    top: str
    charts: tuple[QueueChart, ...]


def spans_of(state: QueuesView) -> tuple[str, ...]:
    """Return the spans of which there can be charts, the first one to be shown by default.

    Cycles report queues that are objects; without any, there is their use by the hour.
    """
    return tuple(span for span in SPANS if state.queue_registry.queues or span not in _BY_REPORTS)


def reads_reports(span: str) -> bool:
    """Tell whether a span's charts are made from recorded reports."""
    return span in _BY_REPORTS


def charts_of_reports(
    events: Iterable[Event], names: Sequence[str], resource: str, *, span: str, ended: int
) -> QueueCharts:
    """Return charts made from `QueuesReported`.

    Args:
        events: in order; some may be from before the span, and tell how queues stood when it began.
        span: one of `SPANS`.
        ended: its end, microseconds since the epoch.
    """
    began = ended - SPANS[span] * 1_000_000
    times = tuple(began + (ended - began) * point // (_POINTS - 1) for point in range(_POINTS))
    shown = names[:_MOST_QUEUES]
    held: dict[str, list[int]] = {name: [] for name in shown}
    owed: dict[str, list[int]] = {name: [] for name in shown}
    now: dict[str, tuple[int, int]] = {}
    reports = [(event.recorded_at, decode_payload(event)) for event in events]
    place = 0
    for time in times:
        while place < len(reports) and reports[place][0] <= time:
            report = reports[place][1]
            place += 1
            if isinstance(report, payloads.QueuesReported):
                now |= {
                    item.queue: (_amount(item.allocated, resource), _amount(item.fair_share, resource))
                    for item in report.queues
                    if item.queue in held
                }
        for name in shown:
            allocated, fair = now.get(name, (0, 0))
            held[name].append(allocated)
            owed[name].append(fair)
    return _charts(held, owed, resource, span=span, spans=tuple(SPANS), times=times)


def charts_of_hours(state: QueuesView, names: Sequence[str], resource: str, *, span: str) -> QueueCharts:
    """Return charts made from what the state keeps of queues' use by the hour."""
    registry = state.queue_registry
    tree = registry.tree
    last = state.recorded_at // HOUR_US
    hours = range(last - SPANS[span] // 3600 + 1, last + 1)
    sums: dict[str, dict[int, int]] = {}
    for key, usage in registry.usages.items():
        number = tree.find(key.queue, namespace=key.namespace)
        history = usage.history
        by_hour = {
            hour: _amount({name: kept.get(hour, 0) for name, kept in history.hours.items()}, resource) for hour in hours
        }
        for hour in hours[max(0, history.settled_ms * 1000 // HOUR_US - hours.start) :]:
            # What it has used since its last change is not written down yet.
            by_hour[hour] = _amount(
                history.weighed(range(hour, hour + 1), {hour: 1}, at_us=state.recorded_at), resource
            )
        for above in () if number is None else tree.paths[number]:
            into = sums.setdefault(tree.queues[above].name, {})
            for hour, amount in by_hour.items():
                into[hour] = into.get(hour, 0) + amount
    # Memory is counted in MiB there; of the hour that has begun only what has passed counts.
    unit = 1 << 20 if is_memory(resource) else 1
    length = dict.fromkeys(hours, HOUR_US // 1000)
    length[last] = max(1, (state.recorded_at - last * HOUR_US) // 1000)
    held = {
        name: [unit * (sums.get(name, {}).get(hour, 0) // length[hour]) for hour in hours]
        for name in names[:_MOST_QUEUES]
    }
    times = tuple(hour * HOUR_US for hour in hours)
    return _charts(held, {}, resource, span=span, spans=spans_of(state), times=times)


def _charts(
    held: Mapping[str, list[int]],
    owed: Mapping[str, list[int]],
    resource: str,
    *,
    span: str,
    spans: tuple[str, ...],
    times: tuple[int, ...],
) -> QueueCharts:
    top = max((max(values, default=0) for table in (held, owed) for values in table.values()), default=0)
    charts = []
    for name, values in held.items():
        line = owed.get(name, [])
        charts.append(
            QueueChart(
                name=name,
                allocated=_path(values, top, closed=True),
                deserved=_path(line, top, closed=False) if any(line) else "",
                last=_text(resource, values[-1]) if values else "0",
                most=_text(resource, max(values, default=0)),
                values=tuple(_text(resource, value) for value in values),
            )
        )
    return QueueCharts(
        span=span,
        spans=spans,
        began=times[0],
        ended=times[-1],
        times=times,
        top=_text(resource, top),
        charts=tuple(charts),
    )


def _path(values: Sequence[int], top: int, *, closed: bool) -> str:
    """Return steps from point to point as an SVG path; equal points are one line."""
    if not values or not top:
        return ""
    step = _WIDTH / max(1, len(values) - 1)
    heights = [round(_HEIGHT - (_HEIGHT - 2) * value / top, 1) for value in values]
    changes = (place for place in range(1, len(heights)) if heights[place] != heights[place - 1])
    moves = [f"M0 {heights[0]:g}", *(f"H{place * step:.0f}V{heights[place]:g}" for place in changes)]
    moves.append(f"H{_WIDTH}")
    if closed:
        moves.append(f"V{_HEIGHT}H0Z")
    return "".join(moves)


@dataclass(frozen=True, slots=True)
class QueueLine:
    """A queue and one resource of its account, the queues below it included.

    Attributes:
        depth: 0 for a root.
        label: the last part of its name where that is a path.
        quota, limit, deserved, allocated, requested: for people; `deserved` is its fair share now.
        allocated_share, deserved_share, requested_share: of all there is in the cluster, in hundredths.
        over: whether it holds more than it deserves.
        waiting, running: pods that name it or a queue below it.
    """

    name: str
    kind: str
    depth: int
    stopped: bool
    quota: str
    limit: str
    deserved: str
    allocated: str
    requested: str
    allocated_share: float
    deserved_share: float
    requested_share: float
    over: bool
    waiting: int
    running: int


def queue_resources(state: QueuesView) -> tuple[str, ...]:
    """Return the resources that queues have accounts of; `gpu` first where it is one."""
    tree = state.queue_registry.tree
    names = set(tree.resources) or {GPU, "cpu", "memory"}
    return tuple(sorted(names, key=lambda name: (name != GPU, name)))


def queue_lines(state: ClusterView, resource: str) -> tuple[QueueLine, ...]:
    """Return the queues, parents before their children.

    Args:
        resource: as queues name it, such as `gpu`; where queues name it not, the first that they do.
    """
    accounts = state.queue_accounts(state.config(), now=state.recorded_at)
    tree = accounts.tree
    if not tree.configured:
        return _unconfigured(state, resource)
    resource = resource if resource in tree.resources else next(iter(queue_resources(state)), "")
    place = tree.resources.index(resource) if resource in tree.resources else -1
    whole = total_of(state, resource)
    waiting, running = _pods(state)
    lines: list[QueueLine] = []

    def visit(number: int, depth: int) -> None:
        queue = tree.queues[number]
        if place >= 0:
            allocated, deserved, requested, quota, limit = (
                tree.in_thousandths(place, int(table[number][place]))
                for table in (
                    accounts.used,
                    accounts.shares.fair,
                    accounts.shares.requested,
                    tree.quotas,
                    tree.limits,
                )
            )
        else:
            allocated = deserved = requested = quota = 0
            limit = UNLIMITED
        lines.append(
            QueueLine(
                name=queue.name,
                kind="" if number == tree.implied_default else queue.origin.partition(".")[0] or "Queue",
                depth=depth,
                stopped=queue.stopped,
                quota=_text(resource, quota),
                limit="" if limit >= UNLIMITED else _text(resource, limit),
                deserved=_text(resource, deserved),
                allocated=_text(resource, allocated),
                requested=_text(resource, requested),
                allocated_share=_share(allocated, whole),
                deserved_share=_share(deserved, whole),
                requested_share=_share(requested, whole),
                over=allocated > deserved,
                waiting=waiting[number],
                running=running[number],
            )
        )
        for child in tree.children[number]:
            visit(child, depth + 1)

    unused = -1 if state.queue_registry.uses_implied_default() else tree.implied_default
    for root in tree.roots:
        if root != unused and place not in tree.not_counted_by(root):
            visit(root, 0)
    return tuple(lines)


def total_of(state: FleetView, resource: str) -> int:
    """Return what all ready nodes have of a resource, as queues count it; GPUs in thousandths."""
    columns = state.columns
    rows = len(columns.names)
    ready = columns.present[:rows] & columns.ready[:rows]
    sums = {
        name: int(columns.allocatable[:rows, column][ready].sum(dtype=float))
        for name, column in columns.resources.items()
    }
    return _amount(counted(sums), resource)


def _amount(amounts: Amounts, resource: str) -> int:
    """Return an amount of a resource; of GPUs in thousandths, with the parts of GPUs that are shared."""
    amount = amounts.get(resource, 0)
    parts = amounts.get(SHARED_GPU, 0) if resource in SHARED_IN else 0
    return amount * WHOLE + parts if is_gpu(resource) else amount


def _unconfigured(state: ClusterView, resource: str) -> tuple[QueueLine, ...]:
    """Return the one queue that all work is in where there are no objects."""
    whole = total_of(state, resource)
    usages = state.queue_registry.usages.values()
    allocated = sum(_amount(counted(usage.used), resource) for usage in usages)
    requested = allocated + sum(_amount(counted(usage.pending), resource) for usage in usages)
    waiting, running = _pods(state)
    return tuple(
        QueueLine(
            name=queue.name,
            kind="",
            depth=0,
            stopped=False,
            quota="unlimited",
            limit="",
            deserved=_text(resource, whole),
            allocated=_text(resource, allocated),
            requested=_text(resource, requested),
            allocated_share=_share(allocated, whole),
            deserved_share=100.0,
            requested_share=_share(requested, whole),
            over=False,
            waiting=waiting[0],
            running=running[0],
        )
        for queue in queues_of(state)
    )


def _pods(state: QueuesView) -> tuple[Counter[int], Counter[int]]:
    """Count the pods of each queue and of those above it, by the tree's number: those that wait, those that run."""
    tree = state.queue_registry.tree
    paths: dict[tuple[str, str], tuple[int, ...]] = {}
    counts: Counter[tuple[tuple[int, ...], bool]] = Counter()
    for entry in state.pods.values():
        if not (entry.waiting or entry.charged):
            continue
        key = state.queue_of(entry)
        if key not in paths:
            number = tree.find(key[0], namespace=key[1])
            paths[key] = () if number is None else tree.paths[number]
        counts[paths[key], entry.charged] += 1
    waiting: Counter[int] = Counter()
    running: Counter[int] = Counter()
    for (path, charged), pods in counts.items():
        for number in path:
            (running if charged else waiting)[number] += pods
    return waiting, running


def _text(resource: str, amount: int) -> str:
    """Write an amount: of GPUs in thousandths, else in the resource's own unit."""
    if amount >= UNLIMITED:
        return "unlimited"
    return gpus_text(amount) if is_gpu(resource) else format_amount(resource, amount)


def _share(amount: int, whole: int) -> float:
    return round(min(100.0, 100 * amount / whole), 2) if whole else 0.0


@dataclass(frozen=True, slots=True)
class QueuesPage:
    """The queues and one resource.

    Attributes:
        resource: of `resources`, those that queues have accounts of.
    """

    resource: str
    resources: tuple[str, ...]
    lines: tuple[QueueLine, ...]
    charts: QueueCharts


def queues_page(state: ClusterView, reports: Sequence[Event], *, resource: str, span: str) -> QueuesPage:
    """Return the model of the page of queues.

    Args:
        reports: `QueuesReported` of the span, where its charts are made from these.
        resource: as queues name it; the first one that they do where they name no such.
        span: one of `spans_of`.
    """
    resources = queue_resources(state)
    resource = resource if resource in resources else resources[0]
    lines = queue_lines(state, resource)
    names = [line.name for line in lines]
    if reads_reports(span):
        charts = charts_of_reports(reports, names, resource, span=span, ended=state.recorded_at)
    else:
        charts = charts_of_hours(state, names, resource, span=span)
    return QueuesPage(resource, resources, lines, charts)
