"""Reasons in a group's network topology constraints, independent of free nodes."""

from typing import ClassVar

from kaicore.rules.reasons.base import CodedReason
from kaicore.spelling import did_you_mean


class TopologyReason(CodedReason, frozen=True, kw_only=True):
    """A topology constraint of a group cannot be understood.

    Attributes:
        group: `<kind> <namespace>/<name>` of the group.
        pod_set: the sub-group that has the constraint; empty for the group as a whole.
        field: where the object says it; empty where that is not known.
    """

    lasting: ClassVar[bool] = True
    of_nodes: ClassVar[bool] = False
    group: str
    pod_set: str = ""
    field: str = ""

    def _who(self, problem: str) -> str:
        """Say whose constraint it is, and what is wrong with it."""
        whose = f"sub-group {self.pod_set} of {self.group}" if self.pod_set else self.group
        return f"{whose}: {self.field}: {problem}" if self.field else f"{whose}: {problem}"


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
    """What a group asks of a topology makes no sense.

    Attributes:
        problem: the field and what is wrong with it.
    """

    problem: str

    def __str__(self) -> str:
        return self._who(self.problem)


def _of_all(topology: str) -> str:
    """Return a topology as one thing: that of all HyperNodes has no name, only a kind in the plural."""
    return topology if " " in topology else f"the topology of {topology}"
