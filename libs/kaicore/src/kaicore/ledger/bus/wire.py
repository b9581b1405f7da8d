"""The wire form of an event: the output of `encode_event` or, when that is larger than the bus allows, its hash alone.

Leaving a large event out would break the rule that sequence equals position. The hash shows a reader that an event is
to be fetched from the log, and shows the relay which log the stream belongs to.

Names of clusters and events on the bus are here as well.
"""

import re

from kaicore.errors import CorruptLog, InvalidObject
from kaicore.ledger.bus.port import Message
from kaicore.rules.events.codec import decode_event, encode_event
from kaicore.rules.events.envelope import Event, traceparent

_CLUSTER = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def check_cluster(cluster: str) -> str:
    """Return the name of a cluster if it can be part of a subject, a stream's name and a path.

    Raises InvalidObject: it is no DNS label (RFC 1123).
    """
    if not _CLUSTER.fullmatch(cluster):
        raise InvalidObject(
            "cluster", "name", cluster, "must be 1 to 63 of a-z, 0-9 and -, with no - at either end, to have a stream"
        )
    return cluster


def stream_name(cluster: str) -> str:
    """Return the name of a cluster's stream."""
    return f"kai-{check_cluster(cluster)}"


def subject_prefix(cluster: str) -> str:
    """Return what the subjects of a cluster's events begin with; the event's type follows."""
    return f"kai.{check_cluster(cluster)}."


#: Begins the data of a message that holds only a hash; an encoded event begins with a brace.
_HASH_ONLY = b"#"


def to_message(event: Event, *, max_data: int) -> Message:
    """Return the message that carries an event."""
    data = encode_event(event)
    carried = data if len(data) <= max_data else _HASH_ONLY + event.hash
    return Message(event.position, event.type, carried, traceparent(event))


def from_message(message: Message) -> Event | None:
    """Return the event that a message carries; None when it has to be fetched from the log.

    Raises CorruptLog: the message carries no event.
    """
    return None if message.data.startswith(_HASH_ONLY) else decode_event(message.data)


def message_hash(message: Message) -> bytes:
    """Return the hash of the event that a message stands for. Raises CorruptLog: the message stands for no event."""
    event = from_message(message)
    if event is not None:
        return event.hash
    if len(message.data) != len(_HASH_ONLY) + 32:
        raise CorruptLog(f"bus message {message.position} is neither an event nor a hash")
    return message.data[len(_HASH_ONLY) :]
