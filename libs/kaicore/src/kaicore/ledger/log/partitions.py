"""The months of the log: created ahead, and detached when they are old enough.

The table `event` is partitioned by the month of `recorded_at`, in UTC. Months are created some way ahead, so that the
DEFAULT partition, which takes rows that fit nowhere else, stays empty. Retention detaches a month: a statement of some
milliseconds that leaves an ordinary table behind, which can be dumped and dropped later. In the same transaction a seal
is written for each cluster, the hash of the last detached event, so that the chain of the rest can still be verified.

`PostgresLog` has all of this as methods; here psycopg's exceptions pass through.
"""

import calendar
import logging
import zlib
from contextlib import suppress
from dataclasses import astuple, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Self

from psycopg import AsyncConnection, sql

from kaicore.errors import ConfigurationError
from kaicore.ledger.log.port import Seal, Snapshot
from kaicore.ledger.log.snapshots import STATE_SNAPSHOT, content, packed, read_state, snapshot_digest, sound
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA

_log = logging.getLogger(__name__)

#: Months that exist beyond the present one.
AHEAD = 3

#: Key of the advisory lock under which months are made and detached.
_LOCK = 0x6B61692D6D6F6E

#: A waiting ALTER makes all readers wait behind it; so it waits but shortly, and is tried again another time.
_LOCK_TIMEOUT = "500ms"

#: After its end a month must have rested so long, microseconds, for clocks that are slow and transactions under way.
_REST = 24 * 3600 * 1_000_000

_SEALS = "SELECT cluster, position, first_position, hash, recorded_at, detached, sealed_at FROM seal"

_MONTHS = """
    SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid
    WHERE inhparent = 'event'::regclass AND child.relname <> 'event_default'
    ORDER BY child.relname
"""


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """A month in UTC."""

    year: int
    month: int

    @classmethod
    def of(cls, time: int) -> Self:
        """Return the month of a time, microseconds since the epoch."""
        moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time)
        return cls(moment.year, moment.month)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `2026-11`. Raises ConfigurationError: it is no month."""
        try:
            moment = datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC)
        except ValueError as error:
            raise ConfigurationError(f"not a month, as in 2026-11: {text!r}") from error
        return cls(moment.year, moment.month)

    @property
    def start(self) -> int:
        """The time when it begins, microseconds since the epoch."""
        return calendar.timegm((self.year, self.month, 1, 0, 0, 0)) * 1_000_000

    @property
    def table(self) -> str:
        """Name of its partition."""
        return f"event_{self.year:04}_{self.month:02}"

    def __add__(self, months: int) -> "Month":
        count = self.year * 12 + self.month - 1 + months
        return Month(count // 12, count % 12 + 1)

    def __str__(self) -> str:
        return f"{self.year:04}-{self.month:02}"


async def ensure_months(connection: AsyncConnection[Any], *, now: int, ahead: int = AHEAD) -> int:
    """Make the partitions of the present month and the next ones, where missing; return the end of the last one.

    Safe to call from any number of processes. The connection must be in autocommit mode.

    Args:
        connection: of a role that may append.
        now: microseconds since the epoch.
        ahead: how many months beyond the present one.
    """
    first = Month.of(now)
    wanted = [first + offset for offset in range(ahead + 1)]
    if not {month.table for month in wanted} <= set(await _tables(connection)):
        async with connection.transaction():
            await _lock(connection)
            present = set(await _tables(connection))
            for month in wanted:
                if month.table not in present:
                    await _make(connection, month)
    return (wanted[-1] + 1).start


async def detach_month(
    connection: AsyncConnection[Any], month: Month, *, now: int, without_snapshot: bool = False, dry_run: bool = False
) -> list[Seal]:
    """Detach a month, oldest first, and seal it; its events stay behind in a table of their own.

    Raises ConfigurationError: there is no such month, an older one is left, it is not over, or no snapshot is there.

    Args:
        connection: in autocommit mode, of the owner of the table `event`.
        now: microseconds since the epoch.
        without_snapshot: detach even where no snapshot lets a reader start behind the month's last event.
        dry_run: do all of it, and take it back.

    Returns:
        One seal per cluster with events in that month.
    """
    async with connection.transaction(force_rollback=dry_run):
        await _lock(connection)
        await _check_detachable(connection, month, now)
        rows = await connection.execute(
            sql.SQL(
                """
                SELECT span.cluster, span.last, span.first, event.hash, event.recorded_at, %s, %s::bigint
                FROM (SELECT cluster, min(position) AS first, max(position) AS last FROM {0} GROUP BY cluster) AS span
                JOIN {0} AS event ON event.cluster = span.cluster AND event.position = span.last
                ORDER BY span.cluster
                """
            ).format(sql.Identifier(month.table)),
            [month.table, now],
        )
        made = [Seal(*row) for row in await rows.fetchall()]
        for seal in made:
            if not without_snapshot:
                await _keep_snapshots(connection, seal)
            await record_seal(connection, seal)
        await connection.execute(sql.SQL("ALTER TABLE event DETACH PARTITION {}").format(sql.Identifier(month.table)))
    return made


async def months(connection: AsyncConnection[Any]) -> list[Month]:
    """Return the months that are there, in order."""
    return [Month.parse(table.removeprefix("event_").replace("_", "-")) for table in await _tables(connection)]


async def seals(connection: AsyncConnection[Any], cluster: str) -> list[Seal]:
    """Return a cluster's seals in order of position."""
    rows = await connection.execute(f"{_SEALS} WHERE cluster = %s ORDER BY position", [cluster])
    return [Seal(*row) for row in await rows.fetchall()]


async def month_seals(connection: AsyncConnection[Any], month: Month) -> list[Seal]:
    """Return the seals of a detached month while its table is still there, else none."""
    there = f"{_SEALS} WHERE detached = %s AND to_regclass(%s) IS NOT NULL ORDER BY cluster"
    rows = await connection.execute(there, [month.table, month.table])
    return [Seal(*row) for row in await rows.fetchall()]


async def record_seal(connection: AsyncConnection[Any], seal: Seal) -> None:
    """Record that events have left a cluster's log."""
    await connection.execute(
        "INSERT INTO seal (cluster, position, first_position, hash, recorded_at, detached, sealed_at) "
        "VALUES (%s, %s, %s, %b, %s, %s, %s)",
        astuple(seal),
    )


async def _tables(connection: AsyncConnection[Any]) -> list[str]:
    rows = await connection.execute(_MONTHS)
    return [name for (name,) in await rows.fetchall()]


async def _lock(connection: AsyncConnection[Any]) -> None:
    await connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    await connection.execute("SELECT set_config('lock_timeout', %s, true)", [_LOCK_TIMEOUT])


async def _make(connection: AsyncConnection[Any], month: Month) -> None:
    made = await connection.execute("SELECT kai_make_month(%s, %s)", [month.year, month.month])
    ((there,),) = await made.fetchall()
    if not there:
        # The month was not made in time. Its events are safe where they are, but it cannot be detached.
        _log.warning("events of month %s are in the default partition", month)


async def may_make_months(connection: AsyncConnection[Any]) -> bool:
    """Tell whether the connection's role may make months: one that only reads leaves them to the others."""
    rows = await connection.execute("SELECT has_function_privilege('kai_make_month(integer, integer)', 'EXECUTE')")
    ((may,),) = await rows.fetchall()
    return bool(may)


async def _check_detachable(connection: AsyncConnection[Any], month: Month, now: int) -> None:
    present = await months(connection)
    if month not in present:
        raise ConfigurationError(f"month {month} is not in the log; its months are {', '.join(map(str, present))}")
    if present[0] != month:
        raise ConfigurationError(f"month {present[0]} is older than {month} and must be detached first")
    end = (month + 1).start
    if now < end + _REST:
        raise ConfigurationError(f"month {month} may be detached a day after its end")
    stray = await connection.execute("SELECT FROM event_default WHERE recorded_at < %s LIMIT 1", [end])
    if await stray.fetchone() is not None:
        raise ConfigurationError(f"the default partition has events that are older than the end of month {month}")


async def _keep_snapshots(connection: AsyncConnection[Any], seal: Seal) -> None:
    """Keep what readers start from once the events are gone: the state, and whatever else was ever saved.

    Raises ConfigurationError: there is no sound one of these at or after the last event that goes.
    """
    rows = await connection.execute(
        "SELECT name, position, schema, body, digest FROM snapshot WHERE cluster = %s ORDER BY position", [seal.cluster]
    )
    saved = await rows.fetchall()
    newest = {one.name: one for one in sound(seal.cluster, saved) if _leads_past(seal, one)}
    nearest = await _on_the_trail(connection, seal)
    if nearest is not None:
        # The past can be shown, and replayed, from there on.
        newest[STATE_SNAPSHOT] = nearest
    for name in sorted({STATE_SNAPSHOT, *(row[0] for row in saved)}):
        if name not in newest:
            raise ConfigurationError(
                f"cluster {seal.cluster} has no sound snapshot {name!r} at or after position {seal.position}: once its "
                "events are gone, no service could start from the first event any more. Each saves one as it ends"
            )
        await keep_snapshot(connection, seal.cluster, seal.position, newest[name])


async def keep_snapshot(connection: AsyncConnection[Any], cluster: str, seal: int, snapshot: Snapshot) -> None:
    """Keep a snapshot with the seal at a position."""
    stored = packed(snapshot)
    await connection.execute(
        "INSERT INTO kept_snapshot (cluster, seal, name, schema, position, body, digest) "
        "VALUES (%s, %s, %s, %s, %s, %b, %b)",
        [cluster, seal, stored.name, stored.schema, stored.position, stored.body, snapshot_digest(cluster, stored)],
    )


async def _on_the_trail(connection: AsyncConnection[Any], seal: Seal) -> Snapshot | None:
    """Return the first sound place of the trail at or after the last event that goes."""
    rows = await connection.execute(
        "SELECT position, schema, body, digest FROM state_trail WHERE cluster = %s AND position >= %s "
        "ORDER BY position LIMIT 4",
        [seal.cluster, seal.position],
    )
    for position, schema, body, digest in await rows.fetchall():
        with suppress(zlib.error):
            snapshot = Snapshot(STATE_SNAPSHOT, position, schema, zlib.decompress(body))
            if snapshot_digest(seal.cluster, snapshot) == digest and _leads_past(seal, snapshot):
                return snapshot
    return None


def _leads_past(seal: Seal, snapshot: Snapshot) -> bool:
    if snapshot.position < seal.position:
        return False
    if snapshot.name != STATE_SNAPSHOT:
        return True
    if snapshot.schema != SNAPSHOT_SCHEMA:
        return False
    state = content(seal.cluster, snapshot, partial(read_state, seal.cluster), end=snapshot.position)
    return state is not None
