"""The hash chain over a cluster's log, so that tampering shows.

Each event's hash covers the previous event's hash and every field of its own, each with its length before it, so that
no two different events give the same input. The chain proves consistency within the log; a role that can rewrite all of
it can also rewrite all hashes, so seals (position and hash) belong somewhere that the database's owner cannot write.
"""

import struct
from hashlib import sha256
from uuid import UUID

from kaicore.rules.events.envelope import Event

#: The hash before the first event of a cluster.
GENESIS = bytes(32)

_PLACE = struct.Struct(">qqqqq")
_LENGTHS = struct.Struct(">9q")


def content(
    *,
    cluster: str,
    stream: str,
    type: str,  # noqa: A002  # named as in Event
    id: UUID,  # noqa: A002
    subject: str,
    actor: str,
    cause: UUID | None,
    correlation: str,
    body: bytes,
) -> bytes:
    """Return the part of a hash's input that is known before the event has its place in the log."""
    fields = (
        cluster.encode(),
        stream.encode(),
        type.encode(),
        id.bytes,
        subject.encode(),
        actor.encode(),
        cause.bytes if cause else b"",
        correlation.encode(),
        body,
    )
    return _LENGTHS.pack(*map(len, fields)) + b"".join(fields)


def link(
    previous: bytes, *, position: int, version: int, schema: int, occurred_at: int, recorded_at: int, content: bytes
) -> bytes:
    """Return the hash of an event after an event with hash `previous`."""
    return sha256(previous + _PLACE.pack(position, version, schema, occurred_at, recorded_at) + content).digest()


def event_hash(previous: bytes, event: Event) -> bytes:
    """Return the hash that `event` must carry after an event with hash `previous`; its own `hash` is not looked at."""
    return link(
        previous,
        position=event.position,
        version=event.version,
        schema=event.schema,
        occurred_at=event.occurred_at,
        recorded_at=event.recorded_at,
        content=content(
            cluster=event.cluster,
            stream=event.stream,
            type=event.type,
            id=event.id,
            subject=event.subject,
            actor=event.actor,
            cause=event.cause,
            correlation=event.correlation,
            body=bytes(event.body),
        ),
    )
