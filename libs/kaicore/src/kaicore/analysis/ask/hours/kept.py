"""Hours of the account that are kept in Postgres, so that a report sums them instead of folding the log.

They are a projection. Each hour is counted from the state at its beginning, as `account` does wherever it begins, so
kept hours and counted ones are the same. Those of other rules (`ACCOUNT_SCHEMA`) are not read; deleting all loses
nothing. `migrations/versions/0017_account_hours.py` creates the table.

Checks compare them with the hours that their folds count. An hour that differs is counted once more, from the log's
beginning: what was erased from the log since is in neither, and what is kept anew must be of the log as it is now.
Hours with other labels of owners are not compared.
"""

import asyncio
import json
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from kaicore.analysis.ask.hours.account import (
    ACCOUNT_SCHEMA,
    CAPACITY,
    HELD,
    HOUR_US,
    Account,
    Held,
    HourOwner,
    ModelCapacity,
    Period,
    by_month,
    month_of,
)
from kaicore.analysis.replay.log_states import first_state, fold_on, fold_through, pages_of
from kaicore.analysis.replay.past_states import PastStates
from kaicore.analysis.replay.samples import SampleDifference
from kaicore.ledger.connections import Connection, Connections
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.cluster_state import ClusterState

#: Labels of pods by which owners are distinguished in kept hours by default.
LABELS = ("project",)
_LEVEL = 1
#: Events that are counted before others get their turn.
_TURN = 200
_READ = """
    SELECT begin_at, document FROM views.account_hour
    WHERE cluster = %s AND schema = %s AND begin_at >= %s AND end_at <= %s ORDER BY begin_at
"""
_SPAN = "SELECT min(begin_at), max(end_at) FROM views.account_hour WHERE cluster = %s AND schema = %s"
_LAST = """
    SELECT end_at, position FROM views.account_hour WHERE cluster = %s AND schema = %s ORDER BY begin_at DESC LIMIT 1
"""
_WRITE = """
    INSERT INTO views.account_hour (cluster, schema, begin_at, end_at, position, document)
    VALUES (%s, %s, %s, %s, %s, %b) ON CONFLICT (cluster, schema, begin_at)
    DO UPDATE SET end_at = excluded.end_at, position = excluded.position, document = excluded.document
"""

#: An hour within those without an event may have been kept alone.
_REPLACE = "DELETE FROM views.account_hour WHERE cluster = %s AND schema = %s AND begin_at > %s AND begin_at < %s"
_FORGET = "DELETE FROM views.account_hour WHERE cluster = %s AND schema <> %s"


class KeptHours:
    """The hours that are kept beside a log in Postgres."""

    def __init__(self, connections: Connections) -> None:
        """Args: connections: of the log."""
        self._connections = connections

    async def read(self, cluster: str, begin: int, end: int, *, labels: tuple[str, ...] = ()) -> list[Period]:
        """Return the kept hours within a range, in order; without those that have not these labels of owners.

        One that ends the range is left out unless it ends a month: it does not have the waits until then.
        """
        found = await self.every(cluster, begin, end, labels=labels)
        return [hour for hour in found.values() if hour is not None and (hour.end < end or _ends_month(hour))]

    async def every(self, cluster: str, begin: int, end: int, *, labels: tuple[str, ...]) -> dict[int, Period | None]:
        """Return all kept hours within a range by their begin, in order; None for one that has not these labels."""
        rows = await self._rows(_READ, [cluster, ACCOUNT_SCHEMA, begin, end])
        return await asyncio.to_thread(lambda: {begins: decoded(document, labels) for begins, document in rows})

    async def last(self, cluster: str) -> tuple[int, int] | None:
        """Return where the last kept hour ends: a time, and the position of the last event before it."""
        rows = await self._rows(_LAST, [cluster, ACCOUNT_SCHEMA])
        return (rows[0][0], rows[0][1]) if rows else None

    async def span(self, cluster: str) -> tuple[int, int] | None:
        """Return where the first kept hour begins, and the last one ends; None without any."""
        ((begin, end),) = await self._rows(_SPAN, [cluster, ACCOUNT_SCHEMA])
        return None if begin is None else (begin, end)

    async def save(self, cluster: str, hours: Sequence[Period], *, labels: tuple[str, ...]) -> None:
        """Keep hours; one that is kept already is replaced."""

        async def work(connection: Connection) -> None:
            async with connection.transaction():
                for hour in hours:
                    document = encoded(hour, labels)
                    row = [cluster, ACCOUNT_SCHEMA, hour.begin, hour.end, hour.position, document]
                    await connection.execute(_REPLACE, [cluster, ACCOUNT_SCHEMA, hour.begin, hour.end])
                    await connection.execute(_WRITE, row)

        if hours:
            await self._connections.run(work)

    async def forget_others(self, cluster: str) -> None:
        """Delete the hours that were made by other rules."""

        async def work(connection: Connection) -> None:
            await connection.execute(_FORGET, [cluster, ACCOUNT_SCHEMA])

        await self._connections.run(work)

    async def _rows(self, query: Any, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        async def work(connection: Connection) -> list[tuple[Any, ...]]:
            async with connection.cursor(binary=True) as cursor:
                await cursor.execute(query, parameters)
                return await cursor.fetchall()

        return await self._connections.run(work)


def kept_hours_of(log: EventLog) -> KeptHours | None:
    """Return the hours that are kept beside a log; None for a log that is no database."""
    return KeptHours(log.connections) if isinstance(log, PostgresLog) else None


def encoded(hour: Period, labels: tuple[str, ...]) -> bytes:
    """Return an hour as it is kept."""
    owners = [
        [*owner[:-1], list(owner.labels), [getattr(held, name) for name in HELD], held.waits]
        + ([held.waiting] if _ends_month(hour) else [])
        for owner, held in hour.owners.items()
    ]
    models = [[model, [getattr(one, name) for name in CAPACITY], one.stranded] for model, one in hour.models.items()]
    document = [list(labels), hour.month, hour.begin, hour.end, hour.position, owners, models]
    # Amounts of memory times microseconds may have more than 64 bits, which msgspec does not encode.
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode(), _LEVEL)


def decoded(document: bytes, labels: tuple[str, ...]) -> Period | None:
    """Return a kept hour with these labels of owners; None where others are kept."""
    kept, month, begin, end, position, owners, models = json.loads(zlib.decompress(document))
    if not set(labels) <= set(kept):
        return None
    places = [kept.index(label) for label in labels]
    hour = Period(month, begin, end, position)
    for team, queue, namespace, user, model, values, sums, waits, *waiting in owners:
        owner = HourOwner(team, queue, namespace, user, model, tuple(values[place] for place in places))
        amounts = dict(zip(HELD, sums, strict=True))
        held = Held(**amounts, waits=waits, waiting=waiting[0] if waiting else [])
        if owner in hour.owners:
            hour.owners[owner].add(held)
        else:
            hour.owners[owner] = held
    hour.models = {
        model: ModelCapacity(**dict(zip(CAPACITY, sums, strict=True)), stranded=stranded)
        for model, sums, stranded in models
    }
    return hour


def _ends_month(hour: Period) -> bool:
    return month_of(hour.end) != hour.month


async def counted_hours(
    log: EventLog,
    state: ClusterState,
    begin: int,
    end: int,
    *,
    labels: tuple[str, ...] = (),
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> AsyncGenerator[Period, None]:
    """Count a range of a log, and give its hours as they end.

    Args:
        log: the cluster's.
        state: after the last event before `begin`; it is folded on.
        begin, end: microseconds since the epoch.
    """
    cluster, account = state.cluster, Account(state, begin, labels=labels)
    head = await log.head(cluster)
    async with aclosing(pages_of(log, cluster, after=state.position)) as pages:
        async for page in pages:
            for event in page:
                if event.recorded_at >= end:
                    break
                account.advance(event.recorded_at)
                await fold_through(log, state, (event,))
                account.take(event)
                if not state.position % _TURN:
                    await asyncio.sleep(0)
            progress(state.position, head.position)
            for hour in account.taken():
                yield hour
            if page[-1].recorded_at >= end:
                break
    account.advance(end)
    for hour in account.finish():
        yield hour


async def keep_hours(
    log: EventLog,
    cluster: str,
    *,
    labels: tuple[str, ...] = LABELS,
    anew: bool = False,
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> int:
    """Keep the hours that are over and not kept yet; return how many those are.

    Args:
        labels: of pods, by which reports distinguish owners besides.
        anew: count all that the log has, also what is kept.

    Raises:
        EventsRetired: the log's first events are gone, and no state was kept with them.
        LogUnavailable: the log does not answer.
    """
    if (kept := kept_hours_of(log)) is None:
        return 0
    count, last = 0, None if anew else await kept.last(cluster)
    over = (await log.head(cluster)).recorded_at // HOUR_US * HOUR_US
    if last is not None and last[0] >= over:
        return 0
    if last is not None and last[1] >= await log.retired(cluster):
        begin, state = last[0], await PastStates(log, cluster, once=True).at(last[1])
    else:
        state = await first_state(log, cluster)
        first = await log.read(cluster, after=state.position, limit=1)
        begin = state.recorded_at or (first[0].recorded_at if first else over)
    if begin >= over:
        return 0
    async with aclosing(counted_hours(log, state, begin, over, labels=labels, progress=progress)) as hours:
        async for hour in hours:
            await kept.save(cluster, [hour], labels=labels)
            count += 1
    if last is None:
        await kept.forget_others(cluster)
    return count


#: Hours that wait to be compared: those of a month.
_MOST = 31 * 24
#: Events that are folded before others get their turn.
_STEP = 50


class CountedHours:
    """Hours of the account as folds count them; one goes on from one fold to the next.

    A fold begins with `begin`, gives each event to `take` before it folds it, and ends with `end`.
    """

    def __init__(self, log: EventLog, cluster: str, *, labels: tuple[str, ...]) -> None:
        """Args: labels: of pods, by which owners of kept hours are distinguished."""
        self._log, self._cluster, self._labels = log, cluster, labels
        self._state = ClusterState(cluster)
        self._account: Account | None = None
        #: The event that was folded last, which the account takes in before the next one: then it is in the state for
        #: sure, or quarantined.
        self._last: Event | None = None
        #: Where the last fold ended; -1 while one is under way.
        self._at = -1
        #: The time since when the hour counts of which a part is unknown; 0 without one.
        self._unknown = 0
        self._hours: list[Period] = []

    def begin(self, state: ClusterState) -> None:
        """Take the state that is folded next."""
        self._state = state
        if self._account is not None and state.position == self._at:
            self._account.go_on(state)
        else:
            self._hours, self._last, self._unknown = [], None, state.recorded_at
            self._account = self._counting_from(state.recorded_at) if state.recorded_at else None
        self._at = -1

    def take(self, event: Event) -> None:
        """Count up to an event that is folded next."""
        account = self._account or self._counting_from(event.recorded_at)
        self._account = account
        self._settle(account)
        account.advance(event.recorded_at)
        self._last = event

    def end(self) -> None:
        """Take in the last event, and keep the hours that are over until they are compared."""
        if self._account is not None:
            self._settle(self._account)
            hours = [hour for hour in self._account.taken() if hour.begin != (self._unknown or -1)]
            self._hours = [*self._hours, *hours][-_MOST:]
        self._at = self._state.position

    def _counting_from(self, begin: int) -> Account:
        return Account(self._state, begin, labels=self._labels)

    def _settle(self, account: Account) -> None:
        if self._last is not None:
            account.take(self._last)
        self._last = None

    async def differ(self) -> SampleDifference | None:
        """Compare the hours that are kept by now with those counted; keep anew the ones that differ, or are missing.

        Raises LogUnavailable: the log does not answer.
        """
        kept = kept_hours_of(self._log)
        last = None if kept is None else await kept.last(self._cluster)
        ended = [hour for hour in self._hours if last is not None and hour.end <= last[0]]
        if kept is None or not ended:
            return None
        there = await kept.every(self._cluster, ended[0].begin, ended[-1].end, labels=self._labels)
        other = [hour for hour in ended if not self._is_same(hour, there)]
        found = [(after, hour) for after, hour in await self._counted_again(other) if not self._is_same(hour, there)]
        await kept.save(self._cluster, [hour for _, hour in found], labels=self._labels)
        self._hours = [hour for hour in self._hours if hour not in ended]
        if not found:
            return None
        return SampleDifference(found[0][0], tuple(f"/account_hour/{hour.begin}" for _, hour in found))

    def _is_same(self, counted: Period, there: Mapping[int, Period | None]) -> bool:
        """Tell whether an hour is kept as it is counted; one with other labels (None) counts as such.

        Those without an event count as one, also where each was kept alone.
        """
        parts = [hour for begin, hour in there.items() if counted.begin <= begin < counted.end]
        known = [hour for hour in parts if hour is not None]
        if len(known) < len(parts):
            return True
        (kept,) = by_month(known) or [Period("", 0)]
        return _ordered(decoded(encoded(counted, self._labels), self._labels)) == _ordered(kept)

    async def _counted_again(self, hours: list[Period]) -> list[tuple[int, Period]]:
        """Count hours from the log's beginning, those that the log has; each with the position before its events."""
        counted: list[tuple[int, Period]] = []
        state = await first_state(self._log, self._cluster) if hours else self._state
        for hour in hours:
            events = await self._log.read(self._cluster, limit=1, where=Filter(since=hour.begin))
            after = events[0].position - 1 if events else hour.position
            if after < state.position:
                continue
            async with aclosing(fold_on(self._log, state, after, step=_STEP)) as folding:
                async for _ in folding:
                    pass
            counting = counted_hours(self._log, state, hour.begin, hour.end, labels=self._labels)
            async with aclosing(counting) as again:
                counted += [(after, one) async for one in again]
        return counted


def _ordered(hour: Period | None) -> Period | None:
    """Return an hour with its waits in order: they come as pods are listed, which means nothing."""
    for held in hour.owners.values() if hour is not None else ():
        held.waits.sort()
        held.waiting.sort()
    return hour
