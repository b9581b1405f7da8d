"""Questions that take long, each asked of a process of its own.

A replay computes for minutes. In the API's own process it would keep all other requests waiting, health included, and
could not be stopped. A process can: when its client goes, or takes too long, it is killed.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from enum import StrEnum

import msgspec
from kaicore.errors import KaiError

#: Bytes of an answer read at a time; it is kept as a whole.
_MOST_BYTES = 64 << 20

#: No options.
NONE: Mapping[str, str | None] = {}


class Question(StrEnum):
    """What can be asked."""

    REPLAY = "replay"
    AUDIT = "audit"
    CALIBRATION = "calibration"
    WHAT_IF = "what-if"
    SHADOW = "shadow"


class Failure(msgspec.Struct, frozen=True):
    """Why there is no answer, and the HTTP status that says so."""

    error: str
    status: int = 500


class Busy(KaiError):
    """As many questions as may be are being answered."""


class TookTooLong(KaiError):
    """The answer was given up."""


class ClientGone(KaiError):
    """The client does not wait for the answer any more."""


class NoAnswer(KaiError):
    """The log cannot answer this, or not now, or the process that was to answer failed.

    Attributes:
        status: the HTTP status that says so.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.error)
        self.status = failure.status


class LongAnswers:
    """Asks, some questions at a time."""

    def __init__(self, database_url: str, *, at_once: int, most_s: float) -> None:
        """Args:
        database_url: of the log.
        at_once: questions answered at the same time; more are `Busy`.
        most_s: seconds that an answer may take.
        """
        self._environment = {"KAI_DATABASE_URL": database_url, "KAI_PARENT_PID": str(os.getpid())}
        self._at_once = at_once
        self._most_s = most_s
        self._running = 0

    async def ask(
        self, question: Question, cluster: str, options: Mapping[str, str | None] = NONE, *, gone: Awaitable[None]
    ) -> bytes:
        """Return the answer as JSON.

        Args:
            question: which.
            cluster: of which cluster.
            options: of the question, by name; None is as not given.
            gone: ends when the client does not wait for the answer any more.

        Raises:
            Busy: too many questions are being answered.
            TookTooLong: the answer took longer than it may.
            ClientGone: `gone` ended first.
            NoAnswer: there is none.
        """
        if self._running >= self._at_once:
            if asyncio.iscoroutine(gone):
                gone.close()
            raise Busy(f"{self._at_once} questions of this kind are being answered, which is as many as may be")
        self._running += 1
        try:
            return await self._ask(question, cluster, options, gone)
        finally:
            self._running -= 1

    async def _ask(
        self, question: Question, cluster: str, options: Mapping[str, str | None], gone: Awaitable[None]
    ) -> bytes:
        given = [f"{name}={value}" for name, value in options.items() if value is not None]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "kai_api.answer", question, cluster, *given),
            env={**os.environ, **self._environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            limit=_MOST_BYTES,
        )
        answer = asyncio.ensure_future(process.communicate())
        leaving = asyncio.ensure_future(gone)
        try:
            await asyncio.wait({answer, leaving}, timeout=self._most_s, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                if leaving.done():
                    raise ClientGone(f"cluster {cluster}: {question}: the client has gone")
                raise TookTooLong(f"cluster {cluster}: {question}: took more than {self._most_s:.0f} s")
            body, _ = answer.result()
        finally:
            leaving.cancel()
            with suppress(ProcessLookupError):
                if process.returncode is None:
                    process.kill()
            await asyncio.wait({answer, leaving})
        if process.returncode != 0:
            raise NoAnswer(_failure(body, f"cluster {cluster}: {question}: ended with code {process.returncode}"))
        return body


def _failure(body: bytes, otherwise: str) -> Failure:
    try:
        return msgspec.json.decode(body, type=Failure)
    except msgspec.DecodeError:
        return Failure(otherwise)
