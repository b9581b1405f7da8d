"""A topology constraint that cannot be looked up or met is reported on the PodGroup, in each dialect."""

from typing import Any

import msgspec
import pytest
from kai_binder.projection.open_work import BinderProjection
from kaicore.rules.events import payloads
from kaicore.rules.model import node as model

from tests.given.work.groups import World

#: By dialect: the group with LEVEL for a level, what makes a pod a member, and two levels: a right one and a wrong one.
DIALECTS = {
    "kai": (
        """
apiVersion: scheduling.run.ai/v2alpha2
kind: PodGroup
metadata: {name: g}
spec: {minMember: 2, topologyConstraint: {topology: default, requiredTopologyLevel: LEVEL}}
""",
        "annotations: {pod-group-name: g}",
        ("rack", "rak"),
    ),
    "volcano": (
        """
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: g}
spec: {minMember: 2, networkTopology: {mode: hard, highestTierName: LEVEL}}
""",
        "annotations: {scheduling.k8s.io/group-name: g}",
        ("leaf", "laef"),
    ),
    "koordinator": (
        """
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata:
  name: g
  annotations:
    gang.scheduling.koordinator.sh/network-topology-spec: |
      {"gatherStrategy": [{"layer": "LEVEL", "strategy": "MustGather"}]}
spec: {minMember: 2}
""",
        "labels: {pod-group.scheduling.sigs.k8s.io: g}",
        ("SpineLayer", "spineLayer"),
    ),
    "native": (
        """
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: g}
spec:
  schedulingPolicy: {gang: {minCount: 2}}
  schedulingConstraints: {topology: [{key: LEVEL}]}
""",
        "labels: {}",
        ("rack", "rak"),
    ),
}


def world() -> World:
    """Two racks of one node each, of 4 CPUs, in every dialect."""
    made = World()
    for number in (1, 2):
        name = f"n{number}"
        made.add_node(name, cpu=4, memory=16, labels={"rack": f"r{number}"})
        members = (model.HyperNodeMember(node=name),)
        leaf = model.HyperNode(f"s{number}", f"uid-s{number}", "1", 1, tier_name="leaf", members=members)
        made.record(f"hypernode/s{number}", payloads.HyperNodeObserved(leaf))
    levels = (model.TopologyLevel("rack", ("rack",)),)
    definition = model.TopologyDefinition(model.KAI_TOPOLOGY, "default", "uid-t", "1", levels)
    layers = (model.TopologyLevel("SpineLayer", ("rack",)), model.TopologyLevel("NodeTopologyLayer"))
    for one in (
        definition,
        msgspec.structs.replace(definition, kind=model.CLUSTER_NETWORK_TOPOLOGY, uid="uid-c", levels=layers),
    ):
        made.record(f"topology/{one.kind}", payloads.TopologyDefinitionObserved(one))
    return made


def message_of(dialect: str, level: str, cpus: int) -> tuple[str, dict[str, Any]]:
    """The group's condition after a cycle, as text; and the condition."""
    group, membership, _ = DIALECTS[dialect]
    made = world()
    in_spec = "schedulingGroup: {podGroupName: g}, " if dialect == "native" else ""
    pods = "".join(
        f"---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p{number}, {membership}}}\n"
        f"spec: {{{in_spec}containers: [{{name: c, resources: {{limits: {{cpu: {cpus}, memory: 1Gi}}}}}}]}}\n"
        for number in range(2)
    )
    made.apply(group.replace("LEVEL", level).lstrip() + pods)
    made.cycle()
    projection = BinderProjection()
    for event in made.events:
        projection.fold(event)
    (news,) = projection.groups.news()
    condition = news.status["conditions"][0]
    return condition["message"], condition


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_level_that_there_is_not_is_told_with_those_that_there_are(dialect: str) -> None:
    right, wrong = DIALECTS[dialect][2]
    message, condition = message_of(dialect, wrong, 1)
    assert f"level {wrong} is" in message
    assert right in message
    assert condition["status"] == ("True" if dialect == "volcano" else "False")
    assert condition["type"] != "Scheduled" or condition["status"] == "False"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_group_that_fits_in_no_domain_is_told_so(dialect: str) -> None:
    right, _ = DIALECTS[dialect][2]
    _, condition = message_of(dialect, right, 2)
    assert condition["type"] in ("Scheduled", "PodGroupScheduled")
    assert condition["status"] == "True"
    message, _ = message_of(dialect, right, 3)
    assert message.startswith("2 wait, 2 must start together: of 2 ")
    best = "s1" if dialect == "volcano" else "r1"
    assert message.endswith(f"domains none has room for 2 pods: the best is {best}, which takes 1")
