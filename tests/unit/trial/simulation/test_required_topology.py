"""A group that names a topology or a level that there is not waits and says so, whether it requires or prefers it."""

from pathlib import Path

import pytest

from tests.given.logs.simulating import GPU, brief, document_of, node, pod, world_of

KAI = "apiVersion: scheduling.run.ai/v2alpha2\nkind: PodGroup\nmetadata: {name: g}\nspec: "
VOLCANO = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: g}\nspec: "
NATIVE = "apiVersion: scheduling.k8s.io/v1alpha2\nkind: PodGroup\nmetadata: {name: g}\nspec: "
GATHER = "gang.scheduling.koordinator.sh/network-topology-spec"

OF_KAI = "annotations: {pod-group-name: g}"
OF_VOLCANO = "labels: {part: p0}, annotations: {scheduling.k8s.io/group-name: g}"
OF_SIGS = "labels: {pod-group.scheduling.sigs.k8s.io: g}"


def koordinator(spec: str) -> str:
    return (
        "apiVersion: scheduling.sigs.k8s.io/v1alpha1\nkind: PodGroup\n"
        f"metadata: {{name: g, annotations: {{{GATHER}: '{spec}'}}}}\nspec: {{minMember: 1}}\n"
    )


def by_annotations(spec: str) -> str:
    words = f'gang.scheduling.koordinator.sh/name: g, gang.scheduling.koordinator.sh/min-available: "1", {GATHER}: '
    return f"annotations: {{{words}'{spec}'}}"


def layer(strategy: str) -> str:
    return f'{{"gatherStrategy": [{{"layer": "spine", "strategy": "{strategy}"}}]}}'


def pytorch_job(annotations: str) -> str:
    template = f"{{spec: {{containers: [{{name: c, resources: {{limits: {{{GPU}: 1}}}}}}]}}}}"
    return (
        f"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: g, annotations: {{{annotations}}}}}\n"
        f"spec: {{pytorchReplicaSpecs: {{Worker: {{replicas: 1, template: {template}}}}}}}\n"
    )


def given(group: str, metadata: str | None, *, spec: str = "") -> str:
    """A node, a group and its pod; no pod of its own where `metadata` is None."""
    member = "" if metadata is None else pod("p", metadata=metadata, spec=spec)
    return f"{node()}{member}" + (f"---\n{group}\n" if group else "")


@pytest.mark.parametrize(
    ("group", "metadata", "field", "level"),
    [
        (
            KAI + "{minMember: 1, topologyConstraint: {topology: dc, requiredTopologyLevel: rack}}",
            OF_KAI,
            "spec.topologyConstraint",
            "rack",
        ),
        (
            KAI + "{subGroups: [{name: s, topologyConstraint: {topology: dc, requiredTopologyLevel: rack}}]}",
            "labels: {kai.scheduler/subgroup-name: s}, " + OF_KAI,
            "spec.subGroups[0].topologyConstraint",
            "rack",
        ),
        (koordinator(layer("MustGather")), OF_SIGS, f"metadata.annotations[{GATHER}]", "spine"),
        (koordinator("spine"), OF_SIGS, f"metadata.annotations[{GATHER}]", "is no object in JSON: 'spine'"),
        ("", by_annotations(layer("MustGather")), f"metadata.annotations[{GATHER}]", "spine"),
        (
            VOLCANO + "{minMember: 1, networkTopology: {mode: hard, highestTierAllowed: 2}}",
            OF_VOLCANO,
            "spec.networkTopology.highestTierAllowed",
            "2",
        ),
        # Volcano's API server writes `hard` where no mode is said.
        (
            VOLCANO + "{networkTopology: {highestTierName: leaf}}",
            OF_VOLCANO,
            "spec.networkTopology.highestTierName",
            "leaf",
        ),
        (
            VOLCANO + "{subGroupPolicy: [{name: s, networkTopology: {mode: hard, highestTierAllowed: 1},"
            " matchLabelKeys: [part]}]}",
            OF_VOLCANO,
            "spec.subGroupPolicy[0].networkTopology.highestTierAllowed",
            "1",
        ),
        (
            NATIVE + "{schedulingPolicy: {gang: {minCount: 1}}, schedulingConstraints: {topology: [{key: rack}]}}",
            "",
            "spec.schedulingConstraints.topology",
            "rack",
        ),
        (
            pytorch_job("kai.scheduler/topology: dc, kai.scheduler/topology-required-placement: rack"),
            None,
            "metadata.annotations[kai.scheduler/topology-required-placement]",
            "rack",
        ),
    ],
)
def test_required_level_of_no_topology_makes_its_group_wait(
    tmp_path: Path, group: str, metadata: str | None, field: str, level: str
) -> None:
    spec = "schedulingGroup: {podGroupName: g}" if group.startswith(NATIVE) else ""
    (shown,) = document_of(world_of(given(group, metadata, spec=spec), tmp_path))["pods"]
    assert shown["node"] is None
    (reason,) = shown["reasons"]
    assert reason["code"] in ("TopologyNotFound", "TopologyLevelNotFound", "TopologyConstraintInvalid")
    assert " default/g: " in reason["message"]
    assert field in reason["message"]
    assert reason["code"] == "TopologyNotFound" or level in reason["message"]


@pytest.mark.parametrize(
    ("group", "metadata"),
    [
        (KAI + "{topologyConstraint: {topology: dc, preferredTopologyLevel: rack}}", OF_KAI),
        (koordinator(layer("PreferGather")), OF_SIGS),
        (pytorch_job("kai.scheduler/topology: dc, kai.scheduler/topology-preferred-placement: rack"), None),
    ],
)
def test_preferred_level_of_no_topology_makes_its_group_wait(tmp_path: Path, group: str, metadata: str | None) -> None:
    (shown,) = brief(document_of(world_of(given(group, metadata), tmp_path))).values()
    assert shown in ("Pending TopologyNotFound", "Pending TopologyLevelNotFound")


def test_what_runs_and_could_not_start_again_is_not_moved(tmp_path: Path) -> None:
    """Two of four GPUs are taken on each node; moving one pod would make room for four, if it could start again."""
    of = "ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: r, uid: r, controller: true}]"
    group = KAI + "{topologyConstraint: {topology: dc, requiredTopologyLevel: rack}}"
    running = "{phase: Running}"

    def text(metadata: str) -> str:
        return (
            node("n1", zones=1)
            + node("n2", zones=1)
            + f"---\n{group}\n"
            + pod("a", gpus=2, metadata=f"{metadata}, {of}", spec="nodeName: n1", status=running)
            + pod("b", gpus=2, metadata=f"{metadata}, {of}", spec="nodeName: n2", status=running)
            + pod("whole", gpus=4)
        )

    freely = brief(document_of(world_of(text("labels: {app: x}"), tmp_path)))
    assert freely["whole"] != "Pending", "it is worth a try"
    bound = brief(document_of(world_of(text(OF_KAI), tmp_path)))
    assert {name: where.split()[0] for name, where in bound.items()} == {"a": "n1", "b": "n2", "whole": "Pending"}
