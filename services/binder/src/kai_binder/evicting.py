"""Evictions carried out: asked of the API server until they have an outcome."""

import asyncio
from contextlib import suppress

from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.kube.client import STRATEGIC_MERGE_PATCH
from kaicore.rules.events.payloads import EvictionFailed, PodEvicted

from kai_binder.carrier import Carrier
from kai_binder.evictions import (
    EvictionAttempt,
    condition_document,
    condition_path,
    eviction_document,
    eviction_path,
)
from kai_binder.projection import PodEviction


class Evicting(Carrier[PodEviction, PodEvicted | EvictionFailed]):
    """Carries evictions out; any number of tasks run `work`."""

    def _report(self, task: PodEviction, outcome: PodEvicted | EvictionFailed | None) -> None:
        """See `Carrier`."""
        if outcome is None:
            self._metrics.eviction("dropped")
            return
        result = "evicted"
        if isinstance(outcome, EvictionFailed):
            result = "gone" if outcome.gone else "failed"
        self._metrics.eviction(result)
        self._log.info("eviction", pod=task.subject, node=task.decision.node, result=result)

    async def _bring_about(self, task: PodEviction) -> PodEvicted | EvictionFailed | None:
        """See `Carrier`."""
        clock = asyncio.get_running_loop().time
        attempt = EvictionAttempt(task, patience_s=self._patience_s)
        begun = clock()
        while attempt.outcome is None and self._is_open(task):
            if delay_s := attempt.delay_s(self._jitter()):
                await asyncio.sleep(delay_s)
            try:
                await self._client.post(eviction_path(task), eviction_document(task))
                attempt.evicted()
                await self._write_reason(task)
            except (ApiStatus, ClusterUnavailable) as error:
                attempt.failed(error, elapsed_s=clock() - begun)
        return attempt.outcome

    async def _write_reason(self, eviction: PodEviction) -> None:
        """Say on an evicted pod why; afterwards, for the API server says something less telling as it evicts it."""
        if eviction.condition:
            document = condition_document(eviction, now=self._clock())
            with suppress(ApiStatus, ClusterUnavailable):
                await self._client.patch(condition_path(eviction), document, content_type=STRATEGIC_MERGE_PATCH)
