"""An outbox of units for the log: bounded, in order, in batches, and repeated with the same ids until the log has them.

It serves writers that must not lose a unit and cannot produce it again. While the log does not answer, units pile up to
a limit, and then a caller that puts more waits. A unit that no log can accept is left out by itself, and the others go
on. After an append without an answer the next one is half as large, for a slow server may not get done with more.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kaicore import errors
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events.envelope import Unit, UnitOutcome

#: Seconds after an append in which units gather for the next one, and after how many units that is longer. The first
#: unit goes at once, and a busy writer makes few transactions, each of which wakes all readers.
_GATHER_S, _BUSY = 0.05, 10


class OutboxObserver(Protocol):
    """Is called with what happens; must be quick and must not raise."""

    def appended(self, units: Sequence[Unit], outcomes: Sequence[UnitOutcome], seconds: float) -> None:
        """The log has these units, by one append that took so long."""

    def unavailable(self, error: errors.LogUnavailable) -> None:
        """The log does not answer; the append will be repeated."""

    def dropped(self, unit: Unit, error: errors.KaiError) -> None:
        """A unit cannot be recorded: the log has one of its ids already for something else, or could never take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxOptions:
    """An outbox's settings.

    Attributes:
        batch: units per append at most.
        limit: units that may wait before `put` does, give or take one call's.
        retry_s: how long a log that did not answer is left alone.
        busy_gather_s: how long units gather after an append of many.
    """

    batch: int = 1000
    limit: int = 20_000
    retry_s: float = 1.0
    busy_gather_s: float = 0.1


class Outbox:
    """Appends what is put into it; one task runs `run`, any number put."""

    def __init__(
        self,
        log: EventLog,
        cluster: str,
        *,
        observer: OutboxObserver,
        expect: Mapping[str, int] | None = None,
        options: OutboxOptions | None = None,
    ) -> None:
        """Args:
        expect: stream versions that must hold for anything to be appended; the units name none of their own.
        """
        self._log = log
        self._cluster = cluster
        self._observer = observer
        self._expect = dict(expect or {})
        self._options = options or OutboxOptions()
        self._units: deque[Unit] = deque()
        #: Units that the next append has at most.
        self._most = self._options.batch
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._empty = asyncio.Event()
        self._room.set()
        self._empty.set()

    @property
    def pending(self) -> int:
        """The number of units that the log may not have yet."""
        return len(self._units)

    async def put(self, units: Sequence[Unit]) -> None:
        """Take units over, after those that were put before; waits while there is no room."""
        while not self._room.is_set():
            await self._room.wait()
        self.put_now(units)

    def put_now(self, units: Sequence[Unit]) -> None:
        """Take units over whether there is room or not: for the few that answer to others."""
        self._units.extend(units)
        self._set_flags()

    async def flushed(self) -> None:
        """Wait until the log has all that was put."""
        await self._empty.wait()

    async def run(self) -> None:
        """Append until cancelled; what is not in the log then stays, and another run may go on.

        Raises:
            StaleExpectation: what `expect` names has moved on; none of the rest is appended.
            CorruptLog: the log contradicts itself.
            ConfigurationError: the log refuses us.
        """
        while True:
            await self._filled.wait()
            batch = [self._units[index] for index in range(min(len(self._units), self._most))]
            try:
                await self._append(batch)
            except errors.LogUnavailable as error:
                self._observer.unavailable(error)
                self._most = max(1, len(batch) // 2)
                await asyncio.sleep(self._options.retry_s)
                continue
            self._most = min(self._options.batch, 2 * self._most)
            if len(self._units) < self._options.batch:
                await asyncio.sleep(_GATHER_S if len(batch) < _BUSY else self._options.busy_gather_s)

    async def _append(self, units: list[Unit]) -> None:
        """Append the first units, which are no longer pending then."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            outcomes = await self._log.append(self._cluster, units, expect=self._expect)
        except (errors.LogUnavailable, errors.StaleExpectation, errors.CorruptLog):
            raise
        except (errors.IdempotencyConflict, errors.InvalidObject, errors.LogError) as error:
            if len(units) > 1:
                middle = len(units) // 2
                await self._append(units[:middle])
                await self._append(units[middle:])
                return
            self._observer.dropped(units[0], error)
        else:
            for outcome in outcomes:
                if outcome.stale is not None:
                    stale = outcome.stale
                    raise errors.StaleExpectation(
                        self._cluster, stale.stream, expected=stale.expected, actual=stale.actual
                    )
            self._observer.appended(units, outcomes, clock() - begun)
        for _ in units:
            self._units.popleft()
        self._set_flags()

    def _set_flags(self) -> None:
        for flag, up in (
            (self._filled, bool(self._units)),
            (self._empty, not self._units),
            (self._room, len(self._units) < self._options.limit),
        ):
            if up:
                flag.set()
            else:
                flag.clear()
