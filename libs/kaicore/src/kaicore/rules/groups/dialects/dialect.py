"""A dialect of workloads: kinds of objects, how pods belong to them, and which pods their controllers make.

What objects say is read as the pod grouper of KAI-Scheduler 0.17 does (`pkg/podgrouper/podgrouper/plugins`), with a
sub-group for each kind of pods where it counts them all together.

All else derives from it (`kaicore.rules.groups.dialects.table`): the kinds that are watched, the watcher's rights, the
objects that the webhook judges, the pods of `kai simulate`, the group and the pod set of a pod, and the reference.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec.structs import replace

from kaicore.errors import InvalidObject, Lost
from kaicore.rules.groups.kai_topology import around_segments, kai_topology, misplaced_segments, names_segments
from kaicore.rules.groups.labels import (
    FAILED_NODES_THRESHOLD,
    KAI_QUEUE_LABEL,
    POD_GROUPS,
    PREEMPTIBILITIES,
    PREEMPTIBILITY_LABEL,
    PREEMPTION_DELAY_ANNOTATION,
    PRIORITY_CLASS_LABEL,
    declared_limit_s,
    least_limit_s,
    queue_name,
)
from kaicore.rules.groups.pod_templates import PodSetTemplate
from kaicore.rules.model.group import GroupSource, GroupTemplate, PodSet, TopologyConstraint
from kaicore.rules.model.node import KAI_TOPOLOGY
from kaicore.rules.model.pod import Pod, controller
from kaicore.rules.model.quantity import parse_duration
from kaicore.rules.objects.made import Made
from kaicore.rules.objects.mappings import Fields, Object
from kaicore.rules.objects.provisioning import PROVISIONING_CLASS_ANNOTATION
from kaicore.rules.objects.wire import ObjectMeta, PlainObject, said_count, seconds, subject_of

#: Kueue's status names eight failed nodes at most.
_FAILED_NODES = tuple("12345678")

#: Name of the set of pods that belong to no other one.
REST = "-"

#: Names of the nodes that a pod may run on, whatever is free there.
NodesFor = Callable[[Object], list[str]]


class SetName(NamedTuple):
    """The pod set that a pod names.

    Attributes:
        name: of the set; empty where the pod names none.
        others: the set of pods that name none of the group's sets.
        required: whether the pod waits where the group has no set of this name, even where it has `others`.
    """

    name: str
    others: str = REST
    required: bool = False


#: Returns the pod set that a pod names, from the pod, the template of its group, and the key of the group's source.
NameSet = Callable[[Pod, GroupTemplate, str], SetName]


def named_by(*labels: str, default: str = "") -> NameSet:
    """Return the rule that a pod names its set in the first of some labels that it has."""

    def name(pod: Pod, _template: GroupTemplate, _key: str) -> SetName:
        return SetName(next((pod.labels[label] for label in labels if pod.labels.get(label)), default))

    return name


class ReadObject(NamedTuple):
    """An object as its dialect reads it.

    Attributes:
        lost: is called with what makes no sense and is left out.
    """

    kind: str
    metadata: ObjectMeta
    spec: Fields
    status: Fields
    lost: Lost

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations of the object; none where it has none."""
        return self.metadata.annotations or {}

    def source(self, *templates: GroupTemplate, **given: Any) -> GroupSource:
        """Return the source of groups that the object is.

        Its labels and annotations may name queue, priority class, preemptibility, delay and topology.

        Args:
            templates: the groups that it stands for.
            given: further fields of `GroupSource`; what is None or empty there is left to labels and annotations.
        """
        metadata = self.metadata
        subject = subject_of(self.kind, metadata.namespace, metadata.name)
        if not metadata.name:
            raise InvalidObject(subject, "metadata.name", metadata.name, "is empty")
        labels, annotations = metadata.labels or {}, self.annotations
        fields: dict[str, Any] = {
            "queue": queue_name(labels, annotations, namespace=metadata.namespace),
            "priority_class": labels.get(PRIORITY_CLASS_LABEL, ""),
            "preemptible": preemptible(
                labels.get(PREEMPTIBILITY_LABEL),
                subject=subject,
                field=f"metadata.labels[{PREEMPTIBILITY_LABEL}]",
                lost=self.lost,
            ),
            "preemption_delay_us": duration(
                annotations.get(PREEMPTION_DELAY_ANNOTATION),
                subject=subject,
                field=f"metadata.annotations[{PREEMPTION_DELAY_ANNOTATION}]",
                lost=self.lost,
            ),
            "kai": KAI_QUEUE_LABEL in labels,
            "provisioning_class": annotations.get(PROVISIONING_CLASS_ANNOTATION, ""),
            "most_failed_nodes": _most_failed_nodes(annotations, subject=subject, lost=self.lost),
            "active_deadline_s": declared_limit_s(labels, annotations),
        }
        fields |= {name: value for name, value in given.items() if value not in (None, "")}
        return GroupSource(
            kind=self.kind,
            uid=metadata.uid,
            namespace=metadata.namespace,
            name=metadata.name,
            resource_version=metadata.resource_version,
            created_at=seconds(metadata.creation_timestamp) or 0,
            owner=controller(metadata),
            templates=_with_topology(templates, annotations, of_pods=self.kind not in POD_GROUPS),
            **fields,
        )


class ControllerGate(NamedTuple):
    """A scheduling gate that a controller keeps on pods until another object has its minimum.

    Attributes:
        after: the label by which pods name that object, which is of the kind of their own one.
    """

    name: str
    after: str


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """A kind of objects of a dialect.

    Attributes:
        kind: with its API group, such as `JobSet.jobset.x-k8s.io`.
        plural: its name in the API's paths.
        short_names: what people call it besides, as `kubectl` does.
        versions: of its API group, the one that is preferred first.
        normalize: object to model; raises `InvalidObject` where the purpose of the object makes no sense. None where
            objects do not group pods.
        made: the pods, or other owners, that its controller makes of an object; None where it makes none.
        made_per_node: the same, of a controller that makes one pod for each node.
        suspend: the mappings inside `spec` that lead to its switch `suspend`, beside which it may have a deadline; None
            where it has none.
        name_label: the label by which a pod names its object; empty where only its owners tell.
        instance_label: the label that distinguishes the groups of one object; empty where it is one group.
        template_label: the same, where each of these groups has a template of its own that the label names.
        pod_set: the pod set that a pod names; None where groups have one set.
        gate: that its controller keeps on some of its pods; None for none.
    """

    kind: str
    plural: str = ""
    versions: tuple[str, ...] = ()
    normalize: Callable[[ReadObject], GroupSource] | None = None
    made: Callable[[Object], Iterable[Made]] | None = None
    made_per_node: Callable[[Object, NodesFor], Iterable[Made]] | None = None
    suspend: tuple[str, ...] | None = None
    name_label: str = ""
    instance_label: str = ""
    template_label: str = ""
    pod_set: NameSet | None = None
    gate: ControllerGate | None = None
    short_names: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.kind.partition(".")[2]

    def source(self, wire: PlainObject, lost: Lost) -> GroupSource:
        """Return the source of groups that an object is: as its dialect says, and suspended or with a deadline."""
        assert self.normalize is not None
        meta = wire.metadata
        # What is no status says nothing.
        status = wire.status if isinstance(wire.status, dict) else {}
        given = Fields(subject_of(self.kind, meta.namespace, meta.name), {"spec": wire.spec, "status": status})
        spec = given.inside("spec")
        source = self.normalize(ReadObject(self.kind, meta, spec, given.inside("status"), lost))
        if (policy := self.run_policy(spec)) is None:
            return source
        deadline_s = said_count(policy.value.get("activeDeadlineSeconds"))
        return replace(
            source,
            suspended=policy.flag("suspend"),
            active_deadline_s=least_limit_s(deadline_s, source.active_deadline_s),
        )

    def run_policy(self, spec: Fields) -> Fields | None:
        """Return the mapping inside a `spec` that has the switch `suspend`; None where there is no switch."""
        if self.suspend is None:
            return None
        for name in self.suspend:
            spec = spec.inside(name)
        return spec


@dataclass(frozen=True, slots=True)
class Dialect:
    """The kinds of one project.

    Attributes:
        name: of the project, for people.
        annotations: how annotations begin that are kept of pods, for they say how pods belong together.
    """

    name: str
    workloads: tuple[WorkloadKind, ...]
    annotations: tuple[str, ...] = ()


# Parts of objects that several dialects share.


def pod_set_template(template: Fields, pods: int) -> PodSetTemplate:
    """Return what the metadata of a pod template says about a set of so many pods; 0 where that is not known."""
    metadata = template.inside("metadata")
    return PodSetTemplate(metadata.text_by_name("annotations"), template.where("metadata"), pods)


def _most_failed_nodes(annotations: Mapping[str, str], *, subject: str, lost: Lost) -> int:
    text = annotations.get(FAILED_NODES_THRESHOLD)
    if text is None or text in _FAILED_NODES:
        return int(text or 0)
    lost(InvalidObject(subject, f"metadata.annotations[{FAILED_NODES_THRESHOLD}]", text, "is no number of 1 to 8"))
    return 0


def _with_topology(
    templates: tuple[GroupTemplate, ...], annotations: Mapping[str, str], *, of_pods: bool
) -> tuple[GroupTemplate, ...]:
    """Return templates with what KAI's annotations say about all pods, where the objects themselves say nothing.

    Args:
        templates: the groups that an object stands for.
        of_pods: whether it makes pods, so that segments are of some of them; a PodGroup of KAI repeats what its owner
            says.
    """
    constraint = kai_topology(annotations)
    segmented = any(one.topology is not None for template in templates for one in template.sets)
    if of_pods and names_segments(annotations) and not segmented:
        constraint = misplaced_segments(annotations)
    if constraint is None:
        return templates
    return tuple(replace(template, sets=_around(constraint, template.sets)) for template in templates)


def _around(constraint: TopologyConstraint, sets: tuple[PodSet, ...]) -> tuple[PodSet, ...]:
    root, *others = sets
    own = root.topology
    if own is None:
        root = replace(root, topology=constraint)
    elif own.kind == KAI_TOPOLOGY and own.slices and not own.required and not own.preferred:
        root = replace(root, topology=around_segments(constraint, own))
    return (root, *others)


def preemptible(value: str | None, *, subject: str, field: str, lost: Lost) -> bool | None:
    """Return whether a group may be preempted; None without one of the two words."""
    if value and value not in PREEMPTIBILITIES:
        lost(InvalidObject(subject, field, value, "is neither preemptible nor non-preemptible"))
    return PREEMPTIBILITIES.get(value or "")


def duration(text: str | None, *, subject: str, field: str, lost: Lost) -> int | None:
    """Return a duration in microseconds; None without one."""
    if not text:
        return None
    try:
        return parse_duration(text, subject=subject, field=field)
    except InvalidObject as error:
        lost(error)
        return None


def check_names(
    names: Sequence[str], owner: Fields, field: str, problem: str = "need names, each of them once"
) -> None:
    """Raise InvalidObject where a name of the items of a list is empty or there twice."""
    if len(set(names)) < len(names) or "" in names:
        raise InvalidObject(owner.subject, owner.where(field), list(names), problem)
