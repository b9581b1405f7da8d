"""Reasons in a pod itself or in its group: its objects, its topology constraints, and the policies of the operator."""

from typing import ClassVar

from msgspec import field

from kaicore.rules.events.reasons.base import CodedReason, NodeReason, WorkReason, plural, time_text
from kaicore.rules.model.pod import GPU_SHARE
from kaicore.spelling import did_you_mean


class SchedulingGated(WorkReason, frozen=True, kw_only=True):
    """The pod has scheduling gates.

    Attributes:
        gates: their names.
    """

    lasting: ClassVar[bool] = True
    gates: str = field(name="detail")
    says: ClassVar[str] = "held back by scheduling gates: {gates}"


class Unsupported(WorkReason, frozen=True, kw_only=True):
    """The pod or its group asks for what this version cannot honour.

    Attributes:
        features: what it asks for.
        group: `<kind> <namespace>/<name>` of the object that asks; empty if it is the pod.
    """

    lasting: ClassVar[bool] = True
    features: str = field(name="detail")
    group: str = ""

    def __str__(self) -> str:
        if self.features.startswith(GPU_SHARE) and ", " not in self.features:
            return f"asks for {self.features}: shares are off until the scheduler's settings have gpu_sharing: true"
        of_group = f" of {self.group}" if self.group else ""
        return f"asks for features that kai-ledger does not support: {self.features}{of_group}"


class Malformed(WorkReason, frozen=True, kw_only=True):
    """A constraint or an annotation of the pod is not valid.

    Attributes:
        problem: the field and what is wrong with it.
    """

    lasting: ClassVar[bool] = True
    problem: str = field(name="detail", default="")
    says: ClassVar[str] = "has an invalid request: {problem}"


class FlavorNotFound(WorkReason, frozen=True, kw_only=True):
    """The pod's queue names ResourceFlavors that do not exist.

    Attributes:
        flavors: the queue, and which.
    """

    lasting: ClassVar[bool] = True
    flavors: str = field(name="detail")
    says: ClassVar[str] = "its queue names a flavor that does not exist: {flavors}"


class GangIncomplete(WorkReason, frozen=True, kw_only=True):
    """Some pods that the group needs to start do not exist, or may not be placed yet.

    Attributes:
        min_pods: how many it needs to start.
        ready_pods: how many of them could be placed.
    """

    min_pods: int = field(name="need", default=0)
    ready_pods: int = field(name="free", default=0)
    says: ClassVar[str] = "the group needs {min_pods} pods to start; ready to be placed: {ready_pods}"


class GangDoesNotFit(CodedReason, frozen=True, kw_only=True):
    """Not all pods that must start together fit.

    Attributes:
        pods: how many must start together.
        fitting_pods: how many of them fit.
    """

    pods: int = field(name="need", default=0)
    fitting_pods: int = field(name="free", default=0)
    says: ClassVar[str] = "{pods} pods must start together, and there is room for {fitting_pods}"


class GangGroupWaits(WorkReason, frozen=True, kw_only=True):
    """Another group has to start together with it, and cannot.

    Attributes:
        other_group: its key.
    """

    other_group: str = field(name="detail")
    says: ClassVar[str] = "must start together with {other_group}"


class WaitsAfterFailedBinds(WorkReason, frozen=True, kw_only=True):
    """Pods of the group are in back-off, for binding them failed.

    Attributes:
        pods: how many.
    """

    pods: int = field(name="need", default=0)
    says: ClassVar[str] = "{pods} of its pods wait after failed binds"


class GroupNotFound(WorkReason, frozen=True, kw_only=True):
    """The pod names a group that does not exist, or that the watcher cannot read.

    Attributes:
        group: `<kind> <namespace>/<name>` of the object.
    """

    group: str
    says: ClassVar[str] = "{group} does not exist or is malformed"


class PodGroupNotInWorkload(WorkReason, frozen=True, kw_only=True):
    """The pod names a pod group that its Workload does not have.

    Attributes:
        group: `<kind> <namespace>/<name>` of the object.
        pod_group: the name.
    """

    pod_group: str = field(name="detail", default="")
    group: str
    says: ClassVar[str] = "{group} has no pod group {pod_group}"


class GroupTreeInvalid(WorkReason, frozen=True, kw_only=True):
    """The pod's group is in a tree of CompositePodGroups that Kubernetes does not allow.

    Attributes:
        group: `<kind> <namespace>/<name>` of the object at fault.
        problem: what is wrong with its place.
    """

    lasting: ClassVar[bool] = True
    problem: str = field(name="detail")
    group: str
    says: ClassVar[str] = "{group} {problem}"


class SubGroupNotFound(WorkReason, frozen=True, kw_only=True):
    """The pod names a sub-group that its group does not have.

    Attributes:
        group: `<kind> <namespace>/<name>` of the object.
        sub_groups: the name, and those that there are.
    """

    sub_groups: str = field(name="detail", default="")
    group: str
    says: ClassVar[str] = "{group} has no sub-group {sub_groups}"


class SubGroupNotNamed(WorkReason, frozen=True, kw_only=True):
    """The pod names none of the sub-groups of its group.

    Attributes:
        group: `<kind> <namespace>/<name>` of the object.
        sub_groups: those that there are.
    """

    sub_groups: str = field(name="detail", default="")
    group: str
    says: ClassVar[str] = "it names none of the sub-groups of {group}: {sub_groups}"


class OwnerNotFound(WorkReason, frozen=True, kw_only=True):
    """The owner of the pod, which may put it in a group, is not known yet.

    Attributes:
        group: `<kind> <namespace>/<name>` of the owner.
    """

    group: str
    says: ClassVar[str] = "its owner {group} is not known"


class TopologyHasNoRoom(CodedReason, frozen=True, kw_only=True):
    """No domain of the required level takes a pod set, or not all of it fits as its slices must.

    Attributes:
        pod_set: the sub-group; empty for the group as a whole.
        topology: name of the topology.
        level: at which the set must be in one domain; empty for anywhere in the topology.
        wanted: how many pods are to be placed, or slices.
        fitting: how many of them the best domain takes.
        slice_size: pods of a slice; 0 where pods are counted.
        domain: the best domain; empty where no pod fits.
        tried: in how many domains pods were put on trial.
        domains: how many domains the level has.
        joined: whether pods of the set have a place already, and the others must be in the same domain.
        pods_in_slices: how many pods the slices have, the last of which may lack some; 0 where pods are counted.
        crowded: how many domains hold more than their part of like work, so that they take no more of it.
    """

    pod_set: str = ""
    topology: str = ""
    level: str = ""
    wanted: int = 0
    fitting: int = 0
    slice_size: int = 0
    domain: str = ""
    tried: int = 0
    domains: int = 0
    joined: bool = False
    pods_in_slices: int = 0
    crowded: int = 0

    def __str__(self) -> str:
        what = plural(self.wanted, "pod") if not self.slice_size else self._slices()
        of_set = f" of sub-group {self.pod_set}" if self.pod_set else ""
        takes = plural(self.fitting, "slice") if self.slice_size else str(self.fitting)
        best = f"the best is {self.domain}, which takes {takes}" if self.domain else "none takes any"
        if not self.level:
            return f"topology {self.topology} has no room for {what}{of_set}: it takes {takes}"
        if self.joined:
            there = f"{self._of_level('domain')} {self.domain}, where its other pods are"
            return f"{there}, has no room for {what}{of_set}: it takes {takes}"
        if not (self.domains or self.domain):
            return f"there is no {self._of_level('domain')} for {what}{of_set}"
        crowded = f"; {self.crowded} hold more than their part of like work" if self.crowded else ""
        return f"of {plural(self.domains, self._of_level('domain'))} none has room for {what}{of_set}: {best}{crowded}"

    def _slices(self) -> str:
        if self.pods_in_slices:
            return f"{plural(self.pods_in_slices, 'pod')} in slices of {self.slice_size}"
        return f"{plural(self.wanted, 'slice')} of {plural(self.slice_size, 'pod')}"

    def _of_level(self, noun: str) -> str:
        """Tiers of HyperNodes without names are numbers."""
        return f"tier-{self.level} {noun}" if self.level.isdecimal() else f"{self.level} {noun}"


class TopologyReason(WorkReason, frozen=True, kw_only=True):
    """A topology constraint of a group cannot be understood.

    Attributes:
        group: `<kind> <namespace>/<name>` of the group.
        pod_set: the sub-group that has the constraint; empty for the group as a whole.
        field: where the object says it; empty where that is not known.
    """

    lasting: ClassVar[bool] = True
    group: str
    pod_set: str = ""
    field: str = ""

    def _who(self, problem: str) -> str:
        """Name the constraint's owner, and what is wrong with it."""
        owner = f"sub-group {self.pod_set} of {self.group}" if self.pod_set else self.group
        return f"{owner}: {self.field}: {problem}" if self.field else f"{owner}: {problem}"


class TopologyNotFound(TopologyReason, frozen=True, kw_only=True):
    """The topology that a group names does not exist.

    Attributes:
        topology: as it is named, with the kind where only one kind is meant.
        topologies: those that there are, separated by commas.
    """

    topology: str
    topologies: str = ""

    def __str__(self) -> str:
        name = self.topology.rpartition(" ")[2]
        there = [one.rpartition(" ")[2] for one in self.topologies.split(", ")]
        rest = f"; there is {self.topologies}{did_you_mean(name, there)}" if self.topologies else ""
        return self._who(f"there is no {self.topology}{rest}")


class TopologyLevelNotFound(TopologyReason, frozen=True, kw_only=True):
    """A level that a group names is not in the topology.

    Attributes:
        level: as it is named.
        topology: which topology; empty where none has it and the level could be a label, which no node has.
        levels: the names of the levels that there are, separated by commas.
        label: the label of nodes that is closest to what could be one; empty where none is close.
    """

    topology: str = ""
    level: str
    levels: str = ""
    label: str = ""

    def __str__(self) -> str:
        meant = did_you_mean(self.level, filter(None, (*self.levels.split(", "), self.label)))
        if self.topology:
            return self._who(f"level {self.level} is not in {_of_all(self.topology)}: it has {self.levels}{meant}")
        rest = f"; there is {self.levels}{meant}" if self.levels else meant
        return self._who(f"level {self.level} is in no topology, and no node has a label of that name{rest}")


class TopologyAmbiguous(TopologyReason, frozen=True, kw_only=True):
    """Several topologies have what a group asks for, and it names none.

    Attributes:
        topologies: which, separated by commas.
        level: one that it asks for; empty for none.
    """

    topologies: str
    level: str = ""

    def __str__(self) -> str:
        what = f"level {self.level} is in several topologies" if self.level else "there are several topologies"
        return self._who(f"{what}, and none is named: {self.topologies}")


class TopologyInvalid(TopologyReason, frozen=True, kw_only=True):
    """The definition of a group's topology is wrong, so that no node is in any domain.

    Attributes:
        topology: which.
        problem: what is wrong with it.
    """

    topology: str
    problem: str

    def __str__(self) -> str:
        return self._who(f"{_of_all(self.topology)} is not valid: {self.problem}")


class TopologyConstraintInvalid(TopologyReason, frozen=True, kw_only=True):
    """A group's topology constraint makes no sense.

    Attributes:
        problem: the field and what is wrong with it.
    """

    problem: str

    def __str__(self) -> str:
        return self._who(self.problem)


def _of_all(topology: str) -> str:
    """Return a topology as one thing: that of all HyperNodes has no name, only a kind in the plural."""
    return topology if " " in topology else f"the topology of {topology}"


class FilteredByPolicy(NodeReason, frozen=True, kw_only=True):
    """Nodes that a policy of the operator refuses.

    Attributes:
        why: the policy's text; empty where it has none.
        policy: its name.
    """

    why: str = field(name="detail", default="")
    policy: str

    def __str__(self) -> str:
        return self._nodes(f"refused by policy {self.policy}{': ' * bool(self.why)}{self.why}")


class HeldByPolicy(WorkReason, frozen=True, kw_only=True):
    """A policy of the operator does not let the group start yet.

    Attributes:
        why: the policy's text.
        policy: its name.
        until_us: when it is asked again, microseconds since the epoch; 0 for with each cycle.
    """

    why: str = field(name="detail", default="")
    policy: str
    until_us: int = 0

    def __str__(self) -> str:
        until = f" until {time_text(self.until_us)}" if self.until_us else ""
        return f"held by policy {self.policy}{until}{': ' * bool(self.why)}{self.why}"
