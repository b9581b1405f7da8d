"""The port to the store of members and leases: the promises of every implementation.

`tests/contract/test_leases.py` checks every implementation against it.

The clock of leases.

The value of a member's or a lease's entry.
"""

import re
import time
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from kaicore.errors import InvalidObject


def lease_clock() -> float:
    """Return seconds of a clock that is never set and that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


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


_NAME = re.compile(r"[-_a-zA-Z0-9]+([/.=][-_a-zA-Z0-9]+)*")


class Entry(NamedTuple):
    """What a name stands for.

    Attributes:
        name: of the entry, such as `scheduler/default/1f2e`.
        value: empty for an entry that was deleted.
        revision: grows with each write of any entry of the store, deletions included.
    """

    name: str
    value: bytes
    revision: int


class LeaseStore(Protocol):
    """Entries by cluster and name.

    What is not written again for an hour is forgotten; all may be lost at any time. Every method but `close` raises
    `BusUnavailable` when the store does not answer: a write may have happened then. `InvalidObject` is raised for a
    name that cannot be one.
    """

    async def read(self, cluster: str, prefix: str) -> list[Entry]:
        """Return the entries whose names begin with `prefix`, by name; also deleted ones, until forgotten."""
        ...

    async def write(self, cluster: str, name: str, value: bytes, *, expect: int) -> int | None:
        """Write an entry if it is still as it was read.

        Args:
            cluster: the name of the cluster.
            name: of the entry.
            value: not empty.
            expect: the entry's revision as it was read; 0 where there is to be none, or a deleted one.

        Returns:
            The entry's new revision; None where another one was found, and nothing was written.
        """
        ...

    async def delete(self, cluster: str, name: str, *, expect: int) -> bool:
        """Delete an entry if it is still as it was read; return whether it was."""
        ...

    async def close(self) -> None:
        """Release connections. Never raises."""
        ...


def check_name(name: str) -> str:
    """Return the name of an entry if it can be one.

    Raises:
        InvalidObject: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise InvalidObject("lease", "name", name, "must be letters, digits, - and _, with single / . or = between")
    return name
