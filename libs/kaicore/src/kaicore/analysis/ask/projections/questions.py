"""The questions that read models answer, and their answers.

Each states the position up to which its model is built, because the log may be further.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from psycopg import sql

from kaicore.analysis.ask.projections.jobs import JobHistory, JobQuestion, jobs_of
from kaicore.analysis.ask.projections.projection import MINUTE_US, Projection
from kaicore.analysis.ask.projections.rows import DecisionsHour, Occupancy, PodHistory, QueueHour
from kaicore.analysis.ask.projections.store import (
    DECISIONS_HOUR,
    OCCUPANCY,
    OF_GENERATION,
    POD_HISTORY,
    QUEUE_HOUR,
    Generation,
    ReadModelTable,
    ViewStore,
)
from kaicore.analysis.json_spelling import Answer, AsOf, LogPlace, place_of, time_text
from kaicore.analysis.replay.log_states import first_state, pages_of
from kaicore.analysis.replay.moments import parse_moment, time_of
from kaicore.errors import InvalidObject
from kaicore.ledger.log.port import EventLog
from kaicore.rules.model.gpu_share import WHOLE, gpus_text
from kaicore.rules.model.quantity import format_amount, parse_duration
from kaicore.rules.queues.tree import is_gpu

_RowT = TypeVar("_RowT", bound=msgspec.Struct)


class PodRecord(Answer, frozen=True, kw_only=True):
    """A pod's life from its creation to its end, as `rows.PodHistory` describes it.

    Times are null for events that have not happened.

    Attributes:
        gpus: that it asks for, parts included, such as 0.3; of memory of a GPU its part of that one, once it has a
            node, and the whole one before.
    """

    uid: str
    namespace: str
    name: str
    group: str
    queue: str
    node: str
    cycle: str
    gpus: float
    created_at: str | None
    seen_at: str | None
    tried_at: str | None
    decided_at: str | None
    bound_at: str | None
    started_at: str | None
    finished_at: str | None
    gone_at: str | None
    outcome: str
    placements: int
    bind_failures: int
    rejections: int
    evictions: int


class PodRecords(AsOf, frozen=True, kw_only=True):
    """Pods by when they were first seen, the last one first.

    Attributes:
        next: the next page's `after`; empty where there is none.
    """

    next: str
    items: list[PodRecord]


class OccupancyPoint(Answer, frozen=True, kw_only=True):
    """A cluster's state from one point until the next.

    Attributes:
        at: when the minute, or the step that was asked for, began.
        gpus: of all nodes, the sum of the next five; parts are counted, to thousandths of a GPU.
        gpus_held: by pods that stay: of a GPU that is shared their parts.
        gpus_stranded: free, but without enough CPU or memory beside them for such pods as run.
        gpus_out: free, but on nodes that are not ready or cordoned, or not given out where a shared GPU goes.
        gpus_waiting: that waiting pods ask for; memory of a GPU counts as the whole one.
    """

    at: str
    position: int
    nodes: int
    gpus: float
    gpus_held: float
    gpus_releasing: float
    gpus_free: float
    gpus_stranded: float
    gpus_out: float
    gpus_waiting: float
    pods_waiting: int
    pods_placed: int
    pods_bound: int


class QueueUse(Answer, frozen=True, kw_only=True):
    """A queue's mean use of a resource in an hour; the queues below it included.

    Attributes:
        seconds: of the hour that are counted.
        allocated: a quantity, such as `2.3` of GPUs; likewise `requested` and `fair_share`.
    """

    at: str
    queue: str
    resource: str
    seconds: int
    allocated: str
    requested: str
    fair_share: str


class Decisions(Answer, frozen=True, kw_only=True):
    """An hour's decisions, and the agreement of kubelets with predictions, as `rows.DecisionsHour` describes them."""

    at: str
    cycles: int
    placed: int
    bound: int
    bind_failures: int
    rejected: int
    evictions: int
    agreed: int
    contradicted: int
    missed: int


class OccupancySeries(AsOf, frozen=True, kw_only=True):
    """A cluster's use over time; `position` is the last position that it covers."""

    items: list[OccupancyPoint]


class QueueSeries(AsOf, frozen=True, kw_only=True):
    """The use of queues by the hour; `position` is the last position that it covers."""

    items: list[QueueUse]


class DecisionSeries(AsOf, frozen=True, kw_only=True):
    """The decisions by the hour; `position` is the last position that it covers."""

    items: list[Decisions]


def _time(microseconds: int) -> str | None:
    return time_text(microseconds) if microseconds else None


def _gpus(milli: int) -> float:
    """Return thousandths as GPUs; whole ones without a decimal point, as clients have known them."""
    return milli // WHOLE if milli % WHOLE == 0 else milli / WHOLE


#: Rows of older read models count whole GPUs, until the newer ones have caught up.
_IN_THOUSANDTHS = 4


def _counted(row: _RowT, generation: Generation) -> _RowT:
    """Return a row with GPUs in thousandths, whichever program has made it."""
    if generation.schema >= _IN_THOUSANDTHS:
        return row
    names = [name for name in row.__struct_fields__ if name.startswith("gpus")]
    if isinstance(row, QueueHour) and is_gpu(row.resource):
        names = ["allocated", "requested", "fair_share"]
    return msgspec.structs.replace(row, **{name: getattr(row, name) * WHOLE for name in names})


def pod_record(row: PodHistory) -> PodRecord:
    """Return a pod's history as an answer."""
    times = {name: _time(getattr(row, name)) for name in PodRecord.__struct_fields__ if name.endswith("_at")}
    return PodRecord.copied(row, gpus=_gpus(row.gpus), **times)


def occupancy_point(row: Occupancy, *, at: int) -> OccupancyPoint:
    """Return how a cluster stood as an answer; `at` is when its step began."""
    gpus = {name: _gpus(getattr(row, name)) for name in OccupancyPoint.__struct_fields__ if name.startswith("gpus")}
    return OccupancyPoint.copied(row, at=time_text(at), **gpus)


def queue_use(row: QueueHour) -> QueueUse:
    """Return what a queue used as an answer."""

    def average(amount: int) -> str:
        mean = amount // max(1, row.seconds)
        return gpus_text(mean) if is_gpu(row.resource) else format_amount(row.resource, mean)

    return QueueUse(
        at=time_text(row.at),
        queue=row.queue,
        resource=row.resource,
        seconds=row.seconds,
        allocated=average(row.allocated),
        requested=average(row.requested),
        fair_share=average(row.fair_share),
    )


def decisions(row: DecisionsHour) -> Decisions:
    """Return an hour's decisions as an answer."""
    return Decisions.copied(row, at=time_text(row.at))


#: Most rows that one question about time looks at, and most points that it answers.
_MOST_ROWS, _MOST_POINTS = 200_000, 5000

_AFTER = re.compile(r"([0-9]{1,18})-(.{1,200})", re.ASCII)

#: Conditions on namespaces, and on the hour before a time until another.
_OF_NAMESPACES = "namespace = ANY(%(namespaces)s)"
_HOURS = ("at > %(after)s", "at <= %(ends)s")

#: What queues used of a resource, summed up by steps.
_QUEUE_STEPS = sql.SQL(
    "SELECT queue, resource, min(at) AS at, sum(seconds) AS seconds, sum(allocated) AS allocated, "
    "sum(requested) AS requested, sum(fair_share) AS fair_share FROM views.queue_hour "
    "WHERE cluster = %(cluster)s AND generation = %(generation)s AND queue = ANY(%(names)s) "
    "AND resource = %(resource)s AND at > %(after)s AND at <= %(until)s "
    "GROUP BY queue, resource, (at - %(since)s + %(step)s - 1) / %(step)s ORDER BY min(at) LIMIT %(limit)s"
)


class ReadModels:
    """Answers from the read models of one log."""

    def __init__(self, log: EventLog, store: ViewStore) -> None:
        """Args:
        log: which moments are of.
        """
        self._log = log
        self._store = store

    async def pods(
        self,
        cluster: str,
        *,
        namespaces: frozenset[str] | None = None,
        namespace: str = "",
        name: str = "",
        group: str = "",
        queue: str = "",
        node: str = "",
        after: str = "",
        limit: int = 100,
    ) -> PodRecords:
        """Return what became of pods, the last one first; those that are gone, too.

        Raises InvalidObject: `after` is no `next`.

        Args:
            namespaces: only of these; None for all.
            namespace: only of this one.
            name: only pods of this name.
            group: only of the group with this key.
            queue: only of this queue.
            node: only those that were last placed there.
            after: the `next` of the page before.
        """
        named = {"namespace": namespace, "name": name, "group": group, "queue": queue, "node": node}
        where = [f'"{field}" = %({field})s' for field, value in named.items() if value]
        values: dict[str, Any] = {**named, "namespaces": sorted(namespaces or ())}
        if namespaces is not None:
            where.append(_OF_NAMESPACES)
        if after:
            match = _AFTER.fullmatch(after)
            if match is None:
                raise InvalidObject("history", "after", after[:100], "is not the `next` of a page")
            where.append("(seen_at, uid) < (%(seen_at)s, %(uid)s)")
            values |= {"seen_at": int(match[1]), "uid": match[2]}
        as_of, rows = await self._rows(
            POD_HISTORY, cluster, where=where, values=values, order="seen_at DESC, uid DESC", limit=limit + 1
        )
        more, rows = len(rows) > limit, rows[:limit]
        after = f"{rows[-1].seen_at}-{rows[-1].uid}" if more else ""
        return PodRecords(**as_of, next=after, items=list(map(pod_record, rows)))

    async def jobs(
        self, cluster: str, wanted: JobQuestion, *, namespaces: frozenset[str] | None = None
    ) -> JobHistory | None:
        """Return what became of jobs, those that are gone included; None where nothing was made yet.

        Args:
            namespaces: only of these; None for all.

        Raises:
            InvalidObject: the question makes no sense, or there are too many pods in that span.
            UnknownMoment: a moment is none.
        """
        wanted.check()
        if (generation := await self._store.live(cluster)) is None:
            return None
        begins, ends = await _times(self._log, cluster, wanted.since, wanted.until)
        over = "greatest(finished_at, gone_at)"
        where = ["seen_at <= %(ends)s", f"{over} = 0 OR {over} >= %(begins)s"]
        where += [f'"{field}" = %({field})s' for field in ("namespace", "queue", "user") if getattr(wanted, field)]
        values: dict[str, Any] = {"begins": begins, "ends": ends, "namespaces": sorted(namespaces or ())}
        values |= {field: getattr(wanted, field) for field in ("namespace", "queue", "user", "name")}
        if wanted.name:
            where.append("""name = %(name)s OR starts_with(reverse("group"), reverse('/' || %(name)s::text))""")
        if namespaces is not None:
            where.append(_OF_NAMESPACES)
        as_of, rows = await self._rows(
            POD_HISTORY, cluster, where=where, values=values, limit=_MOST_ROWS + 1, generation=generation
        )
        if len(rows) > _MOST_ROWS:
            raise InvalidObject("history", "from", wanted.since[:100], f"over {_MOST_ROWS:,} pods are of that span")
        return JobHistory(**as_of, items=jobs_of(rows, wanted, now=generation.recorded_at))

    async def occupancy(self, cluster: str, *, since: str = "", until: str = "", step: str = "") -> OccupancySeries:
        """Return how full a cluster was, a point for each step in which something was recorded: how it ended.

        Args:
            since: a moment; by default the log's beginning.
            until: a moment; by default the log's end.
            step: a duration such as 1h; by default a minute, or as long that there are no more than 5,000 points.

        Raises:
            InvalidObject: `step` is no duration, or shorter than a minute.
            UnknownMoment: a moment is none.
        """
        begins, ends = await _times(self._log, cluster, since, until)
        step_us = parse_duration(step, subject="occupancy", field="step") if step else MINUTE_US
        if step_us < MINUTE_US:
            raise InvalidObject("occupancy", "step", step, "is shorter than a minute")
        values = {"begins": begins // MINUTE_US * MINUTE_US, "ends": ends}
        where = ["at >= %(begins)s", "at <= %(ends)s"]
        # The last rows, where there are too many.
        as_of, rows = await self._rows(OCCUPANCY, cluster, where=where, values=values, order="at DESC")
        points = list(_steps(reversed(rows), step_us))
        while len(points) > _MOST_POINTS and not step:
            step_us *= 2
            points = list(_steps(reversed(rows), step_us))
        return OccupancySeries(**as_of, items=points[-_MOST_POINTS:])

    async def occupancy_rows(self, cluster: str, *, since: int, until: int, step: int) -> list[Occupancy]:
        """Return how full a cluster was at the end of each step, and as the first one began, for a chart.

        Args:
            since: microseconds since the epoch, as `until` and `step`.
        """
        here = f"FROM views.occupancy WHERE {OF_GENERATION}"
        before = f"(SELECT max(at) {here} AND at <= %(since)s)"
        ends = f"SELECT max(at) {here} AND at > %(since)s AND at <= %(until)s GROUP BY at / %(step)s"
        where, values = [f"at IN ({ends}) OR at = {before}"], {"since": since, "until": until, "step": step}
        _, rows = await self._rows(OCCUPANCY, cluster, where=where, values=values, order="at")
        return rows[:_MOST_POINTS]

    async def queue_rows(
        self, cluster: str, names: Sequence[str], resource: str, *, since: int, until: int, step: int
    ) -> list[QueueHour]:
        """Return the sums of what some queues used of one resource, by steps of at least an hour; for a chart.

        Args: see `occupancy_rows`.
        """
        generation = await self._live(cluster)
        values = {"cluster": cluster, "generation": generation.number, "names": list(names), "resource": resource}
        values |= {"after": since - 60 * MINUTE_US, "since": since, "until": until, "step": step, "limit": _MOST_ROWS}
        rows = await self._store.found(QueueHour, _QUEUE_STEPS, values)
        return [_counted(one, generation) for one in rows]

    async def queues(self, cluster: str, *, queue: str = "", since: str = "", until: str = "") -> QueueSeries:
        """Return what queues used by the hour. Raises UnknownMoment: a moment is none."""
        begins, ends = await _times(self._log, cluster, since, until)
        where, values = [*_HOURS], {"after": begins - 60 * MINUTE_US, "ends": ends, "queue": queue}
        if queue:
            where.append("queue = %(queue)s")
        order = "at, queue, resource"
        as_of, rows = await self._rows(QUEUE_HOUR, cluster, where=where, values=values, order=order)
        return QueueSeries(**as_of, items=list(map(queue_use, rows)))

    async def decisions(self, cluster: str, *, since: str = "", until: str = "") -> DecisionSeries:
        """Return what was decided by the hour, and whether kubelets did as predicted.

        Raises UnknownMoment: a moment is none.
        """
        begins, ends = await _times(self._log, cluster, since, until)
        values = {"after": begins - 60 * MINUTE_US, "ends": ends}
        as_of, rows = await self._rows(DECISIONS_HOUR, cluster, where=_HOURS, values=values, order="at")
        return DecisionSeries(**as_of, items=list(map(decisions, rows)))

    async def _rows(
        self,
        table: ReadModelTable[_RowT],
        cluster: str,
        *,
        where: Sequence[str] = (),
        values: Mapping[str, Any],
        order: str = "",
        limit: int = _MOST_ROWS,
        generation: Generation | None = None,
    ) -> tuple[LogPlace, list[_RowT]]:
        """Return an answer's fields about a generation, by default the one that is read, and rows of it."""
        generation = generation or await self._live(cluster)
        number = generation.number
        rows = await self._store.rows(table, cluster, number, where=where, values=values, order=order, limit=limit)
        recorded_at = time_text(generation.recorded_at)
        as_of = LogPlace(cluster=cluster, position=generation.position, recorded_at=recorded_at)
        return as_of, [_counted(one, generation) for one in rows]

    async def _live(self, cluster: str) -> Generation:
        """Return the generation that is read; one of position 0 without rows where nothing was made yet."""
        return await self._store.live(cluster) or Generation(0, 0, 0, 0, live=False)


async def _times(log: EventLog, cluster: str, since: str, until: str) -> tuple[int, int]:
    return (
        await time_of(log, cluster, parse_moment(since)) if since else 0,
        await time_of(log, cluster, parse_moment(until)) if until else 2**62,
    )


async def folded_jobs(
    log: EventLog,
    cluster: str,
    wanted: JobQuestion,
    *,
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> JobHistory:
    """Return what `ReadModels.jobs` does, folded from the log.

    Raises: see there, and EventsRetired where no state was kept for the log's first events.
    """
    wanted.check()
    begins, ends = await _times(log, cluster, wanted.since, wanted.until)
    head, rows = await log.head(cluster), dict[str, PodHistory]()
    projection = Projection(await first_state(log, cluster), ())
    async with aclosing(pages_of(log, cluster, after=projection.state.position)) as pages:
        async for page in pages:
            for event in page:
                projection.take(event)
            rows.update((row.uid, row) for row in projection.changes().pods)
            progress(page[-1].position, head.position)
            await asyncio.sleep(0)
    found = [row for row in rows.values() if _is_meant(row, wanted, begins, ends)]
    state = projection.state
    return JobHistory(**place_of(state), items=jobs_of(found, wanted, now=state.recorded_at))


def _is_meant(row: PodHistory, wanted: JobQuestion, begins: int, ends: int) -> bool:
    """Tell of a row what the query of `ReadModels.jobs` asks."""
    over = max(row.finished_at, row.gone_at)
    return (
        row.seen_at <= ends
        and (not over or over >= begins)
        and all(getattr(wanted, name) in ("", getattr(row, name)) for name in ("namespace", "queue", "user"))
        and (not wanted.name or row.name == wanted.name or row.group.endswith(f"/{wanted.name}"))
    )


def _steps(rows: Iterable[Occupancy], step_us: int) -> Iterator[OccupancyPoint]:
    last: Occupancy | None = None
    for row in rows:
        if last is not None and last.at // step_us != row.at // step_us:
            yield occupancy_point(last, at=last.at // step_us * step_us)
        last = row
    if last is not None:
        yield occupancy_point(last, at=last.at // step_us * step_us)
