"""KAI-Scheduler's cases of shares and MIG, restated as manifests: a cluster, its work, and the outcome of a simulation.

A table has a line of each case, with its title, its nodes and its queues, and below one of each pod with its outcome:

    GPU memory on two nodes | gpus 2+1 memory 100, q 1 limit 2, p 0.5
        a fraction 0.5 x2 node0 g0 g1 -> node0 g0+g1
        b memory 60 p build -> NoPartOfGpu

Pods ask for a fraction or MiB of so many GPUs, whole GPUs, or MIG devices, also by the annotation of former times
(`legacy`). What has a node runs there, on GPU groups, or is `ending`; the rest waits. Where nothing else is said it is
of queue `q` and of the priority `train`; work of the priority `build` cannot be preempted. New GPU groups are called
`new-0`, `new-1` and so on. A pod that was moved shows where its successor is.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kaicore.rules.engine.config import EngineConfig, PlacementStrategy

from tests.given.logs.simulating import document_of, world_of

ON = EngineConfig(gpu_sharing=True)
SPREAD = EngineConfig(gpu_sharing=True, placement_strategy=PlacementStrategy.SPREAD)
_BUILD, _TRAIN = 100, 50
_ANNOTATIONS = {"fraction": "gpu-fraction", "memory": "gpu-memory", "legacy": "nvidia.com/mig-1g.10gb"}


@dataclass(slots=True)
class Case:
    """A cluster and its work as manifests, the GPU groups that there are, and by pod what is expected."""

    title: str
    manifests: str
    groups: set[str] = field(default_factory=set)
    expected: dict[str, str] = field(default_factory=dict)


def cases(table: str) -> list[Case]:
    found: list[Case] = []
    for line in filter(str.strip, table.splitlines()):
        if line[0] != " ":
            title, _, cluster = line.partition(" | ")
            nodes, *queues = (part.split() for part in cluster.split(", "))
            found.append(Case(title, _nodes(nodes) + "".join(map(_queue, queues))))
            continue
        said, _, outcome = line.partition(" -> ")
        name, *words = said.split()
        groups = [word for word in words if word.startswith("g") and word != "gpus"]
        found[-1].manifests += _pod(name, words, groups)
        found[-1].groups.update(groups)
        found[-1].expected[name] = outcome
    return found


def _nodes(words: list[str]) -> str:
    said = dict(zip(words[::2], words[1::2], strict=True))
    labels = ", ".join(f"nvidia.com/gpu.{key}: '{said[key]}'" for key in ("memory", "product") if key in said)
    shared = f"cpu: 64, memory: {said.get('ram', '256Gi')}, pods: 110"
    shared += "".join(f", nvidia.com/{key}: {count}" for key, count in said.items() if key.startswith("mig-"))
    return "".join(
        f"---\napiVersion: v1\nkind: Node\nmetadata: {{name: node{number}, labels: {{{labels}}}}}\n"
        f"status: {{allocatable: {{{shared}{f', nvidia.com/gpu: {gpus}' if gpus else ''}}}}}\n"
        for number, gpus in enumerate(said.get("gpus", "").split("+"))
    )


def _queue(words: list[str]) -> str:
    name, quota, *more = words
    said = {"limit": "-1", "weight": "1"} | dict(zip(more[::2], more[1::2], strict=True))
    above = f"parentQueue: {said['under']}, " if "under" in said else ""
    others = ", ".join(f"{name}: {{quota: -1, limit: -1}}" for name in ("cpu", "memory"))
    gpu = f"{{quota: {quota}, limit: {said['limit']}, overQuotaWeight: {said['weight']}}}"
    return (
        f"---\napiVersion: scheduling.run.ai/v2\nkind: Queue\nmetadata: {{name: {name}, uid: u-{name}}}\n"
        f"spec: {{{above}resources: {{{others}, gpu: {gpu}}}}}\n"
    )


def _pod(name: str, words: list[str], groups: list[str]) -> str:
    kind, amount, *words = words

    def said(start: str) -> str:
        return next((word.removeprefix(start) for word in words if word.startswith(start)), "")

    annotations = f"{_ANNOTATIONS[kind]}: '{amount}'" if kind in _ANNOTATIONS else ""
    annotations += f", gpu-fraction-num-devices: '{said('x')}'" if said("x") else ""
    asked = {} if annotations else {f"nvidia.com/{'gpu' if kind == 'gpus' else kind}": amount}
    limits = ", ".join(f"{name}: {amount}" for name, amount in {"memory": said("ram=") or "0", **asked}.items())
    priority = _BUILD if "build" in words else next((int(word) for word in words if word.isdecimal()), _TRAIN)
    queue = next((word for word in words if word in {"p", "r"}), "q")
    labels = f"kai.scheduler/queue: {queue}"
    labels += f", kai.scheduler/preemptibility: {'non-' if priority >= _BUILD else ''}preemptible"
    for group in groups:
        labels += f", runai-gpu-group{'' if len(groups) == 1 else f'/{group}'}: {group}"
    return f"""---
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  labels: {{{labels}}}
  annotations: {{{annotations}}}
  {'deletionTimestamp: "2026-01-01T00:00:00Z"' if "ending" in words else ""}
  ownerReferences: [{{apiVersion: apps/v1, kind: ReplicaSet, name: rs-{name}, uid: r1, controller: true}}]
spec:
  schedulerName: kai-ledger
  priority: {priority}
  {f"nodeName: node{said('node')}" if said("node") else ""}
  containers: [{{name: main, resources: {{limits: {{{limits}}}}}}}]
status: {{phase: {"Running" if said("node") else "Pending"}}}
"""


def outcome(case: Case, folder: Path, config: EngineConfig = ON) -> dict[str, str]:
    """Pods by name: node and GPUs; where a pod is kept room; a reason's code; or why it was evicted, and to where."""
    world = world_of(case.manifests, folder, config)
    new: dict[str, str] = {}

    def place(one: dict[str, Any]) -> str:
        parts = [part["group"] for part in one.get("gpus", ())]
        shown = [part if part in case.groups else new.setdefault(part, f"new-{len(new)}") for part in parts]
        return " ".join([one["node"], *(["+".join(sorted(shown))] if shown else [])])

    words: dict[str, str] = {}
    evicted: dict[str, str] = {}
    for one in document_of(world, config)["pods"]:
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
