"""Kubelets that answer a simulation: made of what nodes publish, or of a fleet's profile."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from kai_cli.sources.manifests import read_located
from kai_fleet.offline import OfflineKubelets
from kaicore.analysis.trial.simulation import Located, Outcome, read_world, simulate
from kaicore.rules.engine.config import Action, Backfill, EngineConfig
from kaicore.rules.model.placement import OBSERVED_ANNOTATION

from tests.given.logs.simulating import GPU, brief, document_of, node, pod, record, world_of

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
        "pod default/a runs on n1; the simulated kubelet there could not have taken it so: no zones"
    ]


def with_memory(text: str, *, each: str = "32Gi") -> str:
    """The node's zones with memory as well."""
    of_zone = f"    - {{name: memory, capacity: {each}, allocatable: {each}, available: {each}}}\n"
    return text.replace("    - {name: cpu", of_zone + "    - {name: cpu")


def memory_pod(name: str, *containers: str, metadata: str = "", spec: str = "", status: str = "{}") -> str:
    """A Guaranteed pod of containers of a CPU and so much memory."""
    limits = (f"resources: {{limits: {{cpu: 1, memory: {size}}}}}" for size in containers)
    listed = ", ".join(f"{{name: c{number}, {one}}}" for number, one in enumerate(limits))
    return f"""---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, {metadata}}}
spec: {{containers: [{listed}], {spec}}}
status: {status}
"""


@pytest.mark.parametrize("kind", ["observed", "predicted"])
@pytest.mark.parametrize(
    ("containers", "zones", "later"),
    [
        (["40Gi"], ("cpu: 1, memory: 32Gi", "memory: 8Gi"), "Pending NumaMemoryGroups"),
        (["40Gi", "4Gi"], ("cpu: 2, memory: 32Gi", "memory: 12Gi"), "Pending NumaMemoryGroups"),
        (["20Gi", "10Gi"], ("cpu: 2, memory: 30Gi", "cpu: 0"), "n1 node-0"),
        (["20Gi", "20Gi"], ("cpu: 1, memory: 20Gi", "cpu: 1, memory: 20Gi"), "n1 node-0"),
    ],
    ids=["one container", "another beside it", "one zone", "a zone each"],
)
def test_memory_of_a_container_on_several_zones_is_a_group_for_scheduler_and_kubelet(
    tmp_path: Path, kind: str, containers: list[str], zones: tuple[str, str], later: str
) -> None:
    """Records in KAI's format name amounts by zone, and no containers: what no whole containers explain is a group."""
    held = record(kind, node_0=zones[0], node_1=zones[1])
    running = memory_pod("old", *containers, metadata=held, **RUNNING)
    text = with_memory(node(policy="restricted")) + running + memory_pod("later", "2Gi")
    assert brief(simulated(text, tmp_path))["later"].startswith(later)


def test_what_a_kubelet_gave_a_running_pod_without_a_record_is_known(tmp_path: Path) -> None:
    """Ten CPUs and 40 GiB of zones of 8 and 32: a group, of which no record tells."""
    wide = memory_pod("old", "40Gi", **RUNNING).replace("cpu: 1,", "cpu: 10,")
    text = with_memory(node(policy="restricted")) + wide + memory_pod("later", "2Gi")
    found = brief(simulated(text, tmp_path))
    assert "node-0" in found["old"]
    assert "node-1" in found["old"]
    assert found["later"].startswith("Pending NumaMemoryGroups")


def test_a_record_that_is_not_believed_is_none_for_the_kubelet_either(tmp_path: Path) -> None:
    held = record("observed", node_0="cpu: 1, memory: 36Gi", node_1="memory: 4Gi")
    text = with_memory(node(policy="restricted")) + memory_pod("old", "40Gi", metadata=held, **RUNNING)
    world = world_of(text + memory_pod("later", "2Gi"), tmp_path)
    document = document_of(world, kubelets=OfflineKubelets())
    assert [warning.rpartition(": ")[2] for warning in world.warnings] == [
        "'36Gi'; the placement is not believed",
        "no zones",
    ]
    assert brief(document)["later"] == "n1 node-0"


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
    config = EngineConfig(actions=(Action.ALLOCATE,), backfill=Backfill.OFF)
    nodes = [Located("fleet", item) for item in OfflineKubelets("demo24").objects()]
    before = read_world([*nodes, *read_located([EXAMPLES])], scheduler_name="kai-ledger")
    first = document_of(before, config, kubelets=OfflineKubelets("demo24"))
    for one in first["pods"]:
        # Only what a cycle placed has a rank and domains.
        one["rank"], one["domains"] = None, {}
    objects = {one.wire.metadata.name: one.object for one in before.pods}
    later = [one for one in read_located([EXAMPLES]) if one.object["kind"] != "Pod"]
    for number, one in enumerate(first["pods"]):
        item = objects[one["name"]]
        if one["phase"] == "Bound":
            # A record on a pod has single zones alone; the exporter reports the others.
            single = [zone for zone in one["zones"] if "+" not in zone["zone"]]
            annotations = {OBSERVED_ANNOTATION: json.dumps(single)}
            metadata = {**item["metadata"], "annotations": annotations}
            status = {"phase": "Running", "startTime": f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"}
            item = {**item, "metadata": metadata, "spec": {**item["spec"], "nodeName": one["node"]}, "status": status}
        later.append(Located(f"pod {number}", item))
    after = read_world([*nodes, *later], scheduler_name="kai-ledger")
    second = document_of(after, config, kubelets=OfflineKubelets("demo24"))
    assert not after.warnings
    assert second == {**first, "cycles": 1, "seconds": 1}
