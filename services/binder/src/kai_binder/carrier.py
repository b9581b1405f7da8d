"""Carries decisions out one after another: asks the API server until there is an outcome, and records it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from kaicore.kube.client import KubeClient
from kaicore.ledger.log.outbox import Outbox
from kaicore.runtime.service.logs import Logger

from kai_binder.metrics import BinderMetrics
from kai_binder.outcomes import Outcome, outcome_unit
from kai_binder.projection import PodEviction, Provisioning

_Task = TypeVar("_Task", PodEviction, Provisioning)
_Outcome = TypeVar("_Outcome", bound=Outcome)


class Carrier(ABC, Generic[_Task, _Outcome]):
    """Carries decisions of one kind out; any number of tasks run `work`."""

    def __init__(
        self,
        client: KubeClient,
        outbox: Outbox,
        *,
        patience_s: float,
        is_open: Callable[[_Task], bool],
        clock: Callable[[], int],
        jitter: Callable[[], float],
        metrics: BinderMetrics,
        log: Logger,
    ) -> None:
        """Args:
        client: to write with.
        outbox: gets the outcomes.
        patience_s: how long a decision is tried.
        is_open: whether there is still anything to do about a decision.
        clock: microseconds since the epoch.
        jitter: random numbers of 0 to 1.
        metrics: to count with.
        log: to say it in.
        """
        self._client = client
        self._outbox = outbox
        self._patience_s = patience_s
        self._is_open: Callable[[_Task], bool] = is_open
        self._clock = clock
        self._jitter = jitter
        self._metrics = metrics
        self._log = log
        self._queue: asyncio.Queue[_Task] = asyncio.Queue()

    def add(self, task: _Task) -> None:
        """Have a decision carried out, after those that were added before."""
        self._queue.put_nowait(task)

    async def work(self) -> None:
        """Carry decisions out, one after another, until cancelled."""
        while True:
            task = await self._queue.get()
            outcome = await self._bring_about(task)
            self._report(task, outcome)
            if outcome is not None:
                await self._outbox.put([outcome_unit(task, outcome, now=self._clock())])

    @abstractmethod
    async def _bring_about(self, task: _Task) -> _Outcome | None:
        """Bring a decision to its outcome; None when the log says meanwhile that nothing is left to do about it."""

    @abstractmethod
    def _report(self, task: _Task, outcome: _Outcome | None) -> None:
        """Count an outcome and log it."""
