"""Manifests as design documents have them, which no API server takes."""

from pathlib import Path

from tests.given.cluster.fabric import nodes
from tests.given.logs.simulating import GPU, brief, document_of, world_of

HYPER_NODES = """
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {name: s0}
spec: {tier: 1, members: [{name: a00, type: Node}, {name: a01, type: Node}]}
---
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {name: s1}
spec: {tier: 1, members: [{name: b00, type: Node}, {name: b01, type: Node}]}
"""
VOLCANO_JOB = f"""
apiVersion: topology.volcano.sh/v1alpha1
kind: Job
metadata: {{name: j}}
spec:
  minAvailable: 3
  networkTopology: [{{mode: hard, highestTierAllowed: 1}}]
  tasks:
    - name: worker
      replicas: 3
      template: {{spec: {{containers: [{{name: c, resources: {{limits: {{{GPU}: 1}}}}}}]}}}}
"""
GROUPS = "gang.scheduling.koordinator.sh/groups"
GANG = f"""
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata: {{name: %s, annotations: {{{GROUPS}: [default/one, default/two]}}}}
spec: {{minMember: 1}}
---
apiVersion: v1
kind: pod
metadata: {{name: p-%s, labels: {{pod-group.scheduling.sigs.k8s.io: %s}}}}
spec: {{containers: [{{name: c, resources: {{limits: {{{GPU}: 1}}}}}}]}}
"""


def test_jobs_and_hyper_nodes_of_volcanos_design_are_read_as_those_that_are_served(tmp_path: Path) -> None:
    world = world_of("---\n".join([nodes(), HYPER_NODES, VOLCANO_JOB]), tmp_path)
    found = brief(document_of(world))
    assert len(found) == 3
    assert {where[:2] for where in found.values()} == {"a0"}
    assert len(world.warnings) == 3
    assert all("an API server takes no such thing" in warning for warning in world.warnings)
    assert "Job j: a Job of topology.volcano.sh/v1alpha1 is read as one of batch.volcano.sh" in world.warnings[2]


def test_kinds_in_small_letters_and_a_list_of_a_gangs_groups_are_read_as_they_are_meant(tmp_path: Path) -> None:
    world = world_of("---\n".join([nodes(), *(GANG.replace("%s", name) for name in ("one", "two"))]), tmp_path)
    assert sorted(brief(document_of(world))) == ["p-one", "p-two"]
    said = "\n".join(world.warnings)
    assert f"PodGroup one: metadata.annotations[{GROUPS}] is a list, and is read as text" in said
    assert "Pod p-two: kind pod is read as Pod" in said


def test_members_that_are_odd_are_left_to_the_check_of_members(tmp_path: Path) -> None:
    odd = HYPER_NODES.replace("{name: a00, type: Node}", "{name: 7, type: Node}")
    world = world_of("---\n".join([nodes(), odd]), tmp_path)
    assert any("spec.members[0].selector" in warning for warning in world.warnings)
