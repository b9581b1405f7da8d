"""Calibration of forecasts: how often they were right, measured on a log itself, and kept.

It needs the run times of pods, which are read once by event type and then as the logs grow.
"""

from collections.abc import Callable

import msgspec

from kaicore.analysis.ask.answers import CalibrationAnswer
from kaicore.analysis.replay.log_states import events_of
from kaicore.analysis.replay.moments import state_at
from kaicore.analysis.trial.submission.answers import duration_text
from kaicore.errors import KaiError
from kaicore.ledger.log.port import EventLog, Filter, Snapshot
from kaicore.rules.deciding.forecast.backtest import LEAST_GROUPS, WAIT_EVENTS, Backtest, Calibration, PastWaits, sample
from kaicore.rules.deciding.forecast.runs import RUN_EVENTS, RunHistory
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook

#: How far back runs are looked for, in events of all types: some weeks of a busy cluster.
MOST_EVENTS = 500_000
#: And for an answer that is not to wait for that: less than a tenth of a second's.
_SOON_EVENTS = 10_000

_WHERE = Filter(types=RUN_EVENTS)


class RunHistories:
    """One for a process: what was read once is kept, by cluster."""

    def __init__(self, log: EventLog) -> None:
        """Args: log: questions are about its clusters."""
        self._log = log
        self._kept: dict[str, RunHistory] = {}

    async def upto(self, cluster: str, position: int) -> RunHistory:
        """Return what a log up to a position tells of runs; the next call for the cluster may go on with it.

        Raises:
            LogUnavailable: the log does not answer.
        """
        kept = self._kept.get(cluster)
        history = kept if kept is not None and kept.position <= position else RunHistory()
        await self._read(cluster, history, position, MOST_EVENTS)
        if kept is None:
            self._kept[cluster] = history
        return history

    async def soon(self, cluster: str, position: int) -> RunHistory:
        """Return what `upto` does where little is to be read for it, else what the log's last events tell.

        Raises:
            LogUnavailable: the log does not answer.
        """
        kept = self._kept.get(cluster)
        if kept is not None and 0 <= position - kept.position <= _SOON_EVENTS:
            return await self.upto(cluster, position)
        history = RunHistory()
        await self._read(cluster, history, position, _SOON_EVENTS)
        return history

    async def read_ahead(self, cluster: str) -> None:
        """Read what a log tells of runs, unless that was read, so that questions need not.

        Raises:
            LogUnavailable: the log does not answer.
        """
        if cluster not in self._kept:
            history = RunHistory()
            await self._read(cluster, history, (await self._log.head(cluster)).position, MOST_EVENTS)
            self._kept.setdefault(cluster, history)

    async def _read(self, cluster: str, history: RunHistory, position: int, most: int) -> None:
        after = max(history.position, position - most, await self._log.retired(cluster))
        async for event in events_of(self._log, cluster, after=after, upto=position, where=_WHERE):
            history.take(event)
        history.position = max(history.position, position)


_NAME, _SCHEMA = "forecast-calibration", "1"


async def measure_calibration(
    log: EventLog,
    cluster: str,
    *,
    progress: Callable[[int, int], None] = lambda _, __: None,
    policies: PolicyBook = NO_POLICIES,
) -> CalibrationAnswer:
    """Make forecasts again at past positions of a log, and compare them with what came.

    Args:
        log: which is only read.
        progress: called with how far it is, and how far it will go, in positions.
        policies: the code of policies.

    Raises:
        EventsRetired: the events are gone, and no state was kept.
        LogUnavailable: the log does not answer.
    """
    head = await log.head(cluster)
    after = max(0, head.position - MOST_EVENTS, await log.retired(cluster))
    waits = PastWaits()
    async for event in events_of(log, cluster, after=after, upto=head.position, where=Filter(types=WAIT_EVENTS)):
        waits.take(event)
    chosen = sample(waits.waits())
    if not chosen:
        return _answer(cluster, head.position, Calibration())
    begin = chosen[0].position - 1
    history = RunHistory()
    async for event in events_of(log, cluster, after=after, upto=begin, where=Filter(types=RUN_EVENTS)):
        history.take(event)
    state = await state_at(log, cluster, begin)
    backtest = Backtest(state, history, chosen, ended_at=head.recorded_at, policies=policies)
    async for event in events_of(log, cluster, after=begin, upto=backtest.upto):
        backtest.take(event)
        progress(event.position, backtest.upto)
    return _answer(cluster, head.position, backtest.finish())


async def kept_calibration(log: EventLog, cluster: str) -> CalibrationAnswer | None:
    """Return what was measured last and kept with a log; None where nothing was."""
    try:
        snapshot = await log.load_snapshot(cluster, name=_NAME, schema=_SCHEMA)
        return None if snapshot is None else msgspec.json.decode(snapshot.body, type=CalibrationAnswer)
    except (KaiError, msgspec.MsgspecError):
        return None


async def keep_calibration(log: EventLog, answer: CalibrationAnswer) -> bool:
    """Keep what was measured with the log's snapshots, which are caches; return whether that may be done here."""
    snapshot = Snapshot(_NAME, answer.position, _SCHEMA, msgspec.json.encode(answer))
    try:
        await log.save_snapshot(answer.cluster, snapshot)
    except KaiError:
        return False
    return True


def _answer(cluster: str, position: int, calibration: Calibration) -> CalibrationAnswer:
    halves = _share(calibration.before_p50, calibration.p50_groups)
    nines = _share(calibration.before_p90, calibration.p90_groups)
    error = calibration.median_error_us
    seconds = None if error is None or halves is None else round(error / 1_000_000)
    first, last = calibration.positions
    return CalibrationAnswer(
        cluster=cluster,
        position=position,
        groups=calibration.groups,
        undecided=calibration.undecided,
        started_before_p50=halves,
        started_before_p90=nines,
        median_error_seconds=seconds,
        from_position=first,
        to_position=last,
        left_out=calibration.left_out,
        text=_text(calibration.groups, halves, nines, seconds),
    )


def _share(count: int, of: int) -> float | None:
    return round(count / of, 3) if of >= LEAST_GROUPS else None


def _text(groups: int, halves: float | None, nines: float | None, error: int | None) -> str:
    if groups < LEAST_GROUPS or (halves is None and nines is None):
        checked = f"only {groups} past forecast{'' if groups == 1 else 's'}" if groups else "no past forecast"
        return f"accuracy unknown: {checked} to check yet"
    parts = [
        f"{share:.0%} started before {name}" for name, share in (("p50", halves), ("p90", nines)) if share is not None
    ]
    by = f"; half of them within {duration_text(error)} of p50" if error is not None else ""
    return f"so far: of {groups} groups that waited, {', '.join(parts)}{by}"
