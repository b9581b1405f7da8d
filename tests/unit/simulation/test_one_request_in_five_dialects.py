"""The same request in every dialect gives the same placement."""

import json
from pathlib import Path

import pytest

from tests.simulating import GPU, brief, document_of, world_of

GROUP = "apiVersion: {version}\nkind: PodGroup\nmetadata: {{name: g, annotations: {annotations}}}\nspec: {spec}\n"
GATHER = "gang.scheduling.koordinator.sh/network-topology-spec"
MUST = json.dumps({"gatherStrategy": [{"layer": "RackLayer", "strategy": "MustGather"}]})


def cluster() -> str:
    """Two blocks of two racks of three nodes of two GPUs each; one rack of each block has less room."""
    found = []
    for block in "ab":
        for rack in range(2):
            for host in range(3):
                name = f"{block}{rack}{host}"
                labels = f"{{block: {block}, rack: r{rack}, kubernetes.io/hostname: {name}}}"
                gpus = 1 if rack == 0 else 2
                found.append(
                    f"apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {labels}}}\n"
                    f"status: {{allocatable: {{cpu: 16, memory: 64Gi, pods: 110, {GPU}: {gpus}}}}}\n"
                )
    return "---\n".join(found)


def levels(group: str, version: str) -> str:
    keys = ", ".join(f"{{nodeLabel: {key}}}" for key in ("block", "rack", "kubernetes.io/hostname"))
    return f"apiVersion: {group}/{version}\nkind: Topology\nmetadata: {{name: dc}}\nspec: {{levels: [{keys}]}}\n"


LAYERS = """\
apiVersion: scheduling.koordinator.sh/v1alpha1
kind: ClusterNetworkTopology
metadata: {name: default}
spec:
  networkTopologySpec:
    - {topologyLayer: BlockLayer, labelKey: [block]}
    - {topologyLayer: RackLayer, labelKey: [rack], parentTopologyLayer: BlockLayer}
    - {topologyLayer: NodeTopologyLayer, parentTopologyLayer: RackLayer}
"""


def hyper_node(name: str, tier: int, members: str) -> str:
    return (
        f"apiVersion: topology.volcano.sh/v1alpha1\nkind: HyperNode\nmetadata: {{name: {name}}}\n"
        f"spec: {{tier: {tier}, members: [{members}]}}\n"
    )


def tiers() -> str:
    found = []
    for block in "ab":
        for rack in range(2):
            labels = f"{{block: {block}, rack: r{rack}}}"
            member = f"{{type: Node, selector: {{labelMatch: {{matchLabels: {labels}}}}}}}"
            found.append(hyper_node(f"{block}{rack}", 1, member))
        inside = (f"{{type: HyperNode, selector: {{exactMatch: {{name: {block}{rack}}}}}}}" for rack in range(2))
        found.append(hyper_node(block, 2, ", ".join(inside)))
    return "---\n".join(found)


def group(version: str, spec: str, annotations: str = "{}") -> str:
    return GROUP.format(version=version, spec=spec, annotations=annotations)


def pods(count: int, metadata: str, spec: str = "") -> str:
    limits = f"{{cpu: 1, memory: 1Gi, {GPU}: 1}}"
    return "---\n".join(
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p-{number}, {metadata}}}\n"
        f"spec: {{containers: [{{name: c, resources: {{limits: {limits}}}}}], {spec}}}\n"
        for number in range(count)
    )


def kai(count: int) -> tuple[str, ...]:
    spec = f"{{minMember: {count}, topologyConstraint: {{topology: dc, requiredTopologyLevel: rack}}}}"
    return (
        levels("kai.scheduler", "v1alpha1"),
        group("scheduling.run.ai/v2alpha2", spec),
        pods(count, "annotations: {pod-group-name: g}"),
    )


def kueue(count: int) -> tuple[str, ...]:
    said = f'{{kueue.x-k8s.io/podset-required-topology: rack, kueue.x-k8s.io/pod-group-total-count: "{count}"}}'
    metadata = f"labels: {{kueue.x-k8s.io/pod-group-name: g}}, annotations: {said}"
    return levels("kueue.x-k8s.io", "v1beta2"), pods(count, metadata)


def koordinator(count: int) -> tuple[str, ...]:
    return (
        LAYERS,
        group("scheduling.sigs.k8s.io/v1alpha1", f"{{minMember: {count}}}", f"{{{GATHER}: '{MUST}'}}"),
        pods(count, "labels: {pod-group.scheduling.sigs.k8s.io: g}"),
    )


def volcano(count: int) -> tuple[str, ...]:
    spec = f"{{minMember: {count}, networkTopology: {{mode: hard, highestTierAllowed: 1}}}}"
    return (
        tiers(),
        group("scheduling.volcano.sh/v1beta1", spec),
        pods(count, "annotations: {scheduling.k8s.io/group-name: g}"),
    )


def native(count: int) -> tuple[str, ...]:
    policy = f"schedulingPolicy: {{gang: {{minCount: {count}}}}}"
    return (
        levels("kai.scheduler", "v1alpha1"),
        group("scheduling.k8s.io/v1beta1", f"{{{policy}, schedulingConstraints: {{topology: [{{key: rack}}]}}}}"),
        pods(count, "", "schedulingGroup: {podGroupName: g}"),
    )


DIALECTS = {"kai": kai, "kueue": kueue, "koordinator": koordinator, "volcano": volcano, "native": native}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_every_dialect_gives_the_same_placement(tmp_path: Path, count: int) -> None:
    found = {name: placed(tmp_path, name, count) for name in DIALECTS}
    first = found["kai"]
    assert len({where[:2] for where in first.values()}) == 1, "in one rack"
    assert found == dict.fromkeys(found, first)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_no_rack_has_room_for_waits_in_every_dialect(tmp_path: Path, dialect: str) -> None:
    assert set(placed(tmp_path, dialect, 7).values()) == {"Pending TopologyHasNoRoom"}


def placed(folder: Path, dialect: str, count: int) -> dict[str, str]:
    text = "---\n".join((cluster(), *DIALECTS[dialect](count)))
    return brief(document_of(world_of(text, folder)))
