"""Questions that take long, each asked of a process of its own: replays, audits, what-ifs, calibrations.

A replay computes for minutes. In the API's own process it would keep all other requests waiting, health included, and
could not be stopped. A process can: when its client goes, or takes too long, it is killed.

Some are asked by the API itself from time to time. Replays are, so that a difference is noticed: then the log does not
say what was decided, or it was altered, or the rules are not deterministic. Calibrations are kept here and renewed.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import IO

import msgspec
from kaicore.analysis.ask.answers import CalibrationAnswer
from kaicore.analysis.trial.submission.start_forecasts import kept_calibration
from kaicore.errors import KaiError
from kaicore.ledger.log.port import EventLog
from kaicore.rules.hub.hub_state import without_hub
from kaicore.runtime.fork_server import ForkServer
from kaicore.runtime.supervision import Child
from prometheus_client import Counter

#: The program that answers.
ANSWERS = "kai_api.answer"
#: Bytes of an answer read at a time; it is kept as a whole.
_MOST_BYTES = 64 << 20

#: The status of a request that its client does not wait for any more, as nginx has it.
CLIENT_GONE = 499

#: No options.
NONE: Mapping[str, str | None] = {}


class Question(StrEnum):
    """A question that can be asked."""

    REPLAY = "replay"
    AUDIT = "audit"
    CALIBRATION = "calibration"
    WHAT_IF = "what-if"
    SHADOW = "shadow"
    REPORT = "report"


class Failure(msgspec.Struct, frozen=True):
    """A refusal, with its reason and HTTP status."""

    error: str
    status: int = 500


class NoAnswer(KaiError):
    """The log cannot answer this, or not now; or the answer was given up, or its process failed, or the client is gone.

    Attributes:
        status: the HTTP status that says so.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.error)
        self.status = failure.status


class Busy(NoAnswer):
    """As many questions as may be are being answered."""


class LongAnswers:
    """Asks, some questions at a time."""

    def __init__(
        self, database_url: str, *, at_once: int, most_s: float, forks: ForkServer | None = None, policies: str = ""
    ) -> None:
        """Args:
        at_once: questions answered at the same time; more are `Busy`.
        most_s: seconds that an answer may take.
        forks: imports `ANSWERS` with the first question, so that later answers begin without a second of imports.
        policies: where their code is; see `kai_api.main.ApiSettings`.
        """
        self._forks = forks
        self._importing: asyncio.Task[None] | None = None
        self._environment = {
            "KAI_DATABASE_URL": database_url,
            "KAI_PARENT_PID": str(os.getpid()),
            "KAI_POLICIES": policies,
        }
        self._at_once = at_once
        self._most_s = most_s
        self._running = 0

    async def ask(
        self, question: Question, cluster: str, options: Mapping[str, str | None] = NONE, *, gone: Awaitable[None]
    ) -> bytes:
        """Return the answer as JSON.

        Args:
            options: of the question, by name; None is as not given.
            gone: ends when the client does not wait for the answer any more.

        Raises:
            Busy: too many questions are being answered.
            NoAnswer: there is none; 504 where it took longer than it may, 499 where `gone` ended first.
        """
        if self._running >= self._at_once:
            if asyncio.iscoroutine(gone):
                gone.close()
            many = f"{self._at_once} questions of this kind are being answered, which is as many as may be"
            raise Busy(Failure(many, HTTPStatus.TOO_MANY_REQUESTS))
        self._running += 1
        try:
            return await self._ask(question, cluster, options, gone)
        finally:
            self._running -= 1

    async def _ask(
        self, question: Question, cluster: str, options: Mapping[str, str | None], gone: Awaitable[None]
    ) -> bytes:
        if self._forks is not None and self._importing is None:
            self._importing = asyncio.create_task(self._forks.imported())
        given = [f"{name}={value}" for name, value in options.items() if value is not None]
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "wb") as output:
            process = Child(
                (sys.executable, "-m", ANSWERS, question, cluster, *given),
                environment={**os.environ, **self._environment},
                stdout=output,
                forks=self._forks,
            )
            output.close()
            answer = asyncio.ensure_future(_all_of(pipe))
            leaving = asyncio.ensure_future(gone)
            try:
                await asyncio.wait({answer, leaving}, timeout=self._most_s, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    if leaving.done():
                        raise NoAnswer(Failure(f"cluster {cluster}: {question}: the client has gone", CLIENT_GONE))
                    late = f"cluster {cluster}: {question}: took more than {self._most_s:.0f} s"
                    raise NoAnswer(Failure(late, HTTPStatus.GATEWAY_TIMEOUT))
            finally:
                leaving.cancel()
                if not answer.done():
                    await process.kill()
                await asyncio.wait({answer, leaving})
            body, code = answer.result(), await process.ended()
        if code != 0:
            raise NoAnswer(_failure(body, f"cluster {cluster}: {question}: ended with code {code}"))
        return body


async def _all_of(pipe: IO[bytes]) -> bytes:
    reader = asyncio.StreamReader(limit=_MOST_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        return await reader.read()
    finally:
        transport.close()


def _failure(body: bytes, otherwise: str) -> Failure:
    try:
        return msgspec.json.decode(body, type=Failure)
    except msgspec.DecodeError:
        return Failure(otherwise)


CYCLES = Counter("kai_api_replayed_cycles", "Recorded cycles that were run again", ["cluster"])
DIFFERENCES = Counter("kai_api_replay_differences", "Differences between the log and replays of it", ["cluster"])
FAILURES = Counter("kai_api_replays_failed", "Replays that the API began by itself and that did not end", ["cluster"])

#: Seconds until a replay is begun that others were answered before.
_BUSY_S = 60.0

_log = logging.getLogger(__name__)


class _Report(msgspec.Struct):
    cycles: int = 0
    kinds: Mapping[str, int] = {}


def count_replay(cluster: str, body: bytes) -> None:
    """Count what a replay's answer says."""
    report = msgspec.json.decode(body, type=_Report)
    CYCLES.labels(cluster).inc(report.cycles)
    DIFFERENCES.labels(cluster).inc(sum(report.kinds.values()))
    if report.kinds:
        _log.warning("cluster %s: a replay differs from the log: %s", cluster, report.kinds)


async def keep_replaying(
    log: EventLog, long_answers: LongAnswers, *, every_s: float, after: Mapping[str, int] | None = None
) -> None:
    """Run what every cluster's cycles decided since the last time again, every so often, each once; never ends.

    Args:
        every_s: seconds from the end of a round of replays to the next one.
        after: positions, by cluster, behind which to begin, and a log that is not named at its beginning; None for the
            ends of the logs as they are now.
    """
    replayed = None if after is None else dict(after)
    while True:
        try:
            heads = {name: (await log.head(name)).position for name in without_hub(await log.clusters())}
            if replayed is not None:
                for cluster, head in heads.items():
                    first = max(replayed.get(cluster, 0), await log.retired(cluster)) + 1
                    if first <= head:
                        await _replay(long_answers, cluster, {"from": str(first), "to": str(head)})
            replayed = heads
        except KaiError as error:
            _log.warning("the ends of logs cannot be read: %s", error)
        await asyncio.sleep(every_s)


async def _replay(long_answers: LongAnswers, cluster: str, positions: Mapping[str, str]) -> None:
    never = asyncio.get_running_loop().create_future()
    # As long as nothing was counted, a counter that has a label would not be there.
    DIFFERENCES.labels(cluster), FAILURES.labels(cluster)
    while True:
        try:
            count_replay(cluster, await long_answers.ask(Question.REPLAY, cluster, positions, gone=never))
        except Busy:
            await asyncio.sleep(_BUSY_S)
            continue
        except NoAnswer as error:
            # Nothing may have been decided in the range.
            if error.status != HTTPStatus.BAD_REQUEST:
                FAILURES.labels(cluster).inc()
                _log.warning("cluster %s: cannot be replayed: %s", cluster, error)
        return


#: Seconds after which it is measured anew, and until it is tried again where that failed.
_RENEWED_S, _PAUSE_S = 6 * 3600.0, 300.0


class Calibrations:
    """One for a process."""

    def __init__(self, log: EventLog, long_answers: LongAnswers) -> None:
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
