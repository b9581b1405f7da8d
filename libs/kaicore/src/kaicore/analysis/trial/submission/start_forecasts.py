"""Forecasts of starts for waiting pods, and explanations with a forecast, from the states that an inquiry keeps.

Calibration of forecasts: how often they were right, measured on a log itself, and kept.

It needs the run times of pods, which are read once by event type and then as the logs grow.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from kaicore.analysis.ask.answers import CalibrationAnswer, GroupRow, GroupStart, Listing, RowSelection, Why
from kaicore.analysis.ask.listing import known_names
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.json_spelling import duration_text, place_of, time_text
from kaicore.analysis.replay.log_states import events_of
from kaicore.analysis.replay.moments import state_at
from kaicore.analysis.trial.submission import answers
from kaicore.errors import KaiError, TooManyQuestions, UnknownSubject
from kaicore.ledger.log.port import EventLog, Filter, Snapshot
from kaicore.rules.deciding.forecast.backtest import LEAST_GROUPS, WAIT_EVENTS, Backtest, Calibration, PastWaits, sample
from kaicore.rules.deciding.forecast.runs import RUN_EVENTS, RunHistory
from kaicore.rules.deciding.forecast.start import ForecastLimits, NoForecast, StartForecast, forecast_starts
from kaicore.rules.deciding.why import pending_reasons
from kaicore.rules.engine.explain.waiting_reasons import are_lasting
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.events.reasons.base import CodedReason, plural
from kaicore.rules.groups.membership import POD
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import CopiedState, fork
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.views import WorkView
from kaicore.spelling import did_you_mean

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
        """Return what a log up to a position tells of runs; the next call for the cluster may go on with it."""
        kept = self._kept.get(cluster)
        history = kept if kept is not None and kept.position <= position else RunHistory()
        await self._read(cluster, history, position, MOST_EVENTS)
        if kept is None:
            self._kept[cluster] = history
        return history

    async def soon(self, cluster: str, position: int) -> RunHistory:
        """Return what `upto` does where little is to be read for it, else what the log's last events tell."""
        kept = self._kept.get(cluster)
        if kept is not None and 0 <= position - kept.position <= _SOON_EVENTS:
            return await self.upto(cluster, position)
        history = RunHistory()
        await self._read(cluster, history, position, _SOON_EVENTS)
        return history

    async def read_ahead(self, cluster: str) -> None:
        """Read what a log tells of runs, unless that was read, so that questions need not."""
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

    Raises EventsRetired: the events are gone, and no state was kept.

    Args:
        log: which is only read.
        progress: called with how far it is, and how far it will go, in positions.
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
        checked = f"only {plural(groups, 'past forecast')}" if groups else "no past forecast"
        return f"accuracy unknown: {checked} to check yet"
    parts = [
        f"{share:.0%} started before {name}" for name, share in (("p50", halves), ("p90", nines)) if share is not None
    ]
    by = f"; half of them within {duration_text(error)} of p50" if error is not None else ""
    return f"so far: of {groups} groups that waited, {', '.join(parts)}{by}"


def waiting_starts(
    state: ClusterState,
    kind: str,
    namespace: str,
    name: str,
    history: RunHistory,
    *,
    now: int,
    oldest: bool = False,
    limits: ForecastLimits | None = None,
    policies: PolicyBook = NO_POLICIES,
) -> answers.StartsAnswer:
    """Say when the pods of something are likely to start. Raises UnknownSubject: the cluster has no pods of it.

    Args:
        state: a copy; changed.
        kind: Pod, or without its API group that of a group or of pods' owner.
        history: of the same log, up to the state's position or before; not changed.
        now: microseconds since the epoch.
        oldest: whether only the group of the longest waiting pod is meant.
        limits: how far is looked ahead.
    """
    copied = CopiedState(state, now=now)
    members = [entry for entry in state.pods.values() if _belongs(state, entry, kind, namespace, name)]
    if not members:
        close = did_you_mean(f"{namespace}/{name}" if kind == POD else name, known_names(state, kind, namespace))
        raise UnknownSubject(f"the cluster has no pods of {kind} {namespace}/{name}{close}")
    waiting = sorted((entry.pod.created_at, entry.pod.name, entry.group) for entry in members if entry.waiting)
    keys = sorted({group for _, _, group in (waiting[:1] if oldest else waiting)})
    starts = _starts(state, keys, history, now=copied.now, limits=limits or ForecastLimits(), policies=policies)
    return answers.StartsAnswer(
        **place_of(state),
        now=time_text(copied.now),
        groups=list(starts.values()),
    )


def _starts(
    state: ClusterState,
    keys: Sequence[str],
    history: RunHistory,
    *,
    now: int,
    limits: ForecastLimits,
    policies: PolicyBook,
) -> dict[str, GroupStart]:
    left = [key for key in keys if not are_lasting(_reasons(state, key))]
    forecasts = forecast_starts(state, state.config(), history, left, now=now, limits=limits, policies=policies)
    none = NoForecast(answers.STAYS_IN_THE_WAY)
    return {key: _group(state, key, forecasts.get(key, none), now=now) for key in keys}


def _reasons(state: ClusterState, key: str) -> Iterator[CodedReason]:
    """Yield why the waiting pods of a group wait, each kind of them once."""
    waiting = (state.pods[uid] for uid in sorted(state.group_table.pods_of(key)) if uid in state.waiting)
    for entry in {entry.class_key: entry for entry in waiting}.values():
        yield from pending_reasons(entry, state)


def _belongs(state: WorkView, entry: PodEntry, kind: str, namespace: str, name: str) -> bool:
    pod = entry.pod
    if pod.namespace != namespace:
        return False
    if kind == POD:
        return pod.name == name
    group = state.groups.get(entry.group)
    named = group is not None and (group.origin.partition(".")[0], group.name) == (kind, name)
    return named or (pod.owner is not None and (pod.owner.kind, pod.owner.name) == (kind, name))


def _group(state: WorkView, key: str, forecast: StartForecast | NoForecast, *, now: int) -> GroupStart:
    group = state.groups.get(key)
    kind, namespace, name = key.split("/", 2) if group is None else (group.origin, group.namespace, group.name)
    return GroupStart(
        kind=kind,
        namespace=namespace,
        name=name,
        start=answers.start_answer(forecast, now=now) if isinstance(forecast, StartForecast) else None,
        no_start=forecast.why if isinstance(forecast, NoForecast) else "",
    )


_AnswerT = TypeVar("_AnswerT")
_CheckedT = TypeVar("_CheckedT", answers.StartsAnswer, answers.SubmitAnswer)
_log = logging.getLogger(__name__)

#: Most questions about one cluster that wait for each other.
MOST_WAITING = 8
#: What a forecast may cost that is part of another answer.
_SOON = ForecastLimits(work=20_000)
#: Groups of a list with a forecast, and seconds for which these forecasts are given.
_LISTED, _FRESH_S = 50, 30.0


class StartForecasts:
    """One for a process, so that what was read once is kept."""

    def __init__(
        self,
        inquiry: Inquiry,
        *,
        calibration: Callable[[str], Awaitable[CalibrationAnswer | None]] | None = None,
        clock: Callable[[], float] = time.time,
        lasting: bool = False,
    ) -> None:
        """Args:
        calibration: returns how often a cluster's forecasts came true; by default what is kept with its log.
        clock: seconds since the epoch.
        lasting: whether more questions will come, so that it is worth while to read for them in between.
        """
        self._inquiry, self._clock, self._lasting = inquiry, clock, lasting
        self.policies = inquiry.policies
        self.calibration = calibration or partial(kept_calibration, inquiry.log)
        self._histories = RunHistories(inquiry.log)
        self._turns: dict[str, asyncio.Lock] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        #: Questions that are being answered or wait for it, by cluster.
        self._waiting: dict[str, int] = {}
        #: By cluster, until when it is given, of which groups, and when they are expected to start.
        self._expected: dict[str, tuple[float, frozenset[str], dict[str, str]]] = {}

    async def listing(self, cluster: str, kind: str, wanted: RowSelection, *, at: str = "", now: int = 0) -> Listing:
        """Return rows of a kind, as `Inquiry.listing` does; groups that wait with when they are expected to start.

        Forecasts are those of half a minute, of the first groups only, and only where past ones came true.
        """
        listing = await self._inquiry.listing(cluster, kind, wanted, at=at, now=now)
        if kind != "groups" or not listing.total:
            return listing
        rows = [row for row in listing.rows if isinstance(row, GroupRow)]
        if not (waiting := [row.key for row in rows if row.waiting and not row.expected_start]):
            return listing
        try:
            expected = await self._expect(cluster, waiting[:_LISTED], at=at and str(listing.position))
        except KaiError:
            # As in `why`.
            return listing
        named = [
            msgspec.structs.replace(row, expected_start=expected[row.key], expected_from="forecast")
            if row.key in expected and not row.expected_start and row.waiting
            else row
            for row in rows
        ]
        return msgspec.structs.replace(listing, items=msgspec.Raw(msgspec.json.encode(named)))

    async def _expect(self, cluster: str, keys: Sequence[str], *, at: str) -> dict[str, str]:
        calibration = await self.calibration(cluster)
        if calibration is None:
            return {}
        until, of, expected = self._expected.get(cluster, (0.0, frozenset[str](), dict[str, str]()))
        # A list with other filters, or of somebody who sees less, was of other groups.
        if not at and self._clock() < until and of.issuperset(keys):
            return expected
        starts = await self.of_state(
            cluster,
            at,
            lambda copied, history, now: _starts(
                copied,
                [key for key in keys if key in copied.groups],
                history,
                now=CopiedState(copied, now=now).now,
                limits=_SOON,
                policies=self.policies,
            ),
            soon=True,
        )
        checked = {key: answers.checked_group(start, calibration).start for key, start in starts.items()}
        expected = {
            key: start.p50 for key, start in checked.items() if start is not None and start.calibrated and start.p50
        }
        if not at:
            self._expected[cluster] = self._clock() + _FRESH_S, frozenset(keys), expected
        return expected

    async def starts(self, cluster: str, kind: str, namespace: str, name: str, *, at: str = "") -> answers.StartsAnswer:
        """Say when what waits already is likely to start; see `waiting_starts`.

        Raises:
            UnknownSubject: the cluster has no pods of it.
            UnknownMoment: there is no such moment.
            EventsRetired: its events are gone.
            TooManyQuestions: about this cluster wait already.
        """
        answer = await self.of_state(
            cluster,
            at,
            lambda copied, history, now: waiting_starts(
                copied, kind, namespace, name, history, now=now, policies=self.policies
            ),
        )
        return await self.checked(answer)

    async def checked(self, answer: _CheckedT) -> _CheckedT:
        """Return an answer with its starts as forecasts where past ones came true (`answers.checked_start`)."""
        forecast = any(group.start is not None for group in answer.groups)
        calibration = await self.calibration(answer.cluster) if forecast else None
        groups = [answers.checked_group(group, calibration) for group in answer.groups]
        return msgspec.structs.replace(answer, groups=groups, calibration=calibration)

    async def why(
        self, cluster: str, kind: str, namespace: str, name: str, *, at: str = "", now: int = 0, trials: bool = True
    ) -> Why:
        """Explain something, as `Inquiry.why` does; of what waits also when it is likely to start.

        The forecast is drawn from the runs that are known already, or that the end of the log tells of, and may cost
        little: this answer is to come at once.

        Raises: see `Inquiry.why`.
        """
        why = await self._inquiry.why(cluster, kind, namespace, name, at=at, now=now, trials=trials)
        if why.starts_if is None:
            return why
        try:
            starts = await self.of_state(
                cluster,
                at and str(why.position),
                lambda copied, history, now: waiting_starts(
                    copied,
                    kind,
                    namespace,
                    name,
                    history,
                    now=now,
                    oldest=True,
                    limits=_SOON,
                    policies=self.policies,
                ),
                soon=True,
            )
        except KaiError:
            # Others ask, its pods are gone by now, or the log does not answer any more: why it waits is known.
            return why
        if self._lasting and cluster not in self._reading:
            self._reading[cluster] = asyncio.create_task(self._read_ahead(cluster))
        start: GroupStart | None = next(iter(starts.groups), None)
        if start is None or start.start is None:
            return msgspec.structs.replace(why, start=start)
        calibration = await self.calibration(cluster)
        return msgspec.structs.replace(why, start=answers.checked_group(start, calibration), calibration=calibration)

    async def _read_ahead(self, cluster: str) -> None:
        try:
            await self._histories.read_ahead(cluster)
        except KaiError as error:
            _log.warning("cluster %s: its past runs cannot be read: %s", cluster, error)
            del self._reading[cluster]

    async def of_state(
        self,
        cluster: str,
        at: str,
        ask: Callable[[ClusterState, RunHistory, int], _AnswerT],
        *,
        soon: bool = False,
    ) -> _AnswerT:
        """Ask a question about a state, its history and the time, in a thread of its own."""
        if self._waiting.get(cluster, 0) >= MOST_WAITING:
            raise TooManyQuestions(f"cluster {cluster}: {MOST_WAITING} such questions wait already")
        self._waiting[cluster] = self._waiting.get(cluster, 0) + 1
        try:
            # A copy of a state is large, and is made when it is a question's turn.
            async with self._turns.setdefault(cluster, asyncio.Lock()):
                state = await self._inquiry.state_at(cluster, at)
                # The state goes on changing while others are waited for.
                copied, position = fork(state), state.position
                now = state.recorded_at if at else int(self._clock() * 1_000_000)
                history = await (self._histories.soon if soon else self._histories.upto)(cluster, position)
                return await asyncio.to_thread(ask, copied, history, now)
        finally:
            self._waiting[cluster] -= 1
