"""The binder's work after cycles that leave pods waiting."""

import pytest
from kai_binder.projection.open_work import BinderProjection
from kaicore.rules.deciding.why import pending_reasons
from kaicore.rules.engine.explain.waiting_reasons import (
    SingleStartKind,
    condition_reason,
    reasons_in_short,
    waiting_reasons,
)
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import AlonePending, ClassPending, GroupPending, PodsLeftWaiting
from kaicore.rules.events.reasons.group import GangDoesNotFit, GangIncomplete, SchedulingGated, WaitsAfterFailedBinds
from kaicore.rules.events.reasons.making_room import NeverPreempts, NoVictimsWouldHelp, WaitsForVictims
from kaicore.rules.events.reasons.node import InsufficientResource, NodeNotReady
from kaicore.rules.events.reasons.queue import OverFairShare, OverLimit
from kaicore.rules.events.reasons.reason import Reason

from tests.given.cluster.factory import pod
from tests.given.work.groups import World

#: Two pods that are alike but for their labels, and one that keeps away from the first one's.
APART = "".join(
    f"---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {app}}}}}\n"
    "spec: {containers: [{name: main, resources: {requests: {cpu: 4}}}]}\n"
    for name, app in (("kept-out", "red"), ("too-large", "blue"))
) + (
    "---\napiVersion: v1\nkind: Pod\nmetadata: {name: hermit}\n"
    "spec:\n  nodeName: n1\n  containers: [{name: main, resources: {requests: {cpu: 1}}}]\n"
    "  affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "
    "[{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: red}}}]}}\n"
)


def follow(world: World) -> BinderProjection:
    projection = BinderProjection()
    for event in world.events:
        projection.fold(event)
    return projection


def test_pods_of_a_class_that_others_keep_out_have_reasons_of_their_own() -> None:
    world = World()
    world.add_node("n1", cpu=4, labels={"kubernetes.io/hostname": "n1"})
    world.apply(APART)
    world.cycle()
    waiting = follow(world).waiting
    conditions = {name: waiting.condition(f"uid-{name}") for name in ("kept-out", "too-large")}
    for name, condition in conditions.items():
        entry = world.state.pods[f"uid-{name}"]
        assert condition is not None
        assert condition.message == reasons_in_short(pending_reasons(entry, world.state))
    assert conditions["kept-out"] != conditions["too-large"]


def test_pods_are_recorded_once_as_left_waiting_and_again_after_a_change() -> None:
    world = World()
    world.add_node("n1", cpu=4)
    big = world.add_pod(pod("big", cpu=64))
    world.add_pod(pod("small", cpu=1))
    world.cycle()
    world.cycle()

    def recorded() -> list[list[str]]:
        payloads = [decode_payload(event) for event in world.events if event.type == "PodsLeftWaiting"]
        return [[one.name for one in payload.pods] for payload in payloads if isinstance(payload, PodsLeftWaiting)]

    assert recorded() == [["big"]]
    world.delete_pod(big)
    world.add_pod(pod("big", cpu=32, uid="another"))
    world.cycle()
    assert recorded() == [["big"], ["big"]]


def test_pod_without_its_group_says_which_object_is_missing() -> None:
    world = World()
    world.add_node("n1", cpu=4)
    world.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {pod-group.scheduling.sigs.k8s.io: g}}\nspec: {}\n"
    )
    world.cycle()
    condition = follow(world).waiting.condition("uid-a")
    assert condition is not None
    assert (condition.reason, condition.message) == (
        "GroupNotFound",
        "PodGroup.scheduling.sigs.k8s.io default/g does not exist or is malformed",
    )


SHORT = InsufficientResource(nodes=2, example="n1", resource="cpu", requested=2)
INCOMPLETE = GangIncomplete(min_pods=2, ready_pods=1)
LIMIT = OverLimit(queue="q", resource="cpu", requested=2)


@pytest.mark.parametrize(
    ("reasons", "reason"),
    [
        ([SHORT], "Unschedulable"),
        ([SHORT, SchedulingGated(gates="held")], "SchedulingGated"),
        ([GangDoesNotFit(pods=2), SHORT], "Unschedulable"),
        ([INCOMPLETE, SHORT], "GangIncomplete"),
        ([LIMIT, SHORT], "OverLimit"),
        # Why no other work makes way says nothing about another node.
        ([SHORT, OverFairShare(queue="q", resource="cpu", requested=2), NoVictimsWouldHelp()], "Unschedulable"),
        ([WaitsForVictims(pods=1)], "WaitsForVictims"),
        ([SHORT, WaitsAfterFailedBinds(pods=1)], "WaitsAfterFailedBinds"),
    ],
)
def test_condition_of_a_pod_that_another_node_could_take_is_unschedulable(reasons: list[Reason], reason: str) -> None:
    assert condition_reason(reasons) == reason


def test_reasons_of_the_group_go_before_those_of_pods_like_it_and_of_the_class() -> None:
    group, like, mine = LIMIT, NeverPreempts(), SHORT
    by_class = {"s": ClassPending("c", 2, (mine,), (AlonePending("q", 5, (like,)), AlonePending("q", 6, (group,))))}
    by_group = {"s": GroupPending("g", 2, (group,))}
    assert waiting_reasons(by_group, by_class, alone=SingleStartKind("q", 5)) == [group, mine]
    assert waiting_reasons({}, by_class, alone=SingleStartKind("q", 5)) == [like, mine]
    assert waiting_reasons({}, by_class, alone=None) == [mine]


def test_reasons_beyond_the_first_three_are_counted() -> None:
    reasons = [NodeNotReady(nodes=number, example="n1") for number in range(2, 7)]
    assert reasons_in_short(reasons) == (
        "2 nodes not ready (such as n1); 3 nodes not ready (such as n1); 4 nodes not ready (such as n1); "
        "and 2 more reasons"
    )
