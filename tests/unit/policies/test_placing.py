"""Policies that filter and score nodes: what they refuse and prefer decides, has a reason, and is replayed."""

from typing import Any

import numpy as np
import pytest
from kaicore.policy import Facts, Flags, Ints, Nodes, Policy, PolicyBand, Work
from kaicore.rules.engine.policies.book import PolicyBook, PolicyMismatch
from kaicore.rules.events.reasons.group import FilteredByPolicy
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL

from tests.given.cluster.factory import pod
from tests.given.work.policies import SpotLast, WithPolicies, setting_of

GPU = "nvidia.com/gpu"


class NoBatchOnSpot(Policy):
    name, reason = "no-batch-on-spot", "spot is for service"
    node_labels, pod_labels = ("spot",), ("kind",)

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        return (nodes.labels("spot") != "true") | (work.labels.get("kind") != "batch")


class PowerCap(Policy):
    """At most 8 GPUs of a rack are in use."""

    name, live = "power-cap", True
    node_labels = ("rack",)

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        _, racks = np.unique(nodes.labels("rack"), return_inverse=True)
        used = np.bincount(racks, weights=nodes.used(GPU)).astype(np.int64)
        return used[racks] * 1000 + work.gpus <= 8000


class Emptiest(Policy):
    name, band = "emptiest", PolicyBand.FULL

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        return np.minimum(nodes.free(GPU) * 100, 1000)


class Alone(Policy):
    """Tenants do not share nodes."""

    name, live, tenants = "alone", True, True

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        others = ("team-a", "team-b")
        return sum(nodes.pods_of(one) for one in others if one != work.namespace) == 0


def cluster(*kinds: type[Policy], nodes: int = 4, **options: Any) -> WithPolicies:
    made = WithPolicies(*kinds, **options)
    for number in range(nodes):
        labels = {"spot": "true" if number % 2 == 0 else "false", "rack": f"r{number // 2}"}
        made.add_node(f"n{number}", cpu=64, gpu=8, labels=labels)
    return made


def test_a_score_decides_before_packing_and_by_name_among_equals() -> None:
    made = cluster(SpotLast)
    for name in ("a", "b", "c"):
        made.add_pod(pod(name, cpu=1, gpu=8))
    assert made.nodes_of() == {"a": "n1", "b": "n3", "c": "n0"}
    assert made.replayed().differences == []


def test_a_filter_refuses_with_its_name_and_text_and_tells_pods_apart_by_declared_labels() -> None:
    made = cluster(NoBatchOnSpot, nodes=1)
    made.add_pod(pod("batch", cpu=1, gpu=1, labels={"kind": "batch"}))
    made.add_pod(pod("service", cpu=1, gpu=1))
    proposal = made.decided()
    assert made.placed(proposal.result) == {"service": "n0"}
    (pending,) = proposal.result.pending
    reason = pending.reasons[0]
    assert isinstance(reason, FilteredByPolicy)
    text = "1 node refused by policy no-batch-on-spot: spot is for service (such as n0)"
    assert str(reason) == text
    assert made.replayed().differences == []


def test_work_that_is_asked_for_what_it_does_not_have_still_tells_pods_apart() -> None:
    class Probes(Policy):
        name, reason = "probes", "urgent work only"

        def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
            return np.full(len(nodes), not hasattr(work, "deadline") and bool(work.devices) and work.priority > 5)

    made = cluster(Probes)
    for name, priority, gpu in (("low", 1, 1), ("none", 9, 0), ("high", 9, 1)):
        made.add_pod(pod(name, cpu=1, gpu=gpu, priority=priority))
    assert set(made.nodes_of()) == {"high"}


def test_a_live_filter_sees_what_the_cycle_charges_to_other_nodes() -> None:
    made = cluster(PowerCap)
    for number in range(6):
        made.add_pod(pod(f"p{number}", cpu=1, gpu=4))
    placed = made.nodes_of()
    racks = [node in ("n0", "n1") for node in placed.values()]
    assert (len(placed), sum(racks)) == (4, 2)
    assert made.replayed().differences == []


def test_a_policy_in_place_of_a_band_undoes_packing() -> None:
    made = cluster(Emptiest)
    for number in range(4):
        made.add_pod(pod(f"p{number}", cpu=1, gpu=1))
    assert len(set(made.nodes_of().values())) == 1, "asked once, about the nodes as the cycle begins"
    made.add_pod(pod("later", cpu=1, gpu=1))
    assert made.nodes_of()["later"] != made.state.pods[next(iter(made.state.pods))].node


def test_tenants_count_what_runs_and_what_the_cycle_places() -> None:
    made = cluster(Alone, nodes=2)
    for number, namespace in enumerate(("team-a", "team-b", "team-a", "team-b")):
        made.add_pod(pod(f"p{number}", cpu=1, gpu=1, namespace=namespace))
    placed = made.nodes_of()
    assert placed["p0"] == placed["p2"] != placed["p1"] == placed["p3"]
    made.add_pod(pod("other", cpu=1, gpu=1, namespace="team-a"))
    assert made.nodes_of() == {"other": placed["p0"]}
    assert made.replayed().differences == []


def test_a_policy_decides_for_its_queues_only() -> None:
    made = cluster(NoBatchOnSpot, nodes=1, queues=("elsewhere",))
    made.add_pod(pod("batch", cpu=1, gpu=1, labels={"kind": "batch", KAI_QUEUE_LABEL: "here"}))
    assert made.nodes_of() == {"batch": "n0"}


def test_other_code_under_the_same_name_is_refused_with_both_digests() -> None:
    made = cluster(SpotLast)
    made.add_pod(pod("a", cpu=1, gpu=1))
    made.decided()
    other = PolicyBook()
    other.add(SpotLast, setting_of(SpotLast, digest="another-source").digest)
    with pytest.raises(PolicyMismatch, match=r"spot-last 1: .*of-SpotLast.*another-sour"):
        made.replayed(other)
    with pytest.raises(PolicyMismatch, match="is not here"):
        made.replayed(PolicyBook())


def test_other_code_that_is_asked_for_shows_what_it_decides_otherwise() -> None:
    class SpotFirst(SpotLast):
        def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
            return 500 - super().score(nodes, work, facts)

    made = cluster(SpotLast)
    made.add_pod(pod("a", cpu=1, gpu=1))
    made.decided()
    other = PolicyBook(others=True)
    other.add(SpotFirst, "another-source")
    differences = made.replayed(other).differences
    assert ("n1", "n0") in {(one.recorded.split()[-1], one.replayed.split()[-1]) for one in differences}
