"""The state of one cluster, folded from its log: the only way it changes.

`fold` is deterministic: the same events give the same state on any machine, and a state restored from a snapshot goes
on exactly like the one that was saved. Nothing here reads a clock; where time matters it is the event's recorded time.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from kaicore.errors import CorruptLog
from kaicore.rules.engine.config import DAY_US, EngineConfig
from kaicore.rules.engine.constraints.flavor_demand import ANY_FLAVOR
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass, base_key
from kaicore.rules.engine.victims.job_failures import FailuresLeft
from kaicore.rules.engine.victims.moving import move_key
from kaicore.rules.engine.workload import Nomination
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.groups.kinds import JOB
from kaicore.rules.groups.membership import owner_kind
from kaicore.rules.groups.queue_names import queue_of
from kaicore.rules.groups.table import GroupTable
from kaicore.rules.model.group import Group
from kaicore.rules.model.group_source import source_key
from kaicore.rules.model.node import NodeTopology
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.queue import Queue
from kaicore.rules.model.rejection import is_kubelet_rejection
from kaicore.rules.numa.held import impossible_holding, most_held, zone_limits
from kaicore.rules.numa.own_policy import missed
from kaicore.rules.numa.zone_charge import ZoneCharge
from kaicore.rules.queues.accounts import QueueAccounts
from kaicore.rules.state.class_registry import ClassRegistry
from kaicore.rules.state.cluster_constraints import FACTS, ClusterConstraints
from kaicore.rules.state.contradiction import MissCause, contradiction
from kaicore.rules.state.counters import Counters, add
from kaicore.rules.state.early_release import EarlyReleases
from kaicore.rules.state.healing import HealingLedger
from kaicore.rules.state.miss_book import ExplainedMiss, MissBook, OpenMiss
from kaicore.rules.state.node_charges import NodeCharges
from kaicore.rules.state.pod_entry import PodEntry, Stage, compare
from kaicore.rules.state.queue_book import Bill, QueueBook, bill_of
from kaicore.rules.state.queue_shares import queue_accounts
from kaicore.rules.state.resolve import zone_charge
from kaicore.rules.state.workload_index import WorkloadIndex

#: Annotations of an indexed Job's pods: which index one is, and how often the ones before it have failed.
JOB_INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"


class Rejection(msgspec.Struct, frozen=True):
    """A node's kubelet rejected pods of a class.

    Attributes:
        changes: the node's count of changes at the last rejection; as long as it stands there, the class is not offered
            to the node again.
        count: how many so far.
        reason: the last one's.
    """

    changes: int = -1
    count: int = 0
    reason: str = ""


class ClusterState:
    """Everything that decisions, explanations and figures need, at one position of a cluster's log."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.position = 0
        #: Recorded time of the last event, microseconds since the epoch.
        self.recorded_at = 0
        self.columns = NodeColumns()
        self.pods: dict[str, PodEntry] = {}
        self.surroundings = ClusterConstraints(self.columns, self.pods)
        self.class_book = ClassRegistry(self.surroundings)
        #: Who holds what of the nodes and their zones.
        self.charges = NodeCharges(self.columns, self.pods, self.class_book.classes, self.surroundings)
        #: What kubelets may have freed before the API told.
        self.early_releases = EarlyReleases(self.columns, self.class_book.classes, self.charges)
        #: Placements that were observed otherwise than predicted.
        self.misses = MissBook()
        #: By shard, the last recorded cycle and the position that it knew.
        self.last_cycles: dict[str, tuple[str, int]] = {}
        self.priority_classes: dict[str, payloads.PriorityClassObserved] = {}
        #: Versions of the streams that decisions are conditional on: nodes, pods and shards' cycles.
        self.versions: dict[str, int] = {}
        #: Which pods belong together.
        self.group_table = GroupTable()
        #: Queues, and what their work holds and waits for.
        self.queue_book = QueueBook()
        #: Uids of pods without a node that nobody has decided on.
        self.waiting: set[str] = set()
        #: Per node, how often something there changed that may change a kubelet's mind.
        self.changes: dict[str, int] = {}
        #: Rejections by node and class.
        self.rejections: dict[str, dict[str, Rejection]] = {}
        #: Configurations by digest.
        self.configs: dict[str, dict[str, object]] = {}
        #: The reasons last recorded per class and shard.
        self.reasons: dict[str, dict[str, payloads.ClassPending]] = {}
        self.tally = Counters()
        self.roster = WorkloadIndex()
        #: Uids of waiting pods for which room is kept.
        self.nominated: set[str] = set()
        #: The reasons last recorded per group and shard.
        self.group_reasons: dict[str, dict[str, payloads.GroupPending]] = {}
        #: Uids of pods that run on zones which they did not ask for.
        self.missed: set[str] = set()
        self.healing = HealingLedger()
        #: When pods were last decided to be moved to make room, by `move_key`: those of the last day, in microseconds
        #: since the epoch.
        self.moved_at: dict[str, int] = {}
        #: Digest of the configuration of the last recorded cycle.
        self.config_digest = ""
        self._stirred = 0

    @property
    def classes(self) -> dict[str, PodClass]:
        """Classes by key, of all pods there are and of those that some kubelet rejected."""
        return self.class_book.classes

    @property
    def stirred(self) -> int:
        """Grows whenever something happened that can make the next cycle decide otherwise than the last."""
        return self._stirred + self.charges.stirred

    @property
    def groups(self) -> dict[str, Group]:
        """Groups by key: those with pods that can be decided on, and those that are objects of their own."""
        return self.group_table.groups

    @property
    def queues(self) -> dict[str, Queue]:
        """Queues by name."""
        return self.queue_book.queues

    def fold(self, event: Event) -> None:
        """Take in the next event.

        Raises:
            CorruptLog: the event is not the next one of this cluster.
            UnknownEvent: this program is too old for it.
        """
        if event.cluster != self.cluster or event.position != self.position + 1:
            raise CorruptLog(
                f"cluster {self.cluster}: event {event.position} of cluster {event.cluster} "
                f"cannot follow position {self.position}"
            )
        payload = decode_payload(event)
        if event.stream.startswith(("node/", "pod/", "cycle/")):
            self.versions[event.stream] = event.version
        self.position = event.position
        self.recorded_at = event.recorded_at
        if self.misses.open:
            self._expire_misses()
        _HANDLERS[type(payload)](self, payload, event)
        if self.group_table.changed:
            self._groups_changed()

    def fold_all(self, events: Iterable[Event]) -> "ClusterState":
        """Take in events in order; returns the state itself."""
        for event in events:
            self.fold(event)
        return self

    def config(self) -> EngineConfig:
        """Return the configuration of the last recorded cycle; the default one before there is any."""
        document = self.configs.get(self.config_digest)
        return EngineConfig() if document is None else msgspec.convert(document, EngineConfig)

    def queue_accounts(self, config: EngineConfig, *, now: int) -> QueueAccounts:
        """Return the queues' accounts and shares for a cycle at time `now` (microseconds since the epoch)."""
        return queue_accounts(self.queue_book, self.columns, config, now=now, recorded_at=self.recorded_at)

    def class_of(self, entry: PodEntry) -> PodClass:
        """Return the class as which a pod is decided on now.

        Its own, or the variant that its labels, its volumes and the flavors of its queue make.
        """
        known = self.classes[entry.class_key]
        flavors = self.queue_book.flavor_demand(*self.queue_of(entry), known) if self.queue_book.flavors else ANY_FLAVOR
        return self.surroundings.variant(known, entry.pod, flavors)

    def rejected_before(self, node: str, class_key: str) -> int:
        """Return how often the node's kubelet has rejected pods of a class, or of the class that it is a variant of."""
        return self.rejections.get(node, {}).get(base_key(class_key), Rejection()).count

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

    # For snapshots.

    def restore_pod(self, entry: PodEntry) -> None:
        """Put a pod back with its charges; its node and class are there already."""
        self.pods[entry.pod.uid] = entry
        self.surroundings.pod_seen(entry.pod)
        if entry.charged:
            self.charges.restore(entry)
        if entry.missed:
            self.missed.add(entry.pod.uid)
        if entry.nomination is not None:
            self.nominated.add(entry.pod.uid)
        self._place_in_group(entry)
        self._set_waiting(entry)

    # Facts about nodes.

    def _node_observed(self, payload: payloads.NodeObserved, _: Event) -> None:
        self.columns.set_node(payload.node, self.columns.row(payload.node.name))
        self.charges.node_seen(payload.node.name)
        self._changed(payload.node.name)

    def _node_deleted(self, payload: payloads.NodeDeleted, _: Event) -> None:
        row = self.columns.row(payload.name)
        node = self.columns.facts[row]
        if node is not None and node.uid == payload.uid:
            self.columns.set_node(None, row)
            self._changed(payload.name)
            self.rejections.pop(payload.name, None)
            self.tally.misses.pop(payload.name, None)
            self.tally.disbelieved.pop(payload.name, None)

    def _topology_observed(self, payload: payloads.TopologyObserved, _: Event) -> None:
        topology = payload.topology
        row = self.columns.row(topology.node)
        before = self.columns.topologies[row]
        if before is not None and before.lasting() == topology.lasting():
            self.columns.topologies[row] = topology
            self.columns.zones.set_published(row, topology)
            return
        self._set_topology(topology.node, topology)

    def _topology_deleted(self, payload: payloads.TopologyDeleted, _: Event) -> None:
        self._set_topology(payload.node, None)

    def _set_topology(self, node: str, topology: NodeTopology | None) -> None:
        self.charges.set_topology(node, topology)
        for entry in self.charges.held_on(node):
            self._judge(entry)
        for uid in self.nominated:
            entry = self.pods[uid]
            if entry.nomination is not None and entry.nomination.node == node:
                self._nominate(entry, entry.nomination)
        self._changed(node)

    # Facts about groups.

    def _group_source_observed(self, payload: payloads.GroupSourceObserved, _: Event) -> None:
        self._moved(self.group_table.source_seen(payload.source))

    def _group_source_deleted(self, payload: payloads.GroupSourceDeleted, _: Event) -> None:
        key = source_key(payload.kind, payload.namespace, payload.name)
        self._moved(self.group_table.source_gone(key, payload.uid))

    def _moved(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._regroup(self.pods[uid])
            self._seat(self.pods[uid])
            self._stirred += uid in self.waiting

    def _groups_changed(self) -> None:
        """Groups are new, have changed or are gone: another queue may pay for their pods, and some may start now."""
        for key in sorted(self.group_table.changed):
            pods = self.group_table.pods_of(key)
            self._stirred += not self.waiting.isdisjoint(pods)
            group = self.groups.get(key)
            seated = group is not None and self.roster.regroup(group, at=self.recorded_at)
            for uid in sorted(pods & self.pods.keys()):
                self._bill(self.pods[uid])
                if not seated:
                    self._seat(self.pods[uid])
        self.group_table.changed.clear()

    def _regroup(self, entry: PodEntry) -> None:
        """Find out where a pod belongs now, and whose accounts it is on."""
        self._place_in_group(entry)
        self._bill(entry)

    def _place_in_group(self, entry: PodEntry) -> None:
        place = self.group_table.pod_seen(entry.pod)
        entry.group, entry.pod_set, entry.group_problem = place.group, place.pod_set, place.problem

    # Facts about queues, and what they pay for.

    def _queue_observed(self, payload: payloads.QueueObserved, _: Event) -> None:
        self.queue_book.queue_seen(payload.queue)
        self._stirred += 1

    def _queue_deleted(self, payload: payloads.QueueDeleted, _: Event) -> None:
        self.queue_book.queue_gone(payload.name, payload.uid)
        self._stirred += 1

    def _flavor_observed(self, payload: payloads.FlavorObserved, _: Event) -> None:
        self.queue_book.flavor_seen(payload.flavor)
        self._stirred += 1

    def _flavor_deleted(self, payload: payloads.FlavorDeleted, _: Event) -> None:
        self.queue_book.flavor_gone(payload.name, payload.uid)
        self._stirred += 1

    def _queues_reported(self, payload: payloads.QueuesReported, _: Event) -> None:
        self.queue_book.reported_at = payload.now
        self.queue_book.reported.update((item.queue, item) for item in payload.queues if item.queue in self.queues)

    def _bill(self, entry: PodEntry) -> None:
        """Count a pod under the queue that pays for it now."""
        bill = self._bill_of(entry)
        if bill is not entry.bill and bill != entry.bill:
            self._unbill(entry)
            entry.bill = bill
            if bill is not None:
                self.queue_book.charge(bill, entry.requests, at_us=self.recorded_at)

    def _unbill(self, entry: PodEntry) -> None:
        if entry.bill is not None:
            self.queue_book.charge(entry.bill, entry.requests, sign=-1, at_us=self.recorded_at)
            entry.bill = None

    def _bill_of(self, entry: PodEntry) -> Bill | None:
        pod = entry.pod
        running = entry.charged and not entry.releasing
        if not running and (pod.uid not in self.waiting or pod.scheduling_gates):
            return None
        group = self.groups.get(entry.group)
        preemptible = group is None or group.preemptible
        return bill_of(pod.scheduler_name, *self.queue_of(entry), preemptible, running)

    def queue_of(self, entry: PodEntry) -> tuple[str, str]:
        """Return the queue that a pod names, or else an empty name and its namespace."""
        group = self.groups.get(entry.group)
        queue = queue_of(entry.pod) if group is None else group.queue
        return queue, "" if queue else entry.pod.namespace

    # Facts about pods.

    def _pod_observed(self, payload: payloads.PodObserved, _: Event) -> None:
        pod = payload.pod
        entry = self.pods.get(pod.uid)
        told = "" if entry is None else entry.pod.nominated_node
        started = entry is not None and entry.pod.phase == "Pending" != pod.phase
        if entry is None:
            key = self.class_book.enter(pod)
            entry = PodEntry(pod=pod, class_key=key, requests=self.classes[key].requests)
            self.pods[pod.uid] = entry
            self.healing.arrives(entry)
        else:
            self._set_pod(entry, pod)
        if pod.phase == "Running" and not entry.started_at:
            entry.started_at = self.recorded_at
        self._stirred += self.surroundings.pod_seen(pod)
        if pod.finished:
            was_held = entry.charged
            self._end(entry, at_once=is_kubelet_rejection(pod))
            if was_held and not is_kubelet_rejection(pod):
                self._changed(entry.node)
            entry.stage, entry.node = Stage.FINISHED, pod.node_name or entry.node
            self.healing.ends(entry)
        elif pod.node_name:
            self._hold(entry, pod.node_name)
            entry.stage = Stage.BOUND
            if started:
                # Once its containers run, the memory of its init containers is free.
                self.charges.recharge(entry)
        self.charges.set_releasing(entry)
        self._place_in_group(entry)
        self._heed_status(entry, before=told)
        self._set_waiting(entry)
        self._bill(entry)

    def _heed_status(self, entry: PodEntry, *, before: str) -> None:
        """Take over where a pod's status says that room is kept for it, unless that is what was decided here.

        Args:
            entry: the pod.
            before: what its status said before.
        """
        told, nomination = entry.pod.nominated_node, entry.nomination
        if nomination is not None and nomination.foreign and nomination.node != told:
            nomination = None
            self._nominate(entry, None)
            self._stirred += 1
        if before and not told:
            entry.nominated_for = ""
        if told and told != entry.nominated_for and nomination is None and entry.stage is Stage.WAITING:
            self._nominate(entry, Nomination(told, at=self.recorded_at, foreign=True))

    def _set_pod(self, entry: PodEntry, pod: Pod) -> None:
        entry.pod = pod
        if entry.stage is Stage.WAITING:
            # Gates fall, tolerations are added: a pod that waits may change class. One with a node keeps its charges.
            self._unbill(entry)
            key = self.class_book.enter(pod)
            self._unclass(entry)
            changed = entry.class_key != key
            entry.class_key, entry.requests = key, self.classes[key].requests
            if changed:
                self.healing.arrives(entry)

    def _pod_deleted(self, payload: payloads.PodDeleted, _: Event) -> None:
        entry = self.pods.get(payload.uid)
        if entry is None:
            return
        if entry.charged:
            self._end(entry)
            self._changed(entry.node)
        self.healing.ends(entry)
        self._unbill(entry)
        del self.pods[payload.uid]
        self.surroundings.pod_gone(entry.pod)
        self._unclass(entry)
        self.group_table.pod_gone(payload.uid)
        self.waiting.discard(payload.uid)
        self.nominated.discard(payload.uid)
        self.roster.forget(entry, at=self.recorded_at)
        if entry.group not in self.roster.workloads:
            self.group_reasons.pop(entry.group, None)
        self.versions.pop(f"pod/{payload.uid}", None)

    def _pod_rejected(self, payload: payloads.PodRejected, _: Event) -> None:
        add(self.tally.rejections, payload.reason)
        entry = self.pods.get(payload.uid)
        if entry is None:
            return
        self._release(entry)
        entry.stage, entry.node = Stage.FINISHED, payload.node
        self.healing.ends(entry)
        self._set_waiting(entry)
        self._bill(entry)
        by_class = self.rejections.setdefault(payload.node, {})
        before = by_class.get(entry.class_key, Rejection())
        by_class[entry.class_key] = Rejection(self.changes.get(payload.node, 0), before.count + 1, payload.reason)

    def _placement_observed(self, payload: payloads.PlacementObserved, _: Event) -> None:
        entry = self.pods.get(payload.uid)
        if entry is None or entry.stage is Stage.FINISHED or (entry.node and entry.node != payload.node):
            return
        row = self.columns.rows.get(payload.node)
        topology = self.columns.topologies[row] if row is not None else None
        limits = zone_limits(topology) if topology is not None else {}
        subject, most = f"Pod {entry.pod.subject}", most_held(entry.pod)
        problem = impossible_holding(payload.placement, subject=subject, most=most, zones=limits)
        entry.disbelieved = str(problem or "")
        if problem is not None:
            add(self.tally.disbelieved, payload.node)
            return
        self.tally.reported += payload.source == "exporter"
        if entry.predicted is not None:
            agreement = compare(entry.predicted, payload.placement)
            if entry.agreement is not None:
                add(self.tally.agreement, entry.agreement, -1)
            add(self.tally.agreement, agreement)
            entry.agreement = agreement
        # Others may have waited for just that.
        self._stirred += entry.observed is None and bool(self.waiting)
        entry.observed = payload.placement
        entry.otherwise = ()
        self.charges.foresee(entry)
        if not entry.charged:
            return
        self._judge(entry)
        if self.charges.recharge(entry):
            self._look_again(entry.node)
            self._changed(entry.node)
        self._judge_misses(entry.node)

    def _prediction_missed(self, payload: payloads.PredictionMissed, event: Event) -> None:
        """What the pod really holds came with its own event; this counts, as soon as it can be told why."""
        if payload.observed is None:
            add(self.tally.misses.setdefault(payload.node, {}), f"{payload.policy}/{payload.cause}")
            return
        self.misses.open[payload.uid] = OpenMiss(
            payload.uid, payload.node, payload.policy, payload.cause, event.position, event.recorded_at
        )
        self._judge_misses(payload.node)

    def _judge_misses(self, node: str) -> None:
        """Find out why placements on a node are not as predicted, by what has been told since."""
        misses = sorted(
            (miss for miss in self.misses.open.values() if miss.node == node), key=lambda miss: (miss.at, miss.uid)
        )
        for miss in misses:
            entry = self.pods.get(miss.uid)
            if entry is None or not entry.charged or entry.observed is None:
                continue
            if entry.predicted is not None and not contradiction(entry.predicted, entry.observed):
                self._close_miss(miss, MissCause.HALF_READ)
                continue
            released = self.early_releases.explain(entry)
            if released == ():
                # The others are elsewhere than was thought: for the same reason, if theirs is known.
                others = self.misses.before(node, charged_at=entry.charged_at, since=entry.decided_at)
                early = [other for other in others if other.cause == MissCause.RELEASED_EARLIER]
                released = early[-1].released if early else ()
            if released:
                self._close_miss(miss, MissCause.RELEASED_EARLIER, released)
            elif self.early_releases.is_by_age(entry):
                self._close_miss(miss, MissCause.OLDEST_FIRST)

    def _close_miss(self, miss: OpenMiss, cause: str, released: tuple[str, ...] = ()) -> None:
        entry = self.pods.get(miss.uid)
        charged_at = entry.charged_at if entry is not None and entry.charged else 0
        self.misses.close(ExplainedMiss(miss.uid, miss.node, cause, miss.at, charged_at, released))
        add(self.tally.misses.setdefault(miss.node, {}), f"{miss.policy}/{cause}")

    def _expire_misses(self) -> None:
        for miss in self.misses.expired(self.recorded_at):
            self._close_miss(miss, miss.cause)

    # Decisions and outcomes.

    def _pod_placed(self, payload: payloads.PodPlaced, event: Event) -> None:
        self.tally.placed += 1
        self.tally.reselections += payload.rejected_here_before > 0
        entry = self.pods.get(payload.uid)
        if entry is None or entry.stage is not Stage.WAITING:
            return
        entry.predicted, entry.volumes = payload.placement, payload.volumes
        known = (item[1] for item in self.last_cycles.values() if item[0] == payload.cycle)
        entry.decided_at = next(known, event.position)
        entry.stage, entry.cycle, entry.placed_at = Stage.PLACED, payload.cycle, event.occurred_at
        self._nominate(entry, None)
        self._hold(entry, payload.node)
        if entry.zone_charge != ZoneCharge():
            self.columns.zones.assume(self.columns.row(payload.node), entry.zone_charge)
        self._settle(entry)
        if any(one.ended_at > entry.decided_at for one in self.early_releases.ended.get(payload.node, ())):
            self._look_again(payload.node)

    def _pod_nominated(self, payload: payloads.PodNominated, event: Event) -> None:
        entry = self.pods.get(payload.uid)
        if entry is not None and entry.stage is Stage.WAITING:
            self._nominate(entry, Nomination(payload.node, payload.placement, at=event.recorded_at))
            self._stirred += 1

    def _nomination_cleared(self, payload: payloads.NominationCleared, _: Event) -> None:
        entry = self.pods.get(payload.uid)
        if entry is not None and entry.nomination is not None:
            entry.nominated_for = payload.node
            self._nominate(entry, None)
            self._stirred += 1

    def _eviction_decided(self, payload: payloads.EvictionDecided, event: Event) -> None:
        add(self.tally.evictions_decided, payload.reason)
        entry = self.pods.get(payload.uid)
        if entry is None or not entry.charged:
            return
        entry.evicting = True
        self.roster.evicted(entry, at=event.recorded_at)
        if payload.reason == EvictionReason.CONSOLIDATED:
            lately = {key: at for key, at in self.moved_at.items() if event.recorded_at - at < DAY_US}
            self.moved_at = lately | {move_key(entry.group, entry.pod): event.recorded_at}
        self._settle(entry)

    def _node_charged(self, payload: payloads.NodeCharged, event: Event) -> None:
        """The charge itself is in `PodPlaced`; this raises the version of the node's stream."""

    def _pod_bound(self, payload: payloads.PodBound, _: Event) -> None:
        self.tally.bound += 1
        entry = self.pods.get(payload.uid)
        if entry is not None and entry.stage is Stage.PLACED:
            entry.stage = Stage.BOUND

    def _bind_failed(self, payload: payloads.BindFailed, event: Event) -> None:
        add(self.tally.bind_failures, payload.reason)
        entry = self.pods.get(payload.uid)
        if entry is None or entry.stage is not Stage.PLACED or entry.node != payload.node:
            return
        self._release(entry)
        self._changed(entry.node)
        entry.stage, entry.node, entry.predicted, entry.kept = Stage.WAITING, "", None, None
        entry.otherwise = ()
        entry.volumes = {}
        entry.bind_failures += 1
        entry.failed_at = event.recorded_at
        entry.gone = payload.gone
        self._set_waiting(entry)
        self._bill(entry)

    def _heal_requested(self, payload: payloads.HealRequested, event: Event) -> None:
        self.tally.heal_requests += 1
        self.healing.requested(payload.owner, base_key(payload.pod_class), payload.node, at=event.recorded_at)
        entry = self.pods.get(payload.uid)
        if entry is not None:
            entry.healing = True
            self._settle(entry)

    def _pod_evicted(self, payload: payloads.PodEvicted, _: Event) -> None:
        self.tally.evictions += 1

    def _eviction_failed(self, payload: payloads.EvictionFailed, event: Event) -> None:
        add(self.tally.eviction_failures, payload.reason)
        entry = self.pods.get(payload.uid)
        if entry is not None and entry.evicting and not payload.gone:
            entry.evicting = False
            self._settle(entry)
            self._stirred += 1
        if entry is None or not entry.healing or payload.gone:
            return
        entry.healing = False
        self._settle(entry)
        entry.heal_failures += 1
        entry.heal_failed_at = event.recorded_at
        if entry.pod.owner is not None:
            self.healing.failed(entry.pod.owner.uid, entry.class_key, payload.node)
        self._stirred += 1

    def _cycle_completed(self, payload: payloads.CycleCompleted, _: Event) -> None:
        self.tally.cycles += 1
        self.last_cycles[payload.shard] = payload.cycle, payload.input_position
        self.config_digest = payload.config_digest
        for group in payload.groups:
            if not group.pods:
                by_shard = self.group_reasons.get(group.group, {})
                by_shard.pop(payload.shard, None)
                if not by_shard:
                    self.group_reasons.pop(group.group, None)
            elif group.group in self.roster.workloads:
                self.group_reasons.setdefault(group.group, {})[payload.shard] = group
        for item in payload.pending:
            self.reasons.setdefault(item.pod_class, {})[payload.shard] = item

    def _pods_left_waiting(self, payload: payloads.PodsLeftWaiting, _: Event) -> None:
        for pod in payload.pods:
            if pod.uid in self.waiting:
                self.pods[pod.uid].reported = pod

    def _config_recorded(self, payload: payloads.ConfigRecorded, _: Event) -> None:
        self.configs[payload.digest] = payload.config

    def _priority_class_observed(self, payload: payloads.PriorityClassObserved, _: Event) -> None:
        self.priority_classes[payload.priority_class.name] = payload
        found = payload.priority_class
        self.group_table.priority_class(found.name, found.value)

    def _priority_class_deleted(self, payload: payloads.PriorityClassDeleted, _: Event) -> None:
        if self.priority_classes.pop(payload.name, None) is not None:
            self.group_table.priority_class(payload.name, None)

    def _watcher_started(self, payload: payloads.WatcherStarted, _: Event) -> None:
        """Who watches does not matter to the state."""

    def _surroundings_changed(self, payload: payloads.Payload, _: Event) -> None:
        self.surroundings.take(payload)
        self._stirred += 1

    # Charges.

    def _unclass(self, entry: PodEntry) -> None:
        """Forget a class with its last pod, unless a node still remembers to have rejected it."""
        key = entry.class_key
        if not self.class_book.leave(key) or any(key in by_class for by_class in self.rejections.values()):
            return
        self.class_book.forget(key)
        for other in [other for other in self.reasons if base_key(other) == key]:
            del self.reasons[other]

    def _hold(self, entry: PodEntry, node: str) -> None:
        """Charge a pod to a node, once; another node than decided wins, for Kubernetes knows where its pods are."""
        if entry.charged and entry.node == node:
            return
        if entry.charged:
            self._release(entry)
            self._changed(entry.node)
            entry.predicted = entry.observed = None
            entry.kept, entry.otherwise, entry.disbelieved = None, (), ""
            entry.volumes = {}
        self.charges.hold(entry, node, at=self.position)
        self._judge(entry)

    def _end(self, entry: PodEntry, *, at_once: bool = False) -> None:
        """Release a pod that has ended; its kubelet may have done so a while ago, unless it never had the pod."""
        node, charged = entry.node, entry.charged
        if charged and not at_once:
            self.early_releases.note(entry, at=self.position, now=self.recorded_at)
        self._release(entry)
        if charged and not at_once:
            self._look_again(node)
            self._judge_misses(node)

    def _look_again(self, node: str) -> None:
        """Something was told of a node: what was decided on its account before is checked again.

        Only where there are exporters: where nobody observes, no doubt would ever end.
        """
        if self.tally.reported:
            self.early_releases.look_again(node, at=self.position, now=self.recorded_at)

    def _release(self, entry: PodEntry) -> None:
        if not entry.charged:
            return
        self.charges.release(entry)
        entry.missed = ""
        self.missed.discard(entry.pod.uid)

    def _judge(self, entry: PodEntry) -> None:
        """Note whether a pod got the zones that its own NUMA policy asks for."""
        known, row = self.classes[entry.class_key], self.columns.row(entry.node)
        topology = self.columns.topologies[row]
        text = ""
        if known.numa_policy is not None and entry.observed is not None and topology is not None:
            text = missed(
                self.columns.zones,
                row,
                zone_names=tuple(zone.name for zone in topology.zones),
                request=known.aligned,
                own=known.numa_policy,
                observed=entry.observed,
            )
        if text and not entry.missed:
            entry.missed_at = self.recorded_at
            self.tally.missed += 1
            self._stirred += 1
        entry.missed = text
        if text:
            self.missed.add(entry.pod.uid)
        else:
            self.missed.discard(entry.pod.uid)

    def _settle(self, entry: PodEntry) -> None:
        """Something became of a pod: whether it lets go, waits, and whose accounts it is on may have changed."""
        self.charges.set_releasing(entry)
        self._set_waiting(entry)
        self._bill(entry)

    def _set_waiting(self, entry: PodEntry) -> None:
        waits = entry.stage is Stage.WAITING and entry.pod.deletion_at is None and not entry.gone
        if waits:
            self.waiting.add(entry.pod.uid)
            self._stirred += 1
        else:
            self.waiting.discard(entry.pod.uid)
            entry.reported = None
            if entry.nomination is not None:
                self._nominate(entry, None)
        self._seat(entry)

    def _seat(self, entry: PodEntry) -> None:
        """Tell a pod's group where the pod stands."""
        group = self.groups.get(entry.group)
        if group is None:
            self.roster.forget(entry, at=self.recorded_at)
        else:
            waits = entry.pod.uid in self.waiting and not entry.group_problem
            self.roster.seat(entry, group, waiting=waits, at=self.recorded_at)

    def _nominate(self, entry: PodEntry, nomination: Nomination | None) -> None:
        """Keep room for a waiting pod, or no more."""
        if nomination is None:
            entry.nomination = None
            self.nominated.discard(entry.pod.uid)
            return
        entry.nominated_for = nomination.node
        self.nominated.add(entry.pod.uid)
        if nomination.foreign:
            entry.nomination = nomination
            return
        row = self.columns.row(nomination.node)
        charge = zone_charge(
            self.columns.zones,
            self.columns.topologies[row],
            pod=entry.pod,
            predicted=nomination.placement,
            observed=None,
        )
        entry.nomination = msgspec.structs.replace(nomination, charge=charge or ZoneCharge())

    def _changed(self, node: str) -> None:
        self.changes[node] = self.changes.get(node, 0) + 1
        self._stirred += 1


_HANDLERS: dict[type[payloads.Payload], Callable[[ClusterState, Any, Event], None]] = {
    payloads.NodeObserved: ClusterState._node_observed,  # noqa: SLF001
    payloads.NodeDeleted: ClusterState._node_deleted,  # noqa: SLF001
    payloads.TopologyObserved: ClusterState._topology_observed,  # noqa: SLF001
    payloads.TopologyDeleted: ClusterState._topology_deleted,  # noqa: SLF001
    payloads.PodObserved: ClusterState._pod_observed,  # noqa: SLF001
    payloads.PodDeleted: ClusterState._pod_deleted,  # noqa: SLF001
    payloads.PodRejected: ClusterState._pod_rejected,  # noqa: SLF001
    payloads.PriorityClassObserved: ClusterState._priority_class_observed,  # noqa: SLF001
    payloads.PriorityClassDeleted: ClusterState._priority_class_deleted,  # noqa: SLF001
    payloads.GroupSourceObserved: ClusterState._group_source_observed,  # noqa: SLF001
    payloads.GroupSourceDeleted: ClusterState._group_source_deleted,  # noqa: SLF001
    payloads.QueueObserved: ClusterState._queue_observed,  # noqa: SLF001
    payloads.QueueDeleted: ClusterState._queue_deleted,  # noqa: SLF001
    payloads.FlavorObserved: ClusterState._flavor_observed,  # noqa: SLF001
    payloads.FlavorDeleted: ClusterState._flavor_deleted,  # noqa: SLF001
    payloads.QueuesReported: ClusterState._queues_reported,  # noqa: SLF001
    payloads.WatcherStarted: ClusterState._watcher_started,  # noqa: SLF001
    **dict.fromkeys(FACTS, ClusterState._surroundings_changed),  # noqa: SLF001
    payloads.PlacementObserved: ClusterState._placement_observed,  # noqa: SLF001
    payloads.PredictionMissed: ClusterState._prediction_missed,  # noqa: SLF001
    payloads.PodPlaced: ClusterState._pod_placed,  # noqa: SLF001
    payloads.NodeCharged: ClusterState._node_charged,  # noqa: SLF001
    payloads.PodBound: ClusterState._pod_bound,  # noqa: SLF001
    payloads.BindFailed: ClusterState._bind_failed,  # noqa: SLF001
    payloads.PodNominated: ClusterState._pod_nominated,  # noqa: SLF001
    payloads.NominationCleared: ClusterState._nomination_cleared,  # noqa: SLF001
    payloads.EvictionDecided: ClusterState._eviction_decided,  # noqa: SLF001
    payloads.HealRequested: ClusterState._heal_requested,  # noqa: SLF001
    payloads.PodEvicted: ClusterState._pod_evicted,  # noqa: SLF001
    payloads.EvictionFailed: ClusterState._eviction_failed,  # noqa: SLF001
    payloads.CycleCompleted: ClusterState._cycle_completed,  # noqa: SLF001
    payloads.PodsLeftWaiting: ClusterState._pods_left_waiting,  # noqa: SLF001
    payloads.ConfigRecorded: ClusterState._config_recorded,  # noqa: SLF001
}
