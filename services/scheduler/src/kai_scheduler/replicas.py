"""Replicas of a shard: which of them the log lists, which schedulers are live, and which one decides.

A scheduler announces itself and sees who else is live, in a thread of its own. A cycle may take seconds, in which the
event loop of the scheduler does nothing else: the others must not take it for dead meanwhile. A scheduler that has not
come back to its loop for much longer does not announce itself any more.

Of the live schedulers of one replica, the one that announced itself first decides; the others fold along and stand by.
When it withdraws, the next one takes over at once; when it dies, after `lease_ms` without an announcement. While the
bus does not answer, or without one, a scheduler leaves the shard to another one until no cycle of that one was recorded
for a while. All this is a hint: a cycle is appended only if no other cycle of the shard came before it.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from itertools import count
from typing import Protocol

from kaicore.errors import LogUnavailable, StaleExpectation
from kaicore.ledger.bus.leases import LeaseStore, Members, lease_clock
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import ReplicasChanged
from kaicore.rules.model.replicas import due_replicas, replicas_stream
from kaicore.rules.state.views import CycleView

#: How long the scheduler's loop may be away until it counts as hung, seconds.
_HUNG_S = 60.0


class Announcer:
    """Keeps a member announced, and its view of the others fresh.

    Attributes:
        live: the members that count as live, sorted, this one among them.
        settled: whether the others are known.
        fresh: whether the bus has answered lately.
    """

    def __init__(
        self,
        join: Callable[[], Awaitable[tuple[LeaseStore, Members]]],
        *,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        """Args:
        join: opens the store in the thread's own loop, and makes the member on it.
        changed: is called, in that thread, when others are live than before, or they are known at last.
        """
        self._join = join
        self._changed = changed
        self.live: tuple[str, ...] = ()
        self.settled = self.fresh = False
        self._pulse_s = lease_clock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="announcer", daemon=True)

    def start(self) -> None:
        """Begin to announce."""
        self._thread.start()

    def pulse(self) -> None:
        """Tell that the scheduler's loop goes on."""
        self._pulse_s = lease_clock()

    async def stop(self) -> None:
        """Withdraw the member, so that others take over at once; waits for seconds at most."""
        self._stop.set()
        if self._thread.ident is None:
            return
        await asyncio.to_thread(self._thread.join, 10.0)

    async def _run(self) -> None:
        store, members = await self._join()
        try:
            while not self._stop.is_set():
                if lease_clock() - self._pulse_s < _HUNG_S:
                    await members.beat()
                before = self.live, self.settled, self.fresh
                self.live, self.settled, self.fresh = members.live(), members.settled, members.fresh
                if before != (self.live, self.settled, self.fresh):
                    self._changed()
                await asyncio.to_thread(self._stop.wait, members.renewal_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await members.leave()
        finally:
            await store.close()


#: Seconds for which a listed replica that was never seen live is left on the list.
_STRANGER_S = 3.0


class Live(Protocol):
    """The live replicas, as `kai_scheduler.replicas.Announcer` sees them."""

    @property
    def live(self) -> tuple[str, ...]:
        """The members that count as live, this one among them."""

    @property
    def settled(self) -> bool:
        """True if the others are known."""

    @property
    def fresh(self) -> bool:
        """True if that was learned lately."""

    def start(self) -> None:
        """Begin to announce this replica: it is ready to decide."""

    def pulse(self) -> None:
        """Tell that this replica goes on."""


@dataclass(eq=False)
class ReplicaList:
    """The list of a shard's replicas in the log, as one of them keeps it.

    Attributes:
        replica: this one's; empty for a scheduler that has the shard for itself.
        actor: who appends; unlike that of any other process.
        live: tells who is live; None without replicas.
        clock: microseconds since the epoch.
    """

    log: EventLog
    _: KW_ONLY
    shard: str
    replica: str
    actor: str
    live: Live | None
    clock: Callable[[], int]
    monotonic: Callable[[], float]
    _seen: tuple[tuple[str, ...], tuple[str, ...]] = field(default=((), ()), init=False)
    _unlike_since: float = field(default=0.0, init=False)
    #: The replicas that this one has seen live.
    _met: set[str] = field(default_factory=set, init=False)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1), init=False)

    def listed(self, state: CycleView) -> bool:
        """Tell whether this scheduler may decide: it is listed, or none is and it has no name."""
        replicas = state.replicas.get(self.shard, ())
        return self.replica in replicas if self.replica else not replicas

    def begin(self) -> None:
        """Announce this replica from now on."""
        if self.live is not None:
            self.live.start()

    async def keep(self, state: CycleView) -> int:
        """Record another list if it is time; return the position of that, or 0.

        Raises:
            LogUnavailable: nothing is known of the outcome; the next call finds it in the state, or tries again.
        """
        due = self._due(state.replicas.get(self.shard, ()))
        return 0 if due is None else await self._record(state, due)

    async def leave(self, state: CycleView) -> None:
        """Take this replica off the list; never raises for a log that does not answer."""
        replicas = state.replicas.get(self.shard, ())
        if len(replicas) > 1 and self.replica in replicas:
            with suppress(LogUnavailable):
                await self._record(state, tuple(one for one in replicas if one != self.replica))

    async def _record(self, state: CycleView, replicas: tuple[str, ...]) -> int:
        stream = replicas_stream(self.shard)
        event = NewEvent(
            id=derived_id(state.cluster, stream, self.actor, str(next(self._numbers))),
            stream=stream,
            payload=ReplicasChanged(shard=self.shard, replicas=replicas),
            actor=self.actor,
            occurred_at=self.clock(),
            subject=self.shard,
        )
        try:
            expect = {stream: state.versions.get(stream, 0)}
            (outcome,) = await self.log.append(state.cluster, [Unit((event,))], expect=expect)
        except StaleExpectation:
            return 0
        return outcome.positions[-1]

    def _due(self, listed: tuple[str, ...]) -> tuple[str, ...] | None:
        if self.live is None:
            return () if listed else None
        self.live.pulse()
        if not self.live.settled:
            return None
        live, now = self.live.live, self.monotonic()
        if (listed, live) != self._seen:
            self._seen, self._unlike_since = (listed, live), now
        unlike_s = now - self._unlike_since
        self._met.update(live)
        if unlike_s < _STRANGER_S:
            # Two that begin at once do not see each other yet.
            live = tuple(sorted({*live, *(one for one in listed if one not in self._met)}))
        return due_replicas(listed, live, replica=self.replica, fresh=self.live.fresh, unlike_s=unlike_s)


#: Seconds between two looks at whether the others are known, and whether they are gone.
_FIRST_LOOK_S, _LOOK_S = 0.05, 0.25

#: Before any time of the monotonic clock, also before one that the caller has just read.
_AT_ONCE = -1e9


class Standby:
    """Tells a scheduler from when on it may decide."""

    def __init__(
        self,
        *,
        standby_s: float,
        monotonic: Callable[[], float],
        live: Live | None = None,
        member: str = "",
        notify: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """Args:
        standby_s: how long to leave the shard to another scheduler after its last cycle, where the bus does not tell.
        live: the schedulers of the shard that are live; None where they do not announce themselves.
        member: this one's name among them; the names' order is that of their announcement.
        notify: is called with whether this one decides, as often as it is asked.
        """
        self._standby_s = standby_s
        self._monotonic = monotonic
        self._live = live
        self._member = member
        self._notify = notify
        self._others_cycle_s = -1e9
        self._begun_s = monotonic()

    @property
    def alone(self) -> bool:
        """True if schedulers of the shard do not announce themselves."""
        return self._live is None

    def begin(self) -> None:
        """Announce this scheduler: it is ready to decide."""
        self._begun_s = self._monotonic()
        if self._live is not None:
            self._live.start()

    def heard(self) -> None:
        """Take note of a cycle of another scheduler of the shard."""
        self._others_cycle_s = self._monotonic()

    def decides_at(self) -> float:
        """Return from when on this scheduler may decide, by the monotonic clock; to be asked again then."""
        live, now = self._live, self._monotonic()
        if live is not None:
            live.pulse()
            if not live.settled and now < self._begun_s + self._standby_s:
                return now + _FIRST_LOOK_S
            if live.settled and live.fresh:
                decides = live.live[0] == self._member
                self._notify(decides)
                return _AT_ONCE if decides else now + _LOOK_S
        self._notify(now >= self._others_cycle_s + self._standby_s)
        return self._others_cycle_s + self._standby_s
