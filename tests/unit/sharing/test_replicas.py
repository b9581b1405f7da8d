"""Changes of the list of a shard's replicas, and the worth of an outdated list."""

import numpy as np
import pytest
from kaicore.rules.deciding.share import Share
from kaicore.rules.events.payloads import QueueObserved
from kaicore.rules.model.replicas import due_replicas, owner, replica_shard, split_shard, turns

from tests.given.cluster.factory import pod
from tests.given.cluster.hierarchy import queue
from tests.given.processes.replicas import Replicas
from tests.given.work.workloads import Workloads

NAMES = ("a", "b", "c")


def _queue_observed(name: str = "q", parent: str = "", **share: int | None) -> QueueObserved:
    return QueueObserved(queue(name, parent, **share))


@pytest.mark.parametrize(
    ("listed", "live", "replica", "unlike_s", "due"),
    [
        ("ab", "ab", "a", 9, None),
        ("", "a", "a", 0, "a"),
        ("ab", "abc", "c", 0, "abc"),
        ("ab", "abc", "a", 9, None),
        ("abc", "bc", "b", 0, "bc"),
        ("abc", "bc", "c", 0, None),
        ("abc", "bc", "c", 1, "bc"),
        ("ab", "bc", "c", 0, "abc"),
        ("a", "b", "b", 0, "ab"),
    ],
)
def test_a_replica_lists_itself_at_once_and_takes_others_off_in_turn(
    listed: str, live: str, replica: str, unlike_s: float, due: str | None
) -> None:
    found = due_replicas(tuple(listed), tuple(live), replica=replica, unlike_s=unlike_s)
    assert found == (None if due is None else tuple(due))


def test_who_sees_nobody_leaves_the_list_as_it_is() -> None:
    assert due_replicas(("a", "b"), ("b",), replica="b", fresh=False, unlike_s=99) is None
    assert due_replicas(("a",), ("b",), replica="b", fresh=False, unlike_s=99) is None
    assert due_replicas((), ("b",), replica="b", fresh=False, unlike_s=0) == ("b",)


def test_a_replicas_name_goes_with_its_shards() -> None:
    assert [split_shard(replica_shard("gpu", replica)) for replica in ("", "r-0")] == [("gpu", ""), ("gpu", "r-0")]


def test_no_two_replicas_have_the_same_turn_at_a_node() -> None:
    nodes = [f"node-{number}" for number in range(300)]
    by_replica = np.array([turns(nodes, NAMES, name) for name in NAMES])
    assert (np.sort(by_replica, axis=0) == np.arange(3)[:, None]).all()
    assert [NAMES[first] for first in by_replica.argmin(axis=0)] == [owner(node, NAMES) for node in nodes]


def test_what_a_replica_decided_by_an_older_list_is_refused_as_a_whole() -> None:
    """Else both would start a group each in a queue that may have one."""
    cluster = Workloads().add_node("n0", cpu=8, memory=8, gpu=4)
    cluster.record("queue/q", _queue_observed(limit=1))
    replicas = Replicas(cluster)
    for name in ("p", "q"):
        cluster.add_pod(pod(name, cpu=1, gpu=1, labels={"kai.scheduler/queue": "q"}))
    first, second = "a", "b"
    replicas.list([first])
    assert replicas.begin(first)
    replicas.list([second])
    assert replicas.cycle(second) == 1
    assert replicas.end(first) == 0
    assert replicas.tally.refused == 1


def test_groups_that_charge_one_account_have_one_owner() -> None:
    cluster = Workloads()
    for one in (_queue_observed("top", limit=9), _queue_observed("left", "top"), _queue_observed("right", "top")):
        cluster.record(f"queue/{one.queue.name}", one)
    cluster.record("queue/open", _queue_observed("open", quota=None))
    for number in range(40):
        name = ("left", "right", "open")[number % 3]
        cluster.add_pod(pod(f"p{number}", cpu=1, gpu=1, labels={"kai.scheduler/queue": name}))
    Replicas(cluster).list(NAMES)
    share = Share(cluster.state, "default/a")
    by_queue: dict[str, set[str]] = {}
    for key, workload in cluster.state.workload_index.workloads.items():
        by_queue.setdefault(workload.group.queue, set()).add(share.owner(key))
    assert by_queue["left"] == by_queue["right"]
    assert len(by_queue["left"]) == 1
    assert by_queue["open"] == set(NAMES)


@pytest.mark.parametrize("spread", [True, False])
def test_groups_that_are_spread_among_like_work_have_one_owner_in_a_namespace(spread: bool) -> None:
    cluster = Workloads()
    said = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    if spread:
        rules = '{"rules": [{"topologyKey": "rack", "maxShareAllowingPlacement": "0.5"}]}'
        said["kueue.x-k8s.io/podset-topology-spreading"] = rules
    for number in range(20):
        cluster.add_pod(pod(f"p{number}", cpu=1, annotations=said))
    Replicas(cluster).list(NAMES)
    share = Share(cluster.state, "default/a")
    owners = {share.owner(key) for key in cluster.state.workload_index.workloads}
    assert len(owners) == (1 if spread else len(NAMES))


def _shared_by_two() -> tuple[Replicas, dict[str, str], dict[str, int]]:
    """Ten nodes for a pod each; replicas a and b; who has which node first, and how many nodes each."""
    cluster = Workloads()
    names = [f"n{number}" for number in range(10)]
    for name in names:
        cluster.add_node(name, cpu=1)
    replicas = Replicas(cluster)
    replicas.list(("a", "b"))
    first = {name: owner(name, ("a", "b")) for name in names}
    return replicas, first, {name: list(first.values()).count(name) for name in ("a", "b")}


def _add_pods_of(replica: str, replicas: Replicas, count: int) -> None:
    cluster, number = replicas.ledger, len(replicas.ledger.events)
    assert isinstance(cluster, Workloads)
    while count:
        number += 1
        one = pod(f"p{number}", cpu=1)
        cluster.add_pod(one)
        group = cluster.state.pods[one.uid].group
        if Share(cluster.state, "default/a").owner(group) == replica:
            count -= 1
        else:
            cluster.delete_pod(one)


def test_a_replica_takes_others_nodes_once_they_have_left_room_there() -> None:
    replicas, first, nodes = _shared_by_two()
    _add_pods_of("a", replicas, 1)
    _add_pods_of("b", replicas, nodes["b"] + 1)
    assert replicas.cycle("b") == nodes["b"]
    assert replicas.cycle("b") == 0, "a has not decided yet"
    assert replicas.begin("a")
    waiting = replicas.begun["a"].result.placements
    assert [first[one.node] for one in waiting] == ["a"]
    assert replicas.end("a") == 1
    assert replicas.cycle("b") == 1
    assert replicas.tally.conflicts == 0


def test_a_replica_takes_the_nodes_of_one_that_has_nothing_to_decide_at_once() -> None:
    replicas, _, nodes = _shared_by_two()
    _add_pods_of("b", replicas, nodes["b"] + 1)
    assert replicas.cycle("b") == nodes["b"] + 1


def test_room_that_becomes_free_is_first_for_whose_node_it_is() -> None:
    replicas, first, nodes = _shared_by_two()
    cluster = replicas.ledger
    assert isinstance(cluster, Workloads)
    _add_pods_of("a", replicas, nodes["a"] + 1)
    _add_pods_of("b", replicas, nodes["b"] + 1)
    for name in ("a", "b", "a", "b"):
        replicas.cycle(name)
    gone = next(entry.pod for entry in cluster.state.pods.values() if first.get(entry.node) == "a")
    cluster.delete_pod(gone)
    assert replicas.cycle("b") == 0
    assert replicas.cycle("a") == 1
    assert replicas.tally.conflicts == 0


def test_replicas_seldom_meet_where_more_waits_than_there_is_room_for() -> None:
    cluster = Workloads().add_nodes(40, cpu=8)
    for number in range(600):
        cluster.add_pod(pod(f"p{number}", cpu=1))
    replicas = Replicas(cluster)
    names = ("a", "b", "c", "d")
    replicas.list(names)
    replicas.run(names, until_s=60.0)
    assert replicas.tally.placed == 320
    assert replicas.tally.conflict_rate < 0.05
