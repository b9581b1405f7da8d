"""Reasons in a pod itself or in its group, independent of nodes."""

from typing import ClassVar

from msgspec import field

from kaicore.rules.events.reasons.base import CodedReason
from kaicore.rules.model.pod import GPU_SHARE


class SchedulingGated(CodedReason, frozen=True, kw_only=True):
    """The pod has scheduling gates.

    Attributes:
        gates: their names.
    """

    lasting: ClassVar[bool] = True
    of_nodes: ClassVar[bool] = False
    gates: str = field(name="detail")

    def __str__(self) -> str:
        return f"held back by scheduling gates: {self.gates}"


class Unsupported(CodedReason, frozen=True, kw_only=True):
    """The pod or its group asks for what this version cannot honour.

    Attributes:
        features: what it asks for.
        group: `<kind> <namespace>/<name>` of the object that asks; empty if it is the pod.
    """

    lasting: ClassVar[bool] = True
    of_nodes: ClassVar[bool] = False
    features: str = field(name="detail")
    group: str = ""

    def __str__(self) -> str:
        if self.features.startswith(GPU_SHARE) and ", " not in self.features:
            return f"asks for {self.features}: shares are off until the scheduler's settings have gpu_sharing: true"
        of_group = f" of {self.group}" if self.group else ""
        return f"asks for features that kai-ledger does not support: {self.features}{of_group}"


class Malformed(CodedReason, frozen=True, kw_only=True):
    """A constraint or an annotation of the pod is not valid.

    Attributes:
        problem: the field and what is wrong with it.
    """

    lasting: ClassVar[bool] = True
    of_nodes: ClassVar[bool] = False
    problem: str = field(name="detail", default="")

    def __str__(self) -> str:
        return f"has an invalid request: {self.problem}"


class FlavorNotFound(CodedReason, frozen=True, kw_only=True):
    """The pod's queue names ResourceFlavors that do not exist.

    Attributes:
        flavors: the queue, and which.
    """

    lasting: ClassVar[bool] = True
    of_nodes: ClassVar[bool] = False
    flavors: str = field(name="detail")

    def __str__(self) -> str:
        return f"its queue names a flavor that does not exist: {self.flavors}"


class GangIncomplete(CodedReason, frozen=True, kw_only=True):
    """Some pods that the group needs to start do not exist, or may not be placed yet.

    Attributes:
        min_pods: how many it needs to start.
        ready_pods: how many of them could be placed.
    """

    of_nodes: ClassVar[bool] = False
    min_pods: int = field(name="need", default=0)
    ready_pods: int = field(name="free", default=0)

    def __str__(self) -> str:
        return f"the group needs {self.min_pods} pods to start, {self.ready_pods} of them are ready to be placed"


class GangDoesNotFit(CodedReason, frozen=True, kw_only=True):
    """Not all pods that must start together fit.

    Attributes:
        pods: how many must start together.
        fitting_pods: how many of them fit.
    """

    pods: int = field(name="need", default=0)
    fitting_pods: int = field(name="free", default=0)

    def __str__(self) -> str:
        return f"of the {self.pods} pods that must start together only {self.fitting_pods} fit"


class GangGroupWaits(CodedReason, frozen=True, kw_only=True):
    """Another group has to start together with it, and cannot.

    Attributes:
        other_group: its key.
    """

    of_nodes: ClassVar[bool] = False
    other_group: str = field(name="detail")

    def __str__(self) -> str:
        return f"must start together with {self.other_group}"


class WaitsAfterFailedBinds(CodedReason, frozen=True, kw_only=True):
    """Pods of the group are in back-off, for binding them failed.

    Attributes:
        pods: how many.
    """

    of_nodes: ClassVar[bool] = False
    pods: int = field(name="need", default=0)

    def __str__(self) -> str:
        return f"{self.pods} of its pods wait after failed binds"


class GroupNotFound(CodedReason, frozen=True, kw_only=True):
    """The pod names a group that does not exist.

    Attributes:
        group: `<kind> <namespace>/<name>` of the object.
    """

    of_nodes: ClassVar[bool] = False
    group: str

    def __str__(self) -> str:
        return f"{self.group} does not exist"


class PodGroupNotInWorkload(CodedReason, frozen=True, kw_only=True):
    """The pod names a pod group that its Workload does not have.

    Attributes:
        group: `<kind> <namespace>/<name>` of the object.
        pod_group: the name.
    """

    of_nodes: ClassVar[bool] = False
    pod_group: str = field(name="detail", default="")
    group: str

    def __str__(self) -> str:
        return f"{self.group} has no pod group {self.pod_group}"


class SubGroupNotFound(CodedReason, frozen=True, kw_only=True):
    """The pod names a sub-group that its group does not have.

    Attributes:
        group: `<kind> <namespace>/<name>` of the object.
        sub_groups: the name, and those that there are.
    """

    of_nodes: ClassVar[bool] = False
    sub_groups: str = field(name="detail", default="")
    group: str

    def __str__(self) -> str:
        return f"{self.group} has no sub-group {self.sub_groups}"


class SubGroupNotNamed(CodedReason, frozen=True, kw_only=True):
    """The pod names none of the sub-groups of its group.

    Attributes:
        group: `<kind> <namespace>/<name>` of the object.
        sub_groups: those that there are.
    """

    of_nodes: ClassVar[bool] = False
    sub_groups: str = field(name="detail", default="")
    group: str

    def __str__(self) -> str:
        return f"it names none of the sub-groups of {self.group}: {self.sub_groups}"


class OwnerNotFound(CodedReason, frozen=True, kw_only=True):
    """The owner of the pod, which may put it in a group, is not known yet.

    Attributes:
        group: `<kind> <namespace>/<name>` of the owner.
    """

    of_nodes: ClassVar[bool] = False
    group: str

    def __str__(self) -> str:
        return f"its owner {self.group} is not known"
