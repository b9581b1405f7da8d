"""Senseless parts of manifests cost only themselves, and are a warning, as in a running cluster."""

from pathlib import Path

import pytest
from kai_fleet.offline import OfflineKubelets
from kaicore.rules.model.quantity import MAX_AMOUNT

from tests.given.logs.simulating import brief, document_of, node, pod, record, world_of


def test_a_malformed_placement_annotation_is_a_warning_and_the_pod_still_holds_its_node(tmp_path: Path) -> None:
    malformed = record("observed", node_0="cpu: 1").replace("[", "")
    text = node(gpus=4) + pod("a", gpus=3, metadata=malformed, spec="nodeName: n1", status="{phase: Running}")
    world = world_of(text + pod("b", gpus=2), tmp_path)
    assert len(world.warnings) == 1
    assert (
        "Pod default/a: metadata.annotations[kai.scheduler/numa-placement-observed]: not a placement record"
        in (world.warnings[0])
    )
    assert brief(document_of(world)) == {"a": "n1", "b": "Pending InsufficientResource"}


def test_a_bad_attribute_and_a_bad_zone_leave_the_others_to_align_pods(tmp_path: Path) -> None:
    spoiled = (
        node(gpus=8)
        .replace("topologyManagerScope, value: container", "topologyManagerScope, value: everywhere")
        .replace("name: node-1\n", "name: numa1\n")
    )
    world = world_of(spoiled + pod("a", gpus=4) + pod("b", gpus=4), tmp_path)
    assert [warning.partition(": ")[2].partition(": ")[2] for warning in world.warnings] == [
        "attributes[topologyManagerScope]: must be one of container, pod: 'everywhere'; it is left out",
        "zones[1].name: must be node-<NUMA id>: 'numa1'; it is left out",
    ]
    placements = brief(document_of(world, kubelets=None))
    assert placements["a"] == "n1 node-0"
    assert placements["b"].startswith("Pending")


def test_kubelets_are_made_of_a_topology_that_is_spoiled_in_parts(tmp_path: Path) -> None:
    spoiled = node(gpus=8).replace("value: single-numa-node", "value: strict")
    world = world_of(spoiled + pod("a", gpus=4), tmp_path)
    assert brief(document_of(world, kubelets=OfflineKubelets()))["a"].startswith("n1")


def test_a_limit_near_two_to_the_63_is_a_warning_and_the_pod_counts_as_what_it_requests(tmp_path: Path) -> None:
    resources = "{requests: {memory: 40Gi}, limits: {memory: '9223372036854775807'}}"
    running = (
        "---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
        f"spec: {{nodeName: n1, containers: [{{name: main, resources: {resources}}}]}}\nstatus: {{phase: Running}}\n"
    )
    large = pod("b", gpus=0).replace("memory: 1Gi", "memory: 30Gi")
    world = world_of(node() + running + large, tmp_path)
    assert len(world.warnings) == 1
    assert (
        "Pod default/a: spec.containers[0].resources.limits[memory]: absurdly large quantity, more than "
        f"{MAX_AMOUNT}: '9223372036854775807'; taken for that much" in world.warnings[0]
    )
    assert brief(document_of(world)) == {"a": "n1", "b": "Pending InsufficientResource"}


def test_a_request_beyond_belief_waits_and_one_that_runs_fills_its_node(tmp_path: Path) -> None:
    absurd = pod("a", gpus=0).replace("memory: 1Gi", "memory: 8Ei")
    runs = pod("r", gpus=0, spec="nodeName: n1", status="{phase: Running}").replace("memory: 1Gi", "memory: 8Ei")
    world = world_of(node() + absurd, tmp_path)
    assert brief(document_of(world)) == {"a": "Pending NodeTooSmall"}
    world = world_of(node() + runs + pod("b", gpus=0), tmp_path)
    assert brief(document_of(world)) == {"b": "Pending InsufficientResource", "r": "n1"}


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
def test_memory_that_a_running_pods_record_leaves_out_is_not_promised_to_others(tmp_path: Path, policy: str) -> None:
    memory = "    - {name: memory, capacity: 32Gi, allocatable: 32Gi, available: 32Gi}\n"
    text = node(policy=policy).replace("    resources:\n", f"    resources:\n{memory}")
    shown = {"metadata": record("observed", node_0="cpu: 2"), "spec": "nodeName: n1", "status": "{phase: Running}"}
    text += pod("a", cpus=2, **shown).replace("memory: 1Gi", "memory: 24Gi")
    for name in ("b", "c"):
        text += pod(name, gpus=0).replace("memory: 1Gi", "memory: 20Gi")
    world = world_of(text, tmp_path)
    placements = brief(document_of(world, kubelets=OfflineKubelets()))
    assert placements["b"].startswith("n1"), "zone 1 has room for one of the two"
    assert placements["c"].startswith("Pending NumaZoneShort")
    assert world.warnings == []
