"""The base of all reasons, and the words that several of them need."""

from typing import ClassVar

import msgspec

from kaicore.rules.model.quantity import format_amount


class CodedReason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="code", tag=True):
    """A reason: its class's name is its code, in the log and in answers, and `str` says it in words: `says`, filled in.

    Fields are named for what they hold. Where the log calls one otherwise, the field says so, and fields stand in the
    order of the log's: a log that was written before reasons had classes has the very same bytes.

    Attributes:
        lasting: whether no other pod's end can remove it: the pod waits for the cluster, or itself, to be changed.
        of_nodes: whether other nodes could remove it, so that an autoscaler may add some.
        says: its text, with its fields by name; of a reason in nodes, what follows their number.
    """

    lasting: ClassVar[bool] = False
    of_nodes: ClassVar[bool] = True
    says: ClassVar[str] = ""

    def __str__(self) -> str:
        return self.says.format_map(msgspec.structs.asdict(self))

    @property
    def code(self) -> str:
        """The reason's code."""
        return type(self).__name__

    @property
    def decisive(self) -> bool:
        """True if it alone keeps the work from starting, whatever work ends and whatever nodes come."""
        return self.lasting and not self.of_nodes

    @property
    def short_resource(self) -> str:
        """The resource of which there is too little; empty where it is about something else."""
        resource: str = getattr(self, "resource", "")
        return resource

    @property
    def queue_name(self) -> str:
        """The queue that it is about; empty where it is about none."""
        queue: str = getattr(self, "queue", "")
        return queue

    @property
    def named_example(self) -> str:
        """The node, pod or group that it names of several; empty where it names none."""
        named = (getattr(self, name, "") for name in ("example", "example_pod", "example_group"))
        return next(filter(None, named), "")

    @property
    def affected_nodes(self) -> int:
        """The number of nodes that it is about; 0 for reasons that are not about nodes."""
        nodes: int = getattr(self, "nodes", 0)
        return nodes


class WorkReason(CodedReason, frozen=True, kw_only=True):
    """A reason in the work itself, its group or its queue: no other node would change it."""

    of_nodes: ClassVar[bool] = False


class NodeReason(CodedReason, frozen=True, kw_only=True):
    """A reason why nodes are not for a pod, counted over nodes.

    Attributes:
        nodes: how many nodes fail this first.
        example: one of them.
    """

    nodes: int
    example: str

    def __str__(self) -> str:
        return self._nodes(super().__str__())

    @property
    def sort_key(self) -> tuple[int, str, str, str]:
        """Orders the reasons of one class of pods: those of most nodes first."""
        document = msgspec.to_builtins(self)
        return -self.nodes, self.code, document.get("resource", ""), document.get("detail", "")

    def _nodes(self, what: str, *, rejection: str = "") -> str:
        """Say what of how many nodes, and name one."""
        verdict = f": {rejection}" if rejection else ""
        return f"{plural(self.nodes, 'node')} {what} (such as {self.example}{verdict})"

    def _most(self, resource: str, amount: int) -> str:
        """Write an amount that is the largest of all these nodes."""
        return ("at most " if self.nodes > 1 and amount else "") + format_amount(resource, amount)


def plural(count: int, noun: str) -> str:
    """Write a count with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def gpu_hours_text(gpu_seconds: int) -> str:
    """Write GPU-seconds as GPU-hours, with two decimals at most."""
    return f"{round(gpu_seconds / 3600, 2):g} GPU-hours"


def named_amount(resource: str, amount: int) -> str:
    """Write an amount with the name of its resource, such as `2 nvidia.com/gpu` or `4Gi memory`."""
    return f"{format_amount(resource, amount)} {resource}"


def time_text(at: int) -> str:
    """Write a time, given in microseconds since the epoch, as Kubernetes does, to the second that is over by then."""
    # A command that only hands a question over knows the reasons too, and is not to wait for numpy.
    import numpy as np  # noqa: PLC0415

    return f"{np.datetime64(-(-at // 1_000_000), 's')}Z"
