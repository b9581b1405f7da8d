"""A service's outbox: patient questions before it begins, appends beside its work, and a flush in the end.

The outbox (`kaicore.ledger.log.outbox`) appends. Here it becomes part of a service. The service's health reports
whether the log answers, and a service that stops gives the log some seconds to take the remaining units.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from prometheus_client import Gauge

from kaicore.errors import ApiStatus, ClusterUnavailable, KaiError, LogUnavailable, UnfoldableEvent
from kaicore.ledger.log.outbox import Outbox, OutboxOptions
from kaicore.ledger.log.port import EventLog, Snapshot
from kaicore.rules.events.envelope import Unit, UnitOutcome
from kaicore.rules.events.quarantine import passed_over_text
from kaicore.runtime.process_context import Health, run_together
from kaicore.runtime.service.logs import Logger
from kaicore.runtime.service.process import ServiceContext

_T = TypeVar("_T")


class Recorder:
    """An outbox that runs as long as its service does."""

    def __init__(
        self,
        log: EventLog,
        cluster: str,
        *,
        context: ServiceContext,
        condition: str,
        on_dropped: Callable[[Unit, KaiError], None],
        on_appended: Callable[[Sequence[Unit], Sequence[UnitOutcome], float], None] | None = None,
        expect: Mapping[str, int] | None = None,
        options: OutboxOptions | None = None,
        flush_s: float = 5.0,
    ) -> None:
        """Args:
        condition: the condition of the service's health that is met while the log answers.
        on_dropped: see `OutboxObserver.dropped`.
        on_appended: see `OutboxObserver.appended`.
        expect: stream versions that must hold for anything to be appended.
        flush_s: how long the log is given, in the end, to take what it does not have yet.
        """
        self._log = log
        self._cluster = cluster
        self._context = context
        self._condition = condition
        self._on_dropped = on_dropped
        self._on_appended = on_appended
        self._flush_s = flush_s
        self.outbox = Outbox(log, cluster, observer=self, expect=expect, options=options)

    async def run_with(self, *bodies: Coroutine[Any, Any, None]) -> None:
        """Append while bodies run, until one of them ends or the service is to stop; then flush.

        Raises what the first body that failed raised, or what `Outbox.run` raised.
        """
        appending = asyncio.ensure_future(self.outbox.run())
        try:
            await run_together(self._context.stopping, _joined(appending), *bodies)
            await self._flush(appending)
        finally:
            appending.cancel()
            await asyncio.wait([appending])

    async def save(self, snapshot: Snapshot) -> None:
        """Save a snapshot; see `save_snapshot`."""
        await save_snapshot(self._log, self._cluster, snapshot, self._context.log)

    async def _flush(self, appending: "asyncio.Future[None]") -> None:
        flushed = asyncio.ensure_future(self.outbox.flushed())
        await asyncio.wait([flushed, appending], timeout=self._flush_s, return_when=asyncio.FIRST_COMPLETED)
        flushed.cancel()
        if appending.done():
            await appending
        if self.outbox.pending:
            self._context.log.warning("stopped before the log had everything", pending=self.outbox.pending)

    def appended(self, units: Sequence[Unit], outcomes: Sequence[UnitOutcome], seconds: float) -> None:
        """See `OutboxObserver.appended`."""
        if self._context.health.conditions[self._condition]:
            self._context.log.info("log answers again", pending=self.outbox.pending)
        self._context.health.met(self._condition)
        if self._on_appended is not None:
            self._on_appended(units, outcomes, seconds)

    def unavailable(self, error: LogUnavailable) -> None:
        """See `OutboxObserver.unavailable`."""
        _unmet(self._context, self._condition, error)

    def dropped(self, unit: Unit, error: KaiError) -> None:
        """See `OutboxObserver.dropped`."""
        self._on_dropped(unit, error)


class PassedOver:
    """The events that a service's own fold cannot take in: they count for nothing there, until its process ends."""

    def __init__(self, health: Health, gauge: Gauge, logger: Logger) -> None:
        self._health, self._gauge, self._logger = health, gauge, logger
        self._texts: dict[int, str] = {}

    def add(self, failed: UnfoldableEvent) -> None:
        """Say that an event makes the fold raise."""
        self._texts[failed.position] = str(failed)
        self._health.warn("quarantine", passed_over_text(self._texts))
        self._gauge.set(len(self._texts))
        self._logger.error("event quarantined", position=failed.position, error=str(failed), exc_info=failed)

    async def folded(self, fold: Callable[[], Awaitable[_T]]) -> _T:
        """Return what a fold of the log comes to; it begins anew after each event that it cannot take in."""
        while True:
            try:
                return await fold()
            except UnfoldableEvent as failed:
                self.add(failed)


async def save_snapshot(log: EventLog, cluster: str, snapshot: Snapshot, logger: Logger) -> bool:
    """Save a snapshot and return whether it was; without it the next start takes longer, no more.

    A role that may not, and a state that is too large, are no reasons to end either.
    """
    try:
        await log.save_snapshot(cluster, snapshot)
    except KaiError as error:
        logger.warning("snapshot not saved", position=snapshot.position, error=str(error))
        return False
    return True


async def until_answered(
    context: ServiceContext, condition: str, ask: Callable[[], Awaitable[_T]], *, retry_s: float
) -> _T | None:
    """Ask the log or an API server until it answers; None when the service is to stop before that.

    Args:
        condition: the condition of its health that is met by an answer.
        ask: the question; it is asked again after LogUnavailable, ClusterUnavailable and ApiStatus.
        retry_s: seconds between two times.
    """
    while not context.stopping.is_set():
        try:
            answer = await ask()
        except (LogUnavailable, ClusterUnavailable, ApiStatus) as error:
            _unmet(context, condition, error)
            await context.sleep(retry_s)
        else:
            context.health.met(condition)
            return answer
    return None


def _unmet(context: ServiceContext, condition: str, error: KaiError) -> None:
    """Take note that a condition is not met, and log it where the reason is another one than before."""
    if context.health.conditions[condition] != str(error):
        context.log.warning(f"{condition} does not answer", error=str(error))
    context.health.unmet(condition, str(error))


async def _joined(task: "asyncio.Future[None]") -> None:
    """Wait for a task without cancelling it."""
    await asyncio.wait([task])
    await task
