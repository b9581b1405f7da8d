"""Reasons in a group's network topology constraints: independent of free nodes, or for want of room."""

from typing import ClassVar

from kaicore.rules.events.reasons.base import CodedReason, plural
from kaicore.spelling import did_you_mean


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
        return f"of {plural(self.domains, self._of_level('domain'))} none has room for {what}{of_set}: {best}"

    def _slices(self) -> str:
        if self.pods_in_slices:
            return f"{plural(self.pods_in_slices, 'pod')} in slices of {self.slice_size}"
        return f"{plural(self.wanted, 'slice')} of {plural(self.slice_size, 'pod')}"

    def _of_level(self, noun: str) -> str:
        """Tiers of HyperNodes without names are numbers."""
        return f"tier-{self.level} {noun}" if self.level.isdecimal() else f"{self.level} {noun}"


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
