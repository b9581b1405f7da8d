"""Evictions: the requests, and the reason that is written on an evicted pod.

The eviction names the pod's uid as a precondition, so that asking twice evicts one pod at most: a successor of the same
name is left alone. A disruption budget that forbids it (429) is asked again as often as patience allows.
"""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.kube.api.client import STRATEGIC_MERGE_PATCH
from kaicore.rules.engine.victims.eviction_cost import failures_text
from kaicore.rules.events.payloads import EvictionDecided, EvictionFailed

from kai_binder.attempt import Attempt, Outcome, pod_path
from kai_binder.lanes import Carrier
from kai_binder.projection import PodEviction


def condition_path(eviction: PodEviction) -> str:
    """Return where it is said on a pod why it is evicted."""
    return f"{pod_path(eviction.decision.namespace, eviction.decision.name)}/status"


def condition_document(eviction: PodEviction, *, now: int) -> dict[str, Any]:
    """Return what is said on that very pod, as a strategic merge patch; `now` in microseconds since the epoch."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": reason_on_pod(eviction),
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


def reason_on_pod(eviction: PodEviction) -> str:
    """Return what is said on the pod of why it is evicted; empty where it is evicted for its own sake."""
    decided = eviction.decision
    if not isinstance(decided, EvictionDecided):
        return ""
    counted = failures_text(decided.failures_left)
    if not decided.preemptor:
        return f"kai-ledger: {decided.reason}: its group was below its minimum for too long{counted}"
    what = "the group goes on without it" if decided.shrinks else "its group ends as a whole"
    return f"kai-ledger: {decided.reason}: makes way for {decided.preemptor}; {what}{counted}; cycle {decided.cycle}"


class Evicting(Carrier[PodEviction]):
    """Carries evictions out; any number of tasks run `work`."""

    async def _act(self, task: PodEviction, _: Attempt) -> None:
        """See `Carrier`; the reason comes afterwards, for the API server says something less telling as it evicts."""
        await self._client.post(eviction_path(task), eviction_document(task))
        if reason_on_pod(task):
            document = condition_document(task, now=self._clock())
            with suppress(ApiStatus, ClusterUnavailable):
                await self._client.patch(condition_path(task), document, content_type=STRATEGIC_MERGE_PATCH)

    async def _end(self, task: PodEviction, outcome: Outcome | None) -> None:
        """See `Carrier`."""
        if outcome is None:
            self._metrics.eviction("dropped")
            return
        result = "evicted"
        if isinstance(outcome, EvictionFailed):
            result = "gone" if outcome.gone else "failed"
        self._metrics.eviction(result)
        self._log.info("eviction", pod=task.subject, node=task.decision.node, result=result)
