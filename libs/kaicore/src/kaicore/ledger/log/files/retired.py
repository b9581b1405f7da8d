"""Retired months read like a part of the log: first their files (`archiving`), then the remaining log.

A month's CSV can only be read from its beginning. So it is written once into an exported log, in a directory of the
caller's; each event must continue the chain, and the last one is that of the month's seal. From then on any event is
found at once.

Retired months as files: a month's table, and the snapshots kept with it, before the table is dropped.

Both are Postgres's own CSV with a header, compressed, so that `COPY … FROM` brings them back:

- `event_2026_01.csv.gz`: the events of all clusters, in order;
- `event_2026_01.kept.csv.gz`: the snapshots from which readers of the rest start (`kept_snapshot`).

A file is read back before it counts: the hash chain of its events must lead from one seal to the next.
"""

import csv
import gzip
import os
import sys
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, Any, Protocol, cast
from uuid import UUID

import msgspec
from psycopg import AsyncConnection, sql

from kaicore.errors import ConfigurationError, CorruptLog
from kaicore.ledger.log.chain import GENESIS, continues
from kaicore.ledger.log.files.log import FileLog
from kaicore.ledger.log.files.writer import LogFileWriter
from kaicore.ledger.log.partitions import Month, Seal
from kaicore.ledger.log.port import EventLog, Filter, Head, Snapshot
from kaicore.ledger.log.seals.audit import Auditable, AuditView, Finding, RecordedErasure
from kaicore.rules.events.envelope import Event, Unit, UnitOutcome

_EVENTS = sql.SQL(
    "COPY (SELECT cluster, position, stream, version, type, schema, id, actor, occurred_at, recorded_at, subject, "
    "cause, correlation, body, hash FROM {} ORDER BY cluster, position) TO STDOUT (FORMAT csv, HEADER)"
)
_KEPT = sql.SQL(
    "COPY (SELECT kept_snapshot.* FROM kept_snapshot JOIN seal ON seal.cluster = kept_snapshot.cluster "
    "AND seal.position = kept_snapshot.seal WHERE seal.detached = {} ORDER BY 1, 2, 3) TO STDOUT (FORMAT csv, HEADER)"
)


async def month_seals(connection: AsyncConnection[Any], month: Month) -> list[Seal]:
    """Return the seals of a detached month while its table is still there, else none."""
    rows = await connection.execute(
        "SELECT cluster, position, first_position, hash, recorded_at, detached, sealed_at FROM seal "
        "WHERE detached = %s AND to_regclass(%s) IS NOT NULL ORDER BY cluster",
        [month.table, month.table],
    )
    return [Seal(*row) for row in await rows.fetchall()]


async def archive_month(
    connection: AsyncConnection[Any], month: Month, seals: Sequence[Seal], directory: Path
) -> list[Path]:
    """Write a detached month into files, and read them back.

    Args:
        connection: of a role that may read the month's table.
        seals: of all clusters that have events in it.
        directory: where the files go; made when missing.

    Returns:
        The files; what was there under these names is replaced.

    Raises:
        ConfigurationError: the directory cannot be written.
        CorruptLog: what was written is not what was sealed.
    """
    before = {seal.cluster: await _hash_before(connection, seal) for seal in seals}
    queries = {"csv.gz": _EVENTS.format(sql.Identifier(month.table)), "kept.csv.gz": _KEPT.format(month.table)}
    files: list[Path] = []
    try:
        _make(directory)
        for suffix, query in queries.items():
            file = directory / f"{month.table}.{suffix}"
            beside = file.with_name(f".{file.name}.new")
            with beside.open("wb") as raw:
                with gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed:
                    async with connection.cursor() as cursor, cursor.copy(query) as copy:
                        async for block in copy:
                            packed.write(block)
                raw.flush()
                os.fsync(raw.fileno())
            if not files:
                check_archive(beside, seals, before=before)
            beside.replace(file)
            files.append(file)
    except OSError as error:
        raise ConfigurationError(f"{error.filename or directory}: cannot be written: {error.strerror}") from error
    return files


async def drop_month(connection: AsyncConnection[Any], month: Month) -> None:
    """Drop the table of a detached month."""
    await connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(month.table)))


def check_archive(file: Path, seals: Sequence[Seal], *, before: dict[str, bytes]) -> None:
    """Read a file of events, and compare its hash chains with the seals.

    Args:
        file: as `archive_month` writes it.
        before: by cluster, the hash of the event before its first one there.

    Raises:
        CorruptLog: an event is missing, there twice, or not what it was; names it.
    """
    hashes, positions = dict(before), {seal.cluster: seal.first_position - 1 for seal in seals}
    for event in read_month(file):
        expected = positions.get(event.cluster)
        if expected is None or event.position != expected + 1:
            raise CorruptLog(f"{file}: cluster {event.cluster}: event {event.position} is not the one that follows")
        if not continues(hashes[event.cluster], event):
            raise CorruptLog(f"{file}: cluster {event.cluster}: event {event.position}: its hash is another one")
        hashes[event.cluster], positions[event.cluster] = event.hash, event.position
    for seal in seals:
        if (positions[seal.cluster], hashes[seal.cluster]) != (seal.position, seal.hash):
            raise CorruptLog(f"{file}: cluster {seal.cluster}: ends at {positions[seal.cluster]}, not at its seal")


def read_month(file: Path) -> Iterator[Event]:
    """Yield the events of a month's file, of which nothing has been checked; those of each cluster in order.

    Raises:
        ConfigurationError: it cannot be read.
        CorruptLog: it is no such file, or cut off.
    """
    # Payloads of megabytes are one field.
    csv.field_size_limit(sys.maxsize)
    try:
        # A row that was cut off has None where there should be texts.
        yield from _rows(file)
    except (
        EOFError,
        gzip.BadGzipFile,
        zlib.error,
        csv.Error,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise CorruptLog(f"{file}: is no month of a log, or cut off: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from error


def _rows(file: Path) -> Iterator[Event]:
    with gzip.open(file, "rt", encoding="utf-8", newline="") as packed:
        for row in csv.DictReader(cast("IO[str]", packed)):
            yield Event(
                cluster=row["cluster"],
                position=int(row["position"]),
                stream=row["stream"],
                version=int(row["version"]),
                type=row["type"],
                schema=int(row["schema"]),
                id=UUID(row["id"]),
                actor=row["actor"],
                occurred_at=int(row["occurred_at"]),
                recorded_at=int(row["recorded_at"]),
                subject=row["subject"],
                cause=UUID(row["cause"]) if row["cause"] else None,
                correlation=row["correlation"],
                body=msgspec.Raw(row["body"].encode()),
                hash=bytes.fromhex(row["hash"].removeprefix("\\x")),
            )


def _make(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)


async def _hash_before(connection: AsyncConnection[Any], seal: Seal) -> bytes:
    rows = await connection.execute(
        "SELECT hash FROM seal WHERE cluster = %s AND position = %s", [seal.cluster, seal.first_position - 1]
    )
    row = await rows.fetchone()
    return GENESIS if row is None else bytes(row[0])


#: Events that are written at a time.
_PAGE = 2000


class Sealed(EventLog, Protocol):
    """A log that tells which months have been retired."""

    async def seals(self, cluster: str) -> list[Seal]:
        """Return the seals of a cluster's detached months, in order."""
        ...


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
        return Head(0, GENESIS, 0) if self.before is None else _head(self.before)


class WholeLog:
    """A log together with its retired months, to be read; see `kaicore.ledger.log.port.EventLog`."""

    def __init__(self, log: Sealed, retired: Mapping[str, FileLog]) -> None:
        """Use `with_retired`."""
        self._log = log
        self._retired = retired

    async def append(
        self, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        """See `EventLog.append`.

        Raises:
            ConfigurationError: always.
        """
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
                            last=_head(months.seals[-1]),
                            state=None,
                        )
                    )
                try:
                    writer.add(page)
                except CorruptLog as error:
                    raise CorruptLog(f"{file}: {error}") from error
                last = Head(page[-1].position, page[-1].hash, page[-1].recorded_at)
            if last != _head(seal):
                raise CorruptLog(
                    f"{file}: cluster {cluster}: ends at event {last.position}, not as sealed at {seal.position}"
                )


def _pages(events: Iterable[Event]) -> Iterable[list[Event]]:
    for _, page in groupby(enumerate(events), key=lambda one: one[0] // _PAGE):
        yield [event for _, event in page]


def _file(directory: Path, seal: Seal) -> Path:
    return directory / f"{seal.detached}.csv.gz"


def _head(seal: Seal) -> Head:
    return Head(seal.position, seal.hash, seal.recorded_at)
