"""The pods of a question, what may be changed for them, and the node rules that keep them waiting.

Details that a recorded reason leaves out: the requested amount, the object concerned, the closest node.

A reason is recorded once for thousands of pods, so it cannot name what differs from pod to pod. The details are added
when one pod is asked about.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Self, TypeVar

import msgspec
import numpy as np

from kaicore.rules.deciding.cycle_input import retry_at
from kaicore.rules.deciding.cycle_run import input_to_explain
from kaicore.rules.deciding.decided_classes import decided_classes
from kaicore.rules.deciding.why import pending_reasons
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.class_filters import AdmissionFilter, OwnPolicyFilter
from kaicore.rules.engine.constraints.node_filter import MaskFilter, NodeFilter
from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.explain.remedies import Remedies, Remedy
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.placer import Placer
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.work.gang_planner import members_of
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.events.payloads import NodeObserved, Payload, PodObserved
from kaicore.rules.events.reasons import node as node_reasons
from kaicore.rules.events.reasons.base import CodedReason, NodeReason, time_text
from kaicore.rules.events.reasons.group import GangDoesNotFit, GangIncomplete, WaitsAfterFailedBinds
from kaicore.rules.events.reasons.numa import NumaNeverFits, NumaZoneShort
from kaicore.rules.events.reasons.queue import BoundReason
from kaicore.rules.groups.membership import display_key
from kaicore.rules.model.gpu_share import GPU, GpuShare, gpus_text
from kaicore.rules.model.node import Node
from kaicore.rules.model.pod import Amounts, Pod, PodTerm
from kaicore.rules.model.quantity import PODS, asked_amount
from kaicore.rules.model.selector import Requirement
from kaicore.rules.numa.columns import Ints
from kaicore.rules.queues.tree import counted, without_parts
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import PodEntry

_ObjectT = TypeVar("_ObjectT")


class Effort(IntEnum):
    """The cost of a change for its maker; the cheapest changes are tried and shown first."""

    WAIT = 0
    EDIT_WORK = 1
    EDIT_QUEUE = 2
    TEND_NODE = 3
    MAKE_OBJECT = 4
    END_WORK = 5
    ADD_NODES = 6


@dataclass(frozen=True, slots=True)
class Amendment:
    """A change, as the facts that the watcher would report of it.

    Attributes:
        kind: what is done, in a word: `uncordon`, `raise-limit`, `request-less`, …
        message: what is to be done, with its object, place and amount.
        undo: the facts that take these back again; None where the rehearsal's state cannot be had back by facts.
        resource: that it is about; empty for none.
        amount: of the resource, or of pods or nodes, in the resource's unit; 0 where no amount is meant.
        place: node, queue, domain or object where it is to be done.
        evicts: whether it may start the pods by having others evicted.
        until: for a change that is only to wait, when it is tried again, microseconds since the epoch; 0 otherwise.
    """

    kind: str
    message: str
    effort: Effort
    facts: Sequence[Payload] = ()
    undo: Sequence[Payload] | None = ()
    resource: str = ""
    amount: int = 0
    place: str = ""
    evicts: bool = False
    until: int = 0

    @classmethod
    def edits(
        cls,
        kind: str,
        message: str,
        effort: Effort,
        seen: Callable[[_ObjectT], Payload],
        pairs: Sequence[tuple[_ObjectT, _ObjectT]],
        **others: Any,
    ) -> Self:
        """Return that objects are changed.

        Args:
            seen: the fact that such an object was seen.
            pairs: the objects as they are, each with what it is to become.
        """
        facts, undo = [seen(after) for _, after in pairs], [seen(before) for before, _ in pairs]
        return cls(kind, message, effort, facts=facts, undo=undo, **others)


@dataclass(frozen=True, slots=True)
class NodeObstacles:
    """The obstacles between a pod and a node.

    Attributes:
        unfit: how many filters it fails that neither work that ends nor an operator's command makes it pass.
        reasons: one for each filter that it fails, in the order of the filters.
    """

    row: int
    unfit: int
    reasons: tuple[NodeReason, ...]


class Asked:
    """A waiting pod, with the pods that it starts with."""

    def __init__(
        self, state: ClusterState, config: EngineConfig, entry: PodEntry, policies: PolicyBook = NO_POLICIES
    ) -> None:
        """Args:
        state: not changed, and not to be changed while this is asked.
        config: the shard's settings, without the policies that cannot be asked.
        """
        self.state = state
        self.config = config
        self.policies = policies
        self.entry = entry
        self.pod = entry.pod

    @cached_property
    def reasons(self) -> list[CodedReason]:
        """The reason why it waits, as last recorded."""
        return pending_reasons(self.entry, self.state)

    @cached_property
    def fellows(self) -> list[PodEntry]:
        """The waiting pods of its group, itself included, by name."""
        uids = self.state.group_table.pods_of(self.entry.group)
        entries = [self.state.pods[uid] for uid in uids if uid in self.state.waiting]
        others = [one for one in entries if one is not self.entry]
        return sorted([self.entry, *others], key=lambda one: (one.pod.namespace, one.pod.name, one.pod.uid))

    @cached_property
    def alike(self) -> list[PodEntry]:
        """Those of its class and set: of one template, so that one edit changes all of them."""
        return [
            one for one in self.fellows if (one.class_key, one.pod_set) == (self.entry.class_key, self.entry.pod_set)
        ]

    @cached_property
    def session(self) -> Session:
        """A cycle on the state as it is, in which nothing is decided."""
        session = Session(self._given(), self.config)
        session.reservations.restore()
        return session

    def _given(self) -> CycleInput:
        return input_to_explain(self.state, self.config, now=self.state.recorded_at, policies=self.policies)

    @cached_property
    def remedies(self) -> Remedies:
        """Search for the time when groups would fit, on another copy of the nodes."""
        return Remedies(self._given(), self.config)

    @cached_property
    def remedy(self) -> Remedy:
        """The time when the pod's group would fit."""
        return self.remedies.of(self.entry.group)

    @property
    def columns(self) -> NodeColumns:
        """The nodes as they are."""
        return self.session.nodes.columns

    @property
    def placer(self) -> Placer:
        """Puts pods on the nodes as they are."""
        return self.session.nodes.now

    @cached_property
    def pod_class(self) -> PodClass:
        """The class as which it is decided on."""
        return decided_classes(self.state, self.config, now=self.state.recorded_at)(self.entry)

    @cached_property
    def requests(self) -> Amounts:
        """The amounts that it takes of a node."""
        return self.pod_class.requests

    @cached_property
    def total(self) -> Amounts:
        """The sum of the requests of all pods that must start together, as queues count it."""
        pending = self.session.pending_groups.get(self.entry.group)
        steps = [] if pending is None else self.session.gangs.joint_steps(pending)[0]
        return counted(without_parts(self.session.pods.requests_of(members_of(steps) or [self.entry])))

    @cached_property
    def obstacles(self) -> list[NodeObstacles]:
        """The obstacles on each node: the least unfit nodes first, then those with the fewest, then by name."""
        rows = sorted_rows(self.columns, np.flatnonzero(self.columns.present))
        failed: dict[int, list[NodeFilter]] = {row: [] for row in rows.tolist()}
        unfit = dict.fromkeys(failed, 0)

        def closest() -> list[int]:
            return sorted(rows.tolist(), key=lambda row: (unfit[row], len(failed[row])))[:_MOST_NODES]

        filters = self.placer.feasible_nodes(self.pod_class).filters
        lasting = sum(1 for _ in filters.lasting())
        for number, one in enumerate(filters.in_order()):
            if isinstance(one, AdmissionFilter | OwnPolicyFilter):
                # These ask kubelets' rules node by node.
                rows = np.array(closest(), np.int64)
            code = one.code if isinstance(one, MaskFilter) else NodeReason
            of_hardware = (
                number < lasting and (code is NodeReason or code.lasting) and code is not node_reasons.UntoleratedTaint
            )
            for row in rows[one.failing(rows)].tolist() if len(rows) else ():
                failed[row].append(one)
                unfit[row] += of_hardware
        return [
            NodeObstacles(
                row, unfit[row], tuple(reason for one in failed[row] for reason in one.reasons(np.array([row])))
            )
            for row in closest()
        ]

    def free(self, row: int) -> Amounts:
        """Return what a node has free of what the pod asks for; negative where more is in use than there is."""
        columns = self.columns
        places = {name: columns.resources[name] for name, amount in self.requests.items() if amount}
        return {name: int(columns.allocatable[row, place] - columns.used[row, place]) for name, place in places.items()}

    def has_some(self, row: int) -> bool:
        """Tell whether a node has, free or not, something of each resource that the pod asks for."""
        columns = self.columns
        return all(
            columns.allocatable[row, columns.resources[name]] > 0 for name, amount in self.requests.items() if amount
        )

    def missing(self, row: int) -> Amounts:
        """Return what a node lacks of what the pod asks for, resources of which it has enough left out."""
        return {
            name: self.requests[name] - max(have, 0)
            for name, have in self.free(row).items()
            if have < self.requests[name]
        }

    def node(self, row: int) -> Node:
        """Return the node of a row."""
        node = self.state.columns.facts[row]
        assert node is not None
        return node

    def edit_nodes(self, message: str, pairs: Sequence[tuple[Node, Node]], **more: object) -> Amendment:
        """Return that nodes are changed.

        Args:
            pairs: nodes as they are, each with what it is to become.
        """
        place = ", ".join(after.name for _, after in pairs)
        return Amendment.edits("tend-node", message, Effort.TEND_NODE, NodeObserved, pairs, place=place, **more)

    def edit_pods(self, kind: str, message: str, edit: Callable[[Pod], Pod], **more: object) -> Amendment:
        """Return that the pods alike are changed; for the other arguments see `Amendment`."""
        pairs = [(one.pod, edit(one.pod)) for one in self.alike]
        return Amendment.edits(kind, message, Effort.EDIT_WORK, PodObserved, pairs, place=self.pod.subject, **more)


#: Of so many nodes the obstacles are shown.
_MOST_NODES = 200

edited = msgspec.structs.replace


def sorted_rows(columns: NodeColumns, rows: Ints) -> Ints:
    """Return rows by the names of their nodes."""
    ordered: Ints = rows[np.argsort(columns.name_order()[rows], kind="stable")]
    return ordered


#: These say themselves how much is asked for.
_WITH_AMOUNT = (node_reasons.NodeTooSmall, node_reasons.InsufficientResource, NumaNeverFits, NumaZoneShort, BoundReason)
#: Reasons of a group as a whole, with sentences that do not name the group.
_OF_GROUP = (GangIncomplete, GangDoesNotFit)


def asks_for(requests: Amounts, share: GpuShare | None = None) -> str:
    """Write what a pod asks for."""
    amounts = [
        f"{asked_amount(name, amount)} {name}" for name, amount in sorted(requests.items()) if amount and name != PODS
    ]
    return ", ".join([*amounts, *([] if share is None else [str(share)])])


def frees(asked: Asked, entries: Iterable[PodEntry | Member]) -> str:
    """Write what pods hold of what a pod asks for; empty where they hold nothing of it."""
    names = {*asked.requests, *([] if asked.pod.gpu_share is None else [GPU])}
    total: Counter[str] = Counter()
    parts = 0
    for one in entries:
        total.update({name: amount for name, amount in one.requests.items() if name in names})
        parts += sum(part.milli for part in one.gpus)
    shared = [f"{gpus_text(parts)} of GPUs"] if parts and asked.pod.gpu_share is not None else []
    return ", ".join([*filter(None, [asks_for(total)]), *shared])


def details(asked: Asked, reason: CodedReason) -> Iterator[str]:
    """Yield what a reason itself does not say: resource, amount, object and place, as far as they are lacking."""
    pod = asked.pod
    if isinstance(reason, _OF_GROUP):
        yield f"the group is {display_key(asked.entry.group)}"
    yield from _wanted_of_nodes(pod, reason)
    if isinstance(reason, WaitsAfterFailedBinds):
        yield f"until {time_text(max(retry_at(one, asked.config) for one in asked.fellows))}"
    if isinstance(reason, node_reasons.HistoryIncomplete):
        row = asked.state.columns.rows.get(reason.example)
        unseen = [one.pod.subject for one in asked.state.charges.held_on(reason.example) if one.unrecorded]
        if row is not None and unseen:
            yield f"not observed there: {', '.join(unseen[:_MOST_NAMES])}"
    if not isinstance(reason, _WITH_AMOUNT):
        yield f"{pod.subject} asks for {asks_for(asked.requests, pod.gpu_share) or 'nothing'}"
    if _lacks_place(reason) and (closest := _closest(asked)):
        yield closest


#: Names that are shown of several.
_MOST_NAMES = 3


def _wanted_of_nodes(pod: Pod, reason: CodedReason) -> Iterator[str]:
    """Yield what the pod asks of nodes or of pods near it, where a reason is about that."""
    match reason:
        case node_reasons.NodeSelectorMismatch():
            yield "nodeSelector " + ", ".join(f"{key}={value}" for key, value in sorted(pod.node_selector.items()))
        case node_reasons.NodeAffinityMismatch():
            yield "node affinity " + " or ".join(_requirements(term) for term in pod.node_affinity)
        case node_reasons.PodAffinity() if pod.rules is not None:
            yield "pod affinity to " + _terms(pod.rules.affinity)
        case node_reasons.PodAntiAffinity() if pod.rules is not None:
            yield "pod anti-affinity to " + _terms(pod.rules.anti_affinity)
        case _:
            pass


def _terms(terms: Sequence[PodTerm]) -> str:
    parts = []
    for term in terms:
        labels = _requirements(term.selector.labels or ()) or "any pod"
        where = f" in namespace {', '.join(term.selector.namespaces)}" if term.selector.namespaces else ""
        parts.append(f"{labels}{where}")
    return " and ".join(parts)


def _requirements(requirements: Sequence[Requirement]) -> str:
    return ", ".join(f"{one.key} {one.operator} {'|'.join(one.values)}".strip() for one in requirements)


def _lacks_place(reason: CodedReason) -> bool:
    """Tell whether a reason that other nodes would remove names none, nor anything else."""
    if isinstance(reason, NodeReason | node_reasons.NoNodes):
        return False
    return reason.of_nodes and not (reason.named_example and reason.affected_nodes)


def _closest(asked: Asked) -> str:
    if not asked.obstacles:
        return ""
    first = asked.obstacles[0]
    name = asked.columns.names[first.row]
    if not first.reasons:
        return f"node {name} could take one of its pods"
    return f"the closest node is {name}: {first.reasons[0]}"
