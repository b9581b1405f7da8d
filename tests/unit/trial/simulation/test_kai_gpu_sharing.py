"""KAI-Scheduler's cases of fractions and GPU memory where nothing is evicted.

From its tests of the action allocate (`allocateFractionalGpu_test.go`, `allocateGpuMemory_test.go`), and some more.
"""

from pathlib import Path

import pytest

from tests.given.work.kai_shares import SPREAD, TRAIN, Work, half, nodes, outcome, queue

#: Title; cluster; pods; by pod the node and its GPUs (of the input by their groups), or for what it waits.
CASES: list[tuple[str, str, list[Work], dict[str, str]]] = [
    (
        "a share goes to the GPU that is shared already",
        nodes(2) + queue(2),
        [half("a", "g1"), Work("b", "fraction 0.5")],
        {"a": "node0 g1", "b": "node0 g1"},
    ),
    (
        "a share goes to the node with a shared GPU, not to the first by name",
        nodes(2, 2) + queue(2),
        [half("a", "g1", "node1"), Work("b", "fraction 0.5")],
        {"a": "node1 g1", "b": "node1 g1"},
    ),
    (
        "a share that does not fit on the shared GPU gets a new one",
        nodes(2) + queue(2),
        [Work("a", "fraction 0.6", "node0", ("g0",)), Work("b", "fraction 0.5")],
        {"a": "node0 g0", "b": "node0 new-0"},
    ),
    (
        "non-preemptible shares stay within the quota",
        nodes(2) + queue(1),
        [Work("a", "fraction 0.6", "node0", ("g0",)), Work("b", "fraction 0.5")],
        {"a": "node0 g0", "b": "NonPreemptibleOverQuota"},
    ),
    (
        "a share beside a whole GPU",
        nodes(2) + queue(2),
        [Work("a", "gpus 1", "node0", (), TRAIN), Work("b", "fraction 0.5")],
        {"a": "node0", "b": "node0 new-0"},
    ),
    (
        "a whole GPU beside a share",
        nodes(2) + queue(2),
        [half("a", "g1"), Work("b", "gpus 1", priority=TRAIN)],
        {"a": "node0 g1", "b": "node0"},
    ),
    (
        "three of four shares fit",
        nodes(2) + queue(2),
        [
            half("a", "g0"),
            Work("p0", "fraction 0.6"),
            Work("p1", "fraction 0.5"),
            Work("p2", "fraction 0.5"),
            Work("p3", "fraction 0.3"),
        ],
        {"a": "node0 g0", "p0": "node0 new-0", "p1": "node0 g0", "p2": "NonPreemptibleOverQuota", "p3": "node0 new-0"},
    ),
    (
        "preemptible shares go over quota",
        nodes(2) + queue(1),
        [half("a", "g0"), half("b", "g0"), Work("c", "fraction 0.5", priority=TRAIN)],
        {"a": "node0 g0", "b": "node0 g0", "c": "node0 new-0"},
    ),
    (
        "a preemptible share goes over quota beside a whole GPU",
        nodes(2) + queue(1),
        [Work("a", "gpus 1", "node0"), Work("c", "fraction 0.5", priority=TRAIN)],
        {"a": "node0", "c": "node0 new-0"},
    ),
    (
        "shares are packed on the node that is in use",
        nodes(2, 2) + queue(4),
        [half("a", "g0"), Work("b", "fraction 0.2")],
        {"a": "node0 g0", "b": "node0 g0"},
    ),
    (
        "shares are packed on the GPU with the least left",
        nodes(2) + queue(2),
        [half("a", "g1"), Work("b", "fraction 0.7", "node0", ("g0",)), Work("c", "fraction 0.2")],
        {"a": "node0 g1", "b": "node0 g0", "c": "node0 g0"},
    ),
    (
        "parts of two GPUs",
        nodes(4) + queue(4),
        [half("a", "g0"), Work("b", "fraction 0.5 x 2")],
        {"a": "node0 g0", "b": "node0 g0+new-0"},
    ),
    (
        "GPU memory fills one GPU before the next",
        nodes(2, memory=100) + queue(2),
        [Work("a", "memory 40"), Work("b", "memory 40"), Work("c", "memory 40")],
        {"a": "node0 new-0", "b": "node0 new-0", "c": "node0 new-1"},
    ),
    (
        "GPU memory on several GPUs",
        nodes(2, memory=100) + queue(2),
        [Work("a", "memory 50 x 2"), Work("b", "memory 25")],
        {"a": "node0 new-0+new-1", "b": "node0 new-0"},
    ),
    (
        "more GPU memory than a GPU has",
        nodes(2, memory=100) + queue(2),
        [Work("a", "memory 101")],
        {"a": "NoGpuToShare"},
    ),
    (
        "a limit counts parts",
        nodes(4) + queue(1, limit=1),
        [Work(name, "fraction 0.5", priority=TRAIN) for name in ("a", "b", "c")],
        {"a": "node0 new-0", "b": "node0 new-0", "c": "OverLimit"},
    ),
    (
        "a limit of the department counts parts",
        nodes(4) + queue(1, "d", limit=1) + queue(1, parent="d"),
        [Work(name, "fraction 0.5", priority=TRAIN) for name in ("a", "b", "c")],
        {"a": "node0 new-0", "b": "node0 new-0", "c": "OverLimit"},
    ),
    (
        "a non-preemptible share preempts a part of its queue",
        nodes(1) + queue(1),
        [half("a", "g0", priority=TRAIN), half("b", "g0"), Work("c", "fraction 0.5")],
        {"a": "PREEMPTED", "b": "node0 g0", "c": "node0 g0"},
    ),
    (
        "a whole GPU is reclaimed from parts",
        nodes(1) + queue(0, "p") + queue(1),
        [
            half("a", "g0", priority=TRAIN, queue="p"),
            half("b", "g0", priority=TRAIN, queue="p"),
            Work("c", "gpus 1", priority=TRAIN),
        ],
        {"a": "RECLAIMED", "b": "RECLAIMED", "c": "node0"},
    ),
    (
        "a whole GPU that may not be preempted beside a share",
        nodes(2) + queue(2),
        [half("a", "g1"), Work("b", "gpus 1")],
        {"a": "node0 g1", "b": "node0"},
    ),
    (
        "non-preemptible GPU memory stays within the quota",
        nodes(2, memory=100) + queue(1),
        [Work(name, "memory 40") for name in ("a", "b", "c")],
        {"a": "node0 new-0", "b": "node0 new-0", "c": "NonPreemptibleOverQuota"},
    ),
    (
        "preemptible GPU memory stays within the limit",
        nodes(2, memory=100) + queue(1, limit=1),
        [Work(name, "memory 40", priority=TRAIN) for name in ("a", "b", "c")],
        {"a": "node0 new-0", "b": "node0 new-0", "c": "OverLimit"},
    ),
    (
        "GPU memory on an empty cluster",
        nodes(1, memory=100) + queue(1),
        [Work("a", "memory 50")],
        {"a": "node0 new-0"},
    ),
    (
        "a share goes to the node with a shared GPU, its queue with room for more",
        nodes(2, 2) + queue(3),
        [half("a", "g1", "node1"), Work("b", "fraction 0.5")],
        {"a": "node1 g1", "b": "node1 g1"},
    ),
    (
        "no share of MIG devices that stand for GPUs",
        nodes(2)
        .replace("labels: {}", "")
        .replace("name: node0\n", "name: node0\n  labels: {nvidia.com/gpu.product: A100-MIG-1g.5gb}\n")
        + queue(1),
        [Work("a", "fraction 0.1", priority=TRAIN)],
        {"a": "NoGpuToShare"},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[title for title, *_ in CASES])
def test_manifests_of_kais_cases_come_out_as_there(
    tmp_path: Path, case: tuple[str, str, list[Work], dict[str, str]]
) -> None:
    _, cluster, pods, expected = case
    assert outcome(cluster, pods, tmp_path) == expected


@pytest.mark.parametrize("gpus", [2, 8], ids=["no other", "beside free ones"])
def test_shares_are_spread_to_the_gpu_with_the_most_left(tmp_path: Path, gpus: int) -> None:
    pods = [half("a", "g1"), Work("b", "fraction 0.7", "node0", ("g0",)), Work("c", "fraction 0.2")]
    expected = {"a": "node0 g1", "b": "node0 g0", "c": "node0 g1"}
    assert outcome(nodes(gpus) + queue(gpus), pods, tmp_path, SPREAD) == expected


def test_a_gpu_that_is_open_comes_before_an_empty_node_also_where_pods_are_spread(tmp_path: Path) -> None:
    """Deviates: KAI opens a GPU of the other node there, and holds two GPUs for what one has room for."""
    pods = [half("a", "g0"), Work("b", "fraction 0.2")]
    assert outcome(nodes(2, 2) + queue(2), pods, tmp_path, SPREAD) == {"a": "node0 g0", "b": "node0 g0"}


def test_a_whole_gpu_beside_mig_devices_is_given(tmp_path: Path) -> None:
    """Deviates: KAI gives no whole GPUs of nodes with MIG devices of several profiles; the kubelet does."""
    node = nodes(1).replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 1, nvidia.com/mig-1g.10gb: 2")
    assert outcome(node + queue(1), [Work("a", "gpus 1")], tmp_path) == {"a": "node0"}
