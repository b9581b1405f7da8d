"""The value of a member's or a lease's entry."""

from collections.abc import Mapping

import msgspec


class LeaseRecord(msgspec.Struct, frozen=True, rename="camel"):
    """The value of an entry.

    Attributes:
        owner: who holds the lease, or the member itself.
        duration_ms: how long the entry counts without being renewed.
        about: what else there is to tell, for people.
    """

    owner: str
    duration_ms: int
    about: Mapping[str, str] = {}

    @property
    def duration_s(self) -> float:
        """How long the entry counts without being renewed, in seconds."""
        return self.duration_ms / 1000


_decoder = msgspec.json.Decoder(LeaseRecord)
encode_record = msgspec.json.Encoder().encode


def decode_record(value: bytes) -> LeaseRecord:
    """Return what an entry says; one that is deleted, or cannot be read, is nobody's and counts for no time."""
    try:
        return _decoder.decode(value)
    except msgspec.DecodeError:
        return LeaseRecord("", 0)
