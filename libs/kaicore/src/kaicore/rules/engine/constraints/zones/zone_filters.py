"""Filters by zones: admission by the kubelet, and admission in the way that the pod's own policy asks for."""

from collections.abc import Iterator

import numpy as np

from kaicore.rules.engine.constraints.node_filter import node_reason
from kaicore.rules.engine.constraints.zones.numa_verdicts import NumaVerdicts
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.row_states import RowStates
from kaicore.rules.engine.placement.share_fit import ShareFit
from kaicore.rules.events.reasons.base import NodeReason
from kaicore.rules.events.reasons.numa import NumaPolicyNeverKept, NumaPolicyNotKept, NumaPolicyUntold
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.numa.explain import Refusal
from kaicore.rules.numa.own_policy import PodNumaPolicy, Stray


class AdmissionFilter:
    """Nodes where the kubelet would reject such a pod; of nodes that are alike, one is asked."""

    def __init__(self, columns: NodeColumns, numa: NumaVerdicts, states: RowStates, *, on_empty: bool = False) -> None:
        """Args:
        numa: what kubelets make of the class.
        on_empty: whether it is about the nodes without their pods.
        """
        self._columns = columns
        self._numa = numa
        self._states = states
        self._on_empty = on_empty

    def failing(self, rows: Ints) -> Flags:
        """See `NodeFilter.failing`."""
        first, which = self._alike(rows)
        refused = [not self._numa.admits(int(rows[place]), on_empty=self._on_empty) for place in first.tolist()]
        failing: Flags = np.array(refused, np.bool_)[which]
        return failing

    def reasons(self, rows: Ints) -> Iterator[NodeReason]:
        """Yield a reason for each code, resource and kubelet's reason."""
        columns = self._columns
        first, which = self._alike(rows)
        refusals = [self._refusal(int(rows[place])) for place in first.tolist()]
        groups: dict[tuple[str, str, str], list[int]] = {}
        for number, refusal in enumerate(refusals):
            key = refusal.kind.__name__, refusal.resource, refusal.rejection
            groups.setdefault(key, []).append(number)
        order = columns.name_order()
        for _, numbers in sorted(groups.items()):
            places = np.flatnonzero(np.isin(which, numbers)) if len(groups) > 1 else np.arange(len(rows))
            place = int(places[order[rows[places]].argmin()])
            example, refusal = int(rows[place]), refusals[int(which[place])]
            topology = columns.topologies[example]
            assert topology is not None
            yield refusal.reason(
                nodes=len(places),
                example=columns.names[example],
                zone_names=[zone.name for zone in topology.zones],
                gap=history_gap(columns, example),
            )

    def _alike(self, rows: Ints) -> tuple[Ints, Ints]:
        if self._on_empty and len(rows) > 1:
            return self._states.alike_when_empty(rows)
        return self._states.alike(rows)

    def _refusal(self, row: int) -> Refusal:
        refusal = self._numa.refusal(row, on_empty=self._on_empty)
        assert refusal is not None, "only rows that are refused have reasons"
        return refusal


class OwnPolicyFilter:
    """Nodes where the kubelet would take such a pod, but not as the pod's own policy asks."""

    def __init__(
        self,
        columns: NodeColumns,
        numa: NumaVerdicts,
        states: RowStates,
        *,
        policy: PodNumaPolicy,
        on_empty: bool = False,
        share: ShareFit | None = None,
    ) -> None:
        """Args:
        numa: what kubelets make of the class.
        policy: of the class; nodes are left out for it.
        on_empty: whether it is about the nodes without their pods.
        share: of the class, where it is about the GPUs that a pod would share, too.
        """
        self._columns = columns
        self._share = share
        self._numa = numa
        self._states = states
        self._policy = policy
        self._on_empty = on_empty

    def failing(self, rows: Ints) -> Flags:
        """See `NodeFilter.failing`."""
        first, which = self._alike(rows)
        failing: Flags = np.array([self._stray(int(rows[place])) is not None for place in first.tolist()], np.bool_)
        return failing[which]

    def reasons(self, rows: Ints) -> Iterator[NodeReason]:
        """Yield a reason for each that the pod might get instead."""
        first, which = self._alike(rows)
        groups: dict[tuple[str, str], list[int]] = {}
        for number, place in enumerate(first.tolist()):
            row = int(rows[place])
            stray, topology = self._stray(row), self._columns.topologies[row]
            assert stray is not None
            names = tuple(zone.name for zone in topology.zones) if topology is not None else ()
            groups.setdefault((stray.resource, stray.text(names)), []).append(number)
        kept = NumaPolicyNeverKept if self._on_empty else NumaPolicyNotKept
        for (resource, text), numbers in sorted(groups.items()):
            alike = rows[np.isin(which, numbers)]
            if text:
                yield node_reason(self._columns, kept, alike, {"policy": f"{self._policy}: it may get {text}"})
            else:
                detail = {"resource": resource, "policy": str(self._policy)}
                yield node_reason(self._columns, NumaPolicyUntold, alike, detail)

    def _alike(self, rows: Ints) -> tuple[Ints, Ints]:
        return (self._share or self._states).alike(rows)

    def _stray(self, row: int) -> Stray | None:
        if self._share is not None:
            return self._share.stray(row)
        return self._numa.stray(row, empty=self._on_empty)


def history_gap(columns: NodeColumns, row: int) -> str:
    """Say of how many pods on a node it is not known which zones they hold, and since when; empty if of none."""
    zones = columns.zones
    count = int(zones.unknown[row])
    if not count:
        return ""
    return f"history incomplete since position {int(zones.unknown_since[row])}: zones of {count} pods unknown"
