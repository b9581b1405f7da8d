"""Counts over a whole log: what reports and metrics say of decisions and of what became of them."""

import msgspec

from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import Payload
from kaicore.rules.state.pod_entry import PodEntry


class Counters(msgspec.Struct):
    """Counters since the log's first event.

    Attributes:
        placed: decisions.
        bound: of them, those that the API server took.
        bind_failures: by reason.
        rejections: kubelets' refusals by reason.
        reselections: decisions for a node whose kubelet had rejected a pod of the same class before.
        agreement: observed placements of pods with a prediction, by how they compare with it (`Agreement`).
        reported: observations of exporters.
        misses: predictions that kubelets did not follow, by node and there by policy and cause (`policy/cause`).
        disbelieved: observations of more than the pod or the zone can hold, by node.
        cycles: recorded cycles.
        missed: pods that were observed on other zones than their own NUMA policy asks for.
        heal_requests: decisions to evict one of them.
        evictions_decided: decisions to evict a pod for another group, by reason.
        evictions: of all those, the ones that the API server took.
        eviction_failures: the ones that it did not, by reason.
    """

    placed: int = 0
    bound: int = 0
    bind_failures: dict[str, int] = {}
    rejections: dict[str, int] = {}
    reselections: int = 0
    agreement: dict[str, int] = {}
    reported: int = 0
    misses: dict[str, dict[str, int]] = {}
    disbelieved: dict[str, int] = {}
    cycles: int = 0
    missed: int = 0
    heal_requests: int = 0
    evictions_decided: dict[str, int] = {}
    evictions: int = 0
    eviction_failures: dict[str, int] = {}

    def count(self, payload: Payload) -> None:
        """Count an event that counts whatever the state is."""
        match payload:
            case payloads.PodPlaced():
                self.placed += 1
                self.reselections += payload.rejected_here_before > 0
            case payloads.PodBound():
                self.bound += 1
            case payloads.BindFailed():
                add(self.bind_failures, payload.reason)
            case payloads.PodRejected():
                add(self.rejections, payload.reason)
            case payloads.EvictionDecided():
                add(self.evictions_decided, payload.reason)
            case payloads.HealRequested():
                self.heal_requests += 1
            case payloads.PodEvicted():
                self.evictions += 1
            case payloads.EvictionFailed():
                add(self.eviction_failures, payload.reason)
            case payloads.CycleCompleted():
                self.cycles += 1
            case _:
                pass

    def count_report(self, before: PodEntry, after: PodEntry, node: str) -> None:
        """Count an observation of a pod on a node, by what it changed in the pod's entry."""
        self.reported += after.exporter_reports - before.exporter_reports
        if after.implausible_reports != before.implausible_reports:
            add(self.disbelieved, node)
        if after.agreement is not before.agreement:
            if before.agreement is not None:
                add(self.agreement, before.agreement, -1)
            if after.agreement is not None:
                add(self.agreement, after.agreement)

    def missed_on(self, node: str, policy: str, cause: str) -> None:
        """Count a prediction that a node's kubelet did not follow."""
        add(self.misses.setdefault(node, {}), f"{policy}/{cause}")

    def restore(self, other: "Counters") -> None:
        """Take over all counts of another one."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(other, name))

    def forget_node(self, node: str) -> None:
        """A node is gone, and what is counted by node with it."""
        self.misses.pop(node, None)
        self.disbelieved.pop(node, None)


def add(counts: dict[str, int], key: str, by: int = 1) -> None:
    """Count up, or down; a count of 0 is left out."""
    counts[key] = counts.get(key, 0) + by
    if not counts[key]:
        del counts[key]
