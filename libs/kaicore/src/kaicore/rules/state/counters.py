"""Counts over a whole log: decisions and their outcomes, for reports and metrics."""

import msgspec

from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import GroupPending, Payload
from kaicore.rules.events.reasons.making_room import PromiseGivenUp, RoomPromised
from kaicore.rules.state.pods.agreement import Agreement
from kaicore.rules.state.pods.pod_entry import PodEntry

#: A start that is no later than so long after the time that was promised is in time: pods take a while to end, and a
#: cycle to come.
_PUNCTUAL_US = 60_000_000


class Counters(msgspec.Struct):
    """Counters since the log's first event.

    Attributes:
        bound: of them, those that the API server took.
        bind_failures: by reason.
        rejections: kubelets' refusals by reason.
        reselections: decisions for a node that had rejected a pod of the same class before.
        agreement: observed predictions, by how they compare (`Agreement`); see `kaicore.rules.state.accuracy`.
        reported: observations of exporters.
        reported_on: observations of exporters by node.
        misses: predictions that kubelets did not follow, by node and there by policy and cause (`policy/cause`).
        disbelieved: observations of more than the pod or the zone can hold, by node.
        cycles: recorded cycles.
        missed: pods that were observed on other zones than their own NUMA policy asks for.
        evictions_decided: decisions to evict a pod for another group, by reason; `Repaired` to place it anew where it
            is on other zones than it asks for, or on a GPU that nothing holds.
        evictions: of all those, the ones that the API server took.
        eviction_failures: the ones that it did not, by reason.
        promises: reserved starts: how many were `made`; how many groups started by the time that was promised first
            (`kept`), later (`late`), or without any (`untimed`); and how many were `given up` or `moved`, by reason
            (`moved/<reason>`).
        promises_late_us: by how much the late ones were late, in all.
    """

    placed: int = 0
    bound: int = 0
    bind_failures: dict[str, int] = {}
    rejections: dict[str, int] = {}
    reselections: int = 0
    agreement: dict[str, int] = {}
    reported: int = 0
    misses: dict[str, dict[str, int]] = {}
    reported_on: dict[str, int] = {}
    disbelieved: dict[str, int] = {}
    cycles: int = 0
    missed: int = 0
    evictions_decided: dict[str, int] = {}
    evictions: int = 0
    eviction_failures: dict[str, int] = {}
    promises: dict[str, int] = {}
    promises_late_us: int = 0

    def count(self, payload: Payload) -> None:
        """Count an event that counts whatever the state is."""
        kind = type(payload)
        if kind in _COUNTED:
            name = _COUNTED[kind]
            setattr(self, name, getattr(self, name) + 1)
        elif kind in _BY_REASON:
            add(getattr(self, _BY_REASON[kind]), getattr(payload, "reason", "Repaired"))
        if isinstance(payload, payloads.PodPlaced):
            self.reselections += payload.rejected_here_before > 0

    def count_report(self, before: PodEntry, after: PodEntry, node: str) -> None:
        """Count an observation of a pod on a node, by what it changed in the pod's entry."""
        reports = after.exporter_reports - before.exporter_reports
        if reports:
            self.reported += reports
            add(self.reported_on, node, reports)
        if after.implausible_reports != before.implausible_reports:
            add(self.disbelieved, node)
        for kind, change in agreement_changes(before.agreement, after.agreement).items():
            add(self.agreement, kind, change)

    def count_promise(self, before: RoomPromised | None, group: GroupPending, *, now: int) -> None:
        """Count what became of a reserved start.

        Args:
            before: what was promised to the group; None for nothing.
            group: what a cycle records of it.
        """
        promised = next((one for one in group.reasons if isinstance(one, RoomPromised)), None)
        given_up = next((one for one in group.reasons if isinstance(one, PromiseGivenUp)), None)
        if before is None:
            if promised is not None:
                add(self.promises, "made")
        elif promised is not None:
            if promised.moved and not promised.is_like(before):
                add(self.promises, f"moved/{promised.moved}")
        elif given_up is not None:
            add(self.promises, f"given up/{given_up.cause}")
        elif not before.first_starts_at:
            add(self.promises, "untimed")
        elif now <= before.first_starts_at + _PUNCTUAL_US:
            add(self.promises, "kept")
        else:
            add(self.promises, "late")
            self.promises_late_us += now - before.first_starts_at

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
        self.reported_on.pop(node, None)


def agreement_changes(before: Agreement | None, after: Agreement | None) -> dict[Agreement, int]:
    """Return by how much each kind counts otherwise when a prediction agrees in this way, and did in that before."""
    if after is before:
        return {}
    return {kind: change for kind, change in ((before, -1), (after, 1)) if kind is not None}


def add(counts: dict[str, int], key: str, by: int = 1) -> None:
    """Count up, or down; a count of 0 is left out."""
    counts[key] = counts.get(key, 0) + by
    if not counts[key]:
        del counts[key]


_COUNTED: dict[type[Payload], str] = {
    payloads.PodPlaced: "placed",
    payloads.PodBound: "bound",
    payloads.PodEvicted: "evictions",
    payloads.CycleCompleted: "cycles",
}

_BY_REASON: dict[type[Payload], str] = {
    payloads.BindFailed: "bind_failures",
    payloads.PodRejected: "rejections",
    payloads.EvictionDecided: "evictions_decided",
    payloads.RepairRequested: "evictions_decided",
    payloads.EvictionFailed: "eviction_failures",
}

#: The events that count whatever the state is.
COUNTED_EVENTS = frozenset((*_COUNTED, *_BY_REASON))
