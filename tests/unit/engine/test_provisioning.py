"""ProvisioningRequests: which groups get one, how long it stands, and what follows when it comes to nothing."""

from typing import Any

import msgspec
import pytest
from kaicore.rules.deciding.cycle_input import idle, next_retry
from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.decisions import CycleResult, GroupDecision
from kaicore.rules.engine.work.provisioning import ProvisioningConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.groups.labels import SIGS_POD_GROUP
from kaicore.rules.model.group import GroupTemplate, PodSet, TopologyConstraint
from kaicore.rules.model.node import KUEUE_TOPOLOGY, TopologyDefinition, TopologyLevel
from kaicore.rules.model.queue import Queue, QueueShare
from kaicore.rules.objects.provisioning import (
    ACCEPTED,
    BOOKING_EXPIRED,
    CAPACITY_REVOKED,
    FAILED,
    NOT_SERVED,
    PROVISIONED,
    PROVISIONING_CLASS_ANNOTATION,
    ProvisioningCondition,
    ProvisioningRequest,
)
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import pod
from tests.given.work.workloads import Workloads
from tests.measured.digest.engine import replayed

SCALE_UP = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
CHECK = "check-capacity.autoscaling.x-k8s.io"
ON = EngineConfig(provisioning=ProvisioningConfig(class_name=SCALE_UP, backoff_us=60_000_000))
GANG = f"{SIGS_POD_GROUP}/default/gang"


class Requests(Workloads):
    """A cluster with words for requests and what becomes of them."""

    def requested(self, result: CycleResult) -> payloads.ProvisioningRequested:
        (decision,) = (one for one in result.provisioning if isinstance(one, payloads.ProvisioningRequested))
        return decision

    def fares(self, decision: GroupDecision, *conditions: ProvisioningCondition, uid: str = "u") -> None:
        """The watcher sees a request with such conditions."""
        seen = ProvisioningRequest(uid, decision.namespace, decision.name, "1", SCALE_UP, conditions)
        self.record(f"provisioning/{decision.name}", payloads.ProvisioningRequestObserved(seen))

    def deleted(self, decision: GroupDecision, uid: str = "u") -> None:
        gone = payloads.ProvisioningRequestDeleted(uid, decision.namespace, decision.name)
        self.record(f"provisioning/{decision.name}", gone)

    def refused(self, decision: GroupDecision, code: int, reason: str, message: str = "") -> None:
        outcome = payloads.ProvisioningRequestRefused(
            decision.group, decision.namespace, decision.name, code, reason, message
        )
        self.record(f"provisioning/{decision.name}", outcome)

    def checked(self) -> None:
        """Every cycle replays, and a snapshot goes on as the state does."""
        assert replayed(self.events)[3] == []
        self.kept()

    def kept(self) -> None:
        restored = decode_state(encode_state(self.state))
        assert encode_state(restored) == encode_state(self.state)
        assert restored.provisioning.standing == self.state.provisioning.standing


def met(name: str, message: str = "", **more: Any) -> ProvisioningCondition:
    return ProvisioningCondition(name, **({"met": True, "message": message} | more))


def a_gang_that_lacks_a_node(**spec: Any) -> Requests:
    cluster = Requests(hashes=True).add_node("n1", cpu=4)
    cluster.gang("gang", 2, cpu=3, **spec)
    return cluster


def reasons(result: CycleResult) -> list[Reason]:
    (group,) = (group for group in result.groups if group.pods)
    return list(group.reasons)


def first(result: CycleResult) -> str:
    return str(reasons(result)[0])


def withdrawn(result: CycleResult) -> list[str]:
    return [one.reason for one in result.provisioning if isinstance(one, payloads.ProvisioningWithdrawn)]


def test_without_the_setting_nothing_is_asked_for() -> None:
    cluster = a_gang_that_lacks_a_node(annotations={PROVISIONING_CLASS_ANNOTATION: SCALE_UP})
    assert cluster.cycle().provisioning == ()


def test_a_gang_that_fits_nowhere_asks_for_nodes_waits_and_starts_on_them() -> None:
    cluster = a_gang_that_lacks_a_node()
    result = cluster.cycle(ON)
    decision = cluster.requested(result)
    assert decision.name.startswith("kai-gang-")
    assert (decision.group, decision.namespace, decision.attempt) == (GANG, "default", 1)
    assert decision.provisioning_class == SCALE_UP
    ((pod_class, count, uid, name),) = (msgspec.structs.astuple(one) for one in decision.pod_sets)
    assert (count, uid, name) == (2, "uid-gang-0", "gang-0")
    assert pod_class in {pending.pod_class for pending in result.pending}
    assert f"ProvisioningRequest default/{decision.name} of class {SCALE_UP} is requested" in first(result)
    assert [reason.code for reason in reasons(result)][:2] == ["WaitsForProvisioning", "GangDoesNotFit"]

    assert cluster.cycle(ON).provisioning == (), "one request stands for it"
    cluster.fares(decision, met(ACCEPTED, "a scale-up was started"))
    assert "is accepted (since" in first(cluster.cycle(ON))
    assert first(cluster.cycle(ON)).endswith(": a scale-up was started")
    cluster.fares(decision, met(ACCEPTED), met(PROVISIONED, "all nodes are there"))
    assert "is provisioned" in first(cluster.cycle(ON)), "the autoscaler is ahead of what the watcher sees"

    cluster.add_node("n2", cpu=4)
    revision = cluster.state.revision
    placed = cluster.cycle(ON)
    assert set(cluster.placed(placed)) == {"gang-0", "gang-1"}
    assert cluster.state.revision > revision, "another cycle follows at once"
    consumed = {(one.provisioning_request, one.provisioning_class) for one in placed.placements}
    assert consumed == {(decision.name, SCALE_UP)}
    assert not idle(cluster.state), "the request is still there"
    assert withdrawn(cluster.cycle(ON)) == ["Started"]
    assert idle(cluster.state)
    cluster.checked()


def test_where_room_comes_free_meanwhile_the_gang_starts_there_and_the_request_goes() -> None:
    cluster = a_gang_that_lacks_a_node()
    cluster.cycle(ON)
    cluster.add_node("other", cpu=4)
    assert {one.provisioning_request for one in cluster.cycle(ON).placements} == {""}, "no autoscaler was at it"
    assert withdrawn(cluster.cycle(ON)) == ["Started"]


@pytest.mark.parametrize("end", [FAILED, CAPACITY_REVOKED, BOOKING_EXPIRED])
def test_a_request_that_came_to_nothing_is_made_anew_after_a_back_off_that_doubles(end: str) -> None:
    cluster = a_gang_that_lacks_a_node()
    before = cluster.requested(cluster.cycle(ON))
    provisioned = () if end == FAILED else (met(PROVISIONED),)
    for attempt in (1, 2, 3):
        assert before.attempt == attempt
        cluster.fares(before, met(ACCEPTED), *provisioned, met(end, "out of stock"))
        ended_at = cluster.now
        result = cluster.cycle(ON)
        assert result.provisioning == ()
        assert first(result).startswith("got no new nodes: ")
        assert f"attempt {attempt}, ended as {end}: out of stock; the next is made at " in first(result)
        due = ended_at + 60_000_000 * 2 ** (attempt - 1)
        assert result.due == due
        assert next_retry(cluster.state, ON, now=cluster.now, due=result.due) <= due
        cluster.now = due - 1
        assert cluster.cycle(ON).provisioning == ()
        cluster.now = due
        result = cluster.cycle(ON)
        assert withdrawn(result) == ["Retried"]
        assert len(result.batches) == 1, "one goes with the other"
        after = cluster.requested(result)
        assert after.name != before.name
        before = after
    cluster.checked()


def test_the_wait_between_two_requests_has_an_upper_bound() -> None:
    config = EngineConfig(provisioning=ProvisioningConfig(SCALE_UP, backoff_us=60_000_000, backoff_max_us=90_000_000))
    cluster = a_gang_that_lacks_a_node()
    for _ in range(4):
        cluster.fares(cluster.requested(cluster.cycle(config)), met(FAILED))
        ended_at = cluster.now
        due = cluster.cycle(config).due
        assert due - ended_at <= 90_000_000
        cluster.now = due


@pytest.mark.parametrize(
    ("code", "reason", "message", "said"),
    [
        (404, NOT_SERVED, "", "the API server does not serve ProvisioningRequests"),
        (403, "Forbidden", "not yours", "the API server refused it: 403 Forbidden: not yours"),
        (422, "Invalid", "spec", "the API server refused it: 422 Invalid: spec"),
        (0, "Timeout", "", "the API server did not take it: Timeout"),
    ],
)
def test_a_request_that_cannot_be_made_leaves_the_pods_to_other_autoscalers(
    code: int, reason: str, message: str, said: str
) -> None:
    cluster = a_gang_that_lacks_a_node()
    result = cluster.cycle(ON)
    decision = cluster.requested(result)
    assert not reasons(result)[0].of_nodes, "others keep off as long as it is under way"
    cluster.refused(decision, code, reason, message)
    result = cluster.cycle(ON)
    assert first(result).startswith(f"no ProvisioningRequest can be made for it: {said}; it is tried again at ")
    assert all(reason.of_nodes for reason in reasons(result)), "pods stay Unschedulable"
    cluster.now = result.due
    retried = cluster.cycle(ON)
    assert cluster.requested(retried).attempt == 2
    assert withdrawn(retried) == [], "there is nothing to delete"
    cluster.checked()


def test_a_refusal_that_was_none_is_taken_back_when_the_request_is_seen() -> None:
    cluster = a_gang_that_lacks_a_node()
    decision = cluster.requested(cluster.cycle(ON))
    cluster.refused(decision, 0, "Timeout")
    cluster.fares(decision, met(ACCEPTED))
    assert "is accepted" in first(cluster.cycle(ON))


def test_a_request_that_somebody_deletes_is_made_anew_after_the_back_off() -> None:
    cluster = a_gang_that_lacks_a_node()
    decision = cluster.requested(cluster.cycle(ON))
    cluster.fares(decision)
    cluster.deleted(decision, uid="another object of that name")
    assert first(cluster.cycle(ON)).startswith("waits for new nodes")
    cluster.deleted(decision)
    result = cluster.cycle(ON)
    assert "ended as Deleted: somebody has deleted it" in first(result)
    cluster.now = result.due
    assert cluster.requested(cluster.cycle(ON)).attempt == 2


def test_events_that_come_twice_late_or_about_other_requests_change_nothing() -> None:
    cluster = a_gang_that_lacks_a_node()
    decision = cluster.requested(cluster.cycle(ON))
    cluster.fares(decision, met(FAILED, "no"))
    standing = cluster.state.provisioning.standing[GANG]
    revision = cluster.state.revision
    cluster.fares(decision, met(FAILED, "no"))
    cluster.refused(decision, 403, "Forbidden")
    created = payloads.ProvisioningRequestCreated(GANG, "default", decision.name)
    cluster.record("provisioning/again", created)
    other = msgspec.structs.replace(decision, name="another", namespace="elsewhere")
    cluster.fares(other, met(PROVISIONED))
    cluster.deleted(other)
    cluster.record("x", payloads.ProvisioningWithdrawn(GANG, "default", "unknown", "default/9", "Gone", 1))
    cluster.record("x", payloads.ProvisioningRequestRemoved(GANG, "default", "unknown"))
    assert cluster.state.provisioning.standing == {GANG: standing}
    assert cluster.state.revision == revision
    cluster.kept()


def test_a_gang_that_requires_a_rack_waits_until_the_new_nodes_make_one() -> None:
    cluster = Requests(hashes=True)
    racks = TopologyDefinition(KUEUE_TOPOLOGY, "racks", "u-racks", "1", (TopologyLevel("rack", ("rack",)),))
    cluster.record("topology/racks", payloads.TopologyDefinitionObserved(racks))
    cluster.add_node("n1", cpu=4, labels={"rack": "r1"})
    constraint = TopologyConstraint(topology="racks", required="rack")
    template = GroupTemplate(sets=(PodSet(min_pods=2, topology=constraint),))
    cluster.gang("gang", 2, cpu=3, group={"templates": (template,)})
    decision = cluster.requested(cluster.cycle(ON))
    cluster.add_node("n2", cpu=4, labels={"rack": "r2"})
    cluster.fares(decision, met(PROVISIONED))
    result = cluster.cycle(ON)
    assert not result.placements
    assert [reason.code for reason in reasons(result)][:2] == ["WaitsForProvisioning", "TopologyHasNoRoom"]
    cluster.add_node("n3", cpu=4, labels={"rack": "r2"})
    assert set(cluster.placed(cluster.cycle(ON)).values()) == {"n2", "n3"}
    cluster.checked()


def test_a_request_goes_with_its_group() -> None:
    cluster = a_gang_that_lacks_a_node()
    cluster.cycle(ON)
    for number in range(2):
        cluster.delete_pod(pod(f"gang-{number}", cpu=3))
    assert withdrawn(cluster.cycle(ON)) == ["Gone"]
    assert cluster.cycle(ON).provisioning == ()
    cluster.checked()


def test_a_group_that_needs_more_than_was_asked_for_asks_anew_and_for_less_it_keeps_its_request() -> None:
    cluster = a_gang_that_lacks_a_node()
    before = cluster.requested(cluster.cycle(ON))
    cluster.gang("gang", 3, cpu=3)
    result = cluster.cycle(ON)
    assert withdrawn(result) == ["Changed"]
    after = cluster.requested(result)
    assert (after.attempt, after.pod_sets[0].count) == (1, 3)
    assert after.name != before.name
    cluster.gang("gang", 3, least=2, cpu=3)
    assert cluster.cycle(ON).provisioning == ()


def test_a_pod_that_goes_before_the_request_is_recorded_drops_it() -> None:
    cluster = a_gang_that_lacks_a_node()
    decide_on = encode_state(cluster.state)
    one = cluster.state.pods["uid-gang-0"].pod
    cluster.see(one, labels={**one.labels, "seen": "later"})
    late = Requests()
    late.state = decode_state(decide_on)
    late.now = cluster.now
    cluster.append(decide(late.state, ON, shard="default", now=late.now, actor="scheduler").units)
    assert cluster.state.provisioning.standing == {}, "its pod has changed since"
    assert cluster.requested(cluster.cycle(ON)).attempt == 1
    assert replayed(cluster.events)[2:] == (1, [])


def test_no_nodes_are_asked_for_where_a_queue_or_the_pods_themselves_are_in_the_way() -> None:
    cluster = Requests().add_node("n1", cpu=4)
    queue = Queue(name="small", uid="u", shares={"cpu": QueueShare(quota=2000, limit=2000)})
    cluster.record("queue/small", payloads.QueueObserved(queue))
    cluster.gang("over", 2, cpu=3, group={"queue": "small"})
    cluster.gang("odd", 2, cpu=3, group={"queue": "small"}, malformed="spec.affinity: is odd")
    cluster.gang("gated", 2, cpu=3, group={"queue": "small"}, scheduling_gates=("wait",))
    cluster.gang("short", 1, least=2, cpu=1, group={"queue": "small"})
    assert cluster.cycle(ON).provisioning == ()


def test_no_nodes_are_asked_for_where_pods_make_way_or_are_leaving_anyway() -> None:
    cluster = Requests().add_node("n1", cpu=4)
    cluster.full(cluster.gang("low", 2, cpu=2, group={"priority": 1}))
    cluster.gang("high", 2, cpu=2, group={"priority": 9})
    result = cluster.cycle(ON)
    assert cluster.evicted(result)
    assert result.provisioning == ()
    assert cluster.cycle(ON).provisioning == (), "its room is kept"


def test_pods_that_start_one_by_one_are_left_to_the_autoscaler_unless_they_choose_a_class() -> None:
    cluster = Requests().add_node("n1", cpu=1)
    cluster.gang("alone", 2, least=0, cpu=3)
    assert cluster.cycle(ON).provisioning == ()
    cluster.gang("chosen", 2, least=0, cpu=3, group={"provisioning_class": SCALE_UP})
    result = cluster.cycle(ON)
    decision = cluster.requested(result)
    assert decision.group.endswith("/chosen")
    assert [pod_set.count for pod_set in decision.pod_sets] == [2]
    reasons_by_group = {group.group.rpartition("/")[2]: group.reasons[0].code for group in result.groups}
    assert reasons_by_group == {"chosen": "WaitsForProvisioning"}


def test_a_group_chooses_its_class_among_those_that_the_settings_allow() -> None:
    config = EngineConfig(provisioning=ProvisioningConfig(SCALE_UP, (CHECK,), {"ValidUntilSeconds": "600"}))
    chosen = {"check": CHECK, "without": "none", "unknown": "queued-provisioning.gke.io"}
    cluster = Requests().add_node("n1", cpu=1)
    for name, wanted in chosen.items():
        cluster.gang(name, 2, cpu=3, annotations={PROVISIONING_CLASS_ANNOTATION: wanted})
    result = cluster.cycle(config)
    decision = cluster.requested(result)
    assert (decision.group.rpartition("/")[2], decision.provisioning_class) == ("check", CHECK)
    assert decision.parameters == {"ValidUntilSeconds": "600"}
    reasons_by_group = {group.group.rpartition("/")[2]: group.reasons for group in result.groups}
    assert reasons_by_group["without"][0].code == "GangDoesNotFit"
    assert str(reasons_by_group["unknown"][0]) == (
        "asks for new nodes by ProvisioningClass queued-provisioning.gke.io, which the scheduler's settings do not "
        f"allow; they allow {SCALE_UP}, {CHECK}"
    )


def test_requests_are_withdrawn_when_the_setting_goes_and_those_of_other_shards_are_left_alone() -> None:
    cluster = a_gang_that_lacks_a_node()
    decision = cluster.requested(cluster.cycle(ON))
    other = msgspec.structs.replace(decision, group="Pod/default/theirs", name="theirs", cycle="batch/7")
    cluster.record("provisioning/theirs", other)
    assert withdrawn(cluster.cycle(EngineConfig())) == ["SwitchedOff"]
    assert set(cluster.state.provisioning.standing) == {"Pod/default/theirs"}
    assert cluster.cycle(EngineConfig()).provisioning == ()


def test_a_gang_of_more_classes_than_a_request_holds_says_so() -> None:
    cluster = Requests().add_node("n1", cpu=1)
    cluster.gang("gang", 1, least=33, cpu=2)
    for number in range(1, 33):
        cluster.members("gang", [number], cpu=2 + number)
    result = cluster.cycle(ON)
    assert result.provisioning == ()
    assert first(result) == (
        "no ProvisioningRequest can be made for it: its pods are of 33 classes, and a request holds 32"
    )


def test_what_a_gang_grows_by_is_not_asked_for() -> None:
    cluster = Requests().add_node("n1", cpu=4)
    cluster.gang("gang", 4, least=2, cpu=2)
    assert len(cluster.cycle(ON).placements) == 2
    assert cluster.cycle(ON).provisioning == ()
