"""A service's check of itself: what it has in memory against one that is folded anew from the log.

Snapshots are made of what is in memory, so a wrong one would be saved as it is. The fold therefore begins with what was
seen to be right last: the one just folded at the start, later that of the last check. It goes on a few events at a
time, beside the service's work; what takes long at once, reading and encoding, has a thread of its own.

Between two such checks samples are looked at (`samples`). One that differs brings the whole check forward; where that
finds nothing, what was seen to be right was not, and the log is folded from its beginning.

A difference is an event, which names the slice of the log that replays it, and a count that the alert is about. Who
found it goes on with what was folded.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice, zip_longest
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from prometheus_client import Counter

from kaicore.analysis.replay.log_states import first_state, fold_on
from kaicore.analysis.replay.samples import SampleDifference, differs_by_sample
from kaicore.errors import KaiError
from kaicore.ledger.log.port import EventLog, Snapshot
from kaicore.ledger.log.snapshots import read_state, take_state
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import DifferenceFound
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.runtime.service.logs import Logger

#: The checks, each with what it compares.
CHECKS = {
    "scheduler": "a scheduler's state with a fold of the log",
    "binder": "a binder's open decisions with a fold of the log",
    "projector": "read models, and the state that they are made of, with a fold of the log",
    "watcher": "a watcher's memory with a fold of the log",
    "api-server": "the log with the API server",
    "exporter": "the log with what an exporter reads once more from its kubelet",
}
DIFFERENCES = Counter("kai_differences", "Differences that checks found, and set right", ["check"])
for _name in CHECKS:
    DIFFERENCES.labels(_name)

#: Events that are folded before others get their turn: some milliseconds.
_STEP = 50
#: Differing parts that an event names.
_PARTS = 8
#: Looks from one whole check to the next; all but one are at samples.
_SAMPLES = 60

_T = TypeVar("_T")


class Memory(NamedTuple, Generic[_T]):
    """Things in memory that events make.

    Attributes:
        take: encodes them; equal ones give equal bytes.
        read: makes them anew.
        fold: folds them on to a position.
        compared: the encoded part that events alone make.
        sampled: compares a sample; None where there are no samples.
        begin: makes them as of the log's beginning.
        stored: compares what was stored of the events between two positions; None where nothing is.
    """

    take: Callable[[_T], Snapshot]
    read: Callable[[Snapshot], _T]
    fold: Callable[[_T, int], Awaitable[None]]
    compared: Callable[[bytes], bytes] = bytes
    sampled: Callable[[_T], Awaitable[SampleDifference | None]] | None = None
    begin: Callable[[], Awaitable[_T]] | None = None
    stored: Callable[[int, int], Awaitable[SampleDifference | None]] | None = None


class Reporting(NamedTuple):
    """The way of a check's differences into the log.

    Attributes:
        check: one of `CHECKS`.
        actor: the service, as its events name it.
        clock: microseconds since the epoch.
    """

    check: str
    log: EventLog
    cluster: str
    actor: str
    clock: Callable[[], int]
    logger: Logger

    async def found(self, *, after: int, upto: int, parts: tuple[str, ...]) -> None:
        """Report a difference; see `DifferenceFound`."""
        parts = parts[:_PARTS]
        DIFFERENCES.labels(self.check).inc()
        payload = DifferenceFound(self.check, after, upto, parts)
        self.logger.error("difference found", check=self.check, after=after, upto=upto, parts=parts)
        name = derived_id(self.cluster, "DifferenceFound", self.actor, self.check, str(upto), *parts)
        event = NewEvent(name, f"check/{self.check}", payload, self.actor, self.clock(), subject=self.check)
        try:
            await self.log.append(self.cluster, [Unit((event,))])
        except KaiError as error:
            self.logger.warning("difference not recorded", check=self.check, error=str(error))


def states(log: EventLog, cluster: str) -> Memory[ClusterState]:
    """Return how states of a cluster are checked."""

    async def fold(state: ClusterState, position: int) -> None:
        async for _ in fold_on(log, state, position, step=_STEP):
            pass

    sampled, begin = partial(differs_by_sample, log), partial(first_state, log, cluster)
    return Memory(take_state, partial(read_state, cluster), fold, sampled=sampled, begin=begin)


class SelfCheck(Generic[_T]):
    """Compares what is in memory, now and then, with a fold of the log."""

    def __init__(
        self, memory: Memory[_T], reporting: Reporting, *, every_s: float, monotonic: Callable[[], float]
    ) -> None:
        """Args:
        every_s: seconds from one check to the next; 0 for no checks.
        monotonic: seconds that never jump.
        """
        self._memory, self._reporting, self._every_s, self._monotonic = memory, reporting, every_s, monotonic
        self._folding: asyncio.Task[_T | None] | None = None
        #: Parts that differed in samples: each is reported once.
        self._explained: set[str] = set()

    def trust(self, there: _T) -> None:
        """Begin with what has just been folded from the log."""
        self.stop()
        self._seen_s = self._sampled_s = self._monotonic()
        if self._every_s:
            self._right = self._memory.take(there)

    def stop(self) -> None:
        """Give up the check that is under way."""
        if self._folding is not None:
            self._folding.cancel()
        self._folding = None

    def look(self, there: _T, *, idle: bool = True) -> _T | None:
        """Begin a check if it is time; return what is right, at an earlier position, if one found a difference.

        Raises KaiError: the log could not be read; the next check begins where this one did.

        Args:
            idle: whether the service has nothing to do; a check that is long overdue begins all the same.
        """
        if self._folding is None:
            waited_s = self._monotonic() - self._seen_s
            if self._every_s and waited_s >= (self._every_s if idle else 2 * self._every_s):
                self._seen_s = self._sampled_s = self._monotonic()
                self._folding = asyncio.create_task(self._compared(self._memory.take(there)))
            elif self._every_s and self._monotonic() - self._sampled_s >= self._every_s / _SAMPLES:
                self._sampled_s = self._monotonic()
                self._folding = asyncio.create_task(self._looked_at(there))
        elif self._folding.done():
            folding, self._folding = self._folding, None
            return folding.result()
        return None

    async def now(self, there: _T) -> _T | None:
        """Check at once; see `look`."""
        return await self._compared(self._memory.take(there))

    async def _looked_at(self, there: _T) -> _T | None:
        """Compare a sample, and all of it if that differs."""
        found = None if self._memory.sampled is None else await self._memory.sampled(there)
        if found is None or self._explained.issuperset(found.parts):
            return None
        self._explained.update(found.parts)
        here = self._memory.take(there)
        right = await self._compared(here)
        if right is None and self._memory.begin is not None:
            right = await self._memory.begin()
            await self._memory.fold(right, here.position)
            self._right = await asyncio.to_thread(self._memory.take, right)
            await self._reporting.found(after=found.after, upto=here.position, parts=found.parts)
        return right

    async def _compared(self, here: Snapshot) -> _T | None:
        before = self._right
        right = await asyncio.to_thread(self._memory.read, before)
        await self._memory.fold(right, here.position)
        folded = await asyncio.to_thread(self._memory.take, right)
        self._right = folded
        mine, its = self._memory.compared(here.body), self._memory.compared(folded.body)
        if mine == its:
            stored = None if self._memory.stored is None else await self._memory.stored(before.position, here.position)
            if stored is None:
                return None
            after, parts = stored
        else:
            after, parts = before.position, await asyncio.to_thread(differing_parts, mine, its)
        await self._reporting.found(after=after, upto=here.position, parts=parts)
        return right


def differing_parts(here: bytes, right: bytes) -> tuple[str, ...]:
    """Return some paths at which two encoded things differ, with what stands there where that is a number."""
    one, other = msgspec.msgpack.decode(here), msgspec.msgpack.decode(right)
    return tuple(islice(_paths(one, other, ""), _PARTS))


def _paths(one: Any, other: Any, path: str) -> Iterator[str]:
    if one == other:
        return
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys(), key=str):
            yield from _paths(one.get(key), other.get(key), f"{path}/{key}")
    elif isinstance(one, list) and isinstance(other, list):
        for number, (mine, its) in enumerate(zip_longest(one, other)):
            yield from _paths(mine, its, f"{path}/{number}")
    else:
        yield f"{path}: {one} instead of {other}" if isinstance(one, int) and isinstance(other, int) else path
