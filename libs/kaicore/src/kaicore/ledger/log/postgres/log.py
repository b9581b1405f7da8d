"""The event log in Postgres. `docs/explanation/log.md` describes its function and guarantees.

Queries read along one index and stop at their limit. The audit (`kaicore.ledger.log.seals.audit`) reads a log as it
lies in the tables, and assumes nothing about its validity. Trails are in the table `state_trail`.

One connection listens for the log's notifications, for all waiters of the process. A notification is only a hint. A
waiting reader looks at the log itself, after each hint, when the connection has come back, and at least once a second;
so a lost notification costs a moment and never an event.
"""

import asyncio
import logging
import math
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import sql

from kaicore.errors import CorruptLog, EventsRetired, KaiError, LogUnavailable, NotMigrated
from kaicore.interpreter import end, readable
from kaicore.ledger.connections import Connection, Connections
from kaicore.ledger.log import partitions
from kaicore.ledger.log.appending import draft
from kaicore.ledger.log.files import archiving
from kaicore.ledger.log.files.reader import LogFile
from kaicore.ledger.log.partitions import Month
from kaicore.ledger.log.port import Filter, Head, Seal, Snapshot
from kaicore.ledger.log.postgres import erasing
from kaicore.ledger.log.postgres.append import CHANNEL, Appender
from kaicore.ledger.log.postgres.erasing import ErasureReport, ErasureRequest
from kaicore.ledger.log.postgres.importing import import_file
from kaicore.ledger.log.postgres.rows import COLUMNS, to_events
from kaicore.ledger.log.seals.audit import MOST_FINDINGS, Finding, RecordedErasure, recorded_erasures
from kaicore.ledger.log.shapes import BODY, Shapes
from kaicore.ledger.log.snapshots import STATE_SNAPSHOT, TrailPlace, discard, is_large, packed, snapshot_digest, sound
from kaicore.rules.events.codec import event_types, schema_version
from kaicore.rules.events.envelope import Event, Unit, UnitOutcome
from kaicore.rules.events.payloads import FieldsErased

#: Events fetched at a time.
_PAGE = 2000

_HEAD = "SELECT position, hash, recorded_at FROM log_head WHERE cluster = %s"

_EVENTS = sql.SQL("SELECT {} FROM event WHERE cluster = %s ORDER BY position").format(sql.SQL(COLUMNS))

_ERASURES = sql.SQL("SELECT position, {} FROM event WHERE cluster = %s AND type = %s ORDER BY position").format(
    sql.SQL(BODY)
)

_WRONG_IDS = """
    SELECT event.position, found.position
    FROM event LEFT JOIN event_id AS found ON found.cluster = event.cluster AND found.id = event.id
    WHERE event.cluster = %(cluster)s AND (
        found.position IS DISTINCT FROM event.position
        OR found.fingerprint <> substring(sha256(convert_to(event.stream || chr(10) || event.type, 'UTF8')) FOR 8)
    )
    ORDER BY event.position LIMIT %(limit)s
"""

_STRAY_IDS = """
    SELECT stray.position, stray.id FROM event_id AS stray
    WHERE stray.cluster = %(cluster)s AND stray.position > %(after)s AND NOT EXISTS (
        SELECT FROM event WHERE event.cluster = stray.cluster AND event.id = stray.id
        AND event.position = stray.position
    )
    ORDER BY stray.position LIMIT %(limit)s
"""


class PostgresAuditView:
    """The view of a log in Postgres that an audit reads (`kaicore.ledger.log.seals.audit.AuditView`).

    Its connection sees one state of the database.
    """

    def __init__(self, connection: Connection, cluster: str) -> None:
        self._connection = connection
        self._cluster = cluster

    async def head(self) -> Head:
        """See `AuditView.head`."""
        row = await (await self._connection.execute(_HEAD, [self._cluster])).fetchone()
        return Head(*row or ())

    async def seals(self) -> list[Seal]:
        """See `AuditView.seals`."""
        return await partitions.seals(self._connection, self._cluster)

    @property
    def whole(self) -> bool:
        """See `AuditView.whole`."""
        return True

    async def erasures(self) -> dict[int, RecordedErasure]:
        """See `AuditView.erasures`."""
        rows = await self._connection.execute(_ERASURES, [self._cluster, FieldsErased.__name__])
        return recorded_erasures((position, text.encode()) for position, text in await rows.fetchall())

    async def pages(self) -> AsyncIterator[list[Event]]:
        """See `AuditView.pages`."""
        async with self._connection.cursor("audit_events") as cursor:
            await cursor.execute(_EVENTS, [self._cluster], binary=True)
            while rows := await cursor.fetchmany(_PAGE):
                yield to_events(self._cluster, rows)

    async def differences(self, *, after: int, versions: Mapping[str, tuple[int, int]]) -> list[Finding]:
        """See `AuditView.differences`."""
        findings = await self._differing_versions(versions, retired=after > 0)
        scope = {"cluster": self._cluster, "after": after, "limit": MOST_FINDINGS}
        wrong = await self._connection.execute(_WRONG_IDS, scope)
        for position, noted in await wrong.fetchall():
            if noted is None:
                findings.append(Finding(position, "its id is not in the table of ids"))
            elif noted != position:
                findings.append(Finding(position, f"its id stands for event {noted} in the table of ids"))
            else:
                findings.append(Finding(position, "its id has another fingerprint in the table of ids"))
        stray = await self._connection.execute(_STRAY_IDS, scope)
        for position, event_id in await stray.fetchall():
            findings.append(Finding(position, f"has not the id {event_id} that the table of ids has for it"))
        return findings

    async def _differing_versions(self, versions: Mapping[str, tuple[int, int]], *, retired: bool) -> list[Finding]:
        # They show in no event: where an event is missing, that is found where it was.
        findings: list[Finding] = []
        unseen = set(versions)
        async with self._connection.cursor("audit_streams") as cursor:
            await cursor.execute("SELECT stream, version FROM stream WHERE cluster = %s", [self._cluster])
            while rows := await cursor.fetchmany(_PAGE):
                for stream, version in rows:
                    unseen.discard(stream)
                    if stream not in versions and retired:
                        continue
                    if version != versions.get(stream, (0, 0))[0]:
                        findings.append(_differing(stream, versions, version))
        findings += [_differing(stream, versions, 0) for stream in unseen]
        return sorted(findings, key=str)[:MOST_FINDINGS]


def _differing(stream: str, versions: Mapping[str, tuple[int, int]], version: int) -> Finding:
    last, position = versions.get(stream, (0, 0))
    where = f"version {last} at event {position}" if position else "no event"
    return Finding(0, f"stream {stream} ends with {where}, and the table of streams says {version}")


class PostgresTrail:
    """Trails in Postgres; see `kaicore.ledger.log.snapshots.TrailStore`."""

    def __init__(self, connections: Connections) -> None:
        """Args: connections: of the log."""
        self.connections = connections

    async def places(self, cluster: str) -> list[TrailPlace]:
        """See `TrailStore.places`."""
        rows = await self.connections.rows(
            "SELECT position, schema, size FROM state_trail WHERE cluster = %s ORDER BY position", [cluster]
        )
        return [TrailPlace(*row) for row in rows]

    async def load(self, cluster: str, *, schema: str, upto: int) -> Snapshot | None:
        """See `TrailStore.load`."""
        while rows := await self.connections.rows(
            "SELECT position, body, digest FROM state_trail WHERE cluster = %s AND schema = %s AND position <= %s "
            "ORDER BY position DESC LIMIT 1",
            [cluster, schema, upto],
        ):
            ((position, packed, digest),) = rows
            try:
                snapshot = Snapshot(STATE_SNAPSHOT, position, schema, zlib.decompress(packed))
            except zlib.error as error:
                discard(cluster, Snapshot(STATE_SNAPSHOT, position, schema, b""), why="unreadable", error=str(error))
            else:
                if snapshot_digest(cluster, snapshot) == digest:
                    return snapshot
                discard(cluster, snapshot, why="digest")
            with suppress(KaiError):
                await self.connections.run(partial(_drop_if_allowed, cluster, TrailPlace(position, schema, 0)))
            upto = position - 1
        return None

    async def save(self, cluster: str, snapshot: Snapshot, packed: bytes, *, drop: Sequence[TrailPlace] = ()) -> None:
        """See `TrailStore.save`."""

        async def save(connection: Connection) -> None:
            async with connection.transaction():
                await _drop(cluster, drop, connection)
                await connection.execute(
                    "INSERT INTO state_trail (cluster, schema, position, size, body, digest) "
                    "VALUES (%s, %s, %s, %s, %b, %b) ON CONFLICT (cluster, schema, position) "
                    # What is there already may not be what was saved.
                    "DO UPDATE SET size = excluded.size, body = excluded.body, digest = excluded.digest",
                    [
                        cluster,
                        snapshot.schema,
                        snapshot.position,
                        len(packed),
                        packed,
                        snapshot_digest(cluster, snapshot),
                    ],
                )

        await self.connections.run(save)


async def _drop_if_allowed(cluster: str, place: TrailPlace, connection: Connection) -> None:
    """Drop a place that cannot be used; a role that only reads leaves it there, and does not ask to."""
    cursor = await connection.execute("SELECT has_table_privilege('state_trail', 'DELETE')")
    if await cursor.fetchone() == (True,):
        await _drop(cluster, [place], connection)


async def _drop(cluster: str, places: Sequence[TrailPlace], connection: Connection) -> None:
    if places:
        await connection.execute(
            "DELETE FROM state_trail USING unnest(%s::text[], %s::bigint[]) AS gone (schema, position) "
            "WHERE cluster = %s AND state_trail.schema = gone.schema AND state_trail.position = gone.position",
            [[place.schema for place in places], [place.position for place in places], cluster],
        )


#: The position of the first event recorded at a time or after; along a cluster's log time never goes back.
_FIRST_SINCE = "(SELECT position FROM event WHERE cluster = %(cluster)s AND recorded_at >= {0} {1} LIMIT 1)"
_BY_TIME = "ORDER BY recorded_at, position"
_BY_THIN_TIME = "AND recorded_at >> 24 >= {0} >> 24 ORDER BY recorded_at >> 24, recorded_at, position"

#: Bits of a position that an index of the migration 0019 leaves out: events of one key are in order but for these.
_LEFT_OUT = {"stream": 14, "subject": 14, "type": 10}


def select_events(
    cluster: str, *, after: int, upto: int | None, limit: int, where: Filter, thin: bool
) -> tuple[sql.Composed, dict[str, Any]]:
    """Return a query for `COLUMNS` of the events that a filter lets through, and its parameters.

    Where several streams or types are wanted, each is read by itself, `limit` events at most, and then merged: an index
    gives events of one stream in order of position, but not those of several.

    Args:
        thin: the log has the indexes of `kai_thin_indexes`.
    """
    first_since = _FIRST_SINCE.format("{0}", _BY_THIN_TIME if thin else _BY_TIME)
    parameters: dict[str, Any] = {"cluster": cluster, "after": after, "limit": limit}
    conditions = ["cluster = %(cluster)s"]
    bounds = [(">", "%(after)s::bigint")]
    if upto is not None:
        parameters["upto"] = upto
        bounds.append(("<=", "%(upto)s::bigint"))
    # Bounds of time select partitions, and as bounds of position the part of an index.
    if where.since is not None:
        parameters["since"] = where.since
        conditions.append("recorded_at >= %(since)s")
        bounds.append((">=", first_since.format("%(since)s::bigint")))
    if where.until is not None:
        parameters["until"] = where.until
        conditions.append("recorded_at < %(until)s")
        bounds.append(("<", f"coalesce({first_since.format('%(until)s::bigint')}, 9223372036854775807)"))
    index = each = ""
    if where.subject is not None:
        index = "subject"
        parameters["subject"] = where.subject
        conditions.append("subject = %(subject)s")
        if where.subject:
            # Lets the planner use the index, which has no events without a subject.
            conditions.append("subject <> ''")
    if where.streams is not None:
        parameters["each"] = list(dict.fromkeys(where.streams))
        index = each = "stream"
    if where.types is not None:
        if index:
            parameters["types"] = list(where.types)
            conditions.append("type = ANY(%(types)s)")
        else:
            parameters["each"] = list(dict.fromkeys(where.types))
            index = each = "type"
    return _query(conditions, bounds, each, _LEFT_OUT.get(index, 0) if thin else 0), parameters


def _query(conditions: list[str], bounds: list[tuple[str, str]], each: str, left_out: int) -> sql.Composed:
    conditions = conditions + [f"position {sign} {bound}" for sign, bound in bounds]
    order = "position"
    if left_out:
        order = f"position >> {left_out}, position"
        conditions += [f"position >> {left_out} {sign[0]}= {bound} >> {left_out}" for sign, bound in bounds]
    if each:
        conditions.append(f"event.{each} = one.name")
    # The text is put together from constants of this module; values go as parameters.
    events = sql.SQL("SELECT {} FROM event WHERE {} ORDER BY {} LIMIT %(limit)s").format(
        sql.SQL(COLUMNS), sql.SQL(" AND ".join(conditions)), sql.SQL(order)
    )
    if not each:
        return events
    return sql.SQL(
        "SELECT found.* FROM unnest(%(each)s::text[]) AS one (name) CROSS JOIN LATERAL ({}) AS found "
        "ORDER BY position LIMIT %(limit)s"
    ).format(events)


#: Seconds between attempts to listen again, and without a waiter until nobody listens: each append to any cluster's log
#: wakes whoever does.
_RETRY_S, _UNHEARD_S = 0.2, 10.0


class Listener:
    """Tells waiters that a cluster's log may have grown."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self._hints: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._task: asyncio.Task[None] | None = None
        self._asked_s = 0.0

    def hint(self, cluster: str) -> asyncio.Event:
        """Return an event that will be set when the log may have grown; ask for it before looking at the log."""
        self._asked_s = asyncio.get_running_loop().time()
        if self._task is None:
            self._task = asyncio.create_task(self._listen())
        return self._hints[cluster]

    async def close(self) -> None:
        """Stop listening and wake all that wait."""
        if self._task is not None:
            await end(self._task)
        self._wake_all()

    async def _listen(self) -> None:
        while True:
            with suppress(psycopg.Error, KaiError, OSError):
                connection = await self.connections.connect()
                try:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    # What was appended before is known by looking, and only now can nothing be missed.
                    self._wake_all()
                    loop = asyncio.get_running_loop()
                    while loop.time() < self._asked_s + _UNHEARD_S:
                        try:
                            # psycopg's own wait looks at the clock ten times a second.
                            await asyncio.wait_for(readable(connection.fileno()), _UNHEARD_S)
                        except TimeoutError:
                            continue
                        async for notification in connection.notifies(timeout=_RETRY_S, stop_after=1):
                            self._wake(notification.payload)
                    # Who still waits asks anew, and then there is a listener again.
                    self._task = None
                    self._wake_all()
                    return
                finally:
                    await connection.close()
            await asyncio.sleep(_RETRY_S)

    def _wake(self, cluster: str) -> None:
        hint = self._hints.pop(cluster, None)
        if hint is not None:
            hint.set()

    def _wake_all(self) -> None:
        for cluster in list(self._hints):
            self._wake(cluster)


_log = logging.getLogger(__name__)

#: Patience of a question, seconds: nobody takes over from the one who asks, and on a loaded machine a page takes long.
QUESTION_PATIENCE_S = 60.0

#: Seconds that a transaction under way has when the log is closed.
_CLOSE_S = 5.0

#: Seconds that making months may take; with a synchronous standby that is away it would take for ever.
_MONTHS_ANSWER_S = 15.0

#: Seconds until the next attempt to make months, after one that failed.
_MONTHS_RETRY_S = 600.0

#: Seconds for which `ping` reports a server's lack when nothing was appended since.
_LACKING_S = 30.0

_UNKNOWN_TYPES = """
SELECT type, schema FROM unnest(%s::text[], %s::bigint[]) AS ours (type, schema)
WHERE NOT EXISTS (SELECT FROM writer_type WHERE writer_type.type = ours.type AND writer_type.schema >= ours.schema)
ORDER BY type
"""

_MAX = 2**63 - 1

_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

_NEXT = sql.SQL(
    "SELECT {} FROM event WHERE cluster = %s AND position > %s AND position <= %s AND recorded_at >= %s "
    "ORDER BY position LIMIT %s"
).format(sql.SQL(COLUMNS))


class PostgresLog:
    """The log in Postgres; see `kaicore.ledger.log.port.EventLog`. One object serves all tasks of a process."""

    def __init__(self, connections: Connections, *, clock: Callable[[], int] | None, poll_s: float) -> None:
        """Use `open`."""
        #: For what is kept beside the log.
        self.connections = connections
        self._clock = clock
        self._poll_s = poll_s
        #: See `kaicore.ledger.log.snapshots.HasTrail`.
        self.trail = PostgresTrail(connections)
        self._listener = Listener(connections)
        self._appenders: dict[str, Appender] = {}
        self._shapes = Shapes()
        self._thin: bool | None = None
        #: By cluster, the last event that was read without a filter: whatever follows it was not recorded earlier.
        self._read_to: dict[str, Head] = {}
        self._months_until = 0
        self._months_not_before_s = 0.0
        self._maintenance: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        application: str = "kai",
        clock: Callable[[], int] | None = None,
        patience_s: float = 15.0,
        poll_s: float = 5.0,
        connections: int = 4,
        of_service: bool = False,
    ) -> Self:
        """Open the log of a migrated database.

        Args:
            url: `postgresql://…`, of the server itself or a pooler that keeps sessions.
            application: how the sessions are called in `pg_stat_activity`.
            clock: what stamps `recorded_at`, microseconds since the epoch; by default the server's clock, so that
                all writers have the same.
            patience_s: how long a call goes on when the server does not answer; `QUESTION_PATIENCE_S` for what nobody
                takes over from the one who asks.
            poll_s: how often waiters look at the log when no notification comes.
            connections: most connections at once, beside the one that listens.
            of_service: True opens no standby's, which may be behind what the bus said, and only one that takes all
                events of this version.

        Raises:
            ConfigurationError: the url is none, or the database is not migrated.
            LogUnavailable: the server does not answer, or does not let us in.
        """
        pool = Connections(
            url, size=connections, patience_s=patience_s, application=application, standby_will_do=not of_service
        )
        await pool.open()
        log = cls(pool, clock=clock, poll_s=poll_s)
        try:
            if of_service:
                await log._check_types()
            if await pool.run(partitions.may_make_months):
                await log._make_months_ahead()
        except BaseException:
            await log.close()
            raise
        return log

    async def close(self) -> None:
        """See `EventLog.close`."""
        for appender in self._appenders.values():
            await appender.close(_CLOSE_S)
        if self._maintenance is not None:
            await end(self._maintenance)
        await self.connections.close()
        await self._listener.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def append(
        self, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        """See `EventLog.append`."""
        call = draft(cluster, units, expect=expect)
        appender = self._appenders.get(cluster)
        if appender is None:
            appender = Appender(
                cluster, self.connections, clock=self._clock, recorded=self._recorded, shapes=self._shapes
            )
            self._appenders[cluster] = appender
        outcomes = await appender.append(call)
        self.connections.lacking = ""
        return outcomes

    def hasten(self, patience_s: float) -> None:
        """Make calls, also those under way, give up on a server that does not answer after `patience_s` at most."""
        self.connections.hasten(patience_s)

    @property
    def answered_at(self) -> float:
        """The time when the server last answered, by the event loop's clock; long ago while it lacks something."""
        return -math.inf if self.connections.lacking else self.connections.answered_at

    async def ping(self, *, timeout_s: float) -> None:
        """Ask the server for a sign of life.

        Raises LogUnavailable: there was none in `timeout_s`, once to connect and once to answer; or it answers, and yet
        refused something a short while ago because its disk is full or it lacks something else.
        """
        await self.connections.ping(timeout_s=timeout_s)
        since_s = asyncio.get_running_loop().time() - self.connections.lacking_since_s
        if self.connections.lacking and since_s < _LACKING_S:
            raise LogUnavailable(f"Postgres cannot do it now: {self.connections.lacking}")

    async def _check_types(self) -> None:
        """See that the database takes all events of this version. Raises NotMigrated: naming those that it does not."""
        types = event_types()
        rows = await self.connections.rows(_UNKNOWN_TYPES, [list(types), [schema_version(name) for name in types]])
        if rows:
            unknown = ", ".join(f"{name} schema {schema}" for name, schema in rows)
            raise NotMigrated(f"the database has no log of this version, migrate it: it takes no {unknown}")

    async def head(self, cluster: str) -> Head:
        """See `EventLog.head`."""
        (row,) = await self.connections.rows(_HEAD, [cluster]) or [()]
        return Head(*row)

    async def read(
        self, cluster: str, *, after: int = 0, upto: int | None = None, limit: int = 1000, where: Filter | None = None
    ) -> list[Event]:
        """See `EventLog.read`."""
        after = max(after, 0)
        if where is not None:
            if self._thin is None:
                ((self._thin,),) = await self.connections.rows(
                    "SELECT to_regclass('event_stream_thin') IS NOT NULL", []
                )
            query, parameters = select_events(
                cluster, after=after, upto=upto, limit=limit, where=where, thin=bool(self._thin)
            )
            # A watcher asks for streams at each batch of bound pods, and planning is most of that; other questions are
            # rare and differ too much to share a plan.
            prepare = None if where.streams else False
            return to_events(cluster, await self.connections.rows(query, parameters, prepare=prepare))
        place = self._read_to.get(cluster)
        # Time does not go back along a log, so a bound of time spares looking into earlier months.
        since = place.recorded_at if place is not None and place.position <= after else 0
        rows = await self.connections.rows(_NEXT, [cluster, after, _MAX if upto is None else upto, since, limit])
        events = to_events(cluster, rows)
        if events:
            await self._check_gapless(cluster, after, events)
            self._read_to[cluster] = Head.at(events[-1])
        elif place is None or place.position > after:
            await self._check_not_retired(cluster, after)
        return events

    async def wait_beyond(self, cluster: str, position: int, *, timeout_s: float) -> int:
        """See `EventLog.wait_beyond`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            hint = self._listener.hint(cluster)
            head = (await self.head(cluster)).position
            left_s = deadline - loop.time()
            if head > position or left_s <= 0:
                return head
            # Not wait_for: in Python 3.11 it swallows a cancellation that comes together with the hint.
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, self._poll_s)):
                    await hint.wait()

    async def clusters(self) -> list[str]:
        """See `EventLog.clusters`."""
        return sorted(
            name for (name,) in await self.connections.rows("SELECT cluster FROM log_head WHERE position > 0", [])
        )

    async def stream_versions(self, cluster: str, streams: Sequence[str]) -> dict[str, int]:
        """See `EventLog.stream_versions`."""
        rows = await self.connections.rows(
            "SELECT stream, version FROM stream WHERE cluster = %s AND stream = ANY(%s)", [cluster, list(streams)]
        )
        return dict.fromkeys(streams, 0) | dict(rows)

    async def save_snapshot(self, cluster: str, snapshot: Snapshot) -> None:
        """See `EventLog.save_snapshot`."""
        stored = await asyncio.to_thread(packed, snapshot) if is_large(snapshot) else snapshot

        async def save(connection: Connection) -> None:
            await connection.execute(
                """
                INSERT INTO snapshot AS saved (cluster, name, schema, position, body, digest)
                VALUES (%s, %s, %s, %s, %b, %b)
                ON CONFLICT (cluster, name, schema)
                DO UPDATE SET position = excluded.position, body = excluded.body, digest = excluded.digest
                -- One that is not what was saved keeps no other out, whatever position it claims.
                WHERE saved.position <= excluded.position OR saved.digest <> sha256(
                    convert_to(
                        concat_ws(E'\n', saved.cluster, saved.name, saved.schema, saved.position, ''), 'UTF8'
                    ) || saved.body
                )
                """,
                [
                    cluster,
                    snapshot.name,
                    snapshot.schema,
                    snapshot.position,
                    stored.body,
                    snapshot_digest(cluster, stored),
                ],
            )

        await self.connections.run(save)

    async def load_snapshot(self, cluster: str, *, name: str, schema: str, upto: int | None = None) -> Snapshot | None:
        """See `EventLog.load_snapshot`."""
        rows = await self.connections.rows(
            "SELECT name, position, schema, body, digest FROM snapshot "
            "WHERE cluster = %s AND name = %s AND schema = %s AND position <= %s",
            [cluster, name, schema, _MAX if upto is None else upto],
        )
        found = sound(cluster, rows)
        return found[0] if found else None

    async def retired(self, cluster: str) -> int:
        """See `EventLog.retired`."""
        ((position,),) = await self.connections.rows(
            "SELECT coalesce(max(position), 0) FROM seal WHERE cluster = %s", [cluster]
        )
        return int(position)

    async def kept_snapshots(self, cluster: str, *, name: str) -> list[Snapshot]:
        """See `EventLog.kept_snapshots`."""
        rows = await self.connections.rows(
            "SELECT name, position, schema, body, digest FROM kept_snapshot WHERE cluster = %s AND name = %s "
            "ORDER BY position",
            [cluster, name],
        )
        return sound(cluster, rows)

    async def make_months(self) -> None:
        """Make the partitions of the present and the next months, where missing; an open log does so by itself.

        Raises:
            ConfigurationError: the database role may not append.
            LogUnavailable: the server does not answer, or the table is locked, as by an audit.
        """

        async def make(connection: Connection) -> int:
            return await partitions.ensure_months(connection, now=await self._now(connection))

        # Once: each try makes readers wait behind it for a moment.
        self._months_until = await self.connections.run(make, repeat=False, answer_s=_MONTHS_ANSWER_S)

    async def months(self) -> list[Month]:
        """Return the months that the log has partitions for, in order."""
        return await self.connections.run(partitions.months)

    async def detach_month(self, month: Month, *, without_snapshot: bool = False, dry_run: bool = False) -> list[Seal]:
        """Detach the oldest month and seal it; see `kaicore.ledger.log.partitions.detach_month`.

        Raises:
            ConfigurationError: there is no such month, an older one is left, it is not over, a cluster has no snapshot
                to start from behind it, or the database role does not own the tables.
            LogUnavailable: the server does not answer, or the table is locked, as by an audit.
        """

        async def detach(connection: Connection) -> list[Seal]:
            return await partitions.detach_month(
                connection,
                month,
                now=await self._now(connection),
                without_snapshot=without_snapshot,
                dry_run=dry_run,
            )

        return await self.connections.run(detach, repeat=False)

    async def month_seals(self, month: Month) -> list[Seal]:
        """Return the seals of a detached month from its table; none where there is no such table."""
        return await self.connections.run(lambda connection: partitions.month_seals(connection, month))

    async def put_away_month(self, month: Month, seals: Sequence[Seal], directory: Path) -> list[Path]:
        """Write a detached month into files, read them back, and drop its table; see `archiving.archive_month`.

        Raises:
            ConfigurationError: the directory cannot be written, or the database role does not own the tables.
            CorruptLog: what was written is not what was sealed; the table stays.
            LogUnavailable: the server does not answer.
        """
        async with self.connections.snapshot() as connection:
            files = await archiving.archive_month(connection, month, seals, directory)
        drop = sql.SQL("DROP TABLE {}").format(sql.Identifier(month.table))
        await self.connections.run(lambda connection: connection.execute(drop), repeat=False)
        return files

    async def import_file(self, file: LogFile, *, progress: Callable[[int, int], None]) -> int:
        """Append what an exported log has and this one has not; see `importing.import_file`."""
        return await import_file(self.connections, file, progress=progress)

    async def erase(self, cluster: str, request: ErasureRequest) -> ErasureReport:
        """Erase the personal data of all pods that had a name; see `kaicore.ledger.log.postgres.erasing.erase`.

        Raises LogUnavailable: the server does not answer.
        """

        async def erase(connection: Connection) -> ErasureReport:
            return await erasing.erase(connection, cluster, request, now=await self._now(connection))

        return await self.connections.run(erase, repeat=False)

    async def seals(self, cluster: str) -> list[Seal]:
        """Return the seals of a cluster's detached months, in order."""
        return await self.connections.run(lambda connection: partitions.seals(connection, cluster))

    @asynccontextmanager
    async def audit_view(self, cluster: str) -> AsyncIterator[PostgresAuditView]:
        """Give a view for `kaicore.ledger.log.seals.audit.verify`, on a connection of its own."""
        async with self.connections.snapshot() as connection:
            yield PostgresAuditView(connection, cluster)

    async def _check_gapless(self, cluster: str, after: int, events: list[Event]) -> None:
        if events[0].position != after + 1:
            await self._check_not_retired(cluster, after)
        if events[0].position != after + 1 or events[-1].position != after + len(events):
            expected = zip(range(after + 1, after + 1 + len(events)), events, strict=True)
            missing = next(position for position, event in expected if event.position != position)
            raise CorruptLog(f"cluster {cluster}: event {missing} is missing, or another one is there twice")

    async def _check_not_retired(self, cluster: str, after: int) -> None:
        retired = await self.retired(cluster)
        if retired > after:
            raise EventsRetired(cluster, retired)

    def _recorded(self, head: Head) -> None:
        """After each append: make months in good time."""
        if Month.of(head.recorded_at) + partitions.AHEAD < Month.of(self._months_until):
            return
        if asyncio.get_running_loop().time() < self._months_not_before_s:
            return
        if self._maintenance is None or self._maintenance.done():
            self._maintenance = asyncio.create_task(self._make_months_ahead())

    async def _make_months_ahead(self) -> None:
        try:
            await self.make_months()
        except KaiError as error:
            # No harm yet: there are some months left, and then the DEFAULT partition.
            _log.warning("the log's next months could not be made: %s", error)
            self._months_not_before_s = asyncio.get_running_loop().time() + _MONTHS_RETRY_S

    async def _now(self, connection: Connection) -> int:
        if self._clock is not None:
            return self._clock()
        ((now,),) = await (await connection.execute(_NOW)).fetchall()
        return int(now)
