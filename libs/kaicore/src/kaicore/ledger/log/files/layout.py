"""The layout of an exported log's file: members of gzip, each a whole number of lines of JSON.

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

import struct
import zlib
from hashlib import sha256

import msgspec

from kaicore.errors import ConfigurationError, CorruptLog

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
        bundles: in order.
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
    """Unpack one member.

    Raises:
        CorruptLog: it is none, or not what was packed.
    """
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

    Raises:
        ConfigurationError: it is that of no exported log, or of one that a newer version wrote.
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
