"""Retired months read like a part of the log: first their files (`archiving`), then the remaining log.

A month's CSV can only be read from its beginning. So it is written once into an exported log, in a directory of the
caller's; each event must continue the chain, and the last one is that of the month's seal. From then on any event is
found at once.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

from kaicore.errors import ConfigurationError, CorruptLog
from kaicore.ledger.log.files.archiving import read_month
from kaicore.ledger.log.files.log import FileLog
from kaicore.ledger.log.files.writer import LogFileWriter
from kaicore.ledger.log.port import EventLog, Filter, Head, Seal, Snapshot
from kaicore.ledger.log.seals.audit import Auditable, AuditView, Finding, RecordedErasure
from kaicore.rules.events.envelope import Event, Unit, UnitOutcome

#: Events that are written at a time.
_PAGE = 2000


class Sealed(EventLog, Protocol):
    """A log that tells which months have been retired."""

    async def seals(self, cluster: str) -> list[Seal]:
        """Return the seals of a cluster's detached months, in order."""


@dataclass(frozen=True, slots=True)
class _Months:
    """A cluster's retired months with their files, the last ones without a gap.

    Attributes:
        before: the seal of the month before them, None where there is none.
    """

    before: Seal | None
    seals: tuple[Seal, ...]

    @property
    def after(self) -> Head:
        return Head() if self.before is None else Head.at(self.before)


class WholeLog:
    """A log together with its retired months, to be read; see `kaicore.ledger.log.port.EventLog`."""

    def __init__(self, log: Sealed, retired: Mapping[str, FileLog]) -> None:
        """Use `with_retired`."""
        self._log = log
        self._retired = retired

    async def append(
        self, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        """See `EventLog.append`. Raises ConfigurationError: always."""
        raise ConfigurationError("nothing is appended to a log that is read with its retired months")

    async def head(self, cluster: str) -> Head:
        """See `EventLog.head`."""
        return await self._log.head(cluster)

    async def read(
        self, cluster: str, *, after: int = 0, upto: int | None = None, limit: int = 1000, where: Filter | None = None
    ) -> list[Event]:
        """See `EventLog.read`."""
        file, events = self._retired.get(cluster), list[Event]()
        if file is not None:
            last = (await file.head(cluster)).position
            if after < last:
                events = await file.read(cluster, after=after, upto=upto, limit=limit, where=where)
            after = max(after, last)
        if len(events) < limit and (upto is None or after < upto):
            events += await self._log.read(cluster, after=after, upto=upto, limit=limit - len(events), where=where)
        return events

    async def wait_beyond(self, cluster: str, position: int, *, timeout_s: float) -> int:
        """See `EventLog.wait_beyond`."""
        return await self._log.wait_beyond(cluster, position, timeout_s=timeout_s)

    async def clusters(self) -> list[str]:
        """See `EventLog.clusters`."""
        return await self._log.clusters()

    async def stream_versions(self, cluster: str, streams: Sequence[str]) -> dict[str, int]:
        """See `EventLog.stream_versions`."""
        return await self._log.stream_versions(cluster, streams)

    async def save_snapshot(self, cluster: str, snapshot: Snapshot) -> None:
        """See `EventLog.save_snapshot`; a state of the past is of no use to the services, and is not kept."""

    async def load_snapshot(self, cluster: str, *, name: str, schema: str, upto: int | None = None) -> Snapshot | None:
        """See `EventLog.load_snapshot`."""
        return await self._log.load_snapshot(cluster, name=name, schema=schema, upto=upto)

    async def retired(self, cluster: str) -> int:
        """See `EventLog.retired`; of months without their files."""
        file = self._retired.get(cluster)
        return await (self._log if file is None else file).retired(cluster)

    async def kept_snapshots(self, cluster: str, *, name: str) -> list[Snapshot]:
        """See `EventLog.kept_snapshots`."""
        return await self._log.kept_snapshots(cluster, name=name) if await self.retired(cluster) else []

    async def close(self) -> None:
        """See `EventLog.close`; the log that is left is closed by whoever opened it."""
        for file in self._retired.values():
            await file.close()

    @asynccontextmanager
    async def audit_view(self, cluster: str) -> AsyncIterator[AuditView]:
        """Give a view for `kaicore.ledger.log.seals.audit.verify`."""
        assert isinstance(self._log, Auditable)
        async with self._log.audit_view(cluster) as left:
            file = self._retired.get(cluster)
            if file is None:
                yield left
                return
            async with file.audit_view(cluster) as retired:
                yield _WholeView(retired, left, boundary=(await file.head(cluster)).position)


class _WholeView:
    """The view of such a log that an audit reads (`kaicore.ledger.log.seals.audit.AuditView`)."""

    def __init__(self, retired: AuditView, left: AuditView, *, boundary: int) -> None:
        self._retired = retired
        self._left = left
        self._boundary = boundary

    @property
    def whole(self) -> bool:
        return True

    async def head(self) -> Head:
        return await self._left.head()

    async def seals(self) -> list[Seal]:
        # What is read from files is not taken from a seal.
        first = [seal.position for seal in await self._retired.seals()]
        return [seal for seal in await self._left.seals() if first and seal.position <= first[0]]

    async def erasures(self) -> dict[int, RecordedErasure]:
        return {**await self._retired.erasures(), **await self._left.erasures()}

    async def pages(self) -> AsyncIterator[list[Event]]:
        for view in (self._retired, self._left):
            async for page in view.pages():
                yield page

    async def differences(self, *, after: int, versions: Mapping[str, tuple[int, int]]) -> list[Finding]:
        del after
        return await self._left.differences(after=self._boundary, versions=versions)


@asynccontextmanager
async def with_retired(log: Sealed, directory: Path, scratch: Path) -> AsyncIterator[WholeLog]:
    """Give a log together with the retired months that have their files in a directory.

    Args:
        directory: where `kai retire --to` put them.
        scratch: where they are written as exported logs; emptied by the caller.

    Raises:
        ConfigurationError: the files of the month that was retired last are not there, or cannot be read.
        CorruptLog: what a file holds is not what was sealed; names the event.
    """
    retired: dict[str, FileLog] = {}
    for cluster in await log.clusters():
        seals = await log.seals(cluster)
        if not seals:
            continue
        months = _present(seals, directory)
        path = scratch / f"{len(retired)}.log.gz"
        _write(path, cluster, months, directory)
        retired[cluster] = FileLog(path)
    whole = WholeLog(log, retired)
    try:
        yield whole
    finally:
        await whole.close()


def _present(seals: Sequence[Seal], directory: Path) -> _Months:
    count = 0
    for seal in reversed(seals):
        if not _file(directory, seal).exists():
            break
        count += 1
    if not count:
        raise ConfigurationError(f"{_file(directory, seals[-1])}: is not there; `kai retire --to` wrote it")
    before = seals[-count - 1] if count < len(seals) else None
    return _Months(before, tuple(seals[-count:]))


def _write(path: Path, cluster: str, months: _Months, directory: Path) -> None:
    with ExitStack() as stack:
        writer: LogFileWriter | None = None
        last = months.after
        for seal in months.seals:
            file = _file(directory, seal)
            for page in _pages(event for event in read_month(file) if event.cluster == cluster):
                if writer is None:
                    writer = stack.enter_context(
                        LogFileWriter(
                            path,
                            cluster,
                            after=months.after,
                            first_hash=page[0].hash,
                            last=Head.at(months.seals[-1]),
                            state=None,
                        )
                    )
                try:
                    writer.add(page)
                except CorruptLog as error:
                    raise CorruptLog(f"{file}: {error}") from error
                last = Head.at(page[-1])
            if last != Head.at(seal):
                raise CorruptLog(
                    f"{file}: cluster {cluster}: ends at event {last.position}, not as sealed at {seal.position}"
                )


def _pages(events: Iterable[Event]) -> Iterable[list[Event]]:
    for _, page in groupby(enumerate(events), key=lambda one: one[0] // _PAGE):
        yield [event for _, event in page]


def _file(directory: Path, seal: Seal) -> Path:
    return directory / f"{seal.detached}.csv.gz"
