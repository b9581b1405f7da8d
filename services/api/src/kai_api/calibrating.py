"""Calibration of forecasts: measured by a process of its own, kept here, and renewed now and then."""

import asyncio
import logging
from collections.abc import Awaitable

import msgspec
from kaicore.analysis.ask.answers import CalibrationAnswer
from kaicore.analysis.trial.submission.calibrations import kept_calibration
from kaicore.errors import KaiError
from kaicore.ledger.log.port import EventLog

from kai_api.long_answers import LongAnswers, Question

_log = logging.getLogger(__name__)

#: Seconds after which it is measured anew, and until it is tried again where that failed.
_RENEWED_S, _PAUSE_S = 6 * 3600.0, 300.0


class Calibrations:
    """One for a process."""

    def __init__(self, log: EventLog, long_answers: LongAnswers) -> None:
        """Args:
        log: questions are about its clusters.
        long_answers: measures.
        """
        self._log, self._long_answers = log, long_answers
        self._kept: dict[str, CalibrationAnswer] = {}
        self._due: dict[str, float] = {}
        self._measuring: set[asyncio.Task[None]] = set()

    async def current(self, cluster: str) -> CalibrationAnswer | None:
        """Return what was measured last; have it measured, without waiting for it, where that is long ago or never."""
        now = asyncio.get_running_loop().time()
        if now >= self._due.get(cluster, 0.0):
            self._due[cluster] = now + _PAUSE_S
            task = asyncio.create_task(self._renew(cluster))
            self._measuring.add(task)
            task.add_done_callback(self._measuring.discard)
        return await self.kept(cluster)

    async def kept(self, cluster: str) -> CalibrationAnswer | None:
        """Return what was measured last; None where it never was."""
        return self._kept.get(cluster) or await kept_calibration(self._log, cluster)

    async def measure(self, cluster: str, *, gone: Awaitable[None]) -> CalibrationAnswer:
        """Measure it now; see `LongAnswers.ask`."""
        body = await self._long_answers.ask(Question.CALIBRATION, cluster, gone=gone)
        answer = self._kept[cluster] = msgspec.json.decode(body, type=CalibrationAnswer)
        self._due[cluster] = asyncio.get_running_loop().time() + _RENEWED_S
        return answer

    async def _renew(self, cluster: str) -> None:
        try:
            await self.measure(cluster, gone=asyncio.get_running_loop().create_future())
        except KaiError as error:
            _log.warning("cluster %s: how often forecasts came true cannot be measured: %s", cluster, error)
