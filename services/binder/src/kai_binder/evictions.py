"""Steps of one eviction: the meaning of the API server's answers. No I/O, no clock.

The eviction names the pod's uid as a precondition, so that asking twice evicts one pod at most: a successor of the same
name is left alone. A disruption budget that forbids it (429) is asked again as often as patience allows.

Evictions carried out: asked of the API server until they have an outcome.
"""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from kaicore.backoff import backoff, jittered
from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.kube.api.client import STRATEGIC_MERGE_PATCH
from kaicore.rules.events.payloads import EvictionFailed, PodEvicted

from kai_binder.attempt import pod_path
from kai_binder.lanes import Carrier
from kai_binder.projection import PodEviction

_UNAUTHORIZED, _NOT_FOUND, _CONFLICT = 401, 404, 409

#: Seconds before the second try, and at most; doubled with each further one.
_FIRST_DELAY_S = 0.5
_LAST_DELAY_S = 30.0


class EvictionAttempt:
    """One eviction on its way to an outcome.

    Attributes:
        outcome: what became of it; None while it is to be asked for.
        attempts: how often it was asked for.
    """

    def __init__(self, eviction: PodEviction, *, patience_s: float) -> None:
        """Args:
        eviction: to carry out.
        patience_s: how long it is asked for again and again.
        """
        self.eviction = eviction
        self.outcome: PodEvicted | EvictionFailed | None = None
        self.attempts = 0
        self._patience_s = patience_s
        self._delay_s = 0.0

    def delay_s(self, jitter: float) -> float:
        """Return how long to wait before asking; `jitter` is 0 to 1."""
        return jittered(self._delay_s, jitter)

    def evicted(self) -> None:
        """The API server took it."""
        self.attempts += 1
        decision = self.eviction.decision
        self.outcome = PodEvicted(decision.uid, decision.namespace, decision.name, decision.node, self.attempts)

    def failed(self, error: ApiStatus | ClusterUnavailable, *, elapsed_s: float) -> None:
        """The API server refused, or did not answer, after so many seconds since it was first asked."""
        self.attempts += 1
        lasting = isinstance(error, ApiStatus) and error.code != _UNAUTHORIZED
        if lasting or elapsed_s >= self._patience_s:
            decision = self.eviction.decision
            self.outcome = EvictionFailed(
                uid=decision.uid,
                namespace=decision.namespace,
                name=decision.name,
                node=decision.node,
                code=error.code,
                reason=error.reason or "Timeout",
                message=error.message if isinstance(error, ApiStatus) else str(error),
                attempts=self.attempts,
                # A conflict is that of the uid: the pod of that name is another one.
                gone=error.code in (_NOT_FOUND, _CONFLICT),
            )
        self._delay_s = backoff(self.attempts, first=_FIRST_DELAY_S, most=_LAST_DELAY_S)
        if isinstance(error, ClusterUnavailable):
            self._delay_s = max(self._delay_s, min(float(error.retry_after_s or 0), _LAST_DELAY_S))


def condition_path(eviction: PodEviction) -> str:
    """Return where it is said on a pod why it is evicted."""
    return f"{pod_path(eviction.decision.namespace, eviction.decision.name)}/status"


def condition_document(eviction: PodEviction, *, now: int) -> dict[str, Any]:
    """Return what is said on that very pod, as a strategic merge patch; `now` in microseconds since the epoch."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": eviction.condition,
        "lastTransitionTime": datetime.fromtimestamp(now / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {"metadata": {"uid": eviction.decision.uid}, "status": {"conditions": [condition]}}


def eviction_path(eviction: PodEviction) -> str:
    """Return where a pod's eviction is posted."""
    return f"{pod_path(eviction.decision.namespace, eviction.decision.name)}/eviction"


def eviction_document(eviction: PodEviction) -> dict[str, Any]:
    """Return the eviction of that very pod."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": eviction.decision.name, "namespace": eviction.decision.namespace},
        "deleteOptions": {"preconditions": {"uid": eviction.decision.uid}},
    }


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
