"""The hash chain over a cluster's log, so that tampering shows.

Each event's hash covers the previous event's hash and every field of its own, each with its length before it, so that
no two different events give the same input. The chain proves consistency within the log; a role that can rewrite all of
it can also rewrite all hashes, so seals (position and hash) belong somewhere that the database's owner cannot write.

An event with erased fields keeps its hash, which no longer follows from its contents. Its body begins with a mark
instead: a digest over the hash before it, its own hash, and the remaining contents. So any reader can verify that it
still is the next event. Only an audit verifies that the erasure was right, by the `FieldsErased` that names the mark.
"""

import struct
from hashlib import sha256

import msgspec

from kaicore.rules.events.envelope import Event, NewEvent

#: The hash before the first event of a cluster.
GENESIS = bytes(32)

_PLACE = struct.Struct(">qqqqq")
_LENGTHS = struct.Struct(">9q")


def content(event: Event | NewEvent, *, cluster: str, event_type: str, body: bytes) -> bytes:
    """Return the part of a hash's input that is known before the event has its place in the log."""
    fields = (
        cluster.encode(),
        event.stream.encode(),
        event_type.encode(),
        event.id.bytes,
        event.subject.encode(),
        event.actor.encode(),
        event.cause.bytes if event.cause else b"",
        event.correlation.encode(),
        body,
    )
    return _LENGTHS.pack(*map(len, fields)) + b"".join(fields)


def link(
    previous: bytes, *, position: int, version: int, schema: int, occurred_at: int, recorded_at: int, content: bytes
) -> bytes:
    """Return the hash of an event after an event with hash `previous`."""
    return sha256(previous + _PLACE.pack(position, version, schema, occurred_at, recorded_at) + content).digest()


#: Begins a body of which something was erased, before the mark.
_MARKED = b'{"$erased":"'


def continues(previous: bytes, event: Event) -> bool:
    """Tell whether an event is the next after one with hash `previous`: by its contents, or by an erasure's mark."""
    if event_hash(previous, event) == event.hash:
        return True
    given = mark_of(event)
    return bool(given) and given == erasure_mark(previous, event)


def mark_of(event: Event) -> str:
    """Return the mark of an event of which something was erased; empty for any other event."""
    body = bytes(event.body)
    return body[len(_MARKED) : len(_MARKED) + 64].decode(errors="replace") if body.startswith(_MARKED) else ""


def marked(previous: bytes, event: Event) -> Event:
    """Return an event of which something was erased, with its mark; one that had a mark before gets another."""
    plain = _without_mark(bytes(event.body))
    mark = erasure_mark(previous, event).encode()
    body = _MARKED + mark + b'"' + (b"}" if plain == b"{}" else b"," + plain[1:])
    return msgspec.structs.replace(event, body=msgspec.Raw(body))


def erasure_mark(previous: bytes, event: Event) -> str:
    """Return the mark that an event must have, after one with hash `previous`, if something was erased of it."""
    plain = msgspec.structs.replace(event, body=msgspec.Raw(_without_mark(bytes(event.body))))
    # `event_hash` does not look at the event's own hash, which an erasure leaves as it was.
    return sha256(b"erased" + event.hash + event_hash(previous, plain)).hexdigest()


def _without_mark(body: bytes) -> bytes:
    if not body.startswith(_MARKED):
        return body
    rest = body[len(_MARKED) + 64 + 1 :]
    return b"{}" if rest == b"}" else b"{" + rest[1:]


def event_hash(previous: bytes, event: Event) -> bytes:
    """Return the hash that `event` must carry after an event with hash `previous`; its own `hash` is not looked at."""
    return link(
        previous,
        position=event.position,
        version=event.version,
        schema=event.schema,
        occurred_at=event.occurred_at,
        recorded_at=event.recorded_at,
        content=content(event, cluster=event.cluster, event_type=event.type, body=bytes(event.body)),
    )
