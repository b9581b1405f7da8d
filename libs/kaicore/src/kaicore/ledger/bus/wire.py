"""The wire form of an event: the output of `encode_event` or, when that is larger than the bus allows, its hash alone.

Leaving a large event out would break the rule that sequence equals position. The hash shows a reader that an event is
to be fetched from the log, and shows the relay which log the stream belongs to.
"""

from kaicore.errors import CorruptLog
from kaicore.ledger.bus.port import Message
from kaicore.rules.events.codec import decode_event, encode_event
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.trace_context import traceparent

#: Begins the data of a message that holds only a hash; an encoded event begins with a brace.
_HASH_ONLY = b"#"


def to_message(event: Event, *, max_data: int) -> Message:
    """Return the message that carries an event."""
    data = encode_event(event)
    carried = data if len(data) <= max_data else _HASH_ONLY + event.hash
    return Message(event.position, event.type, carried, traceparent(event))


def from_message(message: Message) -> Event | None:
    """Return the event that a message carries; None when it has to be fetched from the log.

    Raises:
        CorruptLog: the message carries no event.
    """
    return None if message.data.startswith(_HASH_ONLY) else decode_event(message.data)


def message_hash(message: Message) -> bytes:
    """Return the hash of the event that a message stands for.

    Raises:
        CorruptLog: the message stands for no event.
    """
    event = from_message(message)
    if event is not None:
        return event.hash
    if len(message.data) != len(_HASH_ONLY) + 32:
        raise CorruptLog(f"bus message {message.position} is neither an event nor a hash")
    return message.data[len(_HASH_ONLY) :]
