"""Reads an exported log: any bundle of it, without the data before it. Reports the place of damage in a file."""

import zlib
from base64 import b64decode
from bisect import bisect_right
from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from kaicore.errors import ConfigurationError, CorruptLog
from kaicore.ledger.log.chain import continues
from kaicore.ledger.log.files import writer
from kaicore.ledger.log.port import Head, Snapshot
from kaicore.ledger.log.snapshots import STATE_SNAPSHOT
from kaicore.rules.events.envelope import Event

#: Bytes read at a time where a file is read from its beginning.
_CHUNK = 1 << 20
#: A header is shorter.
_HEADER_BYTES = 1 << 16

_decoder = msgspec.json.Decoder(Event)


class LogFile:
    """An exported log that is open for reading; bundles are numbered from 0."""

    def __init__(self, path: Path) -> None:
        """Open a file, and read its header and its footer.

        Raises:
            ConfigurationError: there is no such file, or it is no exported log, or a newer version wrote it.
            CorruptLog: it is cut off or damaged; names the first event that is missing or wrong.
        """
        self.path = path
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
        try:
            self.header = writer.read_header(self._first_line(), name=str(path))
            self._footer_at, self.footer = self._read_footer()
            self._positions = [bundle.position for bundle in self.footer.bundles]
            if self._positions and self._positions[0] != self.header.after.position + 1:
                raise CorruptLog(f"{path}: its index begins with event {self._positions[0]}")
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def after(self) -> Head:
        """The event before the first one."""
        return _head(self.header.after)

    @property
    def last(self) -> Head:
        """The last event."""
        return _head(self.header.last)

    def bundle_of(self, position: int) -> int:
        """Return the bundle that an event is in."""
        return max(bisect_right(self._positions, position) - 1, 0)

    def lines(self, bundle: int) -> bytes:
        """Return the lines of a bundle. Raises CorruptLog: it is not what was written."""
        starts = (one.offset for one in self.footer.bundles[bundle : bundle + 2])
        start, end, *_ = *starts, self._footer_at
        return self._member(start, end, what=f"events from {self._positions[bundle]} on")

    def events(self, bundle: int) -> list[Event]:
        """Return the events of a bundle; only their presence has been checked.

        Raises CorruptLog: it is not what was written, or has no events in it.
        """
        return decode_lines(self.lines(bundle), name=str(self.path))

    def state(self) -> Snapshot | None:
        """Return the state that a reader starts from; None where the file begins with event 1.

        Raises CorruptLog: it is not what was written.
        """
        about = self.header.state
        if about is None:
            return None
        first = self.footer.bundles[0].offset if self.footer.bundles else self._footer_at
        line = self._member(self._header_end, first, what="the state")
        body = b64decode(line.strip(b'"\n'))
        if writer.digest_of_state(body) != about.sha256:
            raise CorruptLog(f"{self.path}: the state at {about.position} is not the one that was written")
        return Snapshot(STATE_SNAPSHOT, about.position, about.schema, body)

    def digest(self) -> str:
        """Read all of the file, and return the digest of its lines; `footer.sha256` is what was written."""
        digest = sha256()
        for start, end in self._members():
            digest.update(self._member(start, end, what=f"the part at byte {start}"))
        return digest.hexdigest()

    def _members(self) -> Iterator[tuple[int, int]]:
        """Yield where all members before the footer begin and end."""
        state = [] if self.header.state is None else [self._header_end]
        starts = [0, *state, *(bundle.offset for bundle in self.footer.bundles)]
        yield from pairwise([*starts, self._footer_at])

    def _member(self, start: int, end: int, *, what: str) -> bytes:
        try:
            self._file.seek(start)
            return writer.unpack(self._file.read(end - start))
        except CorruptLog as error:
            raise CorruptLog(f"{self.path}: {what}: {error}") from error

    def _first_line(self) -> bytes:
        packed = self._file.read(_HEADER_BYTES)
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            line = unpacker.decompress(packed, _HEADER_BYTES)
        except zlib.error as error:
            raise ConfigurationError(f"{self.path}: is no log that `kai export` wrote: it is not gzip") from error
        self._header_end = len(packed) - len(unpacker.unused_data)
        return line.partition(b"\n")[0]

    def _read_footer(self) -> tuple[int, writer.Footer]:
        size = self._file.seek(0, 2)
        self._file.seek(max(size - writer.END_SIZE, 0))
        offset = writer.footer_offset(self._file.read())
        if offset is None or not self._header_end <= offset < size:
            raise self._damage()
        try:
            line = self._member(offset, size - writer.END_SIZE, what="its footer")
            return offset, msgspec.json.decode(line, type=writer.Footer)
        except (CorruptLog, msgspec.MsgspecError) as error:
            raise self._damage() from error

    def _damage(self) -> CorruptLog:
        """Read a file without a sound end from its beginning, and say how far it is sound."""
        before, last = self.after, self.header.last
        for line in self._salvaged():
            try:
                event = _decoder.decode(line)
            except msgspec.MsgspecError:
                continue
            wrong = check_next(before, event)
            if wrong:
                return CorruptLog(f"{self.path}: cluster {self.header.cluster}: {wrong}")
            before = Head.at(event)
        if before.position < last.position:
            return CorruptLog(
                f"{self.path}: is cut off: cluster {self.header.cluster}: event {before.position + 1} is missing; "
                f"the last one was {last.position}"
            )
        return CorruptLog(
            f"{self.path}: is cut off behind its last event {last.position}, or was packed anew: its index is missing"
        )

    def _salvaged(self) -> Iterator[bytes]:
        """Yield the whole lines behind the header and the state, as far as the file can be unpacked."""
        self._file.seek(0)
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
        rest, skip = b"", 2 if self.header.state is not None else 1
        while packed := unpacker.unused_data or self._file.read(_CHUNK):
            if unpacker.eof:
                unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
            try:
                text = unpacker.decompress(packed)
            except zlib.error:
                return
            *lines, rest = (rest + text).split(b"\n")
            yield from lines[skip:]
            skip = max(skip - len(lines), 0)


def check_next(before: Head, event: Event) -> str:
    """Say what is wrong with an event that is to follow another one; nothing where it does."""
    if event.position > before.position + 1:
        return f"event {before.position + 1} is missing; the next event is {event.position}"
    if event.position != before.position + 1:
        return f"event {event.position} is there twice"
    if not continues(before.hash, event):
        return f"event {event.position}: its hash is not that of its contents after the event before it"
    return ""


def decode_lines(lines: bytes, *, name: str) -> list[Event]:
    """Decode lines as events. Raises CorruptLog: one is none."""
    try:
        return _decoder.decode_lines(lines)
    except msgspec.MsgspecError as error:
        raise CorruptLog(f"{name}: a line is no event: {error}") from error


def _head(place: writer.Place) -> Head:
    return Head(place.position, bytes.fromhex(place.hash), place.recorded_at)
