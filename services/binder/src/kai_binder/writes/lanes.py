"""Lanes: decisions of one node are carried out one after the other, those of different nodes side by side.

A lane asks the API server until a decision has an outcome, records it, and goes on to the next.

A kubelet admits pods in the order in which they are bound, and the NUMA zones that it gives to one depend on those that
it gave before. The prediction assumed the order of the decisions, so that order is kept.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Generic, TypeVar
from uuid import UUID

from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.kube.api.client import KubeClient
from kaicore.kube.wire.objects import PodObject
from kaicore.ledger.log.outbox import Outbox
from kaicore.runtime.service.logs import Logger

from kai_binder.metrics import BinderMetrics
from kai_binder.projection.open_work import Decision, PodBinding, PodEviction, Provisioning, Task
from kai_binder.writes.attempt import Attempt, Outcome, outcome_unit

_Task = TypeVar("_Task", PodEviction, Provisioning)


async def bring_about(
    attempt: Attempt,
    ask: Callable[[Attempt], Awaitable[PodObject | None]],
    *,
    is_open: Callable[[Task[Decision]], bool],
    jitter: Callable[[], float],
    answered: Callable[[ClusterUnavailable | None], None] = lambda _: None,
) -> Outcome | None:
    """Bring a decision to its outcome; None when the log says meanwhile that nothing is left to do about it.

    Args:
        ask: makes one request, `attempt.ask`; returns the pod that was looked at, None after any other request.
        is_open: whether there is still anything to do about a decision.
        answered: gets each request's lack of an answer, or None after an answer.
    """
    clock = asyncio.get_running_loop().time
    begun = clock()
    while attempt.outcome is None and is_open(attempt.task):
        if delay_s := attempt.delay_s(jitter()):
            await asyncio.sleep(delay_s)
            if not is_open(attempt.task):
                break
        try:
            pod = await ask(attempt)
        except ApiStatus as error:
            attempt.refused(error, elapsed_s=clock() - begun)
        except ClusterUnavailable as error:
            answered(error)
            attempt.unanswered(error, elapsed_s=clock() - begun)
            continue
        else:
            if pod is None:
                attempt.done()
            else:
                attempt.found(pod, elapsed_s=clock() - begun)
        answered(None)
    return attempt.outcome


@dataclass(eq=False)
class Carrier(ABC, Generic[_Task]):
    """Carries decisions of one kind out; any number of tasks run `work`.

    Attributes:
        is_open: whether there is still anything to do about a decision.
        clock: microseconds since the epoch.
    """

    client: KubeClient
    outbox: Outbox
    _: KW_ONLY
    patience_s: float
    is_open: Callable[[Task[Decision]], bool]
    clock: Callable[[], int]
    jitter: Callable[[], float]
    metrics: BinderMetrics
    log: Logger
    _queue: asyncio.Queue[_Task] = field(default_factory=asyncio.Queue, init=False)

    def add(self, task: _Task) -> None:
        """Have a decision carried out, after those that were added before."""
        self._queue.put_nowait(task)

    async def work(self) -> None:
        """Carry decisions out, one after another, until cancelled."""
        while True:
            task = await self._queue.get()
            attempt = Attempt(task, patience_s=self.patience_s)
            act = partial(self._act, task)
            outcome = await bring_about(attempt, act, is_open=self.is_open, jitter=self.jitter)
            await self._end(task, outcome)
            if outcome is not None:
                await self.outbox.put([outcome_unit(task, outcome, now=self.clock())])

    @abstractmethod
    async def _act(self, task: _Task, _: Attempt) -> None:
        """Ask for what a decision says, once.

        Raises:
            ApiStatus: the API server refuses.
            ClusterUnavailable: it does not answer.
        """

    @abstractmethod
    async def _end(self, task: _Task, outcome: Outcome | None) -> None:
        """Count an outcome, log it, and clear up."""


class Lanes:
    """One lane per node: its first decision is given out, and the next one only when that is done."""

    def __init__(self) -> None:
        self._lanes: dict[str, deque[PodBinding]] = {}
        self._held: set[UUID] = set()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def busy(self) -> bool:
        """True if a decision is in its lane; those that stepped aside are in none."""
        return bool(self._lanes)

    def add(self, binding: PodBinding) -> PodBinding | None:
        """Put a decision at the end of its node's lane unless it is there already; return it if it is its turn."""
        if binding.event_id in self._held:
            return None
        lane = self._lanes.setdefault(binding.decision.node, deque())
        lane.append(binding)
        self._held.add(binding.event_id)
        return binding if len(lane) == 1 else None

    def done(self, binding: PodBinding) -> PodBinding | None:
        """Take note that a decision that was given out is done with; return the next one of its node, if any."""
        lane = self._lanes[binding.decision.node]
        first = lane.popleft()
        assert first is binding
        self._held.discard(binding.event_id)
        if lane:
            return lane[0]
        del self._lanes[binding.decision.node]
        return None

    def step_aside(self, binding: PodBinding) -> PodBinding | None:
        """Let those behind a decision that was given out pass; return the next one of its node, if any."""
        following = self.done(binding)
        self._held.add(binding.event_id)
        return following

    def come_back(self, binding: PodBinding) -> PodBinding | None:
        """Put a decision that stepped aside at the end of its node's lane; return it if it is its turn."""
        self._held.discard(binding.event_id)
        return self.add(binding)

    def leave(self, binding: PodBinding) -> int:
        """Leave a node's decisions, of which one was given out, to another binder; return how many they are."""
        lane = self._lanes.pop(binding.decision.node)
        assert lane[0] is binding
        self._held.difference_update(one.event_id for one in lane)
        return len(lane)
