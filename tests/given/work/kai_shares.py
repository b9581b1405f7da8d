"""KAI-Scheduler's cases of shares and MIG, restated as manifests: a cluster, its work, and the outcome of a simulation.

Work of its priority `build` cannot be preempted, `train` can. A case's GPU groups are those of its running work; new
ones are called `new-0`, `new-1` and so on. A pod that was moved shows where its successor is.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kaicore.rules.engine.config import EngineConfig, PlacementStrategy

from tests.given.logs.simulating import document_of, world_of

ON = EngineConfig(gpu_sharing=True)
SPREAD = EngineConfig(gpu_sharing=True, placement_strategy=PlacementStrategy.SPREAD)
BUILD, TRAIN = 100, 50


@dataclass(frozen=True)
class Work:
    """One pod: a fraction or MiB of so many GPUs, whole GPUs, or MIG devices, also by the annotation of former times
    (`legacy`); it runs on GPU groups, or waits.
    """

    name: str
    ask: str
    on: str = ""
    groups: tuple[str, ...] = ()
    priority: int = BUILD
    queue: str = "q"
    leaving: bool = False
    memory: int = 0

    @property
    def manifest(self) -> str:
        kind, _, amount = self.ask.partition(" ")
        amount, _, devices = amount.partition(" x ")
        names = {"fraction": "gpu-fraction", "memory": "gpu-memory", "legacy": "nvidia.com/mig-1g.10gb"}
        annotations = f"{names[kind]}: '{amount}'" if kind in names else ""
        annotations += f", gpu-fraction-num-devices: '{devices}'" if devices else ""
        asked = {"nvidia.com/gpu" if kind == "gpus" else f"nvidia.com/{kind}": amount} if not annotations else {}
        limits = ", ".join(f"{name}: {amount}" for name, amount in {"memory": self.memory, **asked}.items())
        labels = f"kai.scheduler/queue: {self.queue}"
        labels += f", kai.scheduler/preemptibility: {'non-' if self.priority >= BUILD else ''}preemptible"
        for group in self.groups:
            labels += f", runai-gpu-group{'' if len(self.groups) == 1 else f'/{group}'}: {group}"
        return f"""---
apiVersion: v1
kind: Pod
metadata:
  name: {self.name}
  labels: {{{labels}}}
  annotations: {{{annotations}}}
  {'deletionTimestamp: "2026-01-01T00:00:00Z"' if self.leaving else ""}
  ownerReferences: [{{apiVersion: apps/v1, kind: ReplicaSet, name: rs-{self.name}, uid: r1, controller: true}}]
spec:
  schedulerName: kai-ledger
  priority: {self.priority}
  {f"nodeName: {self.on}" if self.on else ""}
  containers: [{{name: main, resources: {{limits: {{{limits}}}}}}}]
status: {{phase: {"Running" if self.on else "Pending"}}}
"""


def mig_node(devices: str, labels: str = "") -> str:
    """A node with MIG devices: `1g.10gb: 2`; of several profiles in flow style."""
    named = ", ".join(f"nvidia.com/mig-{one}" for one in devices.split(", "))
    return f"""---
apiVersion: v1
kind: Node
metadata: {{name: node0, labels: {{{labels}}}}}
status: {{allocatable: {{cpu: 64, memory: 256Gi, pods: 110, {named}}}}}
"""


def nodes(*gpus: int, memory: int = 0, ram: str = "256Gi") -> str:
    labels = f"labels: {{nvidia.com/gpu.memory: '{memory}'}}" if memory else ""
    return "".join(
        f"---\napiVersion: v1\nkind: Node\nmetadata:\n  name: node{number}\n  {labels}\n"
        f"status: {{allocatable: {{cpu: 64, memory: {ram}, pods: 110, nvidia.com/gpu: {count}}}}}\n"
        for number, count in enumerate(gpus)
    )


def queue(quota: float, name: str = "q", *, parent: str = "", limit: int = -1) -> str:
    above = f"parentQueue: {parent}, " if parent else ""
    others = ", ".join(f"{name}: {{quota: -1, limit: -1}}" for name in ("cpu", "memory"))
    resources = f"{{{others}, gpu: {{quota: {quota}, limit: {limit}, overQuotaWeight: 1}}}}"
    return (
        f"---\napiVersion: scheduling.run.ai/v2\nkind: Queue\nmetadata: {{name: {name}, uid: u-{name}}}\n"
        f"spec: {{{above}resources: {resources}}}\n"
    )


def half(name: str, group: str, node: str = "node0", priority: int = BUILD, queue: str = "q") -> Work:
    return Work(name, "fraction 0.5", node, (group,), priority, queue)


def outcome(
    cluster: str, pods: list[Work], folder: Path, config: EngineConfig = ON, *, cycles: int | None = None
) -> dict[str, str]:
    """Pods by name: node and GPUs; where a pod is kept room; a reason's code; or why it was evicted, and to where."""
    world = world_of(cluster + "".join(one.manifest for one in pods), folder, config)
    named = {group for one in pods for group in one.groups}
    new: dict[str, str] = {}

    def place(one: dict[str, Any]) -> str:
        parts = [part["group"] for part in one.get("gpus", ())]
        shown = [part if part in named else new.setdefault(part, f"new-{len(new)}") for part in parts]
        return " ".join([one["node"], *(["+".join(sorted(shown))] if shown else [])])

    words: dict[str, str] = {}
    evicted: dict[str, str] = {}
    for one in document_of(world, config, cycles=cycles)["pods"]:
        code = one["reasons"][0]["code"] if one["reasons"] else ""
        match one["phase"]:
            case "Bound":
                words[one["name"]] = place(one)
            case "Nominated":
                words[one["name"]] = f"kept {one['node']}"
            case "Evicted":
                evicted[one["name"]] = code.upper()
            case _:
                words[one["name"]] = code
    for name, code in evicted.items():
        # Its controller has made another of the same name.
        words[name] = f"{code} {words[name]}" if words.get(name, "").startswith("node") else code
    return words
