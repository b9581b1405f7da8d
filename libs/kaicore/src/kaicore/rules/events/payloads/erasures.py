"""Records of what was erased from the log."""

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
