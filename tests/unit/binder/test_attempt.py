"""A binder's reading of an API server's answers."""

from collections.abc import Callable
from uuid import UUID

import pytest
from kai_binder.projection.open_work import PodBinding, Task
from kai_binder.writes.attempt import Ask, Attempt, binding_document
from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.kube.wire.objects import PodObject
from kaicore.kube.wire.resources import PODS
from kaicore.rules.events.payloads import (
    BindFailed,
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
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount

from tests.given.cluster import wire

PATIENCE_S = 60.0
Step = Callable[[Attempt], None]

ZONES = ContainerPlacement("main", zones=(ZoneAmount("node-0", {"cpu": 8000, "memory": 2**30}),))
_PREDICTED = Placement(Provenance.PREDICTED, (ZONES,))
PLACED = PodPlaced("uid-p", "default", "p", "n1", cycle="default/1", pod_class="", placement=_PREDICTED)
BINDING = PodBinding(event_id=UUID(int=1), position=7, recorded_at=0, decision=PLACED)


def pod(**kwargs: object) -> PodObject:
    return PODS.decode(wire.encode(wire.pod("p", **kwargs)))  # type: ignore[arg-type]


def deleting() -> PodObject:
    document = wire.pod("p")
    document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return PODS.decode(wire.encode(document))


def bound(attempt: Attempt) -> None:
    assert attempt.ask is Ask.ACT
    attempt.done()


def unanswered(code: int = 0, *, at: float = 0.0) -> Step:
    def step(attempt: Attempt) -> None:
        attempt.unanswered(ClusterUnavailable("no answer", code=code), elapsed_s=at)

    return step


def refused(code: int, reason: str = "Because", *, at: float = 0.0) -> Step:
    return lambda attempt: attempt.refused(ApiStatus(code, reason, "no"), elapsed_s=at)


def found(there: PodObject, *, at: float = 0.0) -> Step:
    def step(attempt: Attempt) -> None:
        assert attempt.ask is Ask.LOOK
        attempt.found(there, elapsed_s=at)

    return step


def success(attempts: int) -> PodBound:
    return PodBound(uid="uid-p", namespace="default", name="p", node="n1", attempts=attempts)


def failure(code: int, reason: str, *, attempts: int = 1, gone: bool = False, message: str = "no") -> BindFailed:
    return BindFailed(
        uid="uid-p",
        namespace="default",
        name="p",
        node="n1",
        code=code,
        reason=reason,
        message=message,
        attempts=attempts,
        gone=gone,
    )


CONFLICT = refused(409, "Conflict")

CASES: dict[str, tuple[list[Step], PodBound | BindFailed]] = {
    "taken": ([bound], success(1)),
    "taken at the third try": ([unanswered(500), unanswered(429), bound], success(3)),
    "bound there already": ([CONFLICT, found(pod(nodeName="n1"))], success(1)),
    "answer lost": ([unanswered(), CONFLICT, found(pod(nodeName="n1"))], success(2)),
    "bound elsewhere": ([CONFLICT, found(pod(nodeName="n2"))], failure(409, "Conflict")),
    "another pod": ([CONFLICT, found(pod(uid="another"))], failure(409, "Conflict", gone=True)),
    "another pod on that node": ([CONFLICT, found(pod(uid="x", nodeName="n1"))], failure(409, "Conflict", gone=True)),
    "being deleted": ([CONFLICT, found(deleting())], failure(409, "Conflict")),
    "gated": ([CONFLICT, found(pod(schedulingGates=[{"name": "g"}]))], failure(409, "Conflict")),
    "conflict over something else": ([CONFLICT, found(pod()), bound], success(2)),
    "conflict for too long": ([CONFLICT, found(pod(), at=PATIENCE_S)], failure(409, "Conflict")),
    "gone": ([refused(404, "NotFound")], failure(404, "NotFound", gone=True)),
    "gone when looked for": ([CONFLICT, refused(404, "NotFound")], failure(409, "Conflict", gone=True)),
    "forbidden": ([refused(403, "Forbidden")], failure(403, "Forbidden")),
    "invalid": ([refused(422, "Invalid")], failure(422, "Invalid")),
    "may not look": ([CONFLICT, refused(403, "Forbidden")], failure(409, "Conflict")),
    "unauthorized is no answer": ([refused(401), refused(401), bound], success(3)),
    "look not answered": ([CONFLICT, unanswered(), unanswered(503), found(pod(nodeName="n1"))], success(1)),
    "looked at without credentials": ([CONFLICT, refused(401), found(pod(nodeName="n1"))], success(1)),
    "out of patience, not bound": (
        [unanswered(503), unanswered(503, at=PATIENCE_S), found(pod(), at=PATIENCE_S)],
        failure(503, "Timeout", attempts=2, message="no answer"),
    ),
    "internal errors, not bound": (
        [unanswered(500), unanswered(500, at=5), found(pod(), at=5)],
        failure(500, "Timeout", attempts=2, message="no answer"),
    ),
    "no answers, then an internal error, not bound": (
        [unanswered(503, at=20), unanswered(500, at=20), found(pod(), at=20)],
        failure(500, "Timeout", attempts=2, message="no answer"),
    ),
    "out of patience, but bound": (
        [unanswered(at=PATIENCE_S), unanswered(at=2 * PATIENCE_S), found(pod(nodeName="n1"), at=3 * PATIENCE_S)],
        success(1),
    ),
    "out of patience, gone": (
        [unanswered(at=PATIENCE_S), refused(404)],
        failure(0, "Timeout", gone=True, message="no answer"),
    ),
}


@pytest.mark.parametrize(("steps", "outcome"), CASES.values(), ids=CASES)
def test_answers_lead_to_an_outcome(steps: list[Step], outcome: PodBound | BindFailed) -> None:
    attempt = Attempt(BINDING, patience_s=PATIENCE_S)
    for step in steps:
        assert attempt.outcome is None
        step(attempt)
    assert attempt.outcome == outcome


EVICTED = RepairRequested("uid-p", "default", "p", "n1", "default/1", pod_class="", owner="", missed="")
WANTED = ProvisioningRequested(
    "Pod/default/p", "default", "kai-p", cycle="default/1", provisioning_class="check", attempt=1, pod_sets=()
)
UNWANTED = ProvisioningWithdrawn("Pod/default/p", "default", "kai-p", cycle="default/1", reason="", pod_sets=1)


def outcome_of(decision: RepairRequested | ProvisioningRequested | ProvisioningWithdrawn, *steps: Step) -> object:
    attempt = Attempt(Task(UUID(int=2), 8, 0, decision), patience_s=PATIENCE_S)
    for step in steps:
        assert attempt.outcome is None
        assert attempt.ask is Ask.ACT, "only a binding is looked for"
        step(attempt)
    return attempt.outcome


def eviction_failed(code: int, reason: str, attempts: int, *, gone: bool) -> EvictionFailed:
    return EvictionFailed("uid-p", "default", "p", "n1", code, reason, message="no", attempts=attempts, gone=gone)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([unanswered(429), refused(401), bound], PodEvicted("uid-p", "default", "p", "n1", 3)),
        ([refused(409, "Conflict")], eviction_failed(409, "Conflict", 1, gone=True)),
        ([refused(404, "NotFound")], eviction_failed(404, "NotFound", 1, gone=True)),
        ([refused(403, "Forbidden")], eviction_failed(403, "Forbidden", 1, gone=False)),
        ([unanswered(), refused(401, "Unauthorized", at=60)], eviction_failed(401, "Unauthorized", 2, gone=False)),
    ],
)
def test_an_eviction_is_asked_for_until_it_is_taken_refused_or_patience_ends(
    steps: list[Step], expected: PodEvicted | EvictionFailed
) -> None:
    assert outcome_of(EVICTED, *steps) == expected


def test_a_provisioning_request_is_made_or_deleted_or_refused() -> None:
    assert outcome_of(WANTED, unanswered(503), bound) == ProvisioningRequestCreated(
        "Pod/default/p", "default", "kai-p", 2
    )
    assert outcome_of(UNWANTED, bound) == ProvisioningRequestRemoved("Pod/default/p", "default", "kai-p", 1)
    for decision, removing in ((WANTED, False), (UNWANTED, True)):
        refusal = outcome_of(decision, unanswered(503), unanswered(503, at=PATIENCE_S))
        assert isinstance(refusal, ProvisioningRequestRefused)
        assert (refusal.code, refusal.reason, refusal.attempts, refusal.removing) == (503, "Timeout", 2, removing)


def test_waiting_grows_and_the_servers_wish_is_granted() -> None:
    attempt = Attempt(BINDING, patience_s=PATIENCE_S)
    assert attempt.delay_s(1.0) == 0
    delays = []
    for _ in range(12):
        unanswered(500)(attempt)
        delays.append(attempt.delay_s(1.0))
    assert delays == sorted(delays)
    assert (delays[-1], attempt.delay_s(0.0)) == (10, 5)
    attempt.unanswered(ClusterUnavailable("busy", retry_after_s=25), elapsed_s=0)
    assert attempt.delay_s(0.5) == 25
    attempt.unanswered(ClusterUnavailable("busy", retry_after_s=86400), elapsed_s=0)
    assert attempt.delay_s(0.5) == 30


def test_a_look_after_a_conflict_does_not_wait() -> None:
    attempt = Attempt(BINDING, patience_s=PATIENCE_S)
    CONFLICT(attempt)
    assert (attempt.ask, attempt.delay_s(1.0)) == (Ask.LOOK, 0)
    attempt.found(pod(), elapsed_s=0)
    assert attempt.ask is Ask.ACT
    assert attempt.delay_s(1.0) > 0
    CONFLICT(attempt)
    assert not attempt.already
    attempt.found(pod(nodeName="n1"), elapsed_s=0)
    assert attempt.already, "it was another client's post"


def test_the_binding_names_the_uid_and_carries_the_prediction() -> None:
    document = binding_document(BINDING)
    assert document["metadata"]["uid"] == "uid-p"
    assert document["metadata"]["annotations"] == {
        "kai.scheduler/numa-placement-predicted": '[{"zone":"node-0","amount":{"cpu":"8","memory":"1073741824"}}]',
        "kai.scheduler/numa-memory-groups-predicted": '[{"memoryNodes":["node-0"],"amount":{"memory":"1073741824"}}]',
    }
    assert document["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n1"}
