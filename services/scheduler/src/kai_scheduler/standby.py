"""Several schedulers of one shard, or of one replica: one decides, and the others fold along and stand by.

Of the live schedulers, the one that announced itself first decides. When it withdraws, the next one takes over at
once; when it dies, after `lease_ms` without an announcement. The bus shows the live schedulers
(`kai_scheduler.announcing`). While the bus does not answer, or without one, a scheduler leaves the shard to another
one until no cycle of that one was recorded for a while. Both are hints: a cycle is appended only if no other cycle of
the shard came before it.
"""

from collections.abc import Callable

from kai_scheduler.replicas import Live

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
        told: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """Args:
        standby_s: how long to leave the shard to another scheduler after its last cycle, where the bus does not tell.
        monotonic: seconds.
        live: the schedulers of the shard that are live; None where they do not announce themselves.
        member: this one's name among them; the names' order is that of their announcement.
        told: is called with whether this one decides, as often as it is asked.
        """
        self._standby_s = standby_s
        self._monotonic = monotonic
        self._live = live
        self._member = member
        self._told = told
        self._others_cycle_s = -1e9
        self._begun_s = monotonic()

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
                self._told(decides)
                return _AT_ONCE if decides else now + _LOOK_S
        self._told(now >= self._others_cycle_s + self._standby_s)
        return self._others_cycle_s + self._standby_s
