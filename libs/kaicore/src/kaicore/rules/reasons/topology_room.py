"""The reason of a group for which no domain of its network topology has room."""

from kaicore.rules.reasons.base import CodedReason, plural


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
        whose = f" of sub-group {self.pod_set}" if self.pod_set else ""
        takes = plural(self.fitting, "slice") if self.slice_size else str(self.fitting)
        best = f"the best is {self.domain}, which takes {takes}" if self.domain else "none takes any"
        if not self.level:
            return f"topology {self.topology} has no room for {what}{whose}: it takes {takes}"
        if self.joined:
            there = f"{self._of_level('domain')} {self.domain}, where its other pods are"
            return f"{there}, has no room for {what}{whose}: it takes {takes}"
        return f"of {plural(self.domains, self._of_level('domain'))} none has room for {what}{whose}: {best}"

    def _slices(self) -> str:
        if self.pods_in_slices:
            return f"{plural(self.pods_in_slices, 'pod')} in slices of {self.slice_size}"
        return f"{plural(self.wanted, 'slice')} of {plural(self.slice_size, 'pod')}"

    def _of_level(self, noun: str) -> str:
        """Tiers of HyperNodes without names are numbers."""
        return f"tier-{self.level} {noun}" if self.level.isdecimal() else f"{self.level} {noun}"
