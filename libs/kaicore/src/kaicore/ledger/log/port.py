"""The port to the event log: the promises of every implementation.

Per cluster, positions are gapless and total: a reader that has read position 7 will never see another event before it.
Events that an append returned are durable. `tests/contract/test_log.py` checks every implementation against this.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from kaicore.ledger.log.chain import GENESIS
from kaicore.rules.events.envelope import Event, Unit, UnitOutcome


@dataclass(frozen=True, slots=True)
class Seal:
    """A cluster's part of a detached month.

    Attributes:
        position: of the last event that has gone.
        hash: of the last one: what the first event that is left is chained to.
        recorded_at: of the last one, microseconds since the epoch.
        detached: the table that holds them now, unless it was dropped.
        sealed_at: when, microseconds since the epoch.
    """

    cluster: str
    position: int
    first_position: int
    hash: bytes
    recorded_at: int
    detached: str
    sealed_at: int


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a cluster's log; by default that of one without an event yet."""

    position: int = 0
    hash: bytes = GENESIS
    recorded_at: int = 0

    @classmethod
    def at(cls, place: Event | Seal) -> Self:
        """Return the end of a log that ends with an event, or with the last one of a detached month."""
        return cls(place.position, place.hash, place.recorded_at)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cached state: what folding up to `position` gave, encoded by a program of `schema`."""

    name: str
    position: int
    schema: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A selection of events; an absent criterion lets all through.

    Attributes:
        streams: exact stream names.
        subject: exact subject.
        since: recorded at or after, microseconds since the epoch.
        until: recorded before, microseconds since the epoch.
    """

    streams: tuple[str, ...] | None = None
    subject: str | None = None
    types: tuple[str, ...] | None = None
    since: int | None = None
    until: int | None = None

    def lets_through(self, event: Event) -> bool:
        """True if an event meets every criterion."""
        return (
            (self.streams is None or event.stream in self.streams)
            and (self.subject is None or event.subject == self.subject)
            and (self.types is None or event.type in self.types)
            and (self.since is None or event.recorded_at >= self.since)
            and (self.until is None or event.recorded_at < self.until)
        )


class EventLog(Protocol):
    """An append-only log of events, one gapless sequence per cluster.

    A method raises LogUnavailable where the log does not answer, and so does whatever asks it.
    """

    async def append(
        self, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        """Append units in one transaction; each is taken whole, found again, or refused as stale.

        Args:
            units: each atomic; their expectations are checked against the versions before this append.
            expect: stream versions that must hold for anything to be appended.

        Returns:
            One outcome per unit, in order.

        Raises:
            StaleExpectation: `expect` does not hold, and no unit is in the log already. Where some are, the others are
                refused as stale instead: then this very call may have succeeded before, and only its answer was lost.
            IdempotencyConflict: a unit is in the log in part, or an id stands for another event; nothing was appended.
            InvalidObject: an event that no log can take (see `kaicore.ledger.log.appending.draft`).
            LogUnavailable: nothing is known of the outcome; append again with the same ids to learn it.
        """

    async def head(self, cluster: str) -> Head:
        """Return the end of a cluster's log."""

    async def read(
        self, cluster: str, *, after: int = 0, upto: int | None = None, limit: int = 1000, where: Filter | None = None
    ) -> list[Event]:
        """Read events in order of position: those after `after`, up to and including `upto`, `limit` at most.

        Raises:
            EventsRetired: no filter is given, and the events right after `after` were detached with an old month.
            CorruptLog: no filter is given, and the log has a gap.
        """

    async def wait_beyond(self, cluster: str, position: int, *, timeout_s: float) -> int:
        """Wait until the log's head is beyond `position`, at most `timeout_s`; return the head's position."""

    async def clusters(self) -> list[str]:
        """Return the clusters that have a log, sorted."""

    async def stream_versions(self, cluster: str, streams: Sequence[str]) -> dict[str, int]:
        """Return the current versions of streams; 0 for a stream without events."""

    async def save_snapshot(self, cluster: str, snapshot: Snapshot) -> None:
        """Keep a snapshot, replacing the one of the same name and schema unless that is newer."""

    async def load_snapshot(self, cluster: str, *, name: str, schema: str, upto: int | None = None) -> Snapshot | None:
        """Return the snapshot of that name and schema if it is at or before `upto`, and what was saved; else None."""

    async def retired(self, cluster: str) -> int:
        """Return the last position that was detached with an old month; 0 where none was."""

    async def kept_snapshots(self, cluster: str, *, name: str) -> list[Snapshot]:
        """Return the snapshots of that name that were kept when months were detached, in order of position."""

    async def close(self) -> None:
        """Release connections; further calls raise `LogUnavailable`."""
