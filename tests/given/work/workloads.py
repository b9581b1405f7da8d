"""Groups of pods for tests of the engine, in few words."""

from collections.abc import Sequence
from typing import Any, Self

from kaicore.rules.engine.config import Backfill, EngineConfig
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.events import payloads
from kaicore.rules.groups.labels import KAI_POD_GROUP, SIGS_POD_GROUP
from kaicore.rules.groups.membership import KAI_GROUP_ANNOTATION, KAI_SUBGROUP_LABEL, SIGS_GROUP_LABEL
from kaicore.rules.model.group import GroupSource, GroupTemplate, PodSet, TopologyConstraint
from kaicore.rules.model.pod import Owner, Pod, PodDisruptionBudget
from kaicore.rules.model.queue import Queue
from kaicore.rules.model.selector import PodSelector, Requirement
from kaicore.rules.state.pods.pod_entry import Stage
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import Cluster, pod

OWNER = Owner("ReplicaSet", "rs", "uid-rs")
#: No group waits for another one's reserved start, and none says that it has one.
NO_PROMISES = EngineConfig(backfill=Backfill.OFF)


class Workloads(Cluster):
    """A cluster with words for groups and what becomes of them."""

    def gang(
        self,
        name: str,
        count: int,
        *,
        least: int | None = None,
        sets: Sequence[PodSet] = (),
        group: dict[str, Any] | None = None,
        topology: TopologyConstraint | None = None,
        **spec: Any,
    ) -> list[Pod]:
        """A group called `name` of `count` pods, `least` of which (all by default) start together.

        With `sets` it is of KAI's dialect, and its pods are to be added by `subgroup`.
        """
        of_group = tuple(sets) or (PodSet(min_pods=count if least is None else least, topology=topology),)
        source = GroupSource(
            kind=KAI_POD_GROUP if sets else SIGS_POD_GROUP,
            uid=f"uid-group-{name}",
            namespace="default",
            name=name,
            resource_version="1",
            **({"templates": (GroupTemplate(sets=of_group),)} | (group or {})),
        )
        self.record(f"group/{source.key}", payloads.GroupSourceObserved(source))
        return self.members(name, range(count), **spec)

    def members(self, name: str, numbers: Sequence[int], **spec: Any) -> list[Pod]:
        """Pods `name-<number>` of a group."""
        spec.setdefault("owner", OWNER)
        labels = {**spec.pop("labels", {}), SIGS_GROUP_LABEL: name}
        return [self.add_pod(pod(f"{name}-{n}", labels=labels, **spec)) for n in numbers]

    def subgroup(self, name: str, of: str, count: int, **spec: Any) -> list[Pod]:
        """Pods `<of>-<name>-<number>` of a sub-group."""
        labels, annotations = {KAI_SUBGROUP_LABEL: name}, {KAI_GROUP_ANNOTATION: of}
        spec = {"owner": OWNER, "labels": labels, "annotations": annotations} | spec
        return [self.add_pod(pod(f"{of}-{name}-{number}", **spec)) for number in range(count)]

    def runs(self, name: str, node: str, gpu: int, **spec: Any) -> Pod:
        """A pod with one CPU and so many GPUs that runs on a node."""
        return self.add_pod(pod(name, cpu=1, gpu=gpu, node_name=node, phase="Running", **spec))

    def queues(self, *queues: Queue) -> Self:
        for one in queues:
            self.record(f"queue/{one.name}", payloads.QueueObserved(one))
        return self

    def budget(self, allowed: int, *, name: str = "b", label: str = "app", **fields: Any) -> None:
        """Of the pods with a label, so many may be evicted."""
        selector = PodSelector(("default",), None, (Requirement(label, "Exists", ()),))
        seen = PodDisruptionBudget(f"uid-{name}", "default", name, "1", selector, allowed, **fields)
        self.record(f"budget/default/{name}", payloads.PodDisruptionBudgetObserved(seen))

    def restart(self) -> None:
        """The state is saved and restored."""
        self.state = decode_state(encode_state(self.state))

    def run(self, *pods: Pod | list[Pod]) -> None:
        for one in [item for given in pods for item in (given if isinstance(given, list) else [given])]:
            entry = self.state.pods[one.uid]
            assert entry.stage is Stage.PLACED, one.name
            self.record(f"pod/{one.uid}", payloads.PodBound(one.uid, one.namespace, one.name, entry.node))
            self.see(one, node_name=entry.node, phase="Running")

    def see(self, one: Pod, **changed: Any) -> None:
        """The watcher sees a pod changed."""
        before = self.state.pods[one.uid].pod
        fields = {name: getattr(before, name) for name in before.__struct_fields__}
        self.add_pod(Pod(**(fields | changed)))

    def full(self, *pods: Pod | list[Pod]) -> None:
        """Everything that waits is placed and runs."""
        assert not self.cycle().pending
        self.run(*pods)

    def placed(self, result: CycleResult) -> dict[str, str]:
        """The nodes of placed pods, by name."""
        return {decision.name: decision.node for decision in result.placements}

    def evicted(self, result: CycleResult) -> dict[str, str]:
        return {eviction.name: eviction.reason for eviction in result.evictions}

    def nominated(self, result: CycleResult) -> dict[str, str]:
        """The nodes with kept room, by name."""
        return {item.name: item.node for item in result.nominations}

    def go(self, result: CycleResult) -> None:
        """Evicted pods end."""
        for eviction in result.evictions:
            self.delete_pod(self.state.pods[eviction.uid].pod)


def gpu_nodes(count: int, **more: Any) -> Workloads:
    """Nodes n0, n1, … of 64 CPUs and 8 GPUs."""
    return Workloads().add_nodes(count, cpu=64, gpu=8, **more)
