"""The kept hours of the account against those that a check's folds count.

An hour that differs is counted once more, from the log's beginning: what was erased from the log since is in neither,
and what is kept anew must be of the log as it is now. Hours with other labels of owners are not compared.
"""

from collections.abc import Mapping
from contextlib import aclosing

from kaicore.analysis.ask.hours.account import Account, Period, by_month
from kaicore.analysis.ask.hours.kept import counted_hours, decoded, encoded, kept_hours_of
from kaicore.analysis.replay.log_states import first_state, fold_on
from kaicore.analysis.replay.samples import SampleDifference
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.cluster_state import ClusterState

#: Hours that wait to be compared: those of a month.
_MOST = 31 * 24
#: Events that are folded before others get their turn.
_STEP = 50


class CountedHours:
    """Hours of the account as folds count them; one goes on from one fold to the next.

    A fold begins with `begin`, gives each event to `take` before it folds it, and ends with `end`.
    """

    def __init__(self, log: EventLog, cluster: str, *, labels: tuple[str, ...]) -> None:
        """Args: labels: of pods, by which owners of kept hours are distinguished."""
        self._log, self._cluster, self._labels = log, cluster, labels
        self._state = ClusterState(cluster)
        self._account: Account | None = None
        #: The event that was folded last, which the account takes in before the next one: then it is in the state for
        #: sure, or quarantined.
        self._last: Event | None = None
        #: Where the last fold ended; -1 while one is under way.
        self._at = -1
        #: The time since when the hour counts of which a part is unknown; 0 without one.
        self._unknown = 0
        self._hours: list[Period] = []

    def begin(self, state: ClusterState) -> None:
        """Take the state that is folded next."""
        self._state = state
        if self._account is not None and state.position == self._at:
            self._account.go_on(state)
        else:
            self._hours, self._last, self._unknown = [], None, state.recorded_at
            self._account = self._counting_from(state.recorded_at) if state.recorded_at else None
        self._at = -1

    def take(self, event: Event) -> None:
        """Count up to an event that is folded next."""
        account = self._account or self._counting_from(event.recorded_at)
        self._account = account
        self._settle(account)
        account.advance(event.recorded_at)
        self._last = event

    def end(self) -> None:
        """Take in the last event, and keep the hours that are over until they are compared."""
        if self._account is not None:
            self._settle(self._account)
            hours = [hour for hour in self._account.taken() if hour.begin != (self._unknown or -1)]
            self._hours = [*self._hours, *hours][-_MOST:]
        self._at = self._state.position

    def _counting_from(self, begin: int) -> Account:
        return Account(self._state, begin, labels=self._labels)

    def _settle(self, account: Account) -> None:
        if self._last is not None:
            account.take(self._last)
        self._last = None

    async def differ(self) -> SampleDifference | None:
        """Compare the hours that are kept by now with those counted; keep anew the ones that differ, or are missing.

        Raises LogUnavailable: the log does not answer.
        """
        kept = kept_hours_of(self._log)
        last = None if kept is None else await kept.last(self._cluster)
        ended = [hour for hour in self._hours if last is not None and hour.end <= last[0]]
        if kept is None or not ended:
            return None
        there = await kept.every(self._cluster, ended[0].begin, ended[-1].end, labels=self._labels)
        other = [hour for hour in ended if not self._is_same(hour, there)]
        found = [(after, hour) for after, hour in await self._counted_again(other) if not self._is_same(hour, there)]
        await kept.save(self._cluster, [hour for _, hour in found], labels=self._labels)
        self._hours = [hour for hour in self._hours if hour not in ended]
        if not found:
            return None
        return SampleDifference(found[0][0], tuple(f"/account_hour/{hour.begin}" for _, hour in found))

    def _is_same(self, counted: Period, there: Mapping[int, Period | None]) -> bool:
        """Tell whether an hour is kept as it is counted; one with other labels (None) counts as such.

        Those without an event count as one, also where each was kept alone.
        """
        parts = [hour for begin, hour in there.items() if counted.begin <= begin < counted.end]
        known = [hour for hour in parts if hour is not None]
        if len(known) < len(parts):
            return True
        (kept,) = by_month(known) or [Period("", 0)]
        return _ordered(decoded(encoded(counted, self._labels), self._labels)) == _ordered(kept)

    async def _counted_again(self, hours: list[Period]) -> list[tuple[int, Period]]:
        """Count hours from the log's beginning, those that the log has; each with the position before its events."""
        counted: list[tuple[int, Period]] = []
        state = await first_state(self._log, self._cluster) if hours else self._state
        for hour in hours:
            events = await self._log.read(self._cluster, limit=1, where=Filter(since=hour.begin))
            after = events[0].position - 1 if events else hour.position
            if after < state.position:
                continue
            async with aclosing(fold_on(self._log, state, after, step=_STEP)) as folding:
                async for _ in folding:
                    pass
            counting = counted_hours(self._log, state, hour.begin, hour.end, labels=self._labels)
            async with aclosing(counting) as again:
                counted += [(after, one) async for one in again]
        return counted


def _ordered(hour: Period | None) -> Period | None:
    """Return an hour with its waits in order: they come as pods are listed, which means nothing."""
    for held in hour.owners.values() if hour is not None else ():
        held.waits.sort()
        held.waiting.sort()
    return hour
