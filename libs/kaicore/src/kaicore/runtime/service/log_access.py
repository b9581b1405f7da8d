"""A service's access to the event log: it waits for the log at the start, and watches it as long as it is used.

`/readyz` reports within five seconds when the log's server does not answer. That includes a server that keeps its
connections and says nothing, and a service that has no query at the time. A service that is to stop waits no longer
than a second or two for an absent log: it can do no more for it than the next start will.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kaicore.errors import LogUnavailable, NotMigrated
from kaicore.interpreter import end
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.runtime.service.process import ServiceContext

#: The condition that a service declares for its log.
LOG = "log"

#: Seconds from an answer to the next look, and that a look takes at most once the log is connected to. Readers ask
#: every two seconds in any case.
_LOOK_S = 2.2
_ANSWER_S = 2.5

#: Seconds that a call may be repeated once the service is to stop.
_STOPPING_S = 1.0


@asynccontextmanager
async def open_log(
    context: ServiceContext, url: str, *, patience_s: float = 15.0, poll_s: float = 5.0
) -> AsyncIterator[PostgresLog | None]:
    """Give the log as soon as it is there, and close it; None when the service is to stop before that.

    Raises ConfigurationError: the url is none.

    Args:
        context: the service's; its condition `LOG` tells how the log is.
        url: see `PostgresLog.open`.
        patience_s: see `PostgresLog.open`.
        poll_s: see `PostgresLog.open`.
    """
    log: PostgresLog | None = None
    loop = asyncio.get_running_loop()
    silent = f"Postgres does not answer: no answer in {_ANSWER_S:g} s"
    while log is None and not context.stopping.is_set():
        telling = loop.call_later(_ANSWER_S, context.health.unmet, LOG, silent)
        try:
            log = await PostgresLog.open(
                url,
                application=f"kai-{context.name}",
                patience_s=patience_s,
                poll_s=poll_s,
                of_service=True,
            )
        except (LogUnavailable, NotMigrated) as error:
            context.health.unmet(LOG, str(error))
            context.log.warning("log is not there yet", error=str(error))
            telling.cancel()
            await context.sleep(_LOOK_S)
        finally:
            telling.cancel()
    if log is None:
        yield None
        return
    async with log:
        context.health.met(LOG)
        watching = [asyncio.create_task(_look_after(context, log)), asyncio.create_task(_hasten(context, log))]
        try:
            yield log
        finally:
            for task in watching:
                await end(task)


async def _hasten(context: ServiceContext, log: PostgresLog) -> None:
    await context.stopping.wait()
    log.hasten(_STOPPING_S)


async def _look_after(context: ServiceContext, log: PostgresLog) -> None:
    answers, time, due_s = True, asyncio.get_running_loop().time, _LOOK_S
    while not await context.sleep(due_s):
        # Where it has answered a question meanwhile, that will do.
        if answers and (due_s := log.answered_at + _LOOK_S - time()) > 0:
            continue
        due_s = _LOOK_S
        try:
            await log.ping(timeout_s=_ANSWER_S)
        except LogUnavailable as error:
            if answers:
                context.log.warning("log does not answer", error=str(error))
            context.health.unmet(LOG, str(error))
            answers = False
        else:
            if not answers:
                context.log.info("log answers again")
                context.health.met(LOG)
            answers = True
