"""A dialect of workloads: kinds of objects, how pods belong to them, and which pods their controllers make.

All else derives from it (`kaicore.rules.groups.dialects.table`): the kinds that are watched, the watcher's rights, the
objects that the webhook judges, the pods of `kai simulate`, the group and the pod set of a pod, and the reference.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec.structs import replace

from kaicore.errors import Lost
from kaicore.rules.groups.dialects.source import group_source
from kaicore.rules.groups.labels import least_limit_s
from kaicore.rules.model.group import GroupSource, GroupTemplate
from kaicore.rules.model.pod import Pod
from kaicore.rules.objects.made import Made
from kaicore.rules.objects.mappings import Fields, Object
from kaicore.rules.objects.wire import ObjectMeta, PlainObject, said_count, subject_of

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
        """Return the source of groups that the object is; see `group_source`."""
        return group_source(self.metadata, self.kind, templates, lost=self.lost, **given)


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
