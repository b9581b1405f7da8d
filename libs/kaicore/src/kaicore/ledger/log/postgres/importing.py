"""Imports an exported log into a database unchanged: positions, hashes, ids and times.

It is appended in portions, each a transaction that locks the cluster's head first, like any append. So it can be
stopped anywhere, and continues at the log's end when it is called again.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from kaicore.errors import ConfigurationError, CorruptLog
from kaicore.ledger.connections import Connection, Connections
from kaicore.ledger.log import partitions
from kaicore.ledger.log.appending import fingerprint
from kaicore.ledger.log.files.reader import LogFile, check_next
from kaicore.ledger.log.partitions import Month
from kaicore.ledger.log.port import Head, Seal
from kaicore.ledger.log.postgres.append import CHANNEL
from kaicore.ledger.log.shapes import SHAPES, Shapes
from kaicore.rules.events.envelope import Event

#: A portion has so many events, or bytes of their bodies, or one bundle's more.
_PORTION, _PORTION_BYTES = 10_000, 32 << 20

_EVENT = f"COPY event ({', '.join(Event.__struct_fields__)}) FROM STDIN"
_ID = "COPY event_id (cluster, id, position, fingerprint) FROM STDIN"
_VERSIONS = """
    INSERT INTO stream (cluster, stream, version) SELECT %s, * FROM unnest(%s::text[], %s::bigint[])
    ON CONFLICT (cluster, stream) DO UPDATE SET version = excluded.version
"""


async def import_file(
    connections: Connections, file: LogFile, *, progress: Callable[[int, int], None] = lambda _, __: None
) -> int:
    """Append what a file has and the log of its cluster has not; return how many events that were.

    Args:
        connections: of the role that owns the log.
        progress: called with how far the log is, and how far it will be, in positions.

    Raises:
        ConfigurationError: the cluster's log has other events, or a gap would be left between it and the file.
        CorruptLog: the file is not what was written; names the event. What is before it is in the log.
    """
    head = await connections.run(partial(_begin, file=file))
    before, shapes = head.position, Shapes()
    for portion in _portions(file, head):
        months = {Month.of(event.recorded_at) for event in portion}
        for month in sorted(months):
            await connections.run(partial(partitions.ensure_months, now=month.start, ahead=0))
        head = await connections.run(partial(_append, portion=portion, after=head, shapes=shapes))
        progress(head.position, file.last.position)
    return head.position - before


def _portions(file: LogFile, head: Head) -> Iterator[list[Event]]:
    """Yield the events behind a log's head, each checked to follow the one before. Raises CorruptLog: one does not."""
    portion: list[Event] = []
    size = 0
    if head.position >= file.last.position:
        return
    for bundle in range(file.bundle_of(head.position + 1), len(file.footer.bundles)):
        for event in file.events(bundle):
            if event.position <= head.position:
                continue
            if wrong := check_next(head, event):
                raise CorruptLog(f"{file.path}: cluster {event.cluster}: {wrong}")
            portion.append(event)
            size += len(event.body)
            head = Head.at(event)
        if len(portion) >= _PORTION or size >= _PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if head != file.last:
        raise CorruptLog(f"{file.path}: ends with event {head.position}, not with {file.last.position}, as it says")
    if portion:
        yield portion


async def _begin(connection: Connection, *, file: LogFile) -> Head:
    """Return where the log ends, after it was seen that the file goes on from there."""
    cluster = file.header.cluster
    async with connection.transaction():
        head = await _locked_head(connection, cluster)
        if head.position:
            await _check_continues(connection, file, head)
            return head
        if file.after.position:
            await _begin_late(connection, file)
        return file.after


async def _check_continues(connection: Connection, file: LogFile, head: Head) -> None:
    """Compare the last event that log and file both have.

    Raises ConfigurationError: it is not the same, or there is none.
    """
    cluster, after, last = file.header.cluster, file.after, file.last
    if head.position < after.position:
        raise ConfigurationError(
            f"cluster {cluster}: its log ends with event {head.position}, and {file.path} begins with "
            f"{after.position + 1}: what is between is missing"
        )
    common, hash_ = min(head.position, last.position), last.hash
    if common == after.position:
        hash_ = after.hash
    elif common != last.position:
        events = file.events(file.bundle_of(common))
        hash_ = events[common - events[0].position].hash
    stored = head.hash
    if common != head.position:
        rows = await connection.execute(
            "SELECT hash FROM event WHERE cluster = %s AND position = %s", [cluster, common]
        )
        row = await rows.fetchone()
        if row is None:
            raise ConfigurationError(f"cluster {cluster}: event {common} is not in its log any more")
        stored = bytes(row[0])
    if stored != hash_:
        raise ConfigurationError(
            f"cluster {cluster}: its log is another one than that of {file.path}: event {common} has hash "
            f"{stored.hex()[:16]}… in the log and {hash_.hex()[:16]}… in the file; nothing was imported"
        )


async def _begin_late(connection: Connection, file: LogFile) -> None:
    """Begin a log without its first events in the file: sealed, with the state that the file begins with."""
    cluster, after, state = file.header.cluster, file.after, file.state()
    seal = Seal(cluster, after.position, 1, after.hash, after.recorded_at, "before the import", after.recorded_at)
    await partitions.record_seal(connection, seal)
    if state is not None:
        await partitions.keep_snapshot(connection, cluster, after.position, state)
    await _move_head(connection, cluster, after)


async def _append(connection: Connection, *, portion: Sequence[Event], after: Head, shapes: Shapes) -> Head:
    cluster, last = portion[0].cluster, portion[-1]
    await shapes.learn(connection)
    for event in portion:
        shapes.row(event, bytes(event.body))
    # Those that this portion has for the first time.
    await shapes.learn(connection)
    end = Head.at(last)
    async with connection.transaction():
        head = await _locked_head(connection, cluster)
        if head == end:
            # The portion was appended, and only the answer was lost.
            return end
        if head != after:
            raise ConfigurationError(f"cluster {cluster}: its log went on by itself, to event {head.position}")
        async with connection.cursor() as cursor:
            async with cursor.copy(_EVENT) as copy:
                for event in portion:
                    await copy.write_row(_row(event, *shapes.row(event, bytes(event.body))))
            async with cursor.copy(_ID) as copy:
                for event in portion:
                    mark = fingerprint(event.stream, event.type)
                    await copy.write_row((cluster, event.id, event.position, mark))
        versions = {event.stream: event.version for event in portion}
        await connection.execute(_VERSIONS, [cluster, list(versions), list(versions.values())])
        await _move_head(connection, cluster, end)
        await connection.execute("SELECT pg_notify(%s, %s)", [CHANNEL, cluster])
    return end


def _row(event: Event, shape: int, body: bytes) -> tuple[object, ...]:
    stored = {"schema": event.schema + shape * SHAPES, "body": body.decode()}
    return tuple({**msgspec.structs.asdict(event), **stored}.values())


async def _locked_head(connection: Connection, cluster: str) -> Head:
    rows = await connection.execute("SELECT * FROM kai_lock_head(%s)", [cluster])
    ((position, hash_, recorded_at),) = await rows.fetchall()
    return Head(position, hash_, recorded_at)


async def _move_head(connection: Connection, cluster: str, head: Head) -> None:
    await connection.execute(
        "UPDATE log_head SET position = %s, hash = %b, recorded_at = %s WHERE cluster = %s",
        [head.position, head.hash, head.recorded_at, cluster],
    )
