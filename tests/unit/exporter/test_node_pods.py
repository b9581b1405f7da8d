"""The reports to ingest, and their times."""

import itertools
import random
from collections.abc import Mapping

import msgspec
import pytest
from kai_exporter.node_pods import NodePods, Outgoing
from kaicore.errors import InvalidObject
from kaicore.kube.wire.podresources import PodResources

from tests.given.cluster.podresources import answer, container, pod, shuffled

CPUS = {cpu: cpu // 4 for cpu in range(8)}


class Node:
    """A node's pods with a clock; each poll is a second after the one before."""

    def __init__(self) -> None:
        self.pods = NodePods("n1", poll_s=1, drift_s=60)
        self.now = 100.0

    def poll(self, *listed: PodResources, cpus: Mapping[int, int] = CPUS) -> list[InvalidObject]:
        self.now += 1
        return self.pods.take(answer(*listed), now=self.now, observed_at=int(self.now * 1e6), numa_node_of_cpu=cpus)

    def outgoing(self) -> Outgoing | None:
        return self.pods.outgoing(now=self.now)

    def due(self) -> Outgoing:
        """What is to be sent now."""
        sent = self.outgoing()
        assert sent is not None
        return sent

    def shown(self) -> list[str]:
        """Names of the pods that are due, all of which ingest takes."""
        sent = self.outgoing()
        if sent is None:
            return []
        self.pods.answered(sent, unknown=set(), refused=set(), now=self.now)
        return [one.name for one in sent.pods]


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def settled() -> Node:
    """A node with pods a and b that were reported."""
    node = Node()
    node.poll(pod("a", cpus=[0]), pod("b", cpus=[1]))
    assert node.shown() == ["a", "b"]
    return node


def test_nothing_is_said_before_the_kubelet_has_answered(node: Node) -> None:
    assert node.outgoing() is None


def test_the_first_report_is_full_also_without_pods(node: Node) -> None:
    node.poll()
    sent = node.due()
    assert (sent.full, sent.pods, sent.sequence, sent.observed_at) == (True, (), 1, 101_000_000)
    node.pods.answered(sent, unknown=set(), refused=set(), now=node.now)
    assert node.outgoing() is None


def test_what_has_not_changed_is_not_said_again(settled: Node) -> None:
    settled.poll(pod("a", cpus=[0]), pod("b", cpus=[1]))
    assert settled.shown() == []


def test_only_what_changed_is_said_and_how_long_it_waited(settled: Node) -> None:
    settled.poll(pod("a", cpus=[0]), pod("b", cpus=[1, 2]), pod("c", cpus=[3]))
    sent = settled.due()
    assert not sent.full
    assert [one.name for one in sent.pods] == ["b", "c"]
    assert settled.pods.answered(sent, unknown=set(), refused=set(), now=settled.now + 3) == [3, 3]


def test_other_cpus_of_the_same_zone_are_a_change(settled: Node) -> None:
    """A pod that was made anew under its name has other CPUs more often than other amounts."""
    settled.poll(pod("a", cpus=[2]), pod("b", cpus=[1]))
    assert settled.shown() == ["a"]


def test_order_is_no_change(node: Node) -> None:
    full = pod(
        "a", cpus=range(8), gpus={"x": [0], "y": [1], "z": [0, 1]}, memory=[("memory", 5, (0,)), ("memory", 6, (1,))]
    )
    node.poll(full, pod("b", cpus=[1]))
    assert node.shown() == ["a", "b"]
    for seed in range(20):
        node.poll(pod("b", cpus=[1]), shuffled(full, random.Random(seed)))
        assert node.shown() == []


def test_a_pod_that_was_gone_is_said_again(settled: Node) -> None:
    settled.poll(pod("b", cpus=[1]))
    assert settled.shown() == []
    settled.poll(pod("a", cpus=[0]), pod("b", cpus=[1]))
    assert settled.shown() == ["a"]


def test_what_was_not_answered_stays_due(settled: Node) -> None:
    settled.poll(pod("a", cpus=[0]), pod("b", cpus=[2]))
    first = settled.due()
    settled.poll(pod("a", cpus=[0]), pod("b", cpus=[2]))
    second = settled.due()
    assert (first.pods, first.versions) == (second.pods, second.versions)
    assert (second.sequence, second.observed_at) == (first.sequence + 1, first.observed_at + 1_000_000)


def test_an_answer_to_what_has_changed_since_is_no_answer(settled: Node) -> None:
    settled.poll(pod("a", cpus=[0]), pod("b", cpus=[2]))
    sent = settled.due()
    settled.poll(pod("a", cpus=[0]), pod("b", cpus=[3]))
    assert settled.pods.answered(sent, unknown=set(), refused=set(), now=settled.now) == []
    assert settled.shown() == ["b"]


def test_an_unknown_pod_is_said_again_less_and_less_often(settled: Node) -> None:
    listed = (pod("a", cpus=[0]), pod("b", cpus=[1]), pod("c", cpus=[2]))
    said_at = []
    for _ in range(124):
        settled.poll(*listed)
        if sent := settled.outgoing():
            assert [one.name for one in sent.pods] == ["c"]
            said_at.append(settled.now)
            settled.pods.answered(sent, unknown={("default", "c")}, refused=set(), now=settled.now)
    waits = [int(after - before) for before, after in itertools.pairwise(said_at)]
    assert waits == [1, 2, 4, 8, 16, 32, 60]


def test_a_refused_pod_waits_for_a_change(settled: Node) -> None:
    settled.poll(pod("a", cpus=[0]), pod("b", cpus=[2]))
    sent = settled.due()
    assert settled.pods.answered(sent, unknown=set(), refused={("default", "b")}, now=settled.now) == []
    assert settled.shown() == []
    settled.poll(pod("a", cpus=[0]), pod("b", cpus=[3]))
    assert settled.shown() == ["b"]


def test_everything_is_said_when_wanted(settled: Node) -> None:
    settled.pods.report_everything()
    sent = settled.due()
    assert sent.full
    assert [one.name for one in sent.pods] == ["a", "b"]
    assert settled.pods.answered(sent, unknown=set(), refused=set(), now=settled.now) == [], "no lag of what is old"
    assert settled.outgoing() is None


def test_a_wish_for_everything_outlives_an_answer_to_less(settled: Node) -> None:
    settled.poll(pod("a", cpus=[0]), pod("b", cpus=[2]))
    sent = settled.due()
    settled.pods.report_everything()
    settled.pods.answered(sent, unknown=set(), refused=set(), now=settled.now)
    assert settled.shown() == ["a", "b"]


def test_a_report_that_was_not_taken_is_tried_later(settled: Node) -> None:
    settled.poll(pod("a", cpus=[0]), pod("b", cpus=[2]))
    waits = []
    for _ in range(3):
        assert settled.outgoing() is not None
        settled.pods.not_taken(now=settled.now)
        before = settled.now
        while settled.outgoing() is None:
            settled.now += 1
        waits.append(settled.now - before)
    assert waits == [1, 2, 4]
    assert settled.shown() == ["a", "b"]


def test_holding_nothing_is_believed_at_the_second_look(settled: Node) -> None:
    """Between admission and allocation a kubelet lists a pod without what it is about to get."""
    both = (pod("a", cpus=[0]), pod("b", cpus=[1]))
    settled.poll(*both, pod("c"))
    assert settled.shown() == []
    settled.poll(*both, pod("c"))
    assert settled.shown() == ["c"]
    settled.poll(*both, pod("c", cpus=[2]))
    assert settled.shown() == ["c"]
    settled.poll(*both, pod("c"))
    settled.poll(*both, pod("c", cpus=[2]))
    assert settled.shown() == ["c"], "what it holds was not doubted, but it may be another pod of the name"


def test_cpus_unknown_to_sysfs_keep_only_their_pod_back(settled: Node) -> None:
    listed = (pod("a", cpus=[0]), pod("b", container("x", cpus=[3]), container("y", cpus=[8, 9])), pod("c", cpus=[2]))
    problems = settled.poll(*listed)
    assert [str(problem) for problem in problems] == [
        "Node n1: Pod default/b: containers[y].cpu_ids: sysfs lists these CPUs on no NUMA node, so the pod is not "
        "reported: [8, 9]"
    ]
    assert settled.shown() == ["c"]
    assert (settled.pods.known, settled.pods.withheld) == (3, 1)
    assert settled.poll(*listed) == [], "once is enough"
    assert settled.poll(*listed, cpus={**CPUS, 8: 2, 9: 2}) == []
    assert settled.shown() == ["b"]
    assert settled.pods.withheld == 0


def test_two_pods_of_one_name_are_none(settled: Node) -> None:
    """A pod that was deleted by force and its successor can be on a node at once."""
    problems = settled.poll(pod("a", cpus=[0]), pod("b", cpus=[1]), pod("a", cpus=[2]))
    assert [str(problem) for problem in problems] == [
        "Node n1: pod_resources: two pods of that name are listed: 'default/a'"
    ]
    assert settled.shown() == []
    assert settled.poll(pod("a", cpus=[0]), pod("b", cpus=[1]), pod("a", cpus=[2])) == []
    assert settled.poll(pod("a", cpus=[0]), pod("b", cpus=[1]), pod("a", cpus=[0])) == []
    assert settled.poll(pod("a", cpus=[2]), pod("b", cpus=[1])) == []
    assert settled.shown() == ["a"]


@pytest.mark.parametrize("garbage", [b"\xff" * 10, b"\x0a\x7fshort", b"\x0a\x03\xff\xff\xff"])
def test_garbage_changes_nothing(settled: Node, garbage: bytes) -> None:
    with pytest.raises(InvalidObject, match=r"Node n1: podresources List: .*cannot be decoded"):
        settled.pods.take(garbage, now=0, observed_at=0, numa_node_of_cpu=CPUS)
    settled.poll(pod("a", cpus=[0]), pod("b", cpus=[1]))
    assert settled.shown() == []


@pytest.mark.parametrize("misread", [False, True])
def test_what_is_read_anew_says_whether_ingest_was_given_the_same(settled: Node, misread: bool) -> None:
    if misread:
        # The memory of `a` is spoilt, and ingest has that.
        listed = settled.pods._pods["default", "a"]
        listed.holdings = msgspec.structs.replace(listed.holdings, containers=())
    settled.pods.report_everything()
    settled.poll(pod("a", cpus=[0]), pod("b", cpus=[2]))
    sent = settled.due()
    assert {one.name: (one.again, bool(one.containers)) for one in sent.pods} == {"a": (True, True), "b": (False, True)}
