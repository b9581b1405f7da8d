"""Answers what would become of manifests, from the states that an inquiry keeps."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from kaicore.analysis.inquiry.queries import Inquiry
from kaicore.analysis.simulation import Located
from kaicore.analysis.submission.answers import CalibrationAnswer, StartsAnswer, SubmitAnswer
from kaicore.analysis.submission.calibrations import kept_calibration
from kaicore.analysis.submission.histories import RunHistories
from kaicore.analysis.submission.submit import submit
from kaicore.analysis.submission.waiting_starts import waiting_starts
from kaicore.errors import InvalidObject, TooManyQuestions
from kaicore.rules.forecast.runs import RunHistory
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import fork

_AnswerT = TypeVar("_AnswerT")

#: Most objects of one question, and most questions about one cluster that wait for each other.
MOST_OBJECTS, MOST_WAITING = 1000, 8


class Submissions:
    """One for a process, so that what was read once is kept."""

    def __init__(
        self,
        inquiry: Inquiry,
        *,
        calibration: Callable[[str], Awaitable[CalibrationAnswer | None]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Args:
        inquiry: whose states are asked.
        calibration: returns how often a cluster's forecasts came true; by default what is kept with its log.
        clock: seconds since the epoch.
        """
        self._inquiry, self._clock = inquiry, clock
        self._calibration = calibration or partial(kept_calibration, inquiry.log)
        self._histories = RunHistories(inquiry.log)
        self._turns: dict[str, asyncio.Lock] = {}
        #: Questions that are being answered or wait for it, by cluster.
        self._waiting: dict[str, int] = {}

    async def submit(self, cluster: str, objects: Sequence[Located], *, at: str = "") -> SubmitAnswer:
        """Say what would become of manifests; see `kaicore.analysis.submission.submit`.

        Args:
            cluster: whose log is asked.
            objects: in any order, with apiVersion and kind.
            at: as of which moment (`kaicore.analysis.inquiry.moments`); empty for now. In the past the time is that of
                the last event.

        Raises:
            InvalidObject: there are no objects, or too many.
            UnknownMoment: there is no such moment.
            EventsRetired: its events are gone.
            LogUnavailable: the log does not answer.
            TooManyQuestions: about this cluster wait already.
        """
        if not 0 < len(objects) <= MOST_OBJECTS:
            raise InvalidObject("manifests", "objects", len(objects), f"must be from 1 to {MOST_OBJECTS}")
        answer = await self._of_state(
            cluster, at, lambda copied, history, now: submit(copied, objects, history, now=now)
        )
        foretold = any(group.start is not None for group in answer.groups)
        calibration = await self._calibration(cluster) if foretold else None
        return msgspec.structs.replace(answer, calibration=calibration)

    async def starts(self, cluster: str, kind: str, namespace: str, name: str, *, at: str = "") -> StartsAnswer:
        """Say when what waits already is likely to start; see `waiting_starts`.

        Raises:
            UnknownSubject: the cluster has no pods of it.
            UnknownMoment: there is no such moment.
            EventsRetired: its events are gone.
            LogUnavailable: the log does not answer.
            TooManyQuestions: about this cluster wait already.
        """
        answer = await self._of_state(
            cluster, at, lambda copied, history, now: waiting_starts(copied, kind, namespace, name, history, now=now)
        )
        foretold = any(group.start is not None for group in answer.groups)
        calibration = await self._calibration(cluster) if foretold else None
        return msgspec.structs.replace(answer, calibration=calibration)

    async def _of_state(
        self, cluster: str, at: str, ask: Callable[[ClusterState, RunHistory, int], _AnswerT]
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
                history = await self._histories.upto(cluster, position)
                return await asyncio.to_thread(ask, copied, history, now)
        finally:
            self._waiting[cluster] -= 1
