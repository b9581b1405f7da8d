"""Logs that are read from files, for tests: written as they are asked for."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from kaicore.analysis.replay.exports import export_log
from kaicore.analysis.replay.moments import Moment, range_of
from kaicore.ledger.log.chain import GENESIS, event_hash
from kaicore.ledger.log.files.log import FileLog
from kaicore.ledger.log.files.reader import LogFile
from kaicore.ledger.log.files.writer import LogFileWriter
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import EventLog, Filter, Head
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.envelope import Event


async def export_to(path: Path, log: EventLog, cluster: str, **moments: Moment) -> Path:
    """Export a log, or the part `since` and `until` which."""
    await export_log(log, cluster, path, await range_of(log, cluster, **moments))
    return path


async def import_to(url: str, path: Path, *, progress: Callable[[int, int], None] = lambda _, __: None) -> int:
    """Import a file into a database; return how many events that were."""
    with LogFile(path) as file:
        async with await PostgresLog.open(url) as log:
            return await log.import_file(file, progress=progress)


def write_file(path: Path, events: Sequence[Event], *, before: Head | None = None) -> Path:
    """Write events of a chain as `kai export` does."""
    head = before or Head()
    end = events[-1]
    last = Head.at(end)
    with LogFileWriter(path, end.cluster, after=head, first_hash=events[0].hash, last=last, state=None) as file:
        file.add(events)
    return path


def rechained(events: Sequence[Event], position: int) -> list[Event]:
    """The log of one who changed it from a position on, and all hashes with it."""
    made = list(events[: position - 1])
    for event in events[position - 1 :]:
        made.append(msgspec.structs.replace(event, hash=event_hash(made[-1].hash if made else GENESIS, event)))
    return made


class ExportedLog(MemoryLog):
    """A log that is appended to in memory, and read from a file to which it was exported since."""

    def __init__(self, directory: Path, clock: Callable[[], int]) -> None:
        super().__init__(clock)
        self._directory = directory
        self._files: dict[str, tuple[int, FileLog]] = {}

    async def _file(self, cluster: str) -> FileLog | None:
        events = await super().read(cluster, limit=10**9)
        if not events:
            return None
        position, file = self._files.get(cluster, (0, None))
        if file is None or position != len(events):
            if file is not None:
                await file.close()
            path = write_file(self._directory / f"{len(self._files)}-{len(events)}.log.gz", events)
            file = FileLog(path)
            self._files[cluster] = (len(events), file)
        return file

    async def read(
        self, cluster: str, *, after: int = 0, upto: int | None = None, limit: int = 1000, where: Filter | None = None
    ) -> list[Event]:
        file = await self._file(cluster)
        return [] if file is None else await file.read(cluster, after=after, upto=upto, limit=limit, where=where)

    async def head(self, cluster: str) -> Head:
        file = await self._file(cluster)
        return await super().head(cluster) if file is None else await file.head(cluster)

    async def stream_versions(self, cluster: str, streams: Sequence[str]) -> dict[str, int]:
        file = await self._file(cluster)
        return dict.fromkeys(streams, 0) if file is None else await file.stream_versions(cluster, streams)

    async def close(self) -> None:
        for _, file in self._files.values():
            await file.close()
        await super().close()
