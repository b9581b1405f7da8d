"""Kubelets that answer a simulation: made of what nodes publish, or of a fleet's profile."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from kai_cli.manifests import read_located
from kai_fleet.offline import OfflineKubelets
from kaicore.analysis.simulation import Located, Outcome, read_world, simulate
from kaicore.rules.engine.config import Action, EngineConfig
from kaicore.rules.model.placement import OBSERVED_ANNOTATION

from tests.simulating import GPU, brief, document_of, node, pod, record, world_of

EXAMPLES = Path(__file__).parents[3] / "examples"
BLIND = EngineConfig(numa=False)
RUNNING = {"spec": "nodeName: n1", "status": "{phase: Running}"}
GPU_ON = [record("observed", **{f"node_{zone}": f"{GPU}: 1"}) for zone in (0, 1)]
JOB = f"""---
apiVersion: batch/v1
kind: Job
metadata: {{name: j}}
spec: {{template: {{spec: {{containers: [{{name: main, resources: {{limits: {{{GPU}: 2}}}}}}]}}}}}}
"""


def simulated(text: str, folder: Path, config: EngineConfig | None = None) -> dict[str, Any]:
    world = world_of(text, folder)
    document = document_of(world, config, kubelets=OfflineKubelets())
    assert not world.warnings
    return document


def test_a_kubelet_says_what_a_pod_holds(tmp_path: Path) -> None:
    text = node() + pod("old", metadata=GPU_ON[0], **RUNNING) + pod("a", gpus=2, cpus=3)
    (_, shown) = reversed(simulated(text, tmp_path)["pods"])
    assert (shown["name"], shown["zones"]) == ("a", [{"zone": "node-1", "amount": {"cpu": "3", GPU: "2"}}])


def test_a_refused_pod_is_told_of_and_its_owner_makes_another(tmp_path: Path) -> None:
    split = "".join(pod(f"old{zone}", metadata=GPU_ON[zone], **RUNNING) for zone in (0, 1))
    assert brief(simulated(node() + split + pod("a", gpus=2), tmp_path, BLIND))["a"] == "Rejected TopologyAffinityError"
    document = simulated(node("n1") + node("n2") + split + JOB, tmp_path, BLIND)
    refused, after = (one for one in document["pods"] if one["name"].startswith("j-"))
    assert {refused["phase"], after["phase"]} == {"Rejected", "Bound"}
    refused, after = sorted((refused, after), key=lambda one: one["phase"], reverse=True)
    assert (refused["node"], after["node"]) == ("n1", "n2")
    assert refused["reasons"] == [
        {
            "code": "TopologyAffinityError",
            "message": "Pod was rejected: Resources cannot be allocated with Topology locality",
            "nodes": 1,
            "example": "n1",
        }
    ]


def test_a_pod_of_a_stateful_set_comes_again_under_its_name(tmp_path: Path) -> None:
    split = "".join(pod(f"old{zone}", metadata=GPU_ON[zone], **RUNNING) for zone in (0, 1))
    text = node() + split + JOB.replace("batch/v1", "apps/v1").replace("Job", "StatefulSet")
    assert brief(simulated(text, tmp_path, BLIND))["j-0"].startswith("Pending RejectedByKubelet")


def test_a_running_pod_that_cannot_be_so_is_warned_of(tmp_path: Path) -> None:
    text = node() + pod("a", gpus=3, **RUNNING)
    world = world_of(text, tmp_path)
    document_of(world, kubelets=OfflineKubelets())
    assert world.warnings == [
        "pod default/a runs on n1, whose kubelet as simulated could not have taken it so: no zones"
    ]


def outcome(objects: list[Located], kubelets: OfflineKubelets | None) -> Outcome:
    world = read_world(objects, scheduler_name="kai-ledger")
    assert not world.problems
    result = asyncio.run(simulate(world, EngineConfig(), kubelets=kubelets))
    assert not world.warnings
    return result


@pytest.mark.parametrize("profile", ["demo24", "mini"])
def test_kubelets_made_of_what_is_published_decide_as_those_of_the_profile(profile: str) -> None:
    nodes = [Located("fleet", item) for item in OfflineKubelets(profile).objects()]
    objects = [*nodes, *read_located([EXAMPLES])]
    exact, published = (outcome(objects, kubelets) for kubelets in (OfflineKubelets(profile), OfflineKubelets()))
    assert published.document() == exact.document()
    assert not [one for one in exact.pods if one.phase == "Rejected"]
    assert [(one.name, one.node, one.phase) for one in outcome(objects, None).pods] == [
        (one.name, one.node, one.phase) for one in exact.pods
    ]


def test_devices_of_several_zones_show_in_what_the_node_has(tmp_path: Path) -> None:
    """Two NICs that both zones see: four in the zones, two on the node."""
    text = node().replace("gpu: 4}}", "gpu: 4, rdma/hca: 2}}")
    nics = "    - {name: rdma/hca, capacity: 2, allocatable: 2, available: 2}\n"
    text = text.replace("    - {name: cpu", nics + "    - {name: cpu")
    limits = f"resources: {{limits: {{{GPU}: 1, rdma/hca: 1}}}}"
    text += f"---\napiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{{name: c, {limits}}}]}}\n"
    (shown,) = simulated(text, tmp_path)["pods"]
    assert shown["zones"] == [
        {"zone": "node-0", "amount": {GPU: "1"}},
        {"zone": "node-0+node-1", "amount": {"rdma/hca": "1"}},
    ]


def test_what_was_simulated_can_be_simulated_on() -> None:
    """Bound pods as running ones, with what they hold as observed: all stay as they are, and the same ones wait.

    Nothing is evicted here: what was made anew has no object to go on with.
    """
    config = EngineConfig(actions=(Action.ALLOCATE,))
    nodes = [Located("fleet", item) for item in OfflineKubelets("demo24").objects()]
    before = read_world([*nodes, *read_located([EXAMPLES])], scheduler_name="kai-ledger")
    first = document_of(before, config, kubelets=OfflineKubelets("demo24"))
    for one in first["pods"]:
        # A record on a pod tells single zones alone.
        one["zones"] = [zone for zone in one["zones"] if "+" not in zone["zone"]]
        # Only what a cycle placed has a rank and domains.
        one["rank"], one["domains"] = None, {}
    objects = {one.wire.metadata.name: one.object for one in before.pods}
    later = [one for one in read_located([EXAMPLES]) if one.object["kind"] != "Pod"]
    for number, one in enumerate(first["pods"]):
        item = objects[one["name"]]
        if one["phase"] == "Bound":
            annotations = {OBSERVED_ANNOTATION: json.dumps(one["zones"])}
            metadata = {**item["metadata"], "annotations": annotations}
            status = {"phase": "Running", "startTime": f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"}
            item = {**item, "metadata": metadata, "spec": {**item["spec"], "nodeName": one["node"]}, "status": status}
        later.append(Located(f"pod {number}", item))
    after = read_world([*nodes, *later], scheduler_name="kai-ledger")
    second = document_of(after, config, kubelets=OfflineKubelets("demo24"))
    assert not after.warnings
    assert second == {**first, "cycles": 1, "seconds": 1}
