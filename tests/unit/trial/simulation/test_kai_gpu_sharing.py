"""KAI-Scheduler's cases of fractions and GPU memory, restated as manifests.

From its tests of the actions allocate, preempt, reclaim and consolidation (`allocateFractionalGpu_test.go`,
`allocateGpuMemory_test.go` and their like). Work of its priority `build` cannot be preempted, `train` can.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
from kaicore.rules.engine.config import EngineConfig, PlacementStrategy

from tests.simulating import document_of, world_of

ON = EngineConfig(gpu_sharing=True)
SPREAD = EngineConfig(gpu_sharing=True, placement_strategy=PlacementStrategy.SPREAD)
BUILD, TRAIN = 100, 50


@dataclass(frozen=True)
class Work:
    """One pod: thousandths or MiB of so many GPUs, or whole GPUs; running on the GPU groups of a node, or waiting."""

    name: str
    ask: str
    on: str = ""
    groups: tuple[str, ...] = ()
    priority: int = BUILD
    queue: str = "q"

    @property
    def manifest(self) -> str:
        kind, _, amount = self.ask.partition(" ")
        amount, _, devices = amount.partition(" x ")
        annotations = {"fraction": f"gpu-fraction: '{amount}'", "memory": f"gpu-memory: '{amount}'"}.get(kind, "")
        annotations += f", gpu-fraction-num-devices: '{devices}'" if devices else ""
        limits = f"{{nvidia.com/gpu: {amount}}}" if kind == "gpus" else "{}"
        labels = f"kai.scheduler/queue: {self.queue}"
        labels += f", kai.scheduler/preemptibility: {'non-' if self.priority == BUILD else ''}preemptible"
        for group in self.groups:
            labels += f", runai-gpu-group{'' if len(self.groups) == 1 else f'/{group}'}: {group}"
        return f"""---
apiVersion: v1
kind: Pod
metadata:
  name: {self.name}
  labels: {{{labels}}}
  annotations: {{{annotations}}}
  ownerReferences: [{{apiVersion: apps/v1, kind: ReplicaSet, name: rs-{self.name}, uid: r1, controller: true}}]
spec:
  schedulerName: kai-ledger
  priority: {self.priority}
  {f"nodeName: {self.on}" if self.on else ""}
  containers: [{{name: main, resources: {{limits: {limits}}}}}]
status: {{phase: {"Running" if self.on else "Pending"}}}
"""


def nodes(*gpus: int, memory: int = 0) -> str:
    labels = f"labels: {{nvidia.com/gpu.memory: '{memory}'}}" if memory else ""
    return "".join(
        f"---\napiVersion: v1\nkind: Node\nmetadata:\n  name: node{number}\n  {labels}\n"
        f"status: {{allocatable: {{cpu: 64, memory: 256Gi, pods: 110, nvidia.com/gpu: {count}}}}}\n"
        for number, count in enumerate(gpus)
    )


def queue(quota: int, name: str = "q", *, parent: str = "", limit: int = -1) -> str:
    above = f"parentQueue: {parent}, " if parent else ""
    resources = f"{{gpu: {{quota: {quota}, limit: {limit}, overQuotaWeight: 1}}}}"
    return (
        f"---\napiVersion: scheduling.run.ai/v2\nkind: Queue\nmetadata: {{name: {name}, uid: u-{name}}}\n"
        f"spec: {{{above}resources: {resources}}}\n"
    )


def half(name: str, group: str, node: str = "node0", priority: int = BUILD, queue: str = "q") -> Work:
    return Work(name, "fraction 0.5", node, (group,), priority, queue)


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
]


@pytest.mark.parametrize("case", CASES, ids=[title for title, *_ in CASES])
def test_manifests_of_kais_cases_come_out_as_there(
    tmp_path: Path, case: tuple[str, str, list[Work], dict[str, str]]
) -> None:
    _, cluster, pods, expected = case
    assert outcome(cluster, pods, tmp_path) == expected


def test_shares_are_spread_to_the_gpu_with_the_most_left(tmp_path: Path) -> None:
    pods = [half("a", "g1"), Work("b", "fraction 0.7", "node0", ("g0",)), Work("c", "fraction 0.2")]
    expected = {"a": "node0 g1", "b": "node0 g0", "c": "node0 g1"}
    assert outcome(nodes(2) + queue(2), pods, tmp_path, SPREAD) == expected


def outcome(cluster: str, pods: list[Work], folder: Path, config: EngineConfig = ON) -> dict[str, str]:
    """Pods by name: node and GPUs, a reason's code, or why it was evicted, once its successor is looked past."""
    world = world_of(cluster + "".join(one.manifest for one in pods), folder, config)
    named = {group for one in pods for group in one.groups}
    words: dict[str, str] = {}
    new: dict[str, str] = {}
    documents = document_of(world, config)["pods"]
    for one in documents:
        if one["name"] not in {work.name for work in pods}:
            continue
        if one["phase"] == "Bound":
            parts = [part["group"] for part in one.get("gpus", ())]
            shown = [part if part in named else new.setdefault(part, f"new-{len(new)}") for part in parts]
            words[one["name"]] = " ".join([one["node"], *(["+".join(sorted(shown))] if shown else [])])
        else:
            words[one["name"]] = (
                one["reasons"][0]["code"].upper() if one["phase"] == "Evicted" else one["reasons"][0]["code"]
            )
    return words
