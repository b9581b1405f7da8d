"""The additions of the kubelet's state files to podresources, and the handling of wrong files."""

from pathlib import Path

import pytest
from kai_exporter.checkpoints import Checkpoints
from kai_exporter.holdings import ContainerHoldings, PodHoldings, ZoneHolding
from kai_exporter.node_pods import NodePods
from kaicore.errors import InvalidObject
from kaicore.kube.wire.kubelet_checkpoints import CPU_STATE, MEMORY_STATE
from kaicore.kube.wire.podresources import PodResources

from tests.given.cluster.podresources import GPU, answer, container, pod
from tests.given.cluster.state_files import Cpus, write_state_files

CPUS = {cpu: cpu // 4 for cpu in range(16)}
GIB = 2**30


class Node:
    """A node with state files; each poll is a second after the one before."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.checkpoints = Checkpoints(directory, subject="Node n1")
        self.pods = NodePods("n1", poll_s=1, drift_s=60)
        self.now = 100.0

    def poll(self, *listed: PodResources, files: bool = True) -> dict[str, PodHoldings]:
        """The report after a poll, all of which ingest takes."""
        self.now += 1
        self.pods.take(
            answer(*listed),
            now=self.now,
            observed_at=int(self.now * 1e6),
            numa_node_of_cpu=CPUS,
            allocations=self.checkpoints.read() if files else None,
        )
        sent = self.pods.outgoing(now=self.now)
        if sent is None:
            return {}
        self.pods.answered(sent, unknown=set(), refused=set(), now=self.now)
        return {one.name: one for one in sent.pods}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def kept(name: str, zone: str, **amount: int) -> ContainerHoldings:
    return ContainerHoldings(name, (ZoneHolding(zone, amount),) if amount else ())


def test_init_containers_are_reported_with_what_no_container_took_over(node: Node) -> None:
    write_state_files(
        node.directory,
        {"uid-a": {"first": "4-7", "second": "4-5", "main": "4"}, "uid-gone": {"main": "8"}},
        gpus={("uid-a", "first"): {1: ["g1", "g2"]}, ("uid-a", "main"): {1: ["g1"]}},
    )
    shown = node.poll(pod("a", container("main", cpus=[4], gpus={"g1": [1]})))["a"]
    assert (shown.uid, shown.checked) == ("uid-a", True)
    assert shown.init_containers == (
        ContainerHoldings("first", (ZoneHolding("node-1", {"cpu": 3000, GPU: 1}),)),
        kept("second", "node-1"),
    )


def test_a_pod_without_init_containers_is_known_to_have_none(node: Node) -> None:
    write_state_files(node.directory, {"uid-a": {"main": "4"}})
    assert node.poll(pod("a", cpus=[4]))["a"].init_containers == ()


def test_nothing_is_added_without_files(node: Node) -> None:
    shown = node.poll(pod("a", cpus=[4]))["a"]
    assert (shown.uid, shown.init_containers, shown.checked) == ("", None, False)


def test_a_pod_made_anew_under_its_name_with_the_same_cpus_has_another_uid(node: Node) -> None:
    write_state_files(node.directory, {"uid-1": {"main": "4"}})
    assert node.poll(pod("a", cpus=[4]))["a"].uid == "uid-1"
    write_state_files(node.directory, {"uid-2": {"main": "4"}})
    assert node.poll(pod("a", cpus=[4]))["a"].uid == "uid-2"


def test_a_pod_with_nothing_but_memory_is_told_apart_if_one_only_is_like_it(node: Node) -> None:
    blocks = {"main": [("memory", GIB, (0,))]}
    lone = {"main": [("memory", 2 * GIB, (0,))]}
    write_state_files(node.directory, {}, memory={"uid-a": blocks, "uid-b": blocks, "uid-c": lone}, static_memory=True)
    one = container(memory=[("memory", GIB, (0,))])
    shown = node.poll(pod("a", one), pod("b", one), pod("c", memory=[("memory", 2 * GIB, (0,))]))
    assert {name: item.uid for name, item in shown.items()} == {"a": "", "b": "", "c": "uid-c"}


def test_a_pod_is_told_at_the_second_look_where_the_files_say_otherwise(node: Node) -> None:
    write_state_files(node.directory, {"uid-a": {"main": "4-5"}})
    assert node.poll(pod("a", cpus=[4])) == {}
    assert node.poll(pod("a", cpus=[4]))["a"].uid == ""
    assert node.poll(pod("a", cpus=[4, 5]))["a"].uid == "uid-a"


def test_an_admission_that_has_not_come_to_the_memory_is_not_checked(node: Node) -> None:
    write_state_files(node.directory, {"uid-a": {"main": "4"}}, static_memory=True)
    assert not node.poll(pod("a", cpus=[4]))["a"].checked
    blocks = {"uid-a": {"main": [("memory", GIB, (1,))]}}
    write_state_files(node.directory, {"uid-a": {"main": "4"}}, memory=blocks, static_memory=True)
    assert node.poll(pod("a", cpus=[4], memory=[("memory", GIB, (1,))]))["a"].checked


def test_what_the_files_told_stays_while_they_cannot_be_read(node: Node) -> None:
    write_state_files(node.directory, {"uid-a": {"setup": "4-5", "main": "4"}})
    assert node.poll(pod("a", cpus=[4]))["a"].init_containers == (kept("setup", "node-1", cpu=1000),)
    assert node.poll(pod("a", cpus=[4]), files=False) == {}


V1 = b'{"policyName":"static","defaultCpuSet":"0","entries":{"container1":"4-6"},"checksum":0}'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (CPU_STATE, b'{"policyName":"static","defa', "Input data was truncated"),
        (CPU_STATE, V1, "$.entries"),
        (CPU_STATE, b'{"policyName":"static","defaultCpuSet":"0","checksum":17}', "checksum: does not fit"),
        (CPU_STATE, b'{"policyName":"static","defaultCpuSet":"0","entries":{"u":{"m":"4-x"}},"checksum":0}', "4-x"),
        (MEMORY_STATE, b"[]", "Expected `object`"),
    ],
)
def test_a_file_that_is_not_right_is_named_with_field_and_value(
    node: Node, name: str, content: bytes, message: str
) -> None:
    cpus: Cpus = {"uid-a": {"main": "4"}}
    write_state_files(node.directory, cpus)
    (node.directory / name).write_bytes(content)
    for _ in range(2):
        with pytest.raises(InvalidObject) as problem:
            node.checkpoints.read()
        assert str(problem.value).startswith(f"Node n1: {node.directory / name}: ")
        assert message in str(problem.value)
    write_state_files(node.directory, cpus)
    assert node.checkpoints.read() is not None


def test_without_a_file_of_the_cpu_manager_nothing_is_known(node: Node) -> None:
    write_state_files(node.directory, {})
    (node.directory / CPU_STATE).unlink()
    assert node.checkpoints.read() is None
