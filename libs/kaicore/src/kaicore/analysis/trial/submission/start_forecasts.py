"""Forecasts of starts for waiting pods, and explanations with a forecast, from the states that an inquiry keeps."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec

from kaicore.analysis.ask.answers import CalibrationAnswer, GroupStart, Why
from kaicore.analysis.ask.listing import known_names
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.json_spelling import time_text
from kaicore.analysis.trial.submission.answers import StartsAnswer, checked_group, start_answer
from kaicore.analysis.trial.submission.calibrations import RunHistories, kept_calibration
from kaicore.errors import KaiError, TooManyQuestions, UnknownSubject
from kaicore.rules.deciding.forecast.runs import RunHistory
from kaicore.rules.deciding.forecast.start import ForecastLimits, NoForecast, StartForecast, forecast_starts
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.groups.membership import POD
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import CopiedState, fork
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.views import WorkView
from kaicore.spelling import did_you_mean


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
) -> StartsAnswer:
    """Say when the pods of something are likely to start.

    Args:
        state: a copy; changed.
        kind: Pod, or without its API group that of a group or of pods' owner.
        history: of the same log, up to the state's position or before; not changed.
        now: microseconds since the epoch.
        oldest: whether only the group of the longest waiting pod is meant.
        limits: how far is looked ahead.
        policies: the code of policies.

    Raises:
        UnknownSubject: the cluster has no pods of it.
    """
    copied = CopiedState(state, now=now)
    members = [entry for entry in state.pods.values() if _belongs(state, entry, kind, namespace, name)]
    if not members:
        close = did_you_mean(f"{namespace}/{name}" if kind == POD else name, known_names(state, kind, namespace))
        raise UnknownSubject(f"the cluster has no pods of {kind} {namespace}/{name}{close}")
    waiting = sorted((entry.pod.created_at, entry.pod.name, entry.group) for entry in members if entry.waiting)
    keys = sorted({group for _, _, group in (waiting[:1] if oldest else waiting)})
    forecasts = forecast_starts(
        state, state.config(), history, keys, now=copied.now, limits=limits or ForecastLimits(), policies=policies
    )
    return StartsAnswer(
        cluster=state.cluster,
        position=state.position,
        recorded_at=time_text(state.recorded_at),
        now=time_text(copied.now),
        groups=[_group(state, key, forecasts[key], now=copied.now) for key in keys],
    )


def _belongs(state: WorkView, entry: PodEntry, kind: str, namespace: str, name: str) -> bool:
    pod = entry.pod
    if pod.namespace != namespace:
        return False
    if kind == POD:
        return pod.name == name
    group = state.groups.get(entry.group)
    named = group is not None and (_plain(group.origin), group.name) == (kind, name)
    return named or (pod.owner is not None and (pod.owner.kind, pod.owner.name) == (kind, name))


def _group(state: WorkView, key: str, forecast: StartForecast | NoForecast, *, now: int) -> GroupStart:
    group = state.groups.get(key)
    kind, namespace, name = key.split("/", 2) if group is None else (group.origin, group.namespace, group.name)
    return GroupStart(
        kind=kind,
        namespace=namespace,
        name=name,
        start=start_answer(forecast, now=now) if isinstance(forecast, StartForecast) else None,
        no_start=forecast.why if isinstance(forecast, NoForecast) else "",
    )


def _plain(kind: str) -> str:
    return kind.partition(".")[0]


_AnswerT = TypeVar("_AnswerT")
_log = logging.getLogger(__name__)

#: Most questions about one cluster that wait for each other.
MOST_WAITING = 8
#: What a forecast may cost that is part of another answer.
_SOON = ForecastLimits(work=20_000)


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
        inquiry: it reads the states.
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

    async def starts(self, cluster: str, kind: str, namespace: str, name: str, *, at: str = "") -> StartsAnswer:
        """Say when what waits already is likely to start; see `waiting_starts`.

        Raises:
            UnknownSubject: the cluster has no pods of it.
            UnknownMoment: there is no such moment.
            EventsRetired: its events are gone.
            LogUnavailable: the log does not answer.
            TooManyQuestions: about this cluster wait already.
        """
        answer = await self.of_state(
            cluster,
            at,
            lambda copied, history, now: waiting_starts(
                copied, kind, namespace, name, history, now=now, policies=self.policies
            ),
        )
        forecast = any(group.start is not None for group in answer.groups)
        calibration = await self.calibration(cluster) if forecast else None
        groups = [checked_group(group, calibration) for group in answer.groups]
        return msgspec.structs.replace(answer, groups=groups, calibration=calibration)

    async def why(
        self, cluster: str, kind: str, namespace: str, name: str, *, at: str = "", trials: bool = True
    ) -> Why:
        """Explain something, as `Inquiry.why` does; of what waits also when it is likely to start.

        The forecast is drawn from the runs that are known already, or that the end of the log tells of, and may cost
        little: this answer is to come at once.

        Raises: see `Inquiry.why`.
        """
        why = await self._inquiry.why(cluster, kind, namespace, name, at=at, trials=trials)
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
        return msgspec.structs.replace(why, start=checked_group(start, calibration), calibration=calibration)

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
