"""The filters of a class of pods: the one list that decides which nodes may take a pod and gives the reasons of the
others.

Filters that no charge of a cycle changes are masks, ANDed once to the eligible rows. The others are evaluated for the
remaining rows, on request. By zones, rows are filtered by the kubelet's admission, and by admission in the way that the
pod's own policy asks for.
"""

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.claims.device_closeness import DeviceCloseness
from kaicore.rules.engine.constraints.constraint_evaluator import ConstraintEvaluator, tolerated_rows
from kaicore.rules.engine.constraints.node_filter import (
    MaskFilter,
    NodeFilter,
    RoomFilter,
    any_mask,
    first_by_name,
    node_reason,
)
from kaicore.rules.engine.constraints.node_matching import affine, selected, tolerates
from kaicore.rules.engine.constraints.zones.doubts import Doubts
from kaicore.rules.engine.constraints.zones.numa_verdicts import NumaVerdicts
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.placement.row_states import RowStates
from kaicore.rules.engine.placement.share_fit import NONE, ShareFit
from kaicore.rules.engine.policies.class_policies import ClassPolicies
from kaicore.rules.events.reasons.base import NodeReason
from kaicore.rules.events.reasons.group import FilteredByPolicy
from kaicore.rules.events.reasons.node import (
    HistoryIncomplete,
    NodeAffinityMismatch,
    NodeFlavorMismatch,
    NodeNotReady,
    NodeReserved,
    NodeSelectorMismatch,
    NodeSuspect,
    NodeUnschedulable,
    NoGpuToShare,
    NoPartOfGpu,
    NotObservedYet,
    RejectedByKubelet,
    UntoleratedTaint,
)
from kaicore.rules.events.reasons.numa import NumaPolicyNeverKept, NumaPolicyNotKept, NumaPolicyUntold
from kaicore.rules.model.gpu_share import GPU, WHOLE
from kaicore.rules.model.node import Taint
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


_REPEATED = "a device plugin (HAMi) offers each GPU several times"


class ShareFilter:
    """Nodes where a class with a share of a GPU finds none."""

    def __init__(self, columns: NodeColumns, share: ShareFit, *, in_all: bool = False) -> None:
        """Args:
        in_all: whether it is about the GPUs that the nodes have in all, whatever pods hold of them.
        """
        self._columns = columns
        self._share = share
        self._in_all = in_all

    def failing(self, rows: Ints) -> Flags:
        """See `NodeFilter.failing`."""
        if not self._in_all:
            costs = zip(rows.tolist(), self._share.costs_of_parts(rows).tolist(), strict=True)
            refused = [cost == NONE or not self._share.admits(row) for row, cost in costs]
            return np.array(refused, np.bool_)
        has = self._columns.allocatable[rows, self._columns.resources[GPU]] >= self._share.share.devices
        failing: Flags = ~has | (self._share.parts[rows] > WHOLE)
        return failing

    def reasons(self, rows: Ints) -> Iterator[NodeReason]:
        """Yield one reason, with the largest free part as its example; of GPUs in all, one for each cause."""
        columns, share = self._columns, self._share
        if self._in_all:
            nodes = [columns.facts[row] for row in rows.tolist()]
            repeated = np.array([node is not None and node.gpus_repeated for node in nodes], np.bool_)
            for alike, problem in ((rows[~repeated], ""), (rows[repeated], _REPEATED)):
                if len(alike):
                    example = columns.names[first_by_name(columns, alike)]
                    yield NoGpuToShare(nodes=len(alike), example=example, wanted=str(share.share), problem=problem)
            return
        largest = np.array([share.largest(row) for row in rows.tolist()], np.int64)
        most = rows[largest == largest.max()]
        row = first_by_name(columns, most)
        yield NoPartOfGpu(
            nodes=len(rows),
            example=columns.names[row],
            needed=int(share.parts[row]),
            devices=share.share.devices,
            largest=int(largest.max()),
        )


#: Where no other replica may be filling a row: later than the creation of any pod, seconds since the epoch.
NO_CLAIM = 2**63 - 1
#: What a pod must tolerate to be put on a cordoned node, as kube-scheduler's NodeUnschedulable asks.
CORDONED = Taint("node.kubernetes.io/unschedulable", "NoSchedule")


class ReservedNodes(NamedTuple):
    """The nodes of a reservation.

    Attributes:
        rows: per row, whether it is one of them.
        terms: for whom it is, and its window, for people.
    """

    rows: Flags
    name: str
    terms: str

    def filter(self, columns: NodeColumns) -> MaskFilter:
        """Return the rule that pods which it keeps off are on none of them."""
        return MaskFilter(columns, NodeReserved, self.rows, {"reservation": self.name, "terms": self.terms})


@dataclass(frozen=True, slots=True)
class ExcludedNodes:
    """Rows that certain classes do not get, or get last, because of what happened there or who else takes them.

    Attributes:
        rejecting: by class key, the rows that rejected such a pod and have not changed since, with the
            kubelet's reason.
        reserved: by name, the nodes of each reservation that keeps any class off.
        suspects: by kind of work, and by class key, the rows that are suspect for it, and why.
        avoid: by class key, the rows from which pods of the class were taken because their zones were not right, or
            on which they could not be bound.
        turns: by row, how many other replicas take it before this one; None where this one has all rows.
        left_to_others: rows where another replica is to decide first about what became free; None where this one has
            all rows.
        wanted_by_others: by row, when the first pod was created for which another replica may be filling it right now,
            seconds since the epoch, and `NO_CLAIM` where there is none; None where there is none anywhere.
    """

    rejecting: Mapping[str, dict[int, str]] = field(default_factory=dict)
    avoid: Mapping[str, set[int]] = field(default_factory=dict)
    turns: Ints | None = None
    left_to_others: Flags | None = None
    wanted_by_others: Ints | None = None
    reserved: Mapping[str, ReservedNodes] = field(default_factory=dict)
    suspects: Mapping[str, dict[int, str]] = field(default_factory=dict)

    def suspects_for(self, pod_class: PodClass) -> dict[int, str]:
        """Return the rows that are suspect for a class."""
        if not self.suspects:
            return {}
        return self.suspects.get(pod_class.kind, {}) | self.suspects.get(pod_class.key, {})


class ClassFilters:
    """The filters of one class in one cycle; charges of the cycle are seen as they happen.

    Attributes:
        eligible: per row, whether the node passes all filters that no charge changes.
        room: whether enough is free.
        numa: what kubelets make of the class.
        constraints: the rules about other pods, and what the class prefers.
        closeness: of the devices that its claims get, to its CPUs.
        share: what GPUs make of its share of them; None without one.
    """

    def __init__(
        self,
        pod_class: PodClass,
        columns: NodeColumns,
        config: EngineConfig,
        *,
        states: RowStates,
        excluded: ExcludedNodes,
        doubts: Doubts | None = None,
        policies: ClassPolicies | None = None,
    ) -> None:
        """Args: see `FeasibleNodes`."""
        self._class = pod_class
        self._columns = columns
        self._config = config
        self._states = states
        self.room = RoomFilter(columns, pod_class.requests)
        self.numa = NumaVerdicts(columns, pod_class, config, states, doubts)
        share = pod_class.gpu_share
        own = pod_class.numa_policy
        self.share = None if share is None else ShareFit(share, columns, config, states, pods=self.numa, own=own)
        matching = self._matching()
        tolerated = tolerated_rows(pod_class, columns)
        rows = len(columns.present)
        self.constraints = ConstraintEvaluator(
            pod_class, columns, fitting=~any_mask(matching, rows), tolerated=tolerated
        )
        self.closeness = DeviceCloseness(pod_class, columns, self.numa if config.numa else None, self.constraints)
        of_nodes: list[MaskFilter] = [
            MaskFilter(columns, NodeNotReady, ~columns.ready),
            MaskFilter(columns, NodeUnschedulable, self._cordoned()),
            *(excluded.reserved[name].filter(columns) for name in pod_class.kept_off),
            *matching,
            *self._taints(~tolerated),
            *self.constraints.unreachable,
            *self._named(RejectedByKubelet, "rejection", excluded.rejecting.get(pod_class.key, {})),
            *self._named(NodeSuspect, "why", excluded.suspects_for(pod_class)),
            *self._exposed_gpus(),
        ]
        # Most are about no node: making and asking these costs as much as all else does on a few nodes.
        self._of_nodes, self._unobserved = _telling(of_nodes), _telling(self._awaiting_observation())
        self._for_policies: Flags = columns.present & ~any_mask([*self._of_nodes, *self._unobserved], rows)
        self.settle(policies)

    def settle(self, policies: ClassPolicies | None) -> None:
        """Take policies over, in place of others."""
        self._policies = policies
        #: Rows that admit a pod as they are accounted, but not for certain.
        self._uncertain: set[int] = set()
        refused = None if policies is None else policies.refused
        self.eligible: Flags = self._for_policies if refused is None else self._for_policies & ~refused

    def with_policies(self, policies: ClassPolicies) -> "ClassFilters":
        """Return the filters of a class that differs in nothing but what policies say of it."""
        other = copy(self)
        other.settle(policies)
        return other

    def in_order(self) -> Iterator[NodeFilter]:
        """Yield all filters as they are now; the first that a node fails is its reason.

        Nodes that fail a filter about what they have in all, or without their pods, fail the one about what they have
        now as well: the former comes earlier, for it says that waiting is in vain.
        """
        columns, config, numa, states = self._columns, self._config, self.numa, self._states
        own = self._own_policy
        yield from self.lasting()
        yield self.room
        if self.share is not None:
            yield ShareFilter(columns, self.share)
        if config.numa:
            yield AdmissionFilter(columns, numa, states)
            if own is not None:
                yield OwnPolicyFilter(columns, numa, states, policy=own)
                if self.share is not None:
                    yield OwnPolicyFilter(columns, numa, states, policy=own, share=self.share)
            yield from _telling([MaskFilter(columns, NotObservedYet, self._are_uncertain())])
        yield from self.constraints.filters()
        if self.closeness.required:
            yield self.closeness

    @property
    def _own_policy(self) -> PodNumaPolicy | None:
        own = self._class.numa_policy
        return own if own is not None and own.binding else None

    def lasting(self) -> Iterator[NodeFilter]:
        """Yield the filters that no charge changes, in order; all of them come before the others."""
        columns, config, numa, states = self._columns, self._config, self.numa, self._states
        yield from self._of_nodes
        yield from self._of_policies()
        yield RoomFilter(columns, self._class.requests, in_all=True)
        if self.share is not None:
            yield ShareFilter(columns, self.share, in_all=True)
        yield from self._unobserved
        if config.numa:
            yield AdmissionFilter(columns, numa, states, on_empty=True)
            if self._own_policy is not None:
                yield OwnPolicyFilter(columns, numa, states, policy=self._own_policy, on_empty=True)

    def is_certain(self, row: int, created_at: int) -> bool:
        """Tell whether a row that admits a pod does so whatever is not known yet; a row that does not is remembered.

        Args:
            created_at: when the pod was created, seconds since the epoch.
        """
        if not self.numa.doubted or self.numa.is_certain(row, created_at=created_at):
            return True
        self._uncertain.add(row)
        return False

    def is_doubted(self, row: int) -> bool:
        """Tell whether a row admits a pod, but not whatever is not known yet."""
        return row in self._uncertain

    def _are_uncertain(self) -> Flags:
        mask = np.zeros(len(self._columns.present), np.bool_)
        mask[list(self._uncertain)] = True
        return mask

    def _of_policies(self) -> list[MaskFilter]:
        """Rows that the operator's policies refuse, as they said last; one filter for each policy."""
        refusals = () if self._policies is None else self._policies.refusals
        return [
            MaskFilter(self._columns, FilteredByPolicy, one.refused, {"policy": one.policy, "why": one.reason})
            for one in refusals
        ]

    def _matching(self) -> list[MaskFilter]:
        columns, pod_class, filters = self._columns, self._class, list[MaskFilter]()
        if pod_class.node_selector:
            filters.append(MaskFilter(columns, NodeSelectorMismatch, ~selected(columns, pod_class.node_selector)))
        if pod_class.node_affinity:
            filters.append(MaskFilter(columns, NodeAffinityMismatch, ~affine(columns, pod_class.node_affinity)))
        for flavors, terms in pod_class.flavors.places:
            filters.append(MaskFilter(columns, NodeFlavorMismatch, ~affine(columns, terms), {"flavors": flavors}))
        return filters

    def _cordoned(self) -> Flags:
        flags = self._columns.unschedulable
        return np.zeros_like(flags) if tolerates(self._class.tolerations, CORDONED) else flags

    def _taints(self, untolerated: Flags) -> list[MaskFilter]:
        columns = self._columns
        if not np.count_nonzero(untolerated):
            return []
        _, offending = columns.taints_where(lambda taint: tolerates(self._class.tolerations, taint))
        details = [{"taint": "" if taint is None else _taint_text(taint)} for taint in offending]
        return [MaskFilter(columns, UntoleratedTaint, untolerated, groups=columns.taint_set, details=details)]

    def _named(self, code: type[NodeReason], field: str, by_row: Mapping[int, str]) -> list[MaskFilter]:
        if not by_row:
            return []
        columns, texts = self._columns, sorted(set(by_row.values()))
        mask = np.zeros(len(columns.present), np.bool_)
        group = np.zeros(len(columns.present), np.int64)
        for row, text in by_row.items():
            mask[row], group[row] = True, texts.index(text)
        return [MaskFilter(columns, code, mask, groups=group, details=[{field: text} for text in texts])]

    def _exposed_gpus(self) -> list[MaskFilter]:
        """Rows where the kubelet may give a pod a whole GPU that others share."""
        columns = self._columns
        mask = columns.gpus.exposed(len(columns.present))
        if not self._class.requests.get(GPU) or not mask.any():
            return []
        return [MaskFilter(columns, HistoryIncomplete, mask, lambda row: {"gap": _exposed_text(columns, row)})]

    def _awaiting_observation(self) -> list[MaskFilter]:
        """Rows where a pod that would be bound to zones waits until it is observed what others hold."""
        columns, config = self._columns, self._config
        if not (config.numa and config.wait_for_observation) or self._class.aligned.empty:
            return []
        waits: Flags = columns.zones.unknown[: len(columns.present)] > 0
        return [MaskFilter(columns, HistoryIncomplete, waits, lambda row: {"gap": history_gap(columns, row)})]


def _telling(filters: Iterable[MaskFilter]) -> list[MaskFilter]:
    """Return those of some filters that any node fails."""
    return [one for one in filters if np.count_nonzero(one.mask)]


def _exposed_text(columns: NodeColumns, row: int) -> str:
    groups = ", ".join(columns.gpus.exposed_on(row))
    return f"pods share a GPU without its reservation pod: GPU group {groups} (docs/how-to/share-gpus.md)"


def _taint_text(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
