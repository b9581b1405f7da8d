"""Manifests as they would be in a cluster: its own objects already count, and conflicts with them are reported."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from kaicore.analysis.trial.simulation import Located, World, read_world
from kaicore.errors import InvalidObject
from kaicore.kube.api.reflector_core import ObjectSeen
from kaicore.kube.kinds import table
from kaicore.kube.kinds.facts import Facts
from kaicore.kube.kinds.kind import Kind
from kaicore.kube.kinds.table import group_kind
from kaicore.kube.normalize.storage import DEFAULT_TOLERATIONS
from kaicore.kube.wire.objects import PodObject
from kaicore.rules.deciding.decide import Proposal, decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import GroupSourceObserved
from kaicore.rules.model.group import GroupSource, source_key
from kaicore.rules.model.node import Node
from kaicore.rules.model.pod import Namespace
from kaicore.rules.model.replicas import split_shard
from kaicore.rules.objects.mappings import Object
from kaicore.rules.objects.wire import KubernetesObject, subject_of
from kaicore.rules.state.fork import CopiedState
from kaicore.rules.state.views import CycleView, WorkView

#: Most pods of one question: what a cycle over them costs is some seconds.
MOST_PODS = 10_000

#: Stands for the scheduler of pods that name none, until it is known how many these are.
_NOT_NAMED = "kai-ledger.not-named"

#: How a world's warning ends that is about an owner which is not among the manifests.
_NO_OWNER = ", which is not given: taken to start one by one"

_ACTOR = "submission"


@dataclass(slots=True)
class Submitted:
    """The events folded to a copied state.

    Attributes:
        problems: what is wrong with objects that were left out.
        warnings: what of the others is read otherwise than it stands there, or left out.
    """

    uids: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def submit_objects(
    copied: CopiedState, objects: Sequence[Located], *, scheduler_name: str, gpu_sharing: bool = False
) -> Submitted:
    """Fold manifests to a copied state, as if its watcher had seen them created now.

    Args:
        objects: in any order, with apiVersion and kind.
        scheduler_name: of the cycles' settings; pods that name none are taken for its own.
        gpu_sharing: of the cycles' settings; virtual GPUs become shares.
    """
    state = copied.state
    submitted = Submitted()
    fresh = []
    for item in objects:
        problem = _clash(state, item)
        if problem is None:
            fresh.append(item)
        else:
            submitted.problems.append(str(problem))
    located = [*fresh, *_there_already(state, fresh)]
    world = read_world(located, scheduler_name=_NOT_NAMED, most_pods=MOST_PODS, gpu_sharing=gpu_sharing)
    submitted.problems += map(str, world.problems)
    submitted.warnings += _warnings(state, world, fresh)
    there = {(entry.pod.namespace, entry.pod.name) for entry in state.pods.values()}
    _record_surroundings(copied, world)
    unnamed = 0
    for pod in world.pods:
        wire = _created(pod.wire, copied.now)
        if wire.metadata.uid in state.pods and (wire.metadata.namespace, wire.metadata.name) not in there:
            wire = _renamed(wire, len(submitted.uids))
        meta = wire.metadata
        taken = (meta.namespace, meta.name) in there
        if taken or wire.spec.node_name:
            problem_text = "is in the cluster already" if taken else "names its node itself: no scheduler decides on it"
            subject = subject_of("Pod", meta.namespace, meta.name)
            submitted.problems.append(f"{pod.where}: {subject}: {problem_text}")
            continue
        if wire.spec.scheduler_name == _NOT_NAMED:
            unnamed += 1
            wire = msgspec.structs.replace(wire, spec=msgspec.structs.replace(wire.spec, scheduler_name=scheduler_name))
        copied.record([_seen(copied, table.POD, wire)])
        submitted.uids.append(meta.uid)
    if unnamed:
        pods = "1 pod names" if unnamed == 1 else f"{unnamed} pods name"
        submitted.warnings.append(f"{pods} no scheduler: answered as if spec.schedulerName were {scheduler_name}")
    return submitted


def next_cycle(
    copied: CopiedState, objects: Sequence[Located], policies: PolicyBook, *, actor: str
) -> tuple[Submitted, Proposal, EngineConfig]:
    """Fold manifests to a copied state, run its shard's next cycle, and fold what that decides.

    Args:
        policies: the code of policies; those of which it has none do not decide.

    Returns:
        the manifests' pods, the decisions, and the settings by which these were taken: without policies of which there
        is no code, or that failed.
    """
    state = copied.state
    recorded = state.config()
    config = msgspec.structs.replace(recorded, policies=policies.known(recorded.policies))
    submitted = submit_objects(copied, objects, scheduler_name=config.scheduler_name, gpu_sharing=config.gpu_sharing)
    # The one with recorded reasons: what the next cycle gives stands in their place.
    shard = split_shard(min(state.last_cycles, default="default"))[0]
    proposal = decide(state, config, shard=shard, now=copied.now, actor=actor, policies=policies)
    failed = {one.policy for one in proposal.policies_left_out}
    config = msgspec.structs.replace(config, policies=tuple(one for one in config.policies if one.name not in failed))
    copied.record(proposal.units)
    return submitted, proposal, config


def _clash(state: WorkView, item: Located) -> InvalidObject | None:
    """Return why an API server would not create an object; None where nothing of the kind is there."""
    wire = item.object
    metadata = _metadata(wire)
    name = metadata.get("name")
    if not isinstance(name, str):
        return None
    kind = group_kind(wire["apiVersion"], wire["kind"])
    namespace = metadata.get("namespace") or "default"
    if kind is None or source_key(kind.name, str(namespace), name) not in state.group_table.sources:
        return None
    subject = f"{item.where}: {subject_of(wire['kind'], str(namespace), name)}"
    return InvalidObject(subject, "metadata.name", name, "is in the cluster already")


def _metadata(wire: Object) -> Object:
    metadata = wire.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _there_already(state: CycleView, fresh: Iterable[Located]) -> list[Located]:
    """Return objects of the cluster on which it depends how manifests are read.

    Priority classes, namespaces with default tolerations, and nodes with their labels.
    """
    named = {(item.object["kind"], str(_metadata(item.object).get("name"))) for item in fresh}
    there = [
        Located(
            "the cluster",
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": observed.priority_class.value,
                "globalDefault": observed.priority_class.global_default,
                "preemptionPolicy": observed.priority_class.preemption_policy,
            },
        )
        for name, observed in sorted(state.priority_classes.items())
        if ("PriorityClass", name) not in named
    ]
    there += [
        Located("the cluster", _namespace_object(namespace))
        for name, namespace in sorted(state.constraints.namespaces.items())
        if namespace.default_tolerations and ("Namespace", name) not in named
    ]
    if any(kind == "DaemonSet" for kind, _ in named):
        there += [
            Located("the cluster", _node_object(node))
            for node in state.columns.facts
            if node is not None and ("Node", node.name) not in named
        ]
    return there


def _namespace_object(namespace: Namespace) -> Object:
    tolerations = msgspec.json.encode(namespace.default_tolerations).decode()
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": namespace.name,
            "uid": namespace.uid,
            "labels": dict(namespace.labels),
            "annotations": {DEFAULT_TOLERATIONS: tolerations},
        },
    }


def _node_object(node: Node) -> Object:
    taints = [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in node.taints]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": dict(node.labels)},
        "spec": {"taints": taints},
    }


def _warnings(state: WorkView, world: World, fresh: Iterable[Located]) -> list[str]:
    """Return a world's warnings, but for those that the cluster answers."""
    warnings = []
    for line in world.warnings:
        owner = line.removesuffix(_NO_OWNER).rpartition(" ")[2] if line.endswith(_NO_OWNER) else ""
        if owner in state.group_table.sources:
            continue
        if line.startswith("RuntimeClass "):
            line = line.replace("there is none;", "the log records none;")  # noqa: PLW2901
        warnings.append(line)
    nodes = sum(item.object["kind"] in ("Node", "NodeResourceTopology") for item in fresh)
    if nodes:
        warnings.append(f"left out {nodes} Nodes and NodeResourceTopologies: nobody submits those")
    return warnings


def _record_surroundings(copied: CopiedState, world: World) -> None:
    """Fold everything but pods; namespaces that are there keep their labels, and owners that are there stay."""
    state = copied.state
    seen: list[tuple[Kind[Any], KubernetesObject]] = [
        (table.PRIORITY_CLASS, one)
        for one in world.priority_classes.values()
        if one.metadata.name not in state.priority_classes
    ]
    seen += [
        (kind, wire)
        for kind, wire in world.surroundings.recorded({pod.wire.metadata.namespace for pod in world.pods})
        if kind is not table.NAMESPACE or wire.metadata.name not in state.constraints.namespaces
    ]
    seen += [*world.queues, *world.network_topologies, *world.group_sources]
    copied.record(_seen(copied, kind, _created(wire, copied.now)) for kind, wire in seen)
    copied.record(
        _made_up(copied, source) for source in world.missing_owners if source.key not in state.group_table.sources
    )


def _seen(copied: CopiedState, kind: Kind[Any], wire: Any) -> Unit | None:
    return Facts(copied.state.cluster).translate(kind, ObjectSeen(wire), now=copied.now)


def _made_up(copied: CopiedState, source: GroupSource) -> Unit:
    event = NewEvent(
        id=derived_id(copied.state.cluster, _ACTOR, source.key),
        stream=f"group/{source.key}",
        payload=GroupSourceObserved(source),
        actor=_ACTOR,
        occurred_at=copied.now,
        subject=f"{source.namespace}/{source.name}",
    )
    return Unit((event,))


def _created(wire: Any, now: int) -> Any:
    time = datetime.fromtimestamp(now // 1_000_000, tz=UTC)
    meta = msgspec.structs.replace(wire.metadata, creation_timestamp=time, deletion_timestamp=None)
    wire = msgspec.structs.replace(wire, metadata=meta)
    if isinstance(wire, PodObject):
        made = wire.status.resource_claim_statuses
        wire = msgspec.structs.replace(wire, status=type(wire.status)(resource_claim_statuses=made))
    return wire


def _renamed(wire: PodObject, number: int) -> PodObject:
    """Return a pod under another name, where two got the same random suffix, as a controller would try again."""
    meta = wire.metadata
    again = msgspec.structs.replace(meta, name=f"{meta.name}-{number}", uid=f"{meta.uid}-{number}")
    return msgspec.structs.replace(wire, metadata=again)
