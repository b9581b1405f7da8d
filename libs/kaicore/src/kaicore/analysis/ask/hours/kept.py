"""Hours of the account that are kept in Postgres, so that a report sums them instead of folding the log.

They are a projection. Each hour is counted from the state at its beginning, as `account` does wherever it begins, so
kept hours and counted ones are the same. Those of other rules (`ACCOUNT_SCHEMA`) are not read; deleting all loses
nothing. `migrations/versions/0017_account_hours.py` creates the table.
"""

import asyncio
import json
import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
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
    month_of,
)
from kaicore.analysis.replay.log_states import first_state, fold_through, pages_of
from kaicore.analysis.replay.past_states import PastStates
from kaicore.ledger.connections import Connection, Connections
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.postgres import PostgresLog
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
