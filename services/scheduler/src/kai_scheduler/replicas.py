"""One replica among those of a shard: is it listed, and when is the list in the log to be another one."""

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Protocol

from kaicore.errors import LogUnavailable, StaleExpectation
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import ReplicasChanged
from kaicore.rules.sharing.replicas import due_replicas, replicas_stream
from kaicore.rules.state.cluster_state import ClusterState

#: Seconds for which a listed replica that was never seen live is left on the list.
_STRANGER_S = 3.0


class Live(Protocol):
    """Who is live, as `kai_scheduler.announcing.Announcer` sees it."""

    @property
    def live(self) -> tuple[str, ...]:
        """The members that count as live, this one among them."""
        ...

    @property
    def settled(self) -> bool:
        """Whether the others are known."""
        ...

    @property
    def fresh(self) -> bool:
        """Whether that was learned lately."""
        ...

    def start(self) -> None:
        """Begin to announce this replica: it is ready to decide."""
        ...

    def pulse(self) -> None:
        """Tell that this replica goes on."""
        ...


class ReplicaList:
    """The list of a shard's replicas in the log, as one of them keeps it."""

    def __init__(
        self,
        log: EventLog,
        *,
        shard: str,
        replica: str,
        actor: str,
        live: Live | None,
        clock: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        """Args:
        log: where the list is.
        shard: the shard's name.
        replica: this one's; empty for a scheduler that has the shard for itself.
        actor: who appends; unlike that of any other process.
        live: tells who is live; None without replicas.
        clock: microseconds since the epoch.
        monotonic: seconds.
        """
        self._log = log
        self._shard = shard
        self._replica = replica
        self._actor = actor
        self._live = live
        self._clock = clock
        self._monotonic = monotonic
        self._seen: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._unlike_since = 0.0
        #: The replicas that this one has seen live.
        self._met: set[str] = set()
        self._numbers = count(1)

    def listed(self, state: ClusterState) -> bool:
        """Tell whether this scheduler may decide: it is listed, or none is and it has no name."""
        replicas = state.replicas.get(self._shard, ())
        return self._replica in replicas if self._replica else not replicas

    def begin(self) -> None:
        """Announce this replica from now on."""
        if self._live is not None:
            self._live.start()

    async def keep(self, state: ClusterState) -> int:
        """Record another list if it is time; return the position of that, or 0.

        Raises:
            LogUnavailable: nothing is known of the outcome; the next call finds it in the state, or tries again.
        """
        due = self._due(state.replicas.get(self._shard, ()))
        return 0 if due is None else await self._record(state, due)

    async def leave(self, state: ClusterState) -> None:
        """Take this replica off the list; never raises for a log that does not answer."""
        replicas = state.replicas.get(self._shard, ())
        if len(replicas) > 1 and self._replica in replicas:
            with suppress(LogUnavailable):
                await self._record(state, tuple(one for one in replicas if one != self._replica))

    async def _record(self, state: ClusterState, replicas: tuple[str, ...]) -> int:
        stream = replicas_stream(self._shard)
        event = NewEvent(
            id=derived_id(state.cluster, stream, self._actor, str(next(self._numbers))),
            stream=stream,
            payload=ReplicasChanged(shard=self._shard, replicas=replicas),
            actor=self._actor,
            occurred_at=self._clock(),
            subject=self._shard,
        )
        try:
            expect = {stream: state.versions.get(stream, 0)}
            (outcome,) = await self._log.append(state.cluster, [Unit((event,))], expect=expect)
        except StaleExpectation:
            return 0
        return outcome.positions[-1]

    def _due(self, listed: tuple[str, ...]) -> tuple[str, ...] | None:
        if self._live is None:
            return () if listed else None
        self._live.pulse()
        if not self._live.settled:
            return None
        live, now = self._live.live, self._monotonic()
        if (listed, live) != self._seen:
            self._seen, self._unlike_since = (listed, live), now
        unlike_s = now - self._unlike_since
        self._met.update(live)
        if unlike_s < _STRANGER_S:
            # Two that begin at once do not see each other yet.
            live = tuple(sorted({*live, *(one for one in listed if one not in self._met)}))
        return due_replicas(listed, live, replica=self._replica, fresh=self._live.fresh, unlike_s=unlike_s)
