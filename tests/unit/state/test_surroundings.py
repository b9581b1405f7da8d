"""Volumes, and what is folded of what surrounds pods."""

from collections.abc import Callable
from typing import Any

import pytest
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.reasons.node import VolumeInUse, VolumeNotReady
from kaicore.rules.model.pod import ClaimUse, Namespace, PodDisruptionBudget, PodRules, PodTerm
from kaicore.rules.model.selector import PodSelector, Requirement
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import Cluster, pod
from tests.given.cluster.storage import ZONE, claim, storage, using, volume
from tests.given.logs.replaying import replayed

OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"


def candidates(build: Callable[[Cluster], None], *claims: str) -> str:
    """All nodes to which a pod that uses claims may go, each asked on a cluster of its own."""
    placements = []
    for name in ("a1", "a2", "b1", "x"):
        cluster = storage()
        build(cluster)
        using(cluster, *claims, node_affinity=((Requirement("metadata.name", "In", (name,), field=True),),))
        placements += [decision.node for decision in cluster.cycle().placements]
    return " ".join(placements)


def bound(cluster: Cluster, **more: Any) -> None:
    claim(cluster, volume="v", bound=True)
    volume(cluster, claimed=True, **more)


CASES: dict[str, tuple[Callable[[Cluster], None], str]] = {
    "bound: a volume without restrictions": (bound, "a1 a2 b1 x"),
    "bound: the volume's node affinity": (
        lambda cluster: bound(cluster, node_affinity=((Requirement("host", "In", ("a2", "b1")),),)),
        "a2 b1",
    ),
    "bound: an affinity that selects nothing": (lambda cluster: bound(cluster, node_affinity=((),)), ""),
    "bound: the volume's zone, and nodes without any zone": (lambda c: bound(c, zones={ZONE: "b"}), "b1 x"),
    "bound: one of several zones": (lambda c: bound(c, zones={ZONE: "b__a"}), "a1 a2 b1 x"),
    "bound: zones by their old label": (lambda c: bound(c, zones={OLD_ZONE: "a"}), "a1 a2 x"),
    "waits for a consumer: anywhere": (claim, "a1 a2 b1 x"),
    "waits for a consumer: where the class provisions": (lambda c: claim(c, storage_class="zoned"), "b1"),
    "waits for a consumer: where it is provisioned already": (lambda c: claim(c, selected_node="a2"), "a2"),
}


@pytest.mark.parametrize(("build", "nodes"), CASES.values(), ids=CASES)
def test_claim_restricts_its_pod_to_the_expected_nodes(build: Callable[[Cluster], None], nodes: str) -> None:
    assert candidates(build, "c") == nodes


WAITS: dict[str, tuple[Callable[[Cluster], None], str]] = {
    "none": (lambda _: None, "claim c does not exist"),
    "immediate": (lambda c: claim(c, storage_class="now"), "claim c is not bound yet"),
    "no class": (lambda c: claim(c, storage_class=""), "claim c is not bound yet"),
    "named volume": (lambda c: claim(c, volume="v"), "claim c is not bound yet"),
    "no volume": (
        lambda c: claim(c, volume="v", bound=True),
        "claim c is bound to volume v, which does not exist",
    ),
    "lost": (lambda c: claim(c, lost=True), "claim c has lost its volume"),
    "deleting": (lambda c: claim(c, deleting=True), "claim c is being deleted"),
}


@pytest.mark.parametrize(("build", "detail"), WAITS.values(), ids=WAITS)
def test_claim_that_cannot_be_used_yet_says_what_is_missing(build: Callable[[Cluster], None], detail: str) -> None:
    cluster = storage()
    build(cluster)
    using(cluster, "c")
    (pending,) = cluster.cycle().pending
    assert pending.reasons == (VolumeNotReady(waits_for=detail),)


def test_a_decision_names_the_claims_to_provision_and_they_keep_pods_together() -> None:
    cluster = storage()
    claim(cluster, "shared")
    claim(cluster, "own")
    using(cluster, "shared", "own", name="1", node_selector={"host": "b1"})
    using(cluster, "shared", name="2")
    assert {decision.name: decision.node for decision in cluster.cycle().placements} == {"1": "b1", "2": "b1"}
    placed = [decode_payload(event) for event in cluster.events if event.type == "PodPlaced"]
    assert [item.claims for item in placed if isinstance(item, payloads.PodPlaced)] == [("shared", "own"), ("shared",)]
    using(cluster, "shared", name="3", node_selector={"host": "a1"})
    (pending,) = cluster.cycle().pending
    assert {reason.code for reason in pending.reasons} >= {"VolumeOutOfReach"}
    claim(cluster, "shared", volume="v", bound=True)
    volume(cluster, claimed=True)
    assert [decision.name for decision in cluster.cycle().placements] == ["3"]


def test_claim_for_one_pod_keeps_a_second_pod_waiting() -> None:
    cluster = storage()
    claim(cluster, volume="v", bound=True, access_modes=("ReadWriteOncePod",))
    volume(cluster, claimed=True)
    first = using(cluster, "c", name="1")
    using(cluster, "c", name="2")
    result = cluster.cycle()
    assert [decision.name for decision in result.placements] == ["1"]
    assert result.pending[0].reasons[0] == VolumeInUse(nodes=4, example="a1", claim="default/c")
    cluster.delete_pod(first)
    assert [decision.name for decision in cluster.cycle().placements] == ["2"]


def test_an_ephemeral_volumes_claim_is_the_pods_own() -> None:
    cluster = storage()
    claim(cluster, "p-scratch", owner="uid-other")
    cluster.add_pod(pod("p", cpu=1, claims=(ClaimUse("p-scratch", owned=True),)))
    assert cluster.cycle().pending[0].reasons[0].waits_for == "claim p-scratch was not made for this pod"
    claim(cluster, "p-scratch", owner="uid-p")
    assert len(cluster.cycle().placements) == 1


def test_pods_with_claims_of_their_own_are_one_class() -> None:
    cluster = storage()
    for number in range(10):
        claim(cluster, f"c{number}", storage_class="zoned")
        using(cluster, f"c{number}", name=f"p{number}", node_selector={"host": "none"})
    (pending,) = cluster.cycle().pending
    assert pending.pods == 10


def test_volume_objects_survive_a_snapshot_and_are_forgotten_when_deleted() -> None:
    cluster = storage()
    claim(cluster, volume="v", bound=True)
    volume(cluster, claimed=True)
    budget = PodDisruptionBudget("u-b", "default", "b", "1", PodSelector(("default",), None, ()), 2)
    cluster.record("pdb/b", payloads.PodDisruptionBudgetObserved(budget))
    cluster.record("namespace/n", payloads.NamespaceObserved(Namespace("u-n", "n", "1", {"a": "b"})))
    restored = decode_state(encode_state(cluster.state))
    assert encode_state(restored) == encode_state(cluster.state)
    assert restored.constraints.budgets == {"default/b": budget}
    before = len(cluster.events)
    for stream, payload in {
        "pdb/b": payloads.PodDisruptionBudgetDeleted("u-b", "default", "b"),
        "pvc/c": payloads.PersistentVolumeClaimDeleted("u-c", "default", "c"),
        "pv/v": payloads.PersistentVolumeDeleted("u-v", "v"),
        "sc/late": payloads.StorageClassDeleted("u-late", "late"),
        "namespace/n": payloads.NamespaceDeleted("u-n", "n"),
    }.items():
        cluster.record(stream, payload)
    restored.fold_all(cluster.events[before:])
    surroundings = restored.constraints
    assert surroundings.budgets == surroundings.namespaces == surroundings.volumes.claims == {}
    assert sorted(surroundings.volumes.storage_classes) == ["local", "now", "zoned"]
    assert encode_state(restored) == encode_state(cluster.state)


def test_cycles_with_rules_and_volumes_replay() -> None:
    cluster = storage()
    claim(cluster, "c", storage_class="zoned")
    using(cluster, "c")
    apart = PodRules(anti_affinity=(PodTerm("host", PodSelector(("default",), None, (Requirement("app", "Exists"),))),))
    for number in range(5):
        cluster.add_pod(pod(f"r{number}", cpu=1, labels={"app": "x"}, rules=apart))
    cluster.cycle()
    assert replayed(cluster.events).differences == []
