"""Clusters of racks and blocks for tests, and groups that ask for them, in few words."""

from collections.abc import Sequence
from typing import Any

import msgspec
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.events import payloads
from kaicore.rules.groups.membership import KAI_GROUP_ANNOTATION, KAI_SUBGROUP_LABEL, SIGS_GROUP_LABEL
from kaicore.rules.model.group import GroupTemplate, PodSet, RankSource, TopologyConstraint
from kaicore.rules.model.node import HOSTNAME, KAI_TOPOLOGY, Node, TopologyDefinition, TopologyLevel
from kaicore.rules.model.pod import Pod

from tests.given.cluster.factory import pod
from tests.given.work.workloads import OWNER, Workloads

#: A label that tells a pod's rank.
INDEX = RankSource("index")


def asks(required: str = "", preferred: str = "", **others: Any) -> TopologyConstraint:
    return TopologyConstraint("dc", required, preferred, **others)


class Racks(Workloads):
    """A cluster with a topology `dc` of blocks and racks, in which node `n<i>` is in rack `r<i // per_rack>`."""

    def __init__(self, nodes: int = 8, *, per_rack: int = 2, per_block: int = 4, gpu: int = 4) -> None:
        super().__init__()
        levels = (TopologyLevel("block", ("block",)), TopologyLevel("rack", ("rack",)))
        definition = TopologyDefinition(KAI_TOPOLOGY, "dc", "uid-dc", "1", levels)
        self.record("topology/dc", payloads.TopologyDefinitionObserved(definition))
        for number in range(nodes):
            labels = {"block": f"b{number // per_block}", "rack": f"r{number // per_rack}", HOSTNAME: f"n{number}"}
            self.add_node(f"n{number}", cpu=64, memory=256, gpu=gpu, labels=labels)

    def group(
        self,
        name: str,
        count: int = 0,
        topology: TopologyConstraint | None = None,
        *,
        least: int | None = None,
        sets: Sequence[PodSet] = (),
        rank: RankSource | None = None,
        together: Sequence[str] = (),
        priority: int = 0,
        most_failed_nodes: int = 0,
        **spec: Any,
    ) -> list[Pod]:
        """A group of `count` pods that asks for `topology`, or of `sets`; `subgroup` adds their pods."""
        root = PodSet(min_pods=count if least is None else least, topology=topology, rank=rank)
        group = {
            "templates": (GroupTemplate(sets=tuple(sets) or (root,)),),
            "together": tuple(f"default/{one}" for one in together),
            "most_failed_nodes": most_failed_nodes,
        }
        self.gang(name, 0, sets=sets, group=group)
        return self.pods_of(name, range(count), priority=priority, **spec)

    def pods_of(self, name: str, numbers: Sequence[int], *, subgroup: str = "", **spec: Any) -> list[Pod]:
        """Pods `<name>-<number>` of a group, or `<name>-<subgroup>-<number>`."""
        prefix = f"{name}-{subgroup}" if subgroup else name
        labels = spec.pop("labels", {}) | ({KAI_SUBGROUP_LABEL: subgroup} if subgroup else {SIGS_GROUP_LABEL: name})
        spec = {"owner": OWNER, "gpu": 4, "annotations": {KAI_GROUP_ANNOTATION: name} if subgroup else {}} | spec
        return [
            self.add_pod(pod(f"{prefix}-{n}", labels={**labels, "index": str(n)}, created_at=n, **spec))
            for n in numbers
        ]

    def fact(self, name: str) -> Node:
        """A node as the watcher saw it last."""
        node = self.state.columns.facts[self.state.columns.row(name)]
        assert node is not None
        return node

    def becomes(self, name: str, **changed: Any) -> None:
        """The watcher sees a node changed."""
        self.record(f"node/{name}", payloads.NodeObserved(msgspec.structs.replace(self.fact(name), **changed)))

    def racks_of(self, result: CycleResult, prefix: str = "") -> list[str]:
        """Racks of the pods that a cycle placed, in order of the pods' names."""
        placed = sorted((one.name, one.domains.get("rack", "")) for one in result.placements)
        return [rack for name, rack in placed if name.startswith(prefix)]
