"""Export of a range of a log into a file that can be read without the log."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from kaicore.analysis.replay.log_states import last_kept, pages_of
from kaicore.analysis.replay.moments import Range, state_at
from kaicore.errors import ConfigurationError, CorruptLog, EventsRetired
from kaicore.ledger.log.files.reader import LogFile
from kaicore.ledger.log.files.writer import Header, LogFileWriter
from kaicore.ledger.log.port import EventLog, Head, Snapshot
from kaicore.ledger.log.seals.audit import Auditable
from kaicore.ledger.log.snapshots import take_state
from kaicore.rules.events.envelope import Event


async def export_log(
    log: EventLog, cluster: str, path: Path, wanted: Range, *, progress: Callable[[int, int], None] = lambda _, __: None
) -> Header:
    """Write a range of a log into a file, and return the file's header.

    A file that does not begin with event 1 has the state in it that a reader starts from.

    Args:
        path: of the file; one that is there is replaced once the new one is whole.
        progress: called with how far it is, and how far it will go, in positions.

    Raises:
        ConfigurationError: the file cannot be written, or the range ends before the state that is left was saved.
        CorruptLog: the log is broken; names the event.
        EventsRetired: months were retired, and no sound state was kept.
    """
    after = await _place(log, cluster, wanted.first - 1)
    last = await _place(log, cluster, wanted.last)
    (first,) = await _events(log, cluster, wanted.first)
    state = await _state(log, cluster, wanted)
    with LogFileWriter(path, cluster, after=after, first_hash=first.hash, last=last, state=state) as file:
        async for page in pages_of(log, cluster, after=after.position, upto=wanted.last):
            await asyncio.to_thread(file.add, page)
            progress(page[-1].position, wanted.last)
    with LogFile(path) as written:
        return written.header


async def _place(log: EventLog, cluster: str, position: int) -> Head:
    """Return the place of an event, also of the last one that has been retired."""
    if not position:
        return Head()
    if position == await log.retired(cluster):
        assert isinstance(log, Auditable)
        async with log.audit_view(cluster) as view:
            return Head.at((await view.seals())[-1])
    (event,) = await _events(log, cluster, position)
    return Head.at(event)


async def _events(log: EventLog, cluster: str, position: int) -> list[Event]:
    events = await log.read(cluster, after=position - 1, upto=position, limit=1)
    if not events:
        raise CorruptLog(f"cluster {cluster}: event {position} is missing")
    return events


async def _state(log: EventLog, cluster: str, wanted: Range) -> Snapshot | None:
    """Return what a reader of the range starts from.

    If the log's first months were retired, this is the kept state, to the byte.
    """
    position = wanted.first - 1
    if not position:
        return None
    if position > await log.retired(cluster):
        return take_state(await state_at(log, cluster, position))
    found = await last_kept(log, cluster)
    if found is None:
        raise EventsRetired(cluster, position)
    kept, _ = found
    if kept.position > wanted.last:
        raise ConfigurationError(
            f"cluster {cluster}: the first state that is left of its log is that at {kept.position}: "
            f"a range that ends with {wanted.last} has none to start from"
        )
    return kept
