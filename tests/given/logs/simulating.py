"""Simulations of manifests for tests: YAML in, the document out."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from kai_cli.sources.manifests import read_located
from kaicore.analysis.trial.simulation import Kubelets, World, read_world, simulate
from kaicore.rules.engine.config import EngineConfig

GPU = "nvidia.com/gpu"
#: Codes of when a pod that waits would become schedulable.
HELPS = ("FitsIf", "FitsAfter")


def world_of(text: str, folder: Path, config: EngineConfig | None = None) -> World:
    file = folder / "m.yaml"
    file.write_text(text)
    config = config or EngineConfig()
    return read_world(read_located([file]), scheduler_name=config.scheduler_name, gpu_sharing=config.gpu_sharing)


def document_of(
    world: World,
    config: EngineConfig | None = None,
    *,
    kubelets: Kubelets | None = None,
    cycles: int | None = None,
    wait: bool = False,
) -> dict[str, Any]:
    """The output of `kai simulate -o json` for a world."""
    assert not world.problems, [str(problem) for problem in world.problems]
    outcome = asyncio.run(simulate(world, config or EngineConfig(), kubelets=kubelets, cycles=cycles, wait=wait))
    return outcome.document()


def running(world: World, document: dict[str, Any]) -> list[str]:
    """The pods of a world that were bound, as manifests in which they run on their nodes."""
    node_by_name = {one["name"]: one["node"] for one in document["pods"] if one["phase"] == "Bound"}
    return [
        json.dumps({**one.object, "spec": {**one.object["spec"], "nodeName": node}, "status": {"phase": "Running"}})
        + "\n"
        for one in world.pods
        if (node := node_by_name.get(one.wire.metadata.name))
    ]


def brief(document: dict[str, Any]) -> dict[str, str]:
    """Pods by name, each as `node zone+zone`, or as its phase and the codes of its reasons, remedies left out."""
    words_by_pod = {}
    for pod in document["pods"]:
        zones = "+".join(zone["zone"] for zone in pod["zones"])
        codes = ",".join(reason["code"] for reason in pod["reasons"] if reason["code"] not in HELPS)
        words = [pod["node"], zones] if pod["phase"] == "Bound" else [pod["phase"], codes]
        words_by_pod[pod["name"]] = " ".join(word for word in words if word)
    return words_by_pod


def placed(folder: Path, *texts: str) -> dict[str, str]:
    """Nodes by pod, or why it waits; without the letters that make the pods of a Job unique."""
    found = brief(document_of(world_of("---\n".join(texts), folder)))
    return {re.sub("-[a-z0-9]{5}$", "", name): where for name, where in sorted(found.items())}


def node(name: str = "n1", *, gpus: int = 4, cpus: int = 16, policy: str = "single-numa-node", zones: int = 2) -> str:
    """A node of zones that are alike, with its NodeResourceTopology: YAML documents."""
    resources = "".join(
        f"    - {{name: {resource}, capacity: {amount}, allocatable: {amount}, available: {amount}}}\n"
        for resource, amount in (("cpu", cpus // zones), (GPU, gpus // zones))
    )
    listed = "".join(f"  - name: node-{zone}\n    type: Node\n    resources:\n{resources}" for zone in range(zones))
    return f"""---
apiVersion: v1
kind: Node
metadata: {{name: {name}}}
status: {{allocatable: {{cpu: {cpus}, memory: 64Gi, {GPU}: {gpus}}}}}
---
apiVersion: topology.node.k8s.io/v1alpha2
kind: NodeResourceTopology
metadata: {{name: {name}}}
attributes:
  - {{name: topologyManagerPolicy, value: {policy}}}
  - {{name: topologyManagerScope, value: container}}
zones:
{listed}"""


def pod(name: str, *, gpus: int = 1, cpus: int = 1, metadata: str = "", spec: str = "", status: str = "{}") -> str:
    """A Guaranteed pod: a YAML document; `metadata` and `spec` are further fields in flow style."""
    limits = f"{{cpu: {cpus}, memory: 1Gi, {GPU}: {gpus}}}"
    return f"""---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, {metadata}}}
spec: {{containers: [{{name: main, resources: {{limits: {limits}}}}}], {spec}}}
status: {status}
"""


def record(kind: str, **zones: str) -> str:
    """A placement annotation, for `metadata`; for example `record("observed", node_0="cpu: 1")`."""
    parts = []
    for zone, held in zones.items():
        amounts = dict(item.split(": ") for item in held.split(", "))
        parts.append({"zone": zone.replace("_", "-"), "amount": amounts})
    return f"annotations: {{kai.scheduler/numa-placement-{kind}: '{json.dumps(parts)}'}}"
