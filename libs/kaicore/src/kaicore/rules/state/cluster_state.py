"""The state of one cluster, folded from its log. Folding is the only way to change it.

`fold` is deterministic: the same events give the same state on any machine, and a state restored from a snapshot goes
on exactly like the one that was saved. Nothing here reads a clock; where time matters it is the event's recorded time.

An event about a pod changes the pod's entry as the table says (`transitions`), and the indexes are derived from the
entry before and after (`pod_indexes`). The registry of its subject handles any other event.

The waiting groups by the replica that decides about them are kept between cycles. The owner of a group depends on the
group, its pods, and the groups that it starts together with. It also depends on the list of replicas, the queues, and
the node pool: the *basis*. While the basis is unchanged, only changed groups are evaluated again.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, get_args

from kaicore.errors import CorruptLog
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.claims.demands import ANY_FLAVOR
from kaicore.rules.engine.placement.pod_class import PodClass, base_key, of_home
from kaicore.rules.engine.victims.eviction_cost import FailuresLeft
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.quarantine import QuarantinedEvent, known_problem, learn, quarantined
from kaicore.rules.groups.labels import JOB
from kaicore.rules.groups.membership import owner_kind
from kaicore.rules.model.group import Group, source_key
from kaicore.rules.model.node import Node
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.queue import Queue
from kaicore.rules.model.replicas import replica_shard
from kaicore.rules.model.reservation import NodeReservation
from kaicore.rules.queues.accounts import QueueAccounts
from kaicore.rules.queues.tree import QueueTree
from kaicore.rules.state.counters import COUNTED_EVENTS
from kaicore.rules.state.indexes.cluster_constraints import FACTS
from kaicore.rules.state.indexes.node_trials import NodeReadiness
from kaicore.rules.state.indexes.pod_indexes import PodIndexes
from kaicore.rules.state.indexes.workload_index import WorkloadIndex
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
from kaicore.rules.state.pods.transitions import (
    Release,
    copied,
    keeps_place,
    see_again,
    transition_of,
    with_status_of,
)
from kaicore.rules.state.registries.policy_inputs import PolicyInputs
from kaicore.rules.state.registries.provisioning_registry import PROVISIONING_EVENTS, ProvisioningRegistry
from kaicore.rules.state.registries.queue_registry import QueueFact, queue_accounts
from kaicore.rules.state.shared_gpus import GpuGroup
from kaicore.rules.topology.book import TopologyBook, TopologyFact
from kaicore.rules.topology.resolve import Resolver


class GroupOwners:
    """Waiting groups by owner, as of the last `update`."""

    def __init__(self) -> None:
        self._tree: QueueTree | None = None
        self._basis: object = None
        self._owners: dict[str, str] = {}
        self._groups: dict[str, set[str]] = {}

    @property
    def owners(self) -> Mapping[str, str]:
        """The replica that decides about a waiting group, by its key; groups of no replica of the shard are missing."""
        return self._owners

    @property
    def groups(self) -> Mapping[str, set[str]]:
        """Keys of waiting groups, by the replica that decides about them; replicas without any are missing."""
        return self._groups

    def update(
        self, index: WorkloadIndex, tree: QueueTree, basis: object, owner_of: Callable[[str], str | None]
    ) -> None:
        """Bring it up to date.

        Args:
            tree: the queues, another one whenever they have changed.
            basis: what else owners depend on, for all groups alike.
            owner_of: tells who decides about a waiting group, by its key; None for no replica.
        """
        changed = index.take_changed()
        if changed is None or tree is not self._tree or basis != self._basis:
            self._tree, self._basis = tree, basis
            # Those of another basis may be in use.
            self._owners, self._groups = {}, {}
            changed = set(index.pending)
        for key in changed:
            before = self._owners.pop(key, None)
            owner = owner_of(key) if key in index.pending else None
            if owner is not None:
                self._owners[key] = owner
            if owner == before:
                continue
            if before is not None:
                self._groups[before].discard(key)
                if not self._groups[before]:
                    del self._groups[before]
            if owner is not None:
                self._groups.setdefault(owner, set()).add(key)


#: Annotations of an indexed Job's pods: which index one is, and how often the ones before it have failed.
JOB_INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"

#: What the streams begin with that decisions are conditional on.
_VERSIONED = ("node/", "pod/", "cycle/", "replicas/", "reclaimed/", "shadow/", "devicepool/", "claimdevices/")


def _node_of(stream: str) -> str:
    """Return the node that a stream is about; empty where it is about none."""
    kind, _, name = stream.partition("/")
    return name if kind in ("node", "nrt") else ""


def is_mended(before: Node | None, after: Node) -> bool:
    """Tell whether a node is likely to have been mended: it is no longer cordoned, or reports no problem any more."""
    if before is None:
        return False
    return (before.unschedulable and not after.unschedulable) or (bool(before.problems) and not after.problems)


class ClusterState(PodIndexes):
    """Everything that decisions, explanations and figures need, at one position of a cluster's log.

    Who only reads takes a view of it (`kaicore.rules.state.views`), named by part: log, pods, fleet, work, queues.

    The parts are objects of modules of their own, and stand side by side. Sub-objects by subject would lengthen some
    1,800 expressions and hide nothing from a reader that the views show.

    Attributes:
        versions: of the streams that decisions are conditional on: nodes, pods, shards' cycles and lists of replicas,
            shadows, and queues that work was taken back from.
        quarantined: events that could not be decoded or folded and were not set aside yet, by position. Nothing is
            decided about the nodes and pods of their streams; all else goes on.
        replicas: those that share a shard's groups, sorted, by shard; none where one scheduler has all of it.
        priority_classes: by name.
        configs: configurations by digest.
        config_digest: of the configuration of the last recorded cycle.
        network_topologies: the definitions of topologies, and their trees over the nodes.
        topology_resolver: looks up in them what groups name.
        node_readiness: which nodes may have failed.
        policy_inputs: facts from outside for policies.
        reservations: of nodes, by name.
        provisioning: ProvisioningRequests, and which of them stand for groups that wait.
    """

    def __init__(self, cluster: str) -> None:
        super().__init__()
        self.cluster = cluster
        self.quarantined: dict[int, QuarantinedEvent] = {}
        self.versions: dict[str, int] = {}
        self.replicas: dict[str, tuple[str, ...]] = {}
        self.priority_classes: dict[str, payloads.PriorityClassObserved] = {}
        self.configs: dict[str, dict[str, object]] = {}
        self.config_digest = ""
        self.network_topologies = TopologyBook()
        self.topology_resolver = Resolver(self.network_topologies)
        self.node_readiness = NodeReadiness()
        self.policy_inputs = PolicyInputs()
        self.reservations: dict[str, NodeReservation] = {}
        self.provisioning = ProvisioningRegistry()
        self.group_owners = GroupOwners()

    @property
    def position(self) -> int:
        """Position of the last event that was folded; 0 before the first."""
        return self.context.position

    @property
    def recorded_at(self) -> int:
        """Recorded time of the last event, microseconds since the epoch."""
        return self.context.recorded_at

    @property
    def last_cycles(self) -> dict[str, tuple[str, int]]:
        """By shard, the last recorded cycle and the position that it knew."""
        return self.context.last_cycles

    @property
    def classes(self) -> dict[str, PodClass]:
        """Classes by key, of all pods there are and of those that a kubelet rejected."""
        return self.class_registry.classes

    @property
    def groups(self) -> dict[str, Group]:
        """Groups by key: those with pods that can be decided on, and those that are objects of their own."""
        return self.group_table.groups

    @property
    def queues(self) -> dict[str, Queue]:
        """Queues by name."""
        return self.queue_registry.queues

    def fold(self, event: Event, payload: Any = None) -> None:
        """Take in the next event.

        Args: payload: of the event, where the caller has decoded it.

        Raises:
            CorruptLog: the event is not the next one of this cluster.
            UnknownEvent: this program is too old for it.
            UnfoldableEvent: it makes the fold raise; the state is half changed, and is to be thrown away.
        """
        context = self.context
        if event.cluster != self.cluster or event.position != context.position + 1:
            raise CorruptLog(
                f"cluster {self.cluster}: event {event.position} of cluster {event.cluster} "
                f"cannot follow position {self.position}"
            )
        if payload is None:
            payload = decode_payload(event)
        stream = event.stream
        if stream.startswith(_VERSIONED):
            self.versions[stream] = event.version
        context.advance(event)
        if self.misses.open:
            self.misses.expire(context.recorded_at)
        if type(payload) is payloads.Undecodable:
            self._quarantine(event, payload.error)
        elif problem := known_problem(event):
            self._quarantine(event, problem, decoded=True)
        else:
            try:
                self._take(payload)
            except (MemoryError, RecursionError):
                # Of this machine, and not of the event.
                raise
            except Exception as error:
                if not event.hash:
                    # Of no log: whoever made it up has the error.
                    raise
                raise learn(event, error) from error

    def become(self, other: "ClusterState") -> None:
        """Go on as another state of the same cluster, which is not used any more; whoever has this one keeps it."""
        self.__dict__ = other.__dict__

    def _take(self, payload: Any) -> None:
        kind = type(payload)
        if kind in COUNTED_EVENTS:
            self.counters.count(payload)
        handler = self._HANDLERS[kind]
        if handler is None:
            self._change_pod(self.pods.get(payload.uid), payload)
        else:
            handler(self, payload)
        if self.group_table.changed:
            self.groups_changed()

    def fold_all(self, events: Iterable[Event]) -> "ClusterState":
        """Take in events in order; returns the state itself."""
        for event in events:
            self.fold(event)
        return self

    def _change_pod(self, entry: PodEntry | None, payload: Any, *, only_status: bool = False) -> None:
        """Change a pod's entry as the table says, and derive the indexes from it; `only_status` as in `update`."""
        if entry is None:
            return
        transition = transition_of(entry, payload)
        if transition is None:
            return
        group_before = entry.group
        if transition.only_noted and not self.shared_gpus.concerns(entry):
            transition.apply(entry, payload, self.context)
            self.resting.touch(group_before)
        else:
            before = copied(entry)
            transition.apply(entry, payload, self.context)
            if type(payload) is payloads.PlacementObserved:
                self.counters.count_report(before, entry, payload.node)
            self.update(before, entry, release=transition.release, only_status=only_status)
        if self.provisioning.standing:
            self._group_stands(group_before, entry.group)

    def _group_stands(self, *groups: str) -> None:
        """Pods of groups changed: the one that stands for them, if any, may have to go."""
        if not self.provisioning.standing.keys().isdisjoint(groups):
            # Also when all of its pods have their nodes there is something to decide: its request is to go.
            self.revision += 1

    # Events that cannot be decoded or folded.

    def is_quarantined(self, node: str) -> bool:
        """Tell whether an event about a node is quarantined and not set aside."""
        return any(_node_of(event.stream) == node for event in self.quarantined.values())

    def _quarantine(self, event: Event, error: str, *, decoded: bool = False) -> None:
        """Keep an event that says nothing in mind, and decide nothing about its node or pod."""
        self.quarantined[event.position] = quarantined(event, error, decoded=decoded)
        self.close_quarantined(event.stream)
        self.revision += 1

    def close_quarantined(self, stream: str) -> None:
        """Close a stream's node to new pods, as a cordoned one is."""
        name = _node_of(stream)
        if name in self.columns.rows:
            self.columns.unschedulable[self.columns.row(name)] = True
            self.node_changed(name)

    def _event_set_aside(self, payload: payloads.EventSetAside) -> None:
        self.quarantined.pop(payload.position, None)
        name = _node_of(payload.stream)
        if name in self.columns.rows and not self.is_quarantined(name):
            row = self.columns.row(name)
            self.columns.set_node(self.columns.facts[row], row)
            self.node_changed(name)
        self.revision += 1

    # Questions of cycles and of explanations.

    def config(self) -> EngineConfig:
        """Return the configuration of the last recorded cycle; the default one before there is any."""
        document = self.configs.get(self.config_digest)
        return EngineConfig() if document is None else EngineConfig.recorded(document)

    def queue_accounts(self, config: EngineConfig, *, now: int) -> QueueAccounts:
        """Return the queues' accounts and shares for a cycle at time `now` (microseconds since the epoch)."""
        return queue_accounts(self.queue_registry, self.columns, config, now=now, recorded_at=self.recorded_at)

    def class_of(self, entry: PodEntry) -> PodClass:
        """Return the class as which a pod is decided on now; of one with a node, as what takes its place.

        Its own, or the variant that its labels, its volumes and the flavors of its queue make.
        """
        if entry.stage is Stage.ABSENT:
            return of_home(entry.pod, self.home_of(entry).devices)
        pod_class, flavors = self.class_registry.classes[entry.class_key], ANY_FLAVOR
        if self.queue_registry.flavors:
            flavors = self.queue_registry.flavor_demand(*self.queue_of(entry), pod_class)
        return self.constraints.variant(pod_class, entry.pod, flavors, again=entry.charged)

    def failures_left(self, pod: Pod) -> FailuresLeft | None:
        """Return how many more failures the Job of a pod bears; None where evictions do not count as such."""
        owner = pod.owner
        if owner is None or owner_kind(owner) != JOB:
            return None
        source = self.group_table.sources.get(source_key(JOB, pod.namespace, owner.name))
        failures = source.failures if source is not None and source.uid == owner.uid else None
        if failures is None:
            return None
        if not failures.per_index:
            return FailuresLeft(f"{pod.namespace}/{owner.name}", failures.limit - failures.failed)
        index, failed = (pod.annotations.get(name, "0") for name in (JOB_INDEX, INDEX_FAILURES))
        so_far = int(failed) if failed.isdecimal() and len(failed) < 10 else 0
        return FailuresLeft(f"{pod.namespace}/{owner.name}[{index}]", failures.limit - so_far)

    # Events about pods that do more than change one entry.

    def _pod_observed(self, payload: payloads.PodObserved) -> None:
        pod = payload.pod
        if self.shared_gpus.groups:
            group = self.shared_gpus.reserved_by(pod)
            if group is not None:
                self._reservation_seen(group, pod)
        entry = self.pods.get(pod.uid)
        if entry is None:
            entry = PodEntry(pod)
        elif entry.stage is not Stage.ABSENT and (again := with_status_of(entry.pod, pod)) is not None:
            if keeps_place(entry, again) and self.is_settled(entry):
                see_again(entry, again, self.context)
                self.pod_seen_again(entry)
                if self.provisioning.standing:
                    self._group_stands(entry.group)
            else:
                self._change_pod(entry, payloads.PodObserved(again), only_status=True)
            return
        self._change_pod(entry, payload)

    def _pod_deleted(self, payload: payloads.PodDeleted) -> None:
        entry = self.pods.get(payload.uid)
        if entry is not None:
            self._change_pod(entry, payload)
            self.versions.pop(f"pod/{payload.uid}", None)

    def _prediction_missed(self, payload: payloads.PredictionMissed) -> None:
        self.misses.take(payload, at=self.position, now=self.recorded_at)

    def _repair_requested(self, payload: payloads.RepairRequested) -> None:
        self.repairs.requested(payload.owner, base_key(payload.pod_class), payload.node, at=self.recorded_at)
        self._change_pod(self.pods.get(payload.uid), payload)

    def _pods_left_waiting(self, payload: payloads.PodsLeftWaiting) -> None:
        for pod in payload.pods:
            self._change_pod(self.pods.get(pod.uid), pod)

    # Events about nodes.

    def _node_observed(self, payload: payloads.NodeObserved) -> None:
        row = self.columns.row(payload.node.name)
        if is_mended(self.columns.facts[row], payload.node):
            self.node_trials.forget(payload.node.name)
        self.columns.set_node(payload.node, row)
        self.charges.node_seen(payload.node.name)
        self.node_readiness.node_seen(payload.node, at=self.recorded_at)
        self.network_topologies.node_seen(payload.node.name, payload.node.labels)
        if self.quarantined and self.is_quarantined(payload.node.name):
            self.close_quarantined(f"node/{payload.node.name}")
        self.node_changed(payload.node.name)

    def _node_deleted(self, payload: payloads.NodeDeleted) -> None:
        row = self.columns.row(payload.name)
        node = self.columns.facts[row]
        if node is not None and node.uid == payload.uid:
            self.columns.set_node(None, row)
            self.network_topologies.node_gone(payload.name)
            self.node_readiness.node_gone(payload.name, with_pods=self.charges.on_node)
            self.node_changed(payload.name)
            self.rejections.forget_node(payload.name)
            self.freed_at.pop(payload.name, None)
            self.counters.forget_node(payload.name)
            self.node_trials.forget(payload.name)

    def _topology_observed(self, payload: payloads.TopologyObserved) -> None:
        topology = payload.topology
        row = self.columns.row(topology.node)
        before = self.columns.topologies[row]
        if before is not None and before.lasts(topology):
            self.columns.topologies[row] = topology
            self.columns.zones.set_published(row, topology)
        else:
            self.set_topology(topology.node, topology)
        if topology.node not in self.counters.reported_on:
            self.charges.published(topology.node)

    def _network_topology_changed(self, payload: TopologyFact) -> None:
        self.network_topologies.take(payload)
        self.revision += 1

    def _topology_deleted(self, payload: payloads.TopologyDeleted) -> None:
        self.set_topology(payload.node, None)

    def _node_suspected(self, payload: payloads.NodeSuspected) -> None:
        self.node_trials.suspected(payload, position=self.position, at=self.recorded_at)

    def _node_cleared(self, payload: payloads.NodeCleared) -> None:
        self.node_trials.forget(payload.node, payload.kind)
        self.revision += 1

    # Events about GPUs that are opened for sharing.

    def _gpu_opened(self, payload: payloads.GpuOpened) -> None:
        pod = self.shared_gpus.open(payload)
        if pod is None:
            return
        entry = PodEntry(pod)
        before = copied(entry)
        entry.stage, entry.node, entry.predicted = Stage.PLACED, payload.node, payload.placement
        entry.cycle, entry.placed_at = payload.cycle, self.context.occurred_at
        entry.decided_at = self.context.input_position(payload.cycle)
        self.update(before, entry, release=None)

    def _gpu_closed(self, payload: payloads.GpuClosed) -> None:
        planned = self.shared_gpus.close(payload)
        if planned:
            self._forget_planned(planned)
        self.node_changed(payload.node)

    def _reservation_seen(self, group: GpuGroup, pod: Pod) -> None:
        """The real reservation pod takes the place of the planned one, with the zones predicted for that."""
        entry = self.pods.get(pod.uid)
        planned = self.pods.get(group.uid) if group.planned else None
        self.shared_gpus.seen(group, pod)
        if planned is None or entry is not None:
            return
        self._forget_planned(planned.pod.uid)
        entry = PodEntry(pod, predicted=planned.predicted, decided_at=planned.decided_at)
        entry.cycle, entry.placed_at = planned.cycle, planned.placed_at
        self.pods[pod.uid] = entry

    def _forget_planned(self, uid: str) -> None:
        entry = self.pods[uid]
        before = copied(entry)
        entry.stage = Stage.ABSENT
        self.update(before, entry, release=Release.NOT_BOUND)

    # Events about groups and queues.

    def _group_source_observed(self, payload: payloads.GroupSourceObserved) -> None:
        self.regroup(self.group_table.source_seen(payload.source))

    def _group_source_deleted(self, payload: payloads.GroupSourceDeleted) -> None:
        key = source_key(payload.kind, payload.namespace, payload.name)
        self.regroup(self.group_table.source_gone(key, payload.uid))

    def _priority_class_observed(self, payload: payloads.PriorityClassObserved) -> None:
        priority_class = payload.priority_class
        self.priority_classes[priority_class.name] = payload
        self.group_table.priority_class(priority_class.name, priority_class.value)

    def _priority_class_deleted(self, payload: payloads.PriorityClassDeleted) -> None:
        if self.priority_classes.pop(payload.name, None) is not None:
            self.group_table.priority_class(payload.name, None)

    def _queue_changed(self, payload: QueueFact) -> None:
        self.queue_registry.take(payload)
        self.revision += 1

    def _queues_reported(self, payload: payloads.QueuesReported) -> None:
        self.queue_registry.report_recorded(payload)

    # Other events.

    def _reservation_observed(self, payload: payloads.ReservationObserved) -> None:
        self.reservations[payload.reservation.name] = payload.reservation
        self.revision += 1

    def _reservation_deleted(self, payload: payloads.ReservationDeleted) -> None:
        known = self.reservations.get(payload.name)
        if known is not None and known.uid == payload.uid:
            del self.reservations[payload.name]
            self.revision += 1

    def _constraint_changed(self, payload: payloads.Payload) -> None:
        self.constraints.take(payload)
        self.revision += 1

    def _provisioning_changed(self, payload: payloads.Payload) -> None:
        decided_at, recorded_at = self.context.occurred_at, self.recorded_at
        self.revision += self.provisioning.take(payload, decided_at=decided_at, recorded_at=recorded_at)

    def _cycle_completed(self, payload: payloads.CycleCompleted) -> None:
        self.last_cycles[payload.shard] = payload.cycle, payload.input_position
        self.config_digest = payload.config_digest
        for group in payload.groups:
            self.counters.count_promise(self.reasons.promise_of(group.group), group, now=payload.now)
        self.reasons.take(payload, self.workload_index)

    def _replicas_changed(self, payload: payloads.ReplicasChanged) -> None:
        self.replicas[payload.shard] = payload.replicas
        reporters = {replica_shard(payload.shard, replica) for replica in payload.replicas or ("",)}
        self.reasons.keep(payload.shard, reporters)
        self.revision += 1

    def _shadow_decided(self, payload: payloads.ShadowDecided) -> None:
        if payload.config is not None:
            self.configs[payload.config_digest] = payload.config
        self.shadows.take(
            payload, self.workload_index, pods=self.pods, classes=self.classes, position=self.context.position
        )

    def _policy_input_recorded(self, payload: payloads.PolicyInputRecorded) -> None:
        self.revision += self.policy_inputs.take(payload, at=self.recorded_at)

    def _config_recorded(self, payload: payloads.ConfigRecorded) -> None:
        self.configs[payload.digest] = payload.config

    def _only_counted(self, payload: payloads.Payload) -> None:
        """The event matters to counters, or to the versions of streams, and to nothing else."""

    #: What takes an event over; None where it is about one pod and changes its entry only.
    _HANDLERS: ClassVar[dict[type[payloads.Payload], Callable[["ClusterState", Any], None] | None]] = {
        payloads.NodeObserved: _node_observed,
        payloads.NodeDeleted: _node_deleted,
        payloads.TopologyObserved: _topology_observed,
        payloads.TopologyDeleted: _topology_deleted,
        **dict.fromkeys(get_args(TopologyFact), _network_topology_changed),
        payloads.PodObserved: _pod_observed,
        payloads.PodDeleted: _pod_deleted,
        payloads.PodRejected: None,
        payloads.PriorityClassObserved: _priority_class_observed,
        payloads.PriorityClassDeleted: _priority_class_deleted,
        payloads.GroupSourceObserved: _group_source_observed,
        payloads.GroupSourceDeleted: _group_source_deleted,
        **dict.fromkeys(get_args(QueueFact), _queue_changed),
        payloads.QueuesReported: _queues_reported,
        payloads.WatcherStarted: _only_counted,
        **dict.fromkeys(FACTS, _constraint_changed),
        **dict.fromkeys(PROVISIONING_EVENTS, _provisioning_changed),
        payloads.ReservationObserved: _reservation_observed,
        payloads.ReservationDeleted: _reservation_deleted,
        payloads.PlacementObserved: None,
        payloads.PredictionMissed: _prediction_missed,
        payloads.PodPlaced: None,
        payloads.NodeSuspected: _node_suspected,
        payloads.NodeCleared: _node_cleared,
        payloads.GpuOpened: _gpu_opened,
        payloads.GpuClosed: _gpu_closed,
        payloads.NodeCharged: _only_counted,
        payloads.DevicesCharged: _only_counted,
        payloads.PodBound: None,
        payloads.BindFailed: None,
        payloads.PodNominated: None,
        payloads.NominationCleared: None,
        payloads.EvictionDecided: None,
        payloads.RepairRequested: _repair_requested,
        payloads.PodEvicted: _only_counted,
        payloads.EvictionFailed: None,
        payloads.CycleCompleted: _cycle_completed,
        payloads.ReplicasChanged: _replicas_changed,
        payloads.QueueReclaimed: _only_counted,
        payloads.PodsLeftWaiting: _pods_left_waiting,
        payloads.ConfigRecorded: _config_recorded,
        payloads.ShadowDecided: _shadow_decided,
        payloads.PolicyInputRecorded: _policy_input_recorded,
        payloads.FieldsErased: _only_counted,
        payloads.MonthSealed: _only_counted,
        payloads.DifferenceFound: _only_counted,
        payloads.EventSetAside: _event_set_aside,
        payloads.DispatchArrived: _only_counted,
        **dict.fromkeys(get_args(payloads.HubPayload), _only_counted),
    }
