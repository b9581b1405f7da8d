"""A dialect of workloads: kinds of objects, how pods belong to them, and which pods their controllers make.

All else derives from it (`kaicore.rules.groups.dialects.table`): the kinds that are watched, the watcher's rights, the
objects that the webhook judges, the pods of `kai simulate`, the group and the pod set of a pod, and the reference.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kaicore.errors import Lost
from kaicore.rules.model.group import GroupSource, GroupTemplate
from kaicore.rules.model.pod import Pod
from kaicore.rules.objects.made import Made
from kaicore.rules.objects.mappings import Object

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
        wire: what its objects are decoded as; None where they do not group pods.
        normalize: wire to model; raises `InvalidObject` where the purpose of the object makes no sense.
        made: the pods, or other owners, that its controller makes of an object; None where it makes none.
        made_per_node: the same, of a controller that makes one pod for each node.
        suspend: the mappings inside `spec` that lead to its switch `suspend`; None where it has none.
        name_label: the label by which a pod names its object; empty where only its owners tell.
        instance_label: the label that distinguishes the groups of one object; empty where it is one group.
        template_label: the same, where each of these groups has a template of its own that the label names.
        pod_set: the pod set that a pod names; None where groups have one set.
        gate: that its controller keeps on some of its pods; None for none.
    """

    kind: str
    plural: str = ""
    versions: tuple[str, ...] = ()
    wire: type[Any] | None = None
    normalize: Callable[[Any, Lost], GroupSource] | None = None
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
