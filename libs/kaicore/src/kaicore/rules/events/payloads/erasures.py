"""Records of data that the log's owner erased or set aside."""

import msgspec

from kaicore.rules.events.payloads.base import Payload


class ErasedEvent(msgspec.Struct, frozen=True):
    """An event from which something was erased.

    Attributes:
        mark: what its body is marked with (`kaicore.ledger.log.chain.erasure_mark`): a digest over the hash of the
            event before it, its own hash as it was recorded, and all of it that is left.
    """

    position: int
    mark: str


class FieldsErased(Payload, frozen=True):
    """The log's owner erased the personal data of pods that had one name: name, labels, annotations.

    The events that are named keep the hashes with which they were recorded.

    Attributes:
        uids: of the pods.
        pseudonym: what they are called from then on.
        events: from which something was erased, in order; the last record that names a position counts.
        reason: why, as whoever did it said.
    """

    uids: tuple[str, ...]
    namespace: str
    pseudonym: str
    events: tuple[ErasedEvent, ...]
    reason: str = ""


class EventSetAside(Payload, frozen=True):
    """The log's owner set aside an event that cannot be decoded: it counts as if it said nothing.

    Attributes:
        position: of that event.
        stream: of that event; decisions about its node or pod are made again.
        hash: of that event, in hexadecimal.
        reason: why it is there and may be left out, as whoever did it said.
    """

    position: int
    stream: str
    hash: str
    reason: str


class Undecodable(Payload, frozen=True):
    """Stands for the payload of an event that has none of its type; it is never recorded.

    Attributes:
        error: what is wrong with the body.
    """

    error: str
