"""The past in figures: charts of GPUs and queues over time, and the report of a month's GPU-hours.

Charts are SVG, so that a page without scripts has them. With scripts a pointer on a chart moves the page's moment.
Nothing is kept for them: they are made from read models, from cycles' reports, and from queues' hours in the state.
A month is summed from the hours that are kept.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import Response
from kaicore.analysis.ask.hours.account import Period, by_month, month_of
from kaicore.analysis.ask.hours.kept import KeptHours, kept_hours_of
from kaicore.analysis.ask.hours.report import DIMENSIONS, Accounted, ReportQuestion, UsageReport, month_range, report_of
from kaicore.analysis.ask.projections.rows import Occupancy, QueueHour
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.quantity import is_memory
from kaicore.rules.queues.division import HOUR_US
from kaicore.rules.state.views import QueuesView

from kai_api.pages.frame import Places, page
from kai_api.pages.queues import amount_of, amount_text

#: How far back a chart may look, by name, seconds.
SPANS = {"1h": 3600, "6h": 6 * 3600, "1d": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400, "90d": 90 * 86_400}
#: Spans of queues' charts that are made from reports, and from hours of the state; read models have the others.
BY_REPORTS, BY_STATE = ("1h", "6h"), ("1d", "7d")
#: Points of a chart, and queues that have charts.
_POINTS, MOST_QUEUES = 120, 24
#: Size of a chart's drawing.
_WIDTH, _HEIGHT = 960, 160


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart, or the outline of an area.

    Attributes:
        kind: of it, a class in the style sheet.
        path: of SVG.
        last, most: the value at the end, and the highest one, for people.
        values: at each point, for people.
    """

    kind: str
    label: str
    path: str
    last: str
    most: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one span of time (`top`: the meaning of the full height, for people)."""

    name: str
    top: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class ChartsPage:
    """Charts of one resource.

    Attributes:
        began, ended: the times of all charts, microseconds since the epoch.
        mark: where the page's own moment is, in hundredths; None where it is not in the span.
        cluster: its GPUs; None where read models have nothing of the span.
    """

    resource: str
    resources: tuple[str, ...]
    span: str
    spans: tuple[str, ...]
    began: int
    ended: int
    mark: float | None
    times: tuple[int, ...]
    cluster: Chart | None
    queues: tuple[Chart, ...]


def times_of(span: str, ended: int) -> tuple[int, ...]:
    """Return the times of a chart's points."""
    began = ended - SPANS[span] * 1_000_000
    return tuple(began + (ended - began) * point // (_POINTS - 1) for point in range(_POINTS))


def _held(times: Sequence[int], changes: Iterable[tuple[int, int]]) -> list[int]:
    """Return the values at some times of what changes at others; 0 before the first change."""
    values, now, coming = list[int](), 0, iter(changes)
    change = next(coming, None)
    for time in times:
        while change is not None and change[0] <= time:
            now, change = change[1], next(coming, None)
        values.append(now)
    return values


#: Areas of the cluster's chart from below, by their class in the style sheet, which is also their field.
_AREAS = {"held": "held", "releasing": "releasing", "stranded": "stranded", "free": "free", "out": "out of service"}


def chart_of_cluster(rows: Sequence[Occupancy], times: Sequence[int]) -> Chart | None:
    """Return how a cluster's GPUs were used, one kind upon the other, and what waiting pods asked for."""
    if not rows:
        return None

    def series(name: str) -> list[int]:
        return _held(times, ((row.at, getattr(row, f"gpus_{name}")) for row in rows))

    below, areas = [0] * len(times), []
    values = {kind: series(kind) for kind in _AREAS}
    waiting = series("waiting")
    top = max(*map(sum, zip(*values.values(), strict=True)), *waiting)
    text = _texts("gpu")
    for kind, label in _AREAS.items():
        below = [one + more for one, more in zip(below, values[kind], strict=True)]
        areas.append(_line(kind, label, values[kind], text, _path(below, top, closed=True)))
    # The outline of an area begins at the bottom: the ones below it are drawn over it.
    asked = _line("asked", "waiting pods ask for", waiting, text, _path(waiting, top, closed=False))
    return Chart("GPUs", text(top), (*reversed(areas), asked))


def charts_of_reports(
    events: Iterable[Event], names: Sequence[str], resource: str, times: Sequence[int]
) -> tuple[Chart, ...]:
    """Return charts made from `QueuesReported`.

    Args:
        events: in order; some may be from before the span, and tell how queues stood when it began.
    """
    shown = frozenset(names[:MOST_QUEUES])
    changes: dict[tuple[str, bool], list[tuple[int, int]]] = {}
    for event in events:
        report = decode_payload(event)
        for item in report.queues if isinstance(report, payloads.QueuesReported) else ():
            if item.queue in shown:
                for owed, amounts in ((False, item.allocated), (True, item.fair_share)):
                    change = event.recorded_at, amount_of(amounts, resource)
                    changes.setdefault((item.queue, owed), []).append(change)
    held, fair = (
        {name: _held(times, changes.get((name, owed), ())) for name in names if name in shown} for owed in (False, True)
    )
    return _of_queues(held, fair, resource)


def charts_of_hours(state: QueuesView, names: Sequence[str], resource: str, times: Sequence[int]) -> tuple[Chart, ...]:
    """Return charts made from what the state keeps of queues' use by the hour."""
    tree = state.queue_registry.tree
    last = state.recorded_at // HOUR_US
    hours = range(times[0] // HOUR_US, last + 1)
    sums: dict[str, dict[int, int]] = {}
    for key, usage in state.queue_registry.usages.items():
        number = tree.find(key.queue, namespace=key.namespace)
        history = usage.history
        by_hour = {
            hour: amount_of({name: kept.get(hour, 0) for name, kept in history.hours.items()}, resource)
            for hour in hours
        }
        for hour in hours[max(0, history.settled_ms * 1000 // HOUR_US - hours.start) :]:
            # What it has used since its last change is not written down yet.
            by_hour[hour] = amount_of(
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

    def held(name: str) -> list[int]:
        amounts = sums.get(name, {})
        return _held(times, ((hour * HOUR_US, unit * (amounts.get(hour, 0) // length[hour])) for hour in hours))

    return _of_queues({name: held(name) for name in names[:MOST_QUEUES]}, {}, resource)


def charts_of_rows(
    rows: Iterable[QueueHour], names: Sequence[str], resource: str, times: Sequence[int]
) -> tuple[Chart, ...]:
    """Return charts made from read models: of each point the mean of its hours."""
    shown, step = names[:MOST_QUEUES], max(1, times[1] - times[0])
    sums: dict[tuple[str, int], tuple[int, int, int]] = {}
    for row in rows:
        # A point stands for what came since the one before.
        key = row.queue, -(-max(0, row.at - times[0]) // step)
        seconds, allocated, fair = sums.get(key, (0, 0, 0))
        sums[key] = seconds + row.seconds, allocated + int(row.allocated), fair + int(row.fair_share)

    def means(place: int) -> dict[str, list[int]]:
        every = range(len(times))
        return {
            name: [one[place] // max(1, one[0]) for at in every for one in (sums.get((name, at), (0, 0, 0)),)]
            for name in shown
        }

    return _of_queues(means(1), means(2), resource)


def _of_queues(held: Mapping[str, list[int]], fair: Mapping[str, list[int]], resource: str) -> tuple[Chart, ...]:
    """Return a chart of each queue, all of one scale."""
    top = max((max(values, default=0) for table in (held, fair) for values in table.values()), default=0)
    text = _texts(resource)
    return tuple(
        Chart(
            name,
            text(top),
            (
                _line("held", "held", values, text, _path(values, top, closed=True)),
                *(
                    _line("owed", "deserved", line, text, _path(line, top, closed=False))
                    for line in (fair.get(name, []),)
                    if any(line)
                ),
            ),
        )
        for name, values in held.items()
    )


def _texts(resource: str) -> Callable[[int], str]:
    return lambda amount: amount_text(resource, amount)


def _line(kind: str, label: str, values: Sequence[int], text: Callable[[int], str], path: str) -> Line:
    return Line(
        kind, label, path, text(values[-1] if values else 0), text(max(values, default=0)), tuple(map(text, values))
    )


def _path(values: Sequence[int], top: int, *, closed: bool) -> str:
    """Return steps from point to point as an SVG path; equal points are one line."""
    if not values or not top:
        return ""
    step = _WIDTH / max(1, len(values) - 1)
    heights = [round(_HEIGHT - (_HEIGHT - 4) * value / top, 1) for value in values]
    changes = (place for place in range(1, len(heights)) if heights[place] != heights[place - 1])
    moves = [f"M0 {heights[0]:g}", *(f"H{place * step:.0f}V{heights[place]:g}" for place in changes)]
    moves.append(f"H{_WIDTH}")
    if closed:
        moves.append(f"V{_HEIGHT}H0Z")
    return "".join(moves)


@dataclass(frozen=True, slots=True)
class ReportPage:
    """A month's report; None where no hour is kept (`months`: that there are hours of, the last one first)."""

    report: UsageReport | None
    by: str
    month: str
    months: tuple[str, ...]
    dimensions: tuple[str, ...] = DIMENSIONS


#: Reports that a process keeps.
_REPORTS = 30


class Months:
    """Months as they were summed last: of the hours that are over since then each is added once."""

    def __init__(self, kept: KeptHours) -> None:
        self._kept, self._turn = kept, asyncio.Lock()
        self._sums: dict[tuple[str, str], Period] = {}
        self._made: dict[tuple[str, str, str], tuple[int, UsageReport]] = {}

    async def report(self, cluster: str, by: str, month: str, *, ended: int) -> UsageReport | None:
        """Return the report of a month; None where no hour is kept. Raises InvalidObject: it is no month.

        Args:
            ended: where the cluster's last kept hour ends.
        """
        begin, end = month_range(month)
        async with self._turn:
            made = self._made.get((cluster, by, month))
            if made is not None and made[0] == ended:
                return made[1]
            total = self._sums.get((cluster, month))
            # An hour that ends the range lacks the waits until then, which the page does not show.
            hours = await self._kept.read(cluster, begin if total is None else total.end, end + 1)
            if total is None and not hours:
                return None
            month_sum, report = await asyncio.to_thread(_summed, cluster, by, total, hours)
            if len(self._made) >= _REPORTS:
                self._made.clear()
                self._sums.clear()
            self._sums[cluster, month] = month_sum
            self._made[cluster, by, month] = ended, report
            return report


def _summed(cluster: str, by: str, total: Period | None, hours: list[Period]) -> tuple[Period, UsageReport]:
    """Add hours to a month's sum, and return it with its report."""
    if hours:
        (total,) = by_month(hours if total is None else [total, *hours])
        for held in total.owners.values():
            # So the next report sorts in one pass.
            held.waits.sort()
    assert total is not None
    return total, report_of(Accounted(cluster, total.begin, total.end, total.position, [total]), by=by)


def add_reports(router: APIRouter, log: EventLog, places: Places) -> None:
    """Add the page's route."""
    kept = kept_hours_of(log)
    months = None if kept is None else Months(kept)

    @router.get("/clusters/{cluster}/reports")
    async def reports(request: Request, cluster: str, by: str = "queue", month: str = "", at: str = "") -> Response:
        ReportQuestion(by=by, month=month).check()
        frame, _ = await (await places.find(request, cluster, at)).look()
        span = None if kept is None else await kept.span(cluster)
        model = ReportPage(None, by, month, ())
        if months is not None and span is not None:
            there = [month_of(span[1] - 1)]
            while there[-1] != month_of(span[0]):
                there.append(month_of(month_range(there[-1])[0] - 1))
            chosen = month or there[0]
            report = await months.report(cluster, by, chosen, ended=span[1])
            model = ReportPage(report, by, chosen, tuple(there))
        return page(request, "reports.html", frame=frame, model=model)
