"""Pods on failed nodes are placed anew beside the others of their group: what counts as failed, and what follows."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from kaicore.rules.deciding.cycle_input import idle, next_retry
from kaicore.rules.engine.config import Action, EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.model.group import PodSet, RankSource, SliceLayer
from kaicore.rules.model.node import Taint
from kaicore.rules.model.placement import RANK_ANNOTATION
from kaicore.rules.model.pod import Pod

from tests.given.cluster.racks import INDEX, Racks, asks

SECOND = 1_000_000
#: A node has failed when it has been not ready for long enough.
BY_TIME = EngineConfig(replace_on_pod_termination=False)
#: Nothing is evicted for others' sake.
PLACING = EngineConfig(actions=(Action.ALLOCATE,))


class Cluster(Racks):
    """Racks with nodes that fail; a node takes one pod."""

    def running(self, name: str, count: int, *args: Any, **kwargs: Any) -> list[Pod]:
        pods = self.group(name, count, *args, **kwargs)
        self.full(pods)
        return pods

    def vanishes(self, name: str) -> None:
        """The watcher sees a node go."""
        self.record(f"node/{name}", payloads.NodeDeleted(self.fact(name).uid, name))

    def terminates(self, one: Pod) -> None:
        self.see(one, deletion_at=self.now // SECOND)

    def is_long_not_ready(self, *pods: Pod) -> None:
        """The nodes of pods have been not ready for longer than they may be."""
        for one in pods:
            self.becomes(self.state.pods[one.uid].node, ready=False)
        self.now += 31 * SECOND

    def fails(self, one: Pod) -> str:
        """A pod's node is not ready any more, and the pod terminates there; returns the node."""
        node = self.state.pods[one.uid].node
        self.becomes(node, ready=False)
        self.terminates(one)
        return node


def test_a_pod_on_a_node_that_is_not_ready_for_long_is_evicted_for_a_node_in_its_block() -> None:
    cluster = Cluster()
    node = cluster.state.pods[cluster.running("g", 3, asks("block"))[1].uid].node
    cluster.becomes(node, ready=False)
    assert not cluster.cycle(BY_TIME).evictions
    due = next_retry(cluster.state, BY_TIME, now=cluster.now)
    assert due is not None
    cluster.now = due
    assert not idle(cluster.state)
    (eviction,) = cluster.cycle(BY_TIME).evictions
    assert (eviction.name, eviction.reason, eviction.node, eviction.fits_on) == ("g-1", "NodeFailed", node, "n3")
    assert not cluster.cycle(BY_TIME).evictions, "it is decided once"


def test_the_room_of_a_pod_that_terminates_on_a_failed_node_is_kept_for_its_successor() -> None:
    cluster = Cluster()
    pods = cluster.running("g", 3, asks("block"))
    cluster.group("thief", 5, least=1)
    cluster.fails(pods[1])
    cluster.restart()
    result = cluster.cycle(PLACING)
    assert len(result.placements) == 4
    assert "n3" not in cluster.placed(result).values()
    cluster.delete_pod(cluster.state.pods[pods[1].uid].pod)
    cluster.pods_of("g", [7])
    assert cluster.placed(cluster.cycle()) == {"g-7": "n3"}


def test_three_failed_nodes_of_a_group_are_replaced_at_once() -> None:
    cluster = Cluster(32, per_rack=4, per_block=16)
    pods = cluster.running("g", 12, asks("block"))
    cluster.is_long_not_ready(*pods[:3])
    evictions = cluster.cycle(BY_TIME).evictions
    assert {one.name: one.reason for one in evictions} == {f"g-{n}": "NodeFailed" for n in range(3)}
    assert len({one.fits_on for one in evictions}) == 3
    assert {cluster.state.columns.rows[one.fits_on] // 16 for one in evictions} == {0}


def test_a_group_whose_nodes_have_all_failed_goes_to_another_rack_as_a_whole() -> None:
    cluster = Cluster()
    pods = cluster.running("g", 2, asks("rack"))
    cluster.is_long_not_ready(*pods)
    evictions = cluster.cycle(BY_TIME).evictions
    assert {one.name: (one.reason, one.fits_on) for one in evictions} == {
        "g-0": ("NodeFailed", "n2"),
        "g-1": ("NodeFailed", "n3"),
    }
    cluster.go(cluster.cycle(BY_TIME))
    for one in pods:
        cluster.delete_pod(cluster.state.pods[one.uid].pod)
    cluster.pods_of("g", range(2, 4))
    assert cluster.racks_of(cluster.cycle(BY_TIME)) == ["r1", "r1"]


@pytest.mark.parametrize("fail_fast", [True, False])
def test_a_group_without_another_node_in_its_block_ends_as_a_whole_only_where_it_fails_fast(fail_fast: bool) -> None:
    cluster = Cluster()
    cluster.fails(cluster.running("g", 4, asks("block"))[1])
    result = cluster.cycle(EngineConfig(replace_fail_fast=fail_fast))
    expected = {f"g-{n}": "NoReplacement" for n in (0, 2, 3)} if fail_fast else {}
    assert cluster.evicted(result) == expected


def test_a_group_that_waits_for_a_place_gets_the_one_that_becomes_free() -> None:
    cluster = Cluster()
    pods = cluster.running("g", 3, asks("block"))
    cluster.becomes("n3", unschedulable=True)
    cluster.is_long_not_ready(pods[0])
    patient = EngineConfig(replace_on_pod_termination=False, replace_fail_fast=False)
    assert not cluster.cycle(patient).evictions
    cluster.becomes("n3", unschedulable=False)
    (eviction,) = cluster.cycle(patient).evictions
    assert (eviction.name, eviction.fits_on) == ("g-0", "n3")


def test_a_group_with_both_nodes_gone_runs_on_until_others_come() -> None:
    """Kueue 0.20, TASReplaceMultipleFailedNodes: both failures queue for room; the group is not started anew."""
    cluster = Cluster(4, per_rack=4)
    nodes = {cluster.state.pods[one.uid].node for one in cluster.running("g", 2, asks("block"))}
    for other in ("n2", "n3"):
        cluster.becomes(other, unschedulable=True)
    for node in nodes:
        cluster.vanishes(node)
    patient = EngineConfig(replace_fail_fast=False)
    assert not cluster.cycle(patient).evictions
    for other in ("n2", "n3"):
        cluster.becomes(other, unschedulable=False)
    evictions = cluster.cycle(patient).evictions
    assert sorted((one.name, one.reason, one.fits_on) for one in evictions) == [
        ("g-0", "NodeFailed", "n2"),
        ("g-1", "NodeFailed", "n3"),
    ]


#: Kueue 0.20, tas_test.go and tas_job_replacement_test.go: the threshold, failed nodes, free ones, and what is evicted.
THRESHOLDS = [(1, 2, 4, "TooManyFailedNodes"), (2, 2, 0, ""), (2, 2, 4, "NodeFailed"), (2, 3, 4, "TooManyFailedNodes")]


@pytest.mark.parametrize(("most", "failed", "free", "reason"), THRESHOLDS)
def test_a_group_bears_as_many_failed_nodes_at_once_as_it_says(most: int, failed: int, free: int, reason: str) -> None:
    cluster = Cluster(8, per_rack=8, per_block=8)
    pods = cluster.running("g", 4, asks("block"), most_failed_nodes=most)
    for number in range(4 + free, 8):
        cluster.becomes(f"n{number}", unschedulable=True)
    for one in pods[:failed]:
        cluster.vanishes(cluster.state.pods[one.uid].node)
    gone = cluster.evicted(cluster.cycle(PLACING))
    whole = {f"g-{number}" for number in range(4 if reason == "TooManyFailedNodes" else failed)}
    assert gone == (dict.fromkeys(whole, reason) if reason else {})


def test_a_deleted_node_has_failed_at_once() -> None:
    cluster = Cluster()
    cluster.vanishes(cluster.state.pods[cluster.running("g", 3, asks("block"))[2].uid].node)
    assert cluster.evicted(cluster.cycle()) == {"g-2": "NodeFailed"}


def test_a_node_that_was_never_seen_has_not_failed() -> None:
    """A watcher that starts may see pods before their nodes."""
    cluster = Cluster()
    cluster.see(cluster.group("g", 3, asks("block"))[0], node_name="unseen", phase="Running")
    assert not cluster.cycle().evictions


def test_a_tainted_node_has_failed_once_all_pods_of_the_group_leave_it() -> None:
    cluster = Cluster()
    pods = cluster.running("g", 3, asks("block"))
    cluster.becomes(cluster.state.pods[pods[1].uid].node, taints=(Taint("broken", "NoExecute"),))
    cluster.group("thief", 5, least=1)
    assert not cluster.cycle(EngineConfig(actions=())).evictions
    cluster.terminates(pods[1])
    result = cluster.cycle(PLACING)
    assert len(result.placements) == 4
    assert "n3" not in cluster.placed(result).values()


def test_a_broken_slice_moves_as_a_whole_where_its_rack_has_no_other_node() -> None:
    cluster = Cluster(8, per_rack=2, per_block=8)
    cluster.fails(cluster.running("g", 4, asks("block", slices=(SliceLayer(2, "rack"),)), rank=INDEX)[1])
    (eviction,) = cluster.cycle().evictions
    assert (eviction.name, eviction.reason) == ("g-0", "NodeFailed")
    assert eviction.fits_on in ("n4", "n5", "n6", "n7")


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (RankSource("rank-label"), lambda n: {"labels": {"rank-label": str(n)}}),
        (RankSource("rank-note", 1), lambda n: {"annotations": {"rank-note": str(n + 1)}}),
        (RankSource("rank-note", order_only=True), lambda n: {"annotations": {"rank-note": str(10 * n + 5)}}),
        (None, lambda n: {"annotations": {RANK_ANNOTATION: str(n)}}),
        (None, lambda n: {}),
    ],
    ids=["label", "annotation", "order", "written-by-an-earlier-log", "nothing"],
)
@pytest.mark.parametrize("failed", [True, False])
def test_slices_of_a_group_that_ran_before_this_log_began_get_their_successors(
    source: RankSource | None, shown: Callable[[int], dict[str, Any]], failed: bool
) -> None:
    """Racks of three nodes; slice 0 is in the second one, slice 1 in the first, where one node is left."""
    cluster = Cluster(6, per_rack=3, per_block=6)
    cluster.group("g", topology=asks("block", slices=(SliceLayer(2, "rack"),)), rank=source, least=4)
    nodes = {0: "n3", 1: "n4", 2: "n0", 3: "n1"}
    pods = [cluster.pods_of("g", [n], node_name=node, phase="Running", **shown(n))[0] for n, node in nodes.items()]
    if failed:
        cluster.fails(pods[1])
        assert not cluster.cycle().evictions
    cluster.delete_pod(cluster.state.pods[pods[1].uid].pod)
    again = shown(1) if source else {}
    cluster.pods_of("g", [7], **again)
    (placed,) = cluster.cycle().placements
    assert (placed.name, placed.node) == ("g-7", "n5" if failed else "n4")
    assert placed.rank == 1 or not shown(1)


def test_a_broken_slice_of_a_group_that_ran_before_this_log_began_moves_as_a_whole() -> None:
    cluster = Cluster(8, per_rack=2, per_block=8)
    cluster.group("g", topology=asks("block", slices=(SliceLayer(2, "rack"),)), rank=INDEX, least=4)
    pods = [cluster.pods_of("g", [n], node_name=f"n{n}", phase="Running")[0] for n in range(4)]
    cluster.fails(pods[1])
    (eviction,) = cluster.cycle().evictions
    assert (eviction.name, eviction.reason) == ("g-0", "NodeFailed")


def test_a_pod_starts_in_another_rack_only_once_the_eviction_of_those_in_the_first_cannot_fail() -> None:
    cluster = Cluster()
    (old,) = cluster.running("g", 1, asks("rack"), least=1)
    cluster.running("other", 1)
    cluster.is_long_not_ready(old)
    assert cluster.evicted(cluster.cycle(BY_TIME)) == {"g-0": "NodeFailed"}
    cluster.pods_of("g", [1])
    assert not cluster.cycle(BY_TIME).placements
    cluster.terminates(old)
    assert cluster.racks_of(cluster.cycle(BY_TIME)) == ["r1"]


def test_a_broken_sub_group_moves_as_a_whole_where_its_rack_has_no_other_node() -> None:
    cluster = Cluster(8, per_rack=2, per_block=8)
    sets = (PodSet(topology=asks("block")), *(PodSet(name, min_pods=2, topology=asks("rack")) for name in ("a", "b")))
    cluster.group("g", sets=sets)
    pods = [*cluster.pods_of("g", range(2), subgroup="a"), *cluster.pods_of("g", range(2), subgroup="b")]
    cluster.full(pods)
    cluster.fails(pods[3])
    assert cluster.evicted(cluster.cycle()) == {"g-b-0": "NodeFailed"}


def test_nothing_is_replaced_where_most_nodes_are_not_ready() -> None:
    cluster = Cluster()
    cluster.running("g", 3, asks("block"))
    for number in range(5):
        cluster.becomes(f"n{number}", ready=False)
    cluster.now += 31 * SECOND
    assert not cluster.cycle(BY_TIME).evictions


def test_the_taint_of_nodes_that_are_not_ready_is_no_failure_of_its_own() -> None:
    """With more than half of the nodes cut off, what the node lifecycle controller taints and evicts is no reason."""
    cluster = Cluster()
    pods = cluster.running("g", 4, asks("block"))
    for number in range(5):
        cluster.becomes(f"n{number}", ready=False, taints=(Taint("node.kubernetes.io/not-ready", "NoExecute"),))
    cluster.terminates(pods[0])
    assert not cluster.cycle().evictions


def test_a_group_without_a_constraint_is_left_to_its_controller() -> None:
    cluster = Cluster()
    cluster.is_long_not_ready(cluster.running("g", 3)[0])
    assert not cluster.cycle(BY_TIME).evictions


#: The table of seed kueue-topology-aware-scheduling: switches, and what becomes of a group with and without a place.
@pytest.mark.parametrize("terminating", [True, False])
@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize(
    ("enabled", "on_termination", "fast"),
    [*((True, *others) for others in product([True, False], repeat=2)), (False, True, True), (False, False, True)],
)
def test_the_three_switches_decide_what_has_failed_and_what_follows(
    enabled: bool, on_termination: bool, fast: bool, fits: bool, terminating: bool
) -> None:
    cluster = Cluster(8, per_rack=2, gpu=8)
    pods = cluster.running("g", 6 if fits else 8, asks("block"))
    lost = [one for one in pods if cluster.state.pods[one.uid].node == "n0"]
    assert len(lost) == 2
    cluster.becomes("n0", ready=False)
    if terminating:
        cluster.terminates(lost[0])
    config = EngineConfig(
        actions=(),
        replace_failed_nodes=enabled,
        replace_on_pod_termination=on_termination,
        replace_fail_fast=fast,
    )

    def outcome() -> set[str]:
        return set(cluster.evicted(cluster.cycle(config)).values())

    expected = {"NodeFailed"} if fits else {"NoReplacement"} if fast else set()
    assert outcome() == (expected if enabled and on_termination and terminating else set())
    cluster.now += 31 * SECOND
    assert outcome() == (expected if enabled and not on_termination else set())
