"""Writes an exported log, bundle by bundle."""

import os
from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Self

import msgspec

from kaicore.errors import ConfigurationError, CorruptLog
from kaicore.ledger.log.chain import continues
from kaicore.ledger.log.files.layout import (
    BUNDLE_BYTES,
    BUNDLE_EVENTS,
    FORMAT,
    Bundle,
    Footer,
    Header,
    Place,
    StateOf,
    digest_of_state,
    end_member,
    member,
)
from kaicore.ledger.log.port import Head, Snapshot
from kaicore.rules.events.codec import encode_event
from kaicore.rules.events.envelope import Event


class _Engine(msgspec.Struct):
    engine_version: str = ""


class LogFileWriter:
    """A file that is being written, as a context; it gets its name only once it is whole."""

    def __init__(
        self, path: Path, cluster: str, *, after: Head, first_hash: bytes, last: Head, state: Snapshot | None
    ) -> None:
        """Args:
        path: of the file; one that is there is replaced.
        after: the event before the first one.
        first_hash: of the first event.
        last: the last event.
        state: what a reader starts from; None where the first event is event 1.
        """
        self._path = path
        self._beside = path.with_name(f".{path.name}.new")
        self._header = Header(
            kai_ledger_log=FORMAT,
            cluster=cluster,
            after=_place(after),
            first_hash=first_hash.hex(),
            last=_place(last),
            state=None if state is None else StateOf(state.position, state.schema, digest_of_state(state.body)),
        )
        self._state = state
        self._before = after
        self._digest = sha256()
        self._offset = 0
        self._bundles: list[Bundle] = []
        self._lines: list[bytes] = []
        self._size = 0
        self._first: Event | None = None
        self._engines: dict[str, int] = {}

    def __enter__(self) -> Self:
        try:
            self._file = self._beside.open("wb")
            self._write(msgspec.json.encode(self._header) + b"\n")
            if self._state is not None:
                self._write(b'"' + b64encode(self._state.body) + b'"\n')
        except OSError as error:
            raise _unwritable(self._path, error) from error
        return self

    def add(self, events: Iterable[Event]) -> None:
        """Write the events that follow.

        Raises:
            CorruptLog: one is not the next in the chain.
            ConfigurationError: the file cannot be written.
        """
        try:
            for event in events:
                self._add(event)
        except OSError as error:
            raise _unwritable(self._path, error) from error

    def _add(self, event: Event) -> None:
        before = self._before
        if event.position != before.position + 1 or not continues(before.hash, event):
            raise CorruptLog(
                f"cluster {event.cluster}: event {event.position} does not follow event {before.position}: "
                "`kai audit verify` says what is broken"
            )
        line = encode_event(event) + b"\n"
        if line.count(b"\n") > 1:
            raise CorruptLog(f"cluster {event.cluster}: event {event.position}: its body has a line break")
        if event.type == "CycleCompleted":
            engine = msgspec.json.decode(event.body, type=_Engine).engine_version
            self._engines[engine] = self._engines.get(engine, 0) + 1
        self._first = self._first or event
        self._lines.append(line)
        self._size += len(line)
        self._before = Head(event.position, event.hash, event.recorded_at)
        if len(self._lines) >= BUNDLE_EVENTS or self._size >= BUNDLE_BYTES:
            self._end_bundle()

    def _end_bundle(self) -> None:
        if self._first is not None:
            self._bundles.append(Bundle(self._offset, self._first.position, self._first.recorded_at))
            self._write(b"".join(self._lines))
        self._lines, self._size, self._first = [], 0, None

    def _write(self, lines: bytes) -> None:
        self._digest.update(lines)
        self._put(member(lines))

    def _put(self, packed: bytes) -> None:
        self._file.write(packed)
        self._offset += len(packed)

    def _finish(self) -> None:
        if _place(self._before) != self._header.last:
            raise CorruptLog(
                f"cluster {self._header.cluster}: the log ends with event {self._before.position}, "
                f"not as its head says, with {self._header.last.position}"
            )
        self._end_bundle()
        footer = Footer(
            sha256=self._digest.hexdigest(),
            engine_versions=dict(sorted(self._engines.items())),
            bundles=tuple(self._bundles),
        )
        offset = self._offset
        self._put(member(msgspec.json.encode(footer) + b"\n"))
        self._put(end_member(offset))
        self._file.flush()
        os.fsync(self._file.fileno())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
                self._beside.replace(self._path)
        except OSError as unwritable:
            raise _unwritable(self._path, unwritable) from unwritable
        finally:
            self._file.close()
            self._beside.unlink(missing_ok=True)


def _place(head: Head) -> Place:
    return Place(head.position, head.hash.hex(), head.recorded_at)


def _unwritable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"{path}: cannot be written: {error.strerror}")
