"""An exported log as a read-only event log."""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import msgspec

from kaicore.errors import ConfigurationError, CorruptLog, EventsRetired, LogUnavailable
from kaicore.ledger.log.files.reader import LogFile, decode_lines
from kaicore.ledger.log.port import Filter, Head, Seal, Snapshot
from kaicore.ledger.log.seals.audit import Finding, RecordedErasure, recorded_erasures
from kaicore.ledger.log.snapshots import STATE_SNAPSHOT
from kaicore.rules.events.envelope import Event, Unit, UnitOutcome
from kaicore.rules.events.payloads import FieldsErased

#: Streams that are looked for in a bundle's text before it is decoded; of more of them some event is in most bundles.
_SOUGHT = 8


class FileLog:
    """The log in a file that `kai export` wrote; see `kaicore.ledger.log.port.EventLog`.

    Snapshots that are saved live as long as this object.
    """

    def __init__(self, path: Path) -> None:
        """Open a file.

        Raises:
            ConfigurationError: there is no such file, or it is no exported log, or a newer version wrote it.
            CorruptLog: it is cut off or damaged; names the first event that is missing or wrong.
        """
        self._file = LogFile(path)
        self._cluster = self._file.header.cluster
        self._snapshots: dict[tuple[str, str], Snapshot] = {}
        self._decoded: tuple[int, list[Event]] = (-1, [])
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def append(
        self, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        """See `EventLog.append`. Raises ConfigurationError: always."""
        raise ConfigurationError(f"{self._file.path}: nothing is appended to an exported log")

    async def head(self, cluster: str) -> Head:
        """See `EventLog.head`."""
        return self._file.last if self._has(cluster) else Head()

    async def read(
        self, cluster: str, *, after: int = 0, upto: int | None = None, limit: int = 1000, where: Filter | None = None
    ) -> list[Event]:
        """See `EventLog.read`."""
        if not self._has(cluster):
            return []
        last = self._file.last.position
        upto = last if upto is None else min(upto, last)
        retired = self._file.after.position
        if where is None and max(after, 0) < retired:
            raise EventsRetired(cluster, retired)
        if where is not None:
            return self._selected(max(after, retired), upto, limit, where)
        events: list[Event] = []
        while after < upto and len(events) < limit:
            page = self._between(self._file.bundle_of(after + 1), after, min(upto, after + limit - len(events)))
            events += page
            after = page[-1].position
        return events

    def _between(self, bundle: int, after: int, upto: int) -> list[Event]:
        """Return the events of a bundle behind a position, as many as there are up to another.

        Raises CorruptLog: the one right behind `after` is not there.
        """
        events = self._events(bundle)
        if events[0].position > after + 1 or events[-1].position != events[0].position + len(events) - 1:
            raise self._gap(events, after)
        start = after + 1 - events[0].position
        page = events[start : start + upto - after]
        if not page:
            raise self._gap(events, after)
        return page

    def _gap(self, events: list[Event], after: int) -> CorruptLog:
        expected = after + 1 if events[0].position > after + 1 else events[0].position
        for event in events:
            if event.position != expected:
                break
            expected += 1
        return CorruptLog(
            f"{self._file.path}: cluster {self._cluster}: event {expected} is missing, or another one is there twice"
        )

    def _events(self, bundle: int) -> list[Event]:
        if self._decoded[0] != bundle:
            events = self._file.events(bundle)
            if not events:
                raise CorruptLog(f"{self._file.path}: cluster {self._cluster}: a bundle has no events")
            self._decoded = (bundle, events)
        return self._decoded[1]

    def _selected(self, after: int, upto: int, limit: int, where: Filter) -> list[Event]:
        file, events = self._file, list[Event]()
        first, last = file.bundle_of(after + 1), file.bundle_of(upto)
        times = [bundle.recorded_at for bundle in file.footer.bundles]
        if where.since is not None:
            # A bundle may end with events of the time at which the next one begins.
            first = max(first, bisect_left(times, where.since) - 1)
        if where.until is not None:
            last = min(last, bisect_left(times, where.until) - 1)
        sought = _sought(where)
        for bundle in range(first, last + 1):
            if len(events) >= limit:
                break
            lines = file.lines(bundle)
            if any(not any(text in lines for text in texts) for texts in sought):
                continue
            for texts in sought:
                lines = b"\n".join(line for line in lines.split(b"\n") if any(text in line for text in texts))
            events += [
                event
                for event in decode_lines(lines, name=str(file.path))
                if after < event.position <= upto and where.lets_through(event)
            ]
        return events[:limit]

    async def wait_beyond(self, cluster: str, position: int, *, timeout_s: float) -> int:
        """See `EventLog.wait_beyond`; a file does not grow."""
        head = await self.head(cluster)
        if head.position <= position:
            await asyncio.sleep(timeout_s)
        return head.position

    async def clusters(self) -> list[str]:
        """See `EventLog.clusters`."""
        return [self._cluster] if self._has(self._cluster) else []

    async def stream_versions(self, cluster: str, streams: Sequence[str]) -> dict[str, int]:
        """See `EventLog.stream_versions`; of streams that the file has an event of."""
        versions = dict.fromkeys(streams, 0)
        if self._has(cluster):
            where = Filter(streams=tuple(streams))
            after, upto = self._file.after.position, self._file.last.position
            for event in self._selected(after, upto, upto - after, where):
                versions[event.stream] = event.version
        return versions

    async def save_snapshot(self, cluster: str, snapshot: Snapshot) -> None:
        """See `EventLog.save_snapshot`; it is kept until the log is closed."""
        old = self._snapshots.get((snapshot.name, snapshot.schema))
        if self._has(cluster) and (old is None or old.position <= snapshot.position):
            self._snapshots[snapshot.name, snapshot.schema] = snapshot

    async def load_snapshot(self, cluster: str, *, name: str, schema: str, upto: int | None = None) -> Snapshot | None:
        """See `EventLog.load_snapshot`."""
        kept = self._snapshots.get((name, schema)) if self._has(cluster) else None
        return kept if kept is not None and (upto is None or kept.position <= upto) else None

    async def retired(self, cluster: str) -> int:
        """See `EventLog.retired`; of a file the events before its first one."""
        return self._file.after.position if self._has(cluster) else 0

    async def kept_snapshots(self, cluster: str, *, name: str) -> list[Snapshot]:
        """See `EventLog.kept_snapshots`; of a file the state that it begins with."""
        state = self._file.state() if self._has(cluster) and name == STATE_SNAPSHOT else None
        return [] if state is None else [state]

    async def close(self) -> None:
        """See `EventLog.close`."""
        self._closed = True
        self._file.close()

    @asynccontextmanager
    async def audit_view(self, cluster: str) -> AsyncIterator["FileAuditView"]:
        """Give a view for `kaicore.ledger.log.seals.audit.verify`."""
        if not self._has(cluster):
            raise ConfigurationError(f"{self._file.path}: has cluster {self._cluster}, not {cluster}")
        yield FileAuditView(self._file)

    def _has(self, cluster: str) -> bool:
        if self._closed:
            raise LogUnavailable("the log is closed")
        return cluster == self._cluster


class FileAuditView:
    """The view of an exported log that an audit reads (`kaicore.ledger.log.seals.audit.AuditView`)."""

    def __init__(self, file: LogFile) -> None:
        self._file = file

    async def head(self) -> Head:
        """See `AuditView.head`."""
        return self._file.last

    async def seals(self) -> list[Seal]:
        """See `AuditView.seals`; what is before the file counts as one."""
        after = self._file.after
        if not after.position:
            return []
        name = self._file.path.name
        return [Seal(self._file.header.cluster, after.position, 1, after.hash, after.recorded_at, f"before {name}", 0)]

    @property
    def whole(self) -> bool:
        """See `AuditView.whole`: what was erased may be recorded behind a file's end."""
        return False

    async def erasures(self) -> dict[int, RecordedErasure]:
        """See `AuditView.erasures`."""
        text = _text("type", FieldsErased.__name__)
        records = [
            (event.position, bytes(event.body))
            for bundle in range(len(self._file.footer.bundles))
            if text in (lines := self._file.lines(bundle))
            for event in decode_lines(lines, name=str(self._file.path))
            if event.type == FieldsErased.__name__
        ]
        return recorded_erasures(records)

    async def pages(self) -> AsyncIterator[list[Event]]:
        """See `AuditView.pages`."""
        for bundle in range(len(self._file.footer.bundles)):
            yield self._file.events(bundle)

    async def differences(self, *, after: int, versions: Mapping[str, tuple[int, int]]) -> list[Finding]:
        """See `AuditView.differences`; a file has no tables beside its events, but a digest and a state."""
        del after, versions
        file, findings = self._file, list[Finding]()
        first = file.events(0)[0]
        if first.hash.hex() != file.header.first_hash:
            findings.append(
                Finding(first.position, f"its hash is not the one that {file.path.name} says it begins with")
            )
        if file.digest() != file.footer.sha256:
            findings.append(Finding(0, f"the digest of {file.path.name} is not that of its contents"))
        try:
            file.state()
        except CorruptLog as error:
            findings.append(Finding(0, str(error)))
        return findings


def _sought(where: Filter) -> list[tuple[bytes, ...]]:
    """Return texts of which each event that a filter lets through has one on its line, for each criterion."""
    sought = []
    if where.types is not None:
        sought.append(tuple(_text("type", name) for name in where.types))
    if where.streams is not None and len(where.streams) <= _SOUGHT:
        sought.append(tuple(_text("stream", name) for name in where.streams))
    if where.subject:
        sought.append((_text("subject", where.subject),))
    return sought


def _text(field: str, value: str) -> bytes:
    return f'"{field}":'.encode() + msgspec.json.encode(value)
