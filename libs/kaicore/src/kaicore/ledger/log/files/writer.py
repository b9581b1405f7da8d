"""Writes an exported log, bundle by bundle.

The layout of an exported log's file: members of gzip, each a whole number of lines of JSON.

| member | lines |
|---|---|
| header | one: `Header` |
| state | one, only where the file does not begin with event 1: the state's bytes in Base64, as a string |
| bundles | an event each, in order, as `kaicore.rules.events.codec.encode_event` writes it |
| footer | one: `Footer` |
| end | none; its extra field has the footer's offset |

So `zcat` shows all of it, and a reader finds an event without unpacking what is before it. The same events give the
same lines on every machine; the digest in the footer is over all lines before it.
"""

import os
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Self

import msgspec

from kaicore.errors import ConfigurationError, CorruptLog
from kaicore.ledger.log.chain import continues
from kaicore.ledger.log.port import Head, Snapshot
from kaicore.rules.events.codec import encode_event
from kaicore.rules.events.envelope import Event

#: Version of the layout; a reader takes no newer one.
FORMAT = 1

#: A bundle ends with the event that makes it so many, or so many bytes.
BUNDLE_EVENTS, BUNDLE_BYTES = 1000, 1 << 20

_LEVEL = 6
#: The end: a member of gzip with nothing in it, and an extra field `KL` of 8 bytes.
_GZIP = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_GZIP_WITH_EXTRA = b"\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff"
_EXTRA = struct.Struct("<H2sHQ")
_NOTHING = b"\x03\x00" + bytes(8)
END_SIZE = len(_GZIP_WITH_EXTRA) + _EXTRA.size + len(_NOTHING)


class Place(msgspec.Struct, frozen=True, rename="camel"):
    """An event's place in the chain: its position, its hash in hexadecimal, and when it was recorded, microseconds."""

    position: int
    hash: str
    recorded_at: int


class StateOf(msgspec.Struct, frozen=True, rename="camel"):
    """The state that is in the file: at which position, of which schema, with which digest."""

    position: int
    schema: str
    sha256: str


class Header(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The contents of a file.

    Attributes:
        kai_ledger_log: version of the layout.
        after: the event before the first one; position 0 where the file begins with event 1.
        first_hash: of the first event, in hexadecimal.
        last: the last event.
        state: what a reader starts from where the file does not begin with event 1.
    """

    kai_ledger_log: int
    cluster: str
    after: Place
    first_hash: str
    last: Place
    state: StateOf | None = None


class Bundle(msgspec.Struct, frozen=True, array_like=True):
    """The place of events: offset of the member, bytes; position of its first event, and when that was recorded."""

    offset: int
    position: int
    recorded_at: int


class Footer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The summary of a written file.

    Attributes:
        sha256: of all lines before this one.
        engine_versions: how many recorded cycles each version of the engine decided.
    """

    sha256: str
    engine_versions: dict[str, int]
    bundles: tuple[Bundle, ...]


def member(lines: bytes) -> bytes:
    """Pack lines; the same lines give the same bytes wherever zlib is the same."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = packer.compress(lines) + packer.flush()
    return _GZIP + body + struct.pack("<II", zlib.crc32(lines), len(lines) & 0xFFFFFFFF)


def end_member(footer: int) -> bytes:
    """Return the end of a file of which the footer is at an offset."""
    return _GZIP_WITH_EXTRA + _EXTRA.pack(_EXTRA.size - 2, b"KL", 8, footer) + _NOTHING


def footer_offset(end: bytes) -> int | None:
    """Return where the footer is, of the last `END_SIZE` bytes of a file; None where these are no end."""
    if len(end) != END_SIZE:
        return None
    offset = int(_EXTRA.unpack_from(end, len(_GZIP_WITH_EXTRA))[-1])
    return offset if end == end_member(offset) else None


def unpack(packed: bytes) -> bytes:
    """Unpack one member. Raises CorruptLog: it is none, or not what was packed."""
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        lines = unpacker.decompress(packed)
    except zlib.error as error:
        raise CorruptLog(f"cannot be unpacked: {error}") from error
    if not unpacker.eof or unpacker.unused_data:
        raise CorruptLog("cannot be unpacked: it has another length")
    return lines


def digest_of_state(body: bytes) -> str:
    """Return the digest of a state's bytes."""
    return sha256(body).hexdigest()


def read_header(line: bytes, *, name: str) -> Header:
    """Read a file's first line.

    Raises ConfigurationError: it is that of no exported log, or of one that a newer version wrote.
    """
    try:
        version = msgspec.json.decode(line, type=dict[str, msgspec.Raw]).get("kaiLedgerLog")
        if version is not None and msgspec.json.decode(version, type=int) > FORMAT:
            raise ConfigurationError(
                f"{name}: has layout {bytes(version).decode()}, which a newer kai-ledger wrote; this one reads {FORMAT}"
            )
        return msgspec.json.decode(line, type=Header)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{name}: is no log that `kai export` wrote: {error}") from error


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
        self._before = Head.at(event)
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
