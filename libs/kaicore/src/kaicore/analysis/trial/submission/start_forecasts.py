"""Forecasts of starts, and explanations of waiting with such a forecast, from the states that an inquiry keeps."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec

from kaicore.analysis.ask.answers import CalibrationAnswer, GroupStart, Why
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.trial.submission.answers import StartsAnswer
from kaicore.analysis.trial.submission.calibrations import kept_calibration
from kaicore.analysis.trial.submission.histories import RunHistories
from kaicore.analysis.trial.submission.starts import checked_group
from kaicore.analysis.trial.submission.waiting_starts import waiting_starts
from kaicore.errors import KaiError, TooManyQuestions
from kaicore.rules.forecast.runs import RunHistory
from kaicore.rules.forecast.start import ForecastLimits
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import fork

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
            cluster, at, lambda copied, history, now: waiting_starts(copied, kind, namespace, name, history, now=now)
        )
        forecast = any(group.start is not None for group in answer.groups)
        calibration = await self.calibration(cluster) if forecast else None
        groups = [checked_group(group, calibration) for group in answer.groups]
        return msgspec.structs.replace(answer, groups=groups, calibration=calibration)

    async def why(self, cluster: str, kind: str, namespace: str, name: str, *, at: str = "") -> Why:
        """Explain something, as `Inquiry.why` does; of what waits also when it is likely to start.

        The forecast is drawn from the runs that are known already, or that the end of the log tells of, and may cost
        little: this answer is to come at once.

        Raises: see `Inquiry.why`.
        """
        why = await self._inquiry.why(cluster, kind, namespace, name, at=at)
        if why.starts_if is None:
            return why
        try:
            starts = await self.of_state(
                cluster,
                at and str(why.position),
                lambda copied, history, now: waiting_starts(
                    copied, kind, namespace, name, history, now=now, oldest=True, limits=_SOON
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
