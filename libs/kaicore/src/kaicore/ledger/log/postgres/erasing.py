"""Erasing a pod's personal data from a cluster's log, in one transaction; the chain can be verified as before.

Events that hold something of it get other subjects and bodies, with a mark (`kaicore.ledger.log.chain`); a
`FieldsErased` at the log's end names each with its mark. Caches of states are emptied, and snapshots that were kept
with retired months are redacted. `PostgresLog.erase` is the way in; here psycopg's exceptions come through.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from psycopg import AsyncConnection, sql

from kaicore.errors import ConfigurationError, CorruptLog, InvalidObject, UnknownSubject
from kaicore.ledger.log import partitions
from kaicore.ledger.log.appending import Tail, draft
from kaicore.ledger.log.chain import continues, mark_of, marked
from kaicore.ledger.log.port import Head, Snapshot
from kaicore.ledger.log.postgres.rows import COLUMNS, encode_rows, to_events
from kaicore.ledger.log.shapes import BODY
from kaicore.ledger.log.snapshots import packed, snapshot_digest, unpacked
from kaicore.rules.events.envelope import Event, NewEvent, Unit, derived_id
from kaicore.rules.events.erasure import ERASED, Erasure, pseudonym
from kaicore.rules.events.payloads import ErasedEvent, FieldsErased

#: Who appends the record.
ACTOR = "kai erase"

#: Tables that only cache states; their rows are deleted.
CACHES = ("snapshot", "state_trail")

_POD_HISTORY = """UPDATE views.pod_history SET name = %s, "user" = '' WHERE cluster = %s AND uid = ANY(%s)"""
_GROUP_HISTORY = 'UPDATE views.pod_history SET "group" = %s WHERE cluster = %s AND "group" = %s'
_NOTICES = "DELETE FROM notices.waiting WHERE cluster = %s AND position(%s in body) > 0"

#: Key of the advisory lock under which logs are changed.
_LOCK = 0x6B61692D657261

#: Events that one record names at most, and rows that are looked at or changed at a time.
_MOST_NAMED, _PAGE = 20_000, 500

_Connection = AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """The erased events, or those that would be erased.

    Attributes:
        recorded: positions of the events that say so.
        left: positions of other events in which the name still stands, such as those of a Job of that name.
        retired: the last position that has left the log with an old month; the files of these months are not touched.
    """

    cluster: str
    uids: tuple[str, ...]
    pseudonym: str
    positions: tuple[int, ...]
    recorded: tuple[int, ...]
    left: tuple[int, ...]
    retired: int


@dataclass(frozen=True, slots=True)
class ErasureRequest:
    """The request for an erasure.

    Attributes:
        subject: `namespace/name` of the pods, or the uid of one.
        all_labels: see `Erasure`.
        reason: why, for the record.
        dry_run: do all of it, and take it back.
    """

    subject: str
    all_labels: bool = False
    reason: str = ""
    dry_run: bool = False


async def erase(connection: _Connection, cluster: str, request: ErasureRequest, *, now: int) -> ErasureReport:
    """Erase the personal data of all pods that had a name.

    Args:
        connection: in autocommit mode, of the log's owner.
        now: the log's clock, microseconds since the epoch.

    Raises:
        UnknownSubject: the log has never heard of such a pod.
        ConfigurationError: one of them is still there: what is erased now would be recorded again; or the database role
            does not own the tables.
        CorruptLog: an event is not what was recorded.
    """
    async with connection.transaction(force_rollback=request.dry_run):
        report = await _erase(connection, cluster, request, now=now)
    if not request.dry_run:
        # What was replaced is still on the table's pages until these are used again.
        await connection.execute("VACUUM event")
    return report


async def _erase(connection: _Connection, cluster: str, request: ErasureRequest, *, now: int) -> ErasureReport:
    await connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    erasure = await _erasure(connection, cluster, request.subject, all_labels=request.all_labels)
    seals = await partitions.seals(connection, cluster)
    retired = Head.at(seals[-1]) if seals else Head()
    # All of a large log takes minutes to look through, in which others append; what is new is then looked through while
    # nobody does.
    changed: list[Event] = []
    left: list[int] = []
    looked_at, head = 0, Head()
    for query in (
        "SELECT position, hash, recorded_at FROM log_head WHERE cluster = %s",
        "SELECT * FROM kai_lock_head(%s)",
    ):
        head = Head(*(await (await connection.execute(query, [cluster])).fetchall())[0])
        async for event in _holding(connection, cluster, erasure, after=looked_at, upto=head.position):
            redacted = _redacted(erasure, event)
            if redacted is not None:
                changed.append(redacted)
            if erasure.names(_text(redacted or event)):
                left.append(event.position)
        looked_at = head.position
    for start in range(0, len(changed), _PAGE):
        changed[start : start + _PAGE] = await _replace(connection, cluster, changed[start : start + _PAGE], retired)
    for table in CACHES:
        await connection.execute(sql.SQL("DELETE FROM {} WHERE cluster = %s").format(sql.Identifier(table)), [cluster])
    since = min((event.recorded_at for event in changed), default=head.recorded_at)
    await _redact_views(connection, cluster, erasure, since=since)
    await _redact_kept(connection, cluster, erasure)
    recorded = await _record(connection, cluster, erasure, changed, head, reason=request.reason, now=now)
    return ErasureReport(
        cluster,
        erasure.uids,
        erasure.pseudonym,
        tuple(event.position for event in changed),
        recorded,
        tuple(left),
        retired.position,
    )


async def _erasure(connection: _Connection, cluster: str, subject: str, *, all_labels: bool) -> Erasure:
    if "/" not in subject:
        rows = await connection.execute(
            "SELECT subject FROM event WHERE cluster = %s AND stream = %s AND subject <> '' ORDER BY position LIMIT 1",
            [cluster, f"pod/{subject}"],
        )
        names = await rows.fetchall()
        if not names:
            raise UnknownSubject(f"cluster {cluster}: the log has never heard of a pod with uid {subject}")
        ((subject,),) = names
    namespace, _, name = subject.partition("/")
    rows = await connection.execute(
        """
        SELECT stream, min(position), bool_or(type = 'PodDeleted') FROM event
        WHERE cluster = %s AND subject = %s AND subject <> '' AND stream LIKE 'pod/%%' GROUP BY stream ORDER BY 2
        """,
        [cluster, subject],
    )
    pods = await rows.fetchall()
    if not namespace or not name or not pods:
        raise UnknownSubject(f"cluster {cluster}: the log has never heard of a pod {subject}")
    if there := [stream.removeprefix("pod/") for stream, _, deleted in pods if not deleted]:
        raise ConfigurationError(
            f"cluster {cluster}: pod {subject} ({there[0]}) is still there: delete it first; "
            "what is erased of a pod that is there would be recorded again"
        )
    uids = tuple(stream.removeprefix("pod/") for stream, *_ in pods)
    if name.endswith(f"{ERASED}-{uids[0]}"):
        return Erasure(namespace, name, uids, name, all_labels)
    before, after = await _neighbours(connection, cluster, namespace, subject)
    return Erasure(namespace, name, uids, pseudonym(uids[0], before=before, after=after), all_labels)


async def _neighbours(connection: _Connection, cluster: str, namespace: str, subject: str) -> tuple[str, str]:
    """Return the names of a namespace's pods right before and right after one, in the order of code points."""
    rows = await connection.execute(
        """
        SELECT max(subject COLLATE "C") FILTER (WHERE subject COLLATE "C" < %(subject)s),
               min(subject COLLATE "C") FILTER (WHERE subject COLLATE "C" > %(subject)s)
        FROM event WHERE cluster = %(cluster)s AND stream LIKE 'pod/%%' AND starts_with(subject, %(namespace)s)
        """,
        {"cluster": cluster, "subject": subject, "namespace": f"{namespace}/"},
    )
    ((before, after),) = await rows.fetchall()
    return (before or "").partition("/")[2], (after or "").partition("/")[2]


async def _holding(
    connection: _Connection, cluster: str, erasure: Erasure, *, after: int, upto: int
) -> AsyncIterator[Event]:
    """Yield all events between two positions that may hold personal data of the pods, in order."""
    query = sql.SQL(
        "SELECT {} FROM event WHERE cluster = %s AND position > %s AND position <= %s "
        "AND (stream = ANY(%s) OR strpos({}, %s) > 0 OR strpos(subject, %s) > 0 "
        "OR strpos(correlation, %s) > 0) ORDER BY position"
    ).format(sql.SQL(COLUMNS), sql.SQL(BODY))
    name = erasure.name
    async with connection.cursor("erasing") as cursor:
        streams = [f"pod/{uid}" for uid in erasure.uids]
        await cursor.execute(query, [cluster, after, upto, streams, name, name, name], binary=True)
        while rows := await cursor.fetchmany(_PAGE):
            for event in to_events(cluster, rows):
                yield event


def _redacted(erasure: Erasure, event: Event) -> Event | None:
    try:
        return erasure.redacted(event)
    except msgspec.DecodeError as error:
        raise CorruptLog(f"cluster {event.cluster}: event {event.position}: undecodable body: {error}") from error


def _text(event: Event) -> str:
    return "\n".join((event.subject, event.correlation, event.stream, bytes(event.body).decode()))


async def _replace(connection: _Connection, cluster: str, events: list[Event], retired: Head) -> list[Event]:
    """Replace subjects and bodies by those of `events`; return these with their marks.

    Raises CorruptLog: one was not what was recorded.
    """
    positions = [event.position for event in events]
    query = sql.SQL("SELECT {} FROM event WHERE cluster = %s AND position = ANY(%s)").format(sql.SQL(COLUMNS))
    needed = sorted({place for position in positions for place in (position - 1, position)})
    rows = await (await connection.execute(query, [cluster, needed], binary=True)).fetchall()
    there = {event.position: event for event in to_events(cluster, rows)}
    hashes = {position: event.hash for position, event in there.items()} | {retired.position: retired.hash}
    made = []
    for event in events:
        before = hashes.get(event.position - 1)
        if before is None or not continues(before, there[event.position]):
            raise CorruptLog(
                f"cluster {cluster}: event {event.position} is not what was recorded: "
                "`kai audit verify` says what is broken"
            )
        made.append(marked(before, event))
    changes = [
        {
            "position": event.position,
            "recorded_at": event.recorded_at,
            "subject": event.subject,
            "body": bytes(event.body).decode(),
        }
        for event in made
    ]
    text = msgspec.json.encode(changes).decode()
    ((changed,),) = await (await connection.execute("SELECT kai_erase(%s, %s::json)", [cluster, text])).fetchall()
    assert changed == len(events), f"{changed} of {len(events)} events were changed"
    return made


async def _redact_views(connection: _Connection, cluster: str, erasure: Erasure, *, since: int) -> None:
    """Redact the read model that names pods, where there is one; a pod that is gone is not written there again.

    Notices of it that nobody has taken yet are dropped. Hours of the account from `since` on may name its user: they
    are counted anew.
    """
    there = "SELECT to_regclass('views.pod_history') IS NOT NULL, to_regclass('notices.waiting') IS NOT NULL"
    ((views, notices),) = await (await connection.execute(there)).fetchall()
    if notices:
        await connection.execute(_NOTICES, [cluster, f"{erasure.namespace}/{erasure.name}"])
    if views:
        await connection.execute(_POD_HISTORY, [erasure.pseudonym, cluster, list(erasure.uids)])
        alone = [f"Pod/{erasure.namespace}/{name}" for name in (erasure.pseudonym, erasure.name)]
        await connection.execute(_GROUP_HISTORY, [alone[0], cluster, alone[1]])
        await connection.execute("DELETE FROM views.account_hour WHERE cluster = %s AND end_at > %s", [cluster, since])


async def _redact_kept(connection: _Connection, cluster: str, erasure: Erasure) -> None:
    rows = await connection.execute(
        "SELECT seal, name, position, schema, body FROM kept_snapshot WHERE cluster = %s", [cluster]
    )
    for seal, name, position, schema, stored in await rows.fetchall():
        body = unpacked(stored)
        if erasure.name.encode() not in body:
            continue
        redacted = _redacted_body(erasure, body, about=f"cluster {cluster}: snapshot {name!r} at {position}")
        kept = packed(Snapshot(name, position, schema, redacted))
        digest = snapshot_digest(cluster, kept)
        await connection.execute("SELECT kai_erase_kept(%s, %s, %s, %b, %b)", [cluster, seal, name, kept.body, digest])


def _redacted_body(erasure: Erasure, body: bytes, *, about: str) -> bytes:
    """Return a snapshot without personal data; all are documents, in JSON or in MessagePack."""
    for decode, encode in (
        (msgspec.json.decode, msgspec.json.encode),
        (msgspec.msgpack.decode, msgspec.msgpack.encode),
    ):
        try:
            document = decode(body)
        except (msgspec.DecodeError, ValueError):
            continue
        return encode(erasure.document(document))
    raise InvalidObject(about, "body", body[:20], "is no document, and the name stands in it")


async def _record(
    connection: _Connection,
    cluster: str,
    erasure: Erasure,
    changed: Sequence[Event],
    head: Head,
    *,
    reason: str,
    now: int,
) -> tuple[int, ...]:
    """Append what was erased; return the positions."""
    if not changed:
        return ()
    subject, stream = f"{erasure.namespace}/{erasure.pseudonym}", f"erasure/{erasure.uids[0]}"
    units = []
    for start in range(0, len(changed), _MOST_NAMED):
        some = changed[start : start + _MOST_NAMED]
        named = tuple(ErasedEvent(event.position, mark_of(event)) for event in some)
        payload = FieldsErased(erasure.uids, erasure.namespace, erasure.pseudonym, named, reason)
        event_id = derived_id(cluster, "FieldsErased", erasure.uids[0], str(head.position), str(start))
        units.append(Unit((NewEvent(event_id, stream, payload, ACTOR, now, subject),)))
    rows = await connection.execute(
        "SELECT stream, version FROM stream WHERE cluster = %s AND stream = %s", [cluster, stream]
    )
    tail = Tail(cluster, head, dict(await rows.fetchall()), {})
    outcomes, events = tail.take(draft(cluster, units), now=now)
    await connection.execute(
        "SELECT kai_append(%s, %s::json, %s, %s, %s)",
        [cluster, encode_rows(events), tail.head.position, tail.head.hash, tail.head.recorded_at],
    )
    return tuple(position for outcome in outcomes for position in outcome.positions)
