"""The hash chain over a cluster's log, so that tampering shows.

Each event's hash covers the previous event's hash and every field of its own, each with its length before it, so that
no two different events give the same input. The chain proves consistency within the log; whoever can rewrite all of it
can also rewrite all hashes, so seals (position and hash) belong somewhere that the database's owner cannot write.
"""

import struct
from hashlib import sha256

from kaicore.events.envelope import Event

#: The hash before the first event of a cluster.
GENESIS = bytes(32)


def event_hash(previous: bytes, event: Event) -> bytes:
    """Return the hash that `event` must carry after an event with hash `previous`; its own `hash` is not looked at."""
    digest = sha256(previous)
    fields = (
        event.cluster.encode(),
        event.stream.encode(),
        event.type.encode(),
        event.id.bytes,
        event.subject.encode(),
        event.actor.encode(),
        event.cause.bytes if event.cause else b"",
        event.correlation.encode(),
        bytes(event.body),
    )
    digest.update(
        struct.pack(
            f">qqqqq{len(fields)}q",
            event.position,
            event.version,
            event.schema,
            event.occurred_at,
            event.recorded_at,
            *map(len, fields),
        )
    )
    digest.update(b"".join(fields))
    return digest.digest()
