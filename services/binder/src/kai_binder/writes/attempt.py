"""Steps of one decision: the next request to the API server, the meaning of its answers, and the event of the outcome.

No I/O, no clock. A request is repeated until there is an answer to go by. What an answer means differs between
bindings, evictions and ProvisioningRequests in five points: these are the fields of `Policy`, one row each in
`POLICIES`.

If an answer leaves open whether a pod is bound, the binder looks at the pod. It does so as well when its patience
ends: a request without an answer may have been carried out. A pod is only given back when it is certain that it is not
bound. An eviction names the pod's uid, and a ProvisioningRequest's name is its decision's, so both are asked for again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kaicore.backoff import backoff, jittered
from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.kube.wire.objects import PodObject
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.observation import binding_annotations
from kaicore.rules.events.payloads import (
    BindFailed,
    EvictionDecided,
    EvictionFailed,
    PodBound,
    PodEvicted,
    PodPlaced,
    ProvisioningRequestCreated,
    ProvisioningRequested,
    ProvisioningRequestRefused,
    ProvisioningRequestRemoved,
    ProvisioningWithdrawn,
    RepairRequested,
)

from kai_binder.projection.open_work import Decision, PodBinding, Task

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


def outcome_unit(task: Task[Decision], outcome: Outcome, *, now: int) -> Unit:
    """Return the unit that records an outcome.

    There is one id for every outcome of a decision: of two binders that come to different ones, the first is right.

    Args:
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


_UNAUTHORIZED, _NOT_FOUND, _CONFLICT, _INTERNAL_ERROR = 401, 404, 409, 500

#: Seconds for which a binding meets internal errors, such as an admission webhook that fails, before others go on.
_INTERNAL_ERRORS_S = 1.0

#: Longest wish of a server to be left alone that is granted, seconds.
_MAX_RETRY_AFTER_S = 30

Failure = ApiStatus | ClusterUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Answers of the API server to requests of one kind.

    Attributes:
        first_s: seconds before the second try, doubled with each further one.
        last_s: seconds between two tries at most.
        looks: the pod is looked at after a conflict, and when patience ends.
        gone: codes that say that the pod is not there any more.
        done: makes the outcome of a request that was taken, from the decision and the number of tries.
        failed: makes the outcome of one that never is: likewise, with the error and whether the pod is gone.
    """

    first_s: float
    last_s: float
    looks: bool = False
    gone: frozenset[int] = frozenset({_NOT_FOUND})
    done: Callable[[Any, int], Outcome]
    failed: Callable[[Any, int, Failure, bool], Outcome]


class Refused(Exception):
    """A pod cannot get what it needs before it is bound, and is given back."""

    def __init__(self, reason: str, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.reason, self.message, self.code = reason, message, code


class NotYet(Exception):
    """A pod does not have yet what it needs before it is bound."""


class Ask(StrEnum):
    """The next request."""

    ACT = "act"
    LOOK = "look"


class Attempt:
    """One decision on its way to an outcome.

    Ask for `ask` after `delay_s`, then report with `done`, `found`, `refused` or `unanswered`, until there is an
    `outcome`.

    Attributes:
        task: the decision.
        ask: what to ask for next.
        outcome: what became of the decision.
        attempts: requests to carry it out so far.
        already: the outcome is that of an earlier request; its answer was lost or went to another binder.
    """

    def __init__(self, task: Task[Decision], *, patience_s: float) -> None:
        self.task = task
        self.ask = Ask.ACT
        self.outcome: Outcome | None = None
        self.attempts = 0
        self.already = False
        self._policy = POLICIES[type(task.decision)]
        self._patience_s = patience_s
        self._failures = 0
        self._retry_after_s = 0
        self._error: Failure = ClusterUnavailable("not tried")

    def delay_s(self, jitter: float) -> float:
        """Return how long to wait before asking; `jitter` is 0 to 1."""
        if not self._failures:
            return 0.0
        delay_s = backoff(self._failures, first=self._policy.first_s, most=self._policy.last_s)
        return max(jittered(delay_s, jitter), float(self._retry_after_s))

    def done(self) -> None:
        """The API server did what it was asked."""
        self.attempts += 1
        self._succeed()

    def found(self, pod: PodObject, *, elapsed_s: float) -> None:
        """The look at the pod was answered.

        Args:
            pod: under the decision's name.
            elapsed_s: since the first time that anything was asked.
        """
        placed = self.task.decision
        assert isinstance(placed, PodPlaced)
        if pod.metadata.uid != placed.uid:
            self._fail(gone=True)
        elif pod.spec.node_name == placed.node:
            self.already = True
            self._succeed()
        elif self._bindable(pod) and elapsed_s < self._patience_with(self._error):
            # A conflict over something else.
            self.ask = Ask.ACT
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
            if error.code == _CONFLICT and self._policy.looks:
                self.ask = Ask.LOOK
            else:
                self._fail(gone=error.code in self._policy.gone)

    def unanswered(self, error: ClusterUnavailable, *, elapsed_s: float) -> None:
        """There was no answer, or none to go by."""
        self._failures += 1
        self._retry_after_s = min(error.retry_after_s or 0, _MAX_RETRY_AFTER_S)
        if self.ask is Ask.LOOK:
            return
        self.attempts += 1
        self._error = error
        if elapsed_s < self._patience_with(error):
            return
        if self._policy.looks:
            self.ask = Ask.LOOK
        else:
            self._fail()

    def _patience_with(self, error: Failure) -> float:
        """Return how long it is tried in the face of an error; others of the node wait meanwhile."""
        if self._policy.looks and error.code == _INTERNAL_ERROR:
            return min(self._patience_s, _INTERNAL_ERRORS_S)
        return self._patience_s

    @staticmethod
    def _bindable(pod: PodObject) -> bool:
        return not (pod.spec.node_name or pod.spec.scheduling_gates or pod.metadata.deletion_timestamp)

    def _succeed(self) -> None:
        self.outcome = self._policy.done(self.task.decision, self.attempts)

    def _fail(self, *, gone: bool = False) -> None:
        self.outcome = self._policy.failed(self.task.decision, self.attempts, self._error, gone)


def _reason(error: Failure) -> str:
    return error.reason or ("Timeout" if isinstance(error, ClusterUnavailable) else "Unknown")


def _message(error: Failure) -> str:
    return error.message if isinstance(error, ApiStatus) else str(error)


def _pod_failed(
    kind: type[BindFailed | EvictionFailed],
) -> Callable[[PodPlaced | EvictionDecided | RepairRequested, int, Failure, bool], Outcome]:
    def failed(
        decision: PodPlaced | EvictionDecided | RepairRequested, attempts: int, error: Failure, gone: bool
    ) -> Outcome:
        return kind(
            uid=decision.uid,
            namespace=decision.namespace,
            name=decision.name,
            node=decision.node,
            code=error.code,
            reason=_reason(error),
            message=_message(error),
            attempts=attempts,
            gone=gone,
        )

    return failed


def _pod_done(
    kind: type[PodBound | PodEvicted],
) -> Callable[[PodPlaced | EvictionDecided | RepairRequested, int], Outcome]:
    return lambda decision, attempts: kind(decision.uid, decision.namespace, decision.name, decision.node, attempts)


def _request_refused(
    decision: ProvisioningRequested | ProvisioningWithdrawn, attempts: int, error: Failure, gone: bool
) -> Outcome:
    del gone
    return ProvisioningRequestRefused(
        group=decision.group,
        namespace=decision.namespace,
        name=decision.name,
        code=error.code,
        reason=_reason(error),
        message=_message(error),
        attempts=attempts,
        removing=isinstance(decision, ProvisioningWithdrawn),
    )


def _request_done(
    kind: type[ProvisioningRequestCreated | ProvisioningRequestRemoved],
) -> Callable[[ProvisioningRequested | ProvisioningWithdrawn, int], Outcome]:
    return lambda decision, attempts: kind(decision.group, decision.namespace, decision.name, attempts)


_EVICTION = Policy(
    first_s=0.5,
    last_s=30.0,
    # A conflict is that of the uid: the pod of that name is another one.
    gone=frozenset({_NOT_FOUND, _CONFLICT}),
    done=_pod_done(PodEvicted),
    failed=_pod_failed(EvictionFailed),
)

#: By what is decided.
POLICIES: dict[type[Decision], Policy] = {
    PodPlaced: Policy(first_s=0.1, last_s=10.0, looks=True, done=_pod_done(PodBound), failed=_pod_failed(BindFailed)),
    EvictionDecided: _EVICTION,
    RepairRequested: _EVICTION,
    ProvisioningRequested: Policy(
        first_s=0.2, last_s=10.0, done=_request_done(ProvisioningRequestCreated), failed=_request_refused
    ),
    ProvisioningWithdrawn: Policy(
        first_s=0.2, last_s=10.0, done=_request_done(ProvisioningRequestRemoved), failed=_request_refused
    ),
}


def given_back(placed: PodPlaced, refused: Refused) -> BindFailed:
    """Return the outcome of a decision that was given up before anything was posted."""
    return BindFailed(
        uid=placed.uid,
        namespace=placed.namespace,
        name=placed.name,
        node=placed.node,
        code=refused.code,
        reason=refused.reason,
        message=refused.message,
        attempts=0,
    )


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
