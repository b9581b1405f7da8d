"""Serving groups: trimmed before they are ended, and what Dynamo's operator makes of its graphs.

Sources: Kueue #12146; Dynamo (ai-dynamo/dynamo, September 2026), deploy/operator/internal/dynamo: `graph.go`
(`GenerateGrovePodCliqueSet`) and `disaggregatedset.go`; LeaderWorkerSet (kubernetes-sigs/lws, August 2026),
api/disaggregatedset/v1.
"""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.given.cluster.fabric import label_topology, nodes
from tests.given.logs.simulating import document_of, running, world_of
from tests.unit.trial.simulation.test_grove_cases import CPU_NODE, ROLE, clique, clique_set, scaling_group

LIMITS = "resources: {limits: {cpu: 1}}"
PODS = f"spec: {{containers: [{{name: c, {LIMITS}}}]}}"
#: The autoscaler beside the head asks for half a CPU.
HEAD = PODS.replace("cpu: 1", "cpu: 500m")
WORKERS = f"{{groupName: g, replicas: 3, minReplicas: 1, maxReplicas: 3, template: {{{PODS}}}}}"
RAY = (
    "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: w}\nspec:\n  rayClusterConfig:"
    f" {{enableInTreeAutoscaling: true, headGroupSpec: {{template: {{{HEAD}}}}}, workerGroupSpecs: [{WORKERS}]}}\n"
)


def composite() -> str:
    """Two PodGroups of two pods in a CompositePodGroup, of which one is enough."""
    objects = [
        "kind: CompositePodGroup\nmetadata: {name: root}\nspec: {schedulingPolicy: {gang: {minGroupCount: 1}}}\n"
    ]
    for name in "ab":
        spec = "{parentCompositePodGroupName: root, schedulingPolicy: {gang: {minCount: 2}}}"
        objects.append(f"kind: PodGroup\nmetadata: {{name: {name}}}\nspec: {spec}\n")
    pods = [
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}-{number}}}\n"
        f"spec: {{schedulingGroup: {{podGroupName: {name}}}, containers: [{{name: c, {LIMITS}}}]}}\n"
        for name in "ab"
        for number in (0, 1)
    ]
    return "---\n".join([*(f"apiVersion: scheduling.k8s.io/v1beta1\n{one}" for one in objects), *pods])


#: What serves, on a node for each of so many pods; how many pods of which parts go for two of higher priority.
TRIMMED = {
    "PodCliqueSet": (clique_set([clique("a", 4, 1, resource="cpu")], []), 4, {"w-0-a": 2}),
    "PodCliqueSet, a scaling group": (
        clique_set([clique("a", 2, resource="cpu")], [scaling_group("x", 3, 1, "a")]),
        6,
        {"w-0-x-1": 2},
    ),
    "LeaderWorkerSet": (ROLE.format(role="decode", replicas=2, size=2), 4, {"decode-0": 2}),
    "RayService": (RAY, 4, {"w-raycluster-": 2}),
    "CompositePodGroup": (composite(), 4, {"a": 2}),
}


@pytest.mark.parametrize(("serves", "count", "expected"), TRIMMED.values(), ids=TRIMMED)
def test_what_a_serving_group_can_spare_goes_and_the_group_goes_on(
    tmp_path: Path, serves: str, count: int, expected: dict[str, int]
) -> None:
    there = [*map(CPU_NODE.format, range(count)), serves]
    world = world_of("---\n".join(there), tmp_path)
    runs = running(world, document_of(world))
    assert len(runs) == count
    high = [
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: high-{number}}}\n"
        f"spec: {{priority: 9, containers: [{{name: c, {LIMITS}}}]}}\n"
        for number in (0, 1)
    ]
    objects = [one for text in there for one in text.split("---\n") if "kind: Pod\n" not in one]
    document = document_of(world_of("---\n".join([*objects, *runs, *high]), tmp_path))
    gone = [one["name"] for one in document["pods"] if one["phase"] == "Evicted"]
    assert {part: sum(name.startswith(part) for name in gone) for part in expected} == expected, gone
    assert len(gone) == sum(expected.values())
    assert {one["name"] for one in document["pods"] if one["phase"] == "Bound"} >= {"high-0", "high-1"}


#: As Dynamo's operator makes it of a graph with a frontend, prefill on two nodes and decode on two: a clique for each
#: role of one node, a scaling group of leader and workers for one of several.
GRAPH = [
    clique("frontend", 1),
    *(clique(f"{role}-{part}", 1) for role in ("prefill", "decode") for part in ("ldr", "wkr")),
]
GROUPS = [scaling_group(role, 1, 1, f"{role}-ldr, {role}-wkr", pack="required rack") for role in ("prefill", "decode")]
DGD = "nvidia.com/dynamo-graph-deployment-name"


@pytest.mark.parametrize(("hosts", "expected"), [(2, 5), (1, 0)])
def test_prefill_and_decode_of_a_dynamo_graph_start_as_one_gang_within_a_block(
    tmp_path: Path, hosts: int, expected: int
) -> None:
    graph = clique_set(GRAPH, GROUPS, pack="required block").replace("{name: w}", f"{{name: w, labels: {{{DGD}: w}}}}")
    text = [nodes(blocks=1, racks=2, hosts=hosts), label_topology("kai.scheduler/v1alpha1"), graph]
    if hosts == 1:
        # Each rack has room for a role, and none is left for the frontend.
        assert "replicas: 1" in graph
    world = world_of("---\n".join(text), tmp_path)
    runs = [json.loads(one) for one in running(world, document_of(world))]
    assert len(runs) == expected
    racks: dict[str, set[str]] = {}
    for one in runs:
        role = one["metadata"]["name"].split("-")[2]
        racks.setdefault(role, set()).add(one["spec"]["nodeName"][:2])
    assert all(len(racks[role]) == 1 for role in racks.keys() & {"prefill", "decode"})
    assert {name for one in world.group_sources for name in [one[1].metadata.name]} == {"w-0"}


DISAGGREGATED = """apiVersion: disaggregatedset.x-k8s.io/v1
kind: DisaggregatedSet
metadata: {name: d, namespace: default}
spec:
  slices: 2
  roles:
    - {name: prefill, spec: {replicas: 1, leaderWorkerTemplate: {size: 2, workerTemplate: {POD}}}}
    - {name: decode, spec: {replicas: 2, leaderWorkerTemplate: {size: 1, workerTemplate: {POD}}}}
"""


def test_each_role_of_a_disaggregated_set_is_a_leader_worker_set(tmp_path: Path) -> None:
    text = DISAGGREGATED.replace("POD", PODS)
    world = world_of("---\n".join([*map(CPU_NODE.format, range(8)), text]), tmp_path)
    labels = [json.loads(one)["metadata"]["labels"] for one in running(world, document_of(world))]
    by_set = Counter(re.sub(r"-\w+-(?=[pd])", "-", one["leaderworkerset.sigs.k8s.io/name"]) for one in labels)
    assert by_set == {"d-0-prefill": 2, "d-1-prefill": 2, "d-0-decode": 2, "d-1-decode": 2}
    assert {one["disaggregatedset.x-k8s.io/role"] for one in labels} == {"prefill", "decode"}


@pytest.mark.parametrize(("kind", "expected"), [("ExclusiveSlice", {"0": {"a0"}, "1": {"a1"}}), ("None", None)])
def test_slices_of_a_disaggregated_set_are_each_in_a_domain(
    tmp_path: Path, kind: str, expected: dict[str, set[str]] | None
) -> None:
    policy = f"placementPolicy: {{type: {kind}, topology: rack}}"
    text = DISAGGREGATED.replace("POD", PODS).replace("slices: 2", f"slices: 2\n  {policy}")
    world = world_of("---\n".join([nodes(blocks=1, racks=2), text]), tmp_path)
    racks: dict[str, set[str]] = {}
    for one in map(json.loads, running(world, document_of(world))):
        number = one["metadata"]["labels"]["disaggregatedset.x-k8s.io/slice"]
        racks.setdefault(number, set()).add(one["spec"]["nodeName"][:2])
    assert sum(map(len, racks.values())) > 0
    assert expected is None or sorted(map(sorted, racks.values())) == sorted(map(sorted, expected.values()))
