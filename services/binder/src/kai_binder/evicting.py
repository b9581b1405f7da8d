"""Evictions carried out: asked of the API server until they have an outcome."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.kube.client import STRATEGIC_MERGE_PATCH, KubeClient
from kaicore.ledger.log.outbox import Outbox
from kaicore.rules.events.payloads import EvictionFailed, PodEvicted
from kaicore.runtime.service.logs import Logger

from kai_binder.evictions import (
    EvictionAttempt,
    condition_document,
    condition_path,
    eviction_document,
    eviction_path,
)
from kai_binder.metrics import BinderMetrics
from kai_binder.outcomes import outcome_unit
from kai_binder.projection import PodEviction


class Evicting:
    """Carries evictions out; any number of tasks run `work`."""

    def __init__(
        self,
        client: KubeClient,
        outbox: Outbox,
        *,
        patience_s: float,
        is_open: Callable[[PodEviction], bool],
        clock: Callable[[], int],
        jitter: Callable[[], float],
        metrics: BinderMetrics,
        log: Logger,
    ) -> None:
        """Args:
        client: to evict with.
        outbox: gets the outcomes.
        patience_s: how long an eviction is tried, against a disruption budget too.
        is_open: whether there is still anything to do about an eviction.
        clock: microseconds since the epoch.
        jitter: random numbers of 0 to 1.
        metrics: to count with.
        log: to say it in.
        """
        self._client = client
        self._outbox = outbox
        self._patience_s = patience_s
        self._is_open = is_open
        self._clock = clock
        self._jitter = jitter
        self._metrics = metrics
        self._log = log
        self._queue: asyncio.Queue[PodEviction] = asyncio.Queue()

    def add(self, eviction: PodEviction) -> None:
        """Have an eviction carried out, after those that were added before."""
        self._queue.put_nowait(eviction)

    async def work(self) -> None:
        """Carry evictions out, one after another, until cancelled."""
        while True:
            eviction = await self._queue.get()
            outcome = await self._bring_about(eviction)
            if outcome is None:
                self._metrics.eviction("dropped")
                continue
            result = "evicted"
            if isinstance(outcome, EvictionFailed):
                result = "gone" if outcome.gone else "failed"
            self._metrics.eviction(result)
            self._log.info("eviction", pod=eviction.subject, node=eviction.decision.node, result=result)
            await self._outbox.put([outcome_unit(eviction, outcome, now=self._clock())])

    async def _bring_about(self, eviction: PodEviction) -> PodEvicted | EvictionFailed | None:
        """Bring an eviction to its outcome; None when the log says meanwhile that nothing is left to do about it."""
        clock = asyncio.get_running_loop().time
        attempt = EvictionAttempt(eviction, patience_s=self._patience_s)
        begun = clock()
        while attempt.outcome is None and self._is_open(eviction):
            if delay_s := attempt.delay_s(self._jitter()):
                await asyncio.sleep(delay_s)
            try:
                await self._client.post(eviction_path(eviction), eviction_document(eviction))
                attempt.evicted()
                await self._write_reason(eviction)
            except (ApiStatus, ClusterUnavailable) as error:
                attempt.failed(error, elapsed_s=clock() - begun)
        return attempt.outcome

    async def _write_reason(self, eviction: PodEviction) -> None:
        """Say on an evicted pod why; afterwards, for the API server says something less telling as it evicts it."""
        if eviction.condition:
            document = condition_document(eviction, now=self._clock())
            with suppress(ApiStatus, ClusterUnavailable):
                await self._client.patch(condition_path(eviction), document, content_type=STRATEGIC_MERGE_PATCH)
