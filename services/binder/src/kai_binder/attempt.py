"""Steps of one decision: the next request to the API server, and the meaning of its answers. No I/O, no clock.

The binding is posted until there is an answer to go by. If an answer leaves open whether the pod is bound, the binder
looks at the pod. It does so as well when its patience ends: a request without an answer may have been carried out. A
pod is only given back when it is certain that it is not bound.

Outcomes of decisions, as the events that record them.
"""

from enum import StrEnum
from typing import Any

from kaicore.backoff import backoff, jittered
from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.kube.wire.objects import PodObject
from kaicore.rules.events.binding_annotations import binding_annotations
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import (
    BindFailed,
    EvictionFailed,
    PodBound,
    PodEvicted,
    ProvisioningRequestCreated,
    ProvisioningRequestRefused,
    ProvisioningRequestRemoved,
)

from kai_binder.projection import PodBinding, PodEviction, Provisioning

Outcome = (
    PodBound
    | BindFailed
    | PodEvicted
    | EvictionFailed
    | ProvisioningRequestCreated
    | ProvisioningRequestRefused
    | ProvisioningRequestRemoved
)

ACTOR = "binder"


def outcome_unit(task: PodBinding | PodEviction | Provisioning, outcome: Outcome, *, now: int) -> Unit:
    """Return the unit that records an outcome.

    There is one id for every outcome of a decision: of two binders that come to different ones, the first is right.

    Args:
        task: what was to be done.
        outcome: what became of it.
        now: microseconds since the epoch.
    """
    return Unit(
        (
            NewEvent(
                id=derived_id(str(task.event_id), "outcome"),
                stream=task.stream,
                payload=outcome,
                actor=ACTOR,
                occurred_at=now,
                subject=task.subject,
                cause=task.event_id,
                correlation=task.decision.cycle,
            ),
        )
    )


_UNAUTHORIZED, _NOT_FOUND, _CONFLICT = 401, 404, 409

#: Seconds before the second try, and at most; doubled with each further one.
FIRST_DELAY_S = 0.1
LAST_DELAY_S = 10.0

#: Longest wish of a server to be left alone that is granted, seconds.
_MAX_RETRY_AFTER_S = 30


class Ask(StrEnum):
    """What to ask for."""

    BIND = "bind"
    LOOK = "look"


class Attempt:
    """One decision on its way to an outcome.

    Ask for `ask` after `delay_s`, then report with `bound`, `found`, `refused` or `unanswered`, until there is an
    `outcome`.

    Attributes:
        ask: what to ask for next.
        outcome: what became of the decision.
        attempts: bindings posted so far.
        already: the outcome is that of an earlier post, whose answer was lost or went to another binder.
    """

    def __init__(self, binding: PodBinding, *, patience_s: float) -> None:
        """Args:
        binding: to carry out.
        patience_s: how long the binding is posted again and again.
        """
        self.binding = binding
        self.ask = Ask.BIND
        self.outcome: PodBound | BindFailed | None = None
        self.attempts = 0
        self.already = False
        self._patience_s = patience_s
        self._failures = 0
        self._retry_after_s = 0
        self._error: ApiStatus | ClusterUnavailable = ClusterUnavailable("not tried")

    def delay_s(self, jitter: float) -> float:
        """Return how long to wait before asking; `jitter` is 0 to 1."""
        if not self._failures:
            return 0.0
        delay_s = backoff(self._failures, first=FIRST_DELAY_S, most=LAST_DELAY_S)
        return max(jittered(delay_s, jitter), float(self._retry_after_s))

    def bound(self) -> None:
        """The API server took the binding."""
        self.attempts += 1
        self._succeed()

    def found(self, pod: PodObject, *, elapsed_s: float) -> None:
        """The look at the pod was answered.

        Args:
            pod: under the decision's name.
            elapsed_s: since the first time that anything was asked.
        """
        if pod.metadata.uid != self.binding.decision.uid:
            self._fail(gone=True)
        elif pod.spec.node_name == self.binding.decision.node:
            self.already = True
            self._succeed()
        elif self._bindable(pod) and elapsed_s < self._patience_s:
            # A conflict over something else.
            self.ask = Ask.BIND
            self._failures += 1
        else:
            self._fail()

    def refused(self, error: ApiStatus, *, elapsed_s: float) -> None:
        """The API server answered that it will not, as often as it is asked."""
        if error.code == _UNAUTHORIZED:
            # Our credentials say nothing about the pod.
            waiting = ClusterUnavailable(error.message, code=error.code, reason=error.reason)
            self.unanswered(waiting, elapsed_s=elapsed_s)
        elif self.ask is Ask.LOOK:
            self._fail(gone=error.code == _NOT_FOUND)
        else:
            self.attempts += 1
            self._error = error
            if error.code == _CONFLICT:
                self.ask = Ask.LOOK
            else:
                self._fail(gone=error.code == _NOT_FOUND)

    def unanswered(self, error: ClusterUnavailable, *, elapsed_s: float) -> None:
        """There was no answer, or none to go by."""
        self._failures += 1
        self._retry_after_s = min(error.retry_after_s or 0, _MAX_RETRY_AFTER_S)
        if self.ask is Ask.LOOK:
            return
        self.attempts += 1
        self._error = error
        if elapsed_s >= self._patience_s:
            self.ask = Ask.LOOK

    @staticmethod
    def _bindable(pod: PodObject) -> bool:
        return not (pod.spec.node_name or pod.spec.scheduling_gates or pod.metadata.deletion_timestamp)

    def _succeed(self) -> None:
        placed = self.binding.decision
        self.outcome = PodBound(
            uid=placed.uid,
            namespace=placed.namespace,
            name=placed.name,
            node=placed.node,
            attempts=self.attempts,
        )

    def _fail(self, *, gone: bool = False) -> None:
        placed, error = self.binding.decision, self._error
        reason = error.reason or ("Timeout" if isinstance(error, ClusterUnavailable) else "Unknown")
        self.outcome = BindFailed(
            uid=placed.uid,
            namespace=placed.namespace,
            name=placed.name,
            node=placed.node,
            code=error.code,
            reason=reason,
            message=error.message if isinstance(error, ApiStatus) else str(error),
            attempts=self.attempts,
            gone=gone,
        )


def binding_path(binding: PodBinding) -> str:
    """Return where a pod's binding is posted."""
    return f"{pod_path(binding.decision.namespace, binding.decision.name)}/binding"


def pod_path(namespace: str, name: str) -> str:
    """Return where a pod is."""
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def binding_document(binding: PodBinding) -> dict[str, Any]:
    """Return the binding.

    Its uid is a precondition: a pod of the same name that came after the decision is not bound. Its annotations are
    merged into the pod's, so that the prediction, and its place in the topology, are on the pod as soon as the kubelet
    sees it.
    """
    placed = binding.decision
    metadata: dict[str, Any] = {"name": placed.name, "namespace": placed.namespace, "uid": placed.uid}
    if annotations := binding_annotations(placed):
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": metadata,
        "target": {"apiVersion": "v1", "kind": "Node", "name": placed.node},
    }
