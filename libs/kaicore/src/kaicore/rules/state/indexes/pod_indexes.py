"""The indexes that follow from the pods' entries, derived in one place.

`PodIndexes.update` gets an entry as it was before an event and as it is after it, and brings every index up to date:
classes, charges of nodes and zones, groups, workloads, waiting and nominated pods, queue usage. No other code does.
`tests.given.logs.invariants` rebuilds the indexes from the entries and compares.
"""

from collections.abc import Iterator

import msgspec

from kaicore.rules.engine.config import DAY_US
from kaicore.rules.engine.cycle_input import HOUR_US, HOURS_OF_DAY, move_key
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass, class_identity, is_plain, pod_class
from kaicore.rules.engine.work.workload import Nomination
from kaicore.rules.groups.labels import queue_of
from kaicore.rules.groups.table import GroupTable
from kaicore.rules.model.gpu_share import SHARED_GPU, WHOLE
from kaicore.rules.model.node import NodeTopology
from kaicore.rules.model.placement import Placement, Provenance
from kaicore.rules.model.pod import Amounts, Pod
from kaicore.rules.numa.own_policy import missed, shared_devices
from kaicore.rules.queues.tree import gpus_of
from kaicore.rules.state.charges.early_release import EarlyReleases
from kaicore.rules.state.charges.node_charges import NodeCharges, is_resized
from kaicore.rules.state.charges.prediction_misses import PredictionMisses
from kaicore.rules.state.counters import Counters
from kaicore.rules.state.indexes.cluster_constraints import ClusterConstraints
from kaicore.rules.state.indexes.node_trials import NodeTrials, RejectionIndex
from kaicore.rules.state.indexes.past_runs import GpuUse, RecentWork, RunTimes, run_keys
from kaicore.rules.state.indexes.recorded_reasons import RecordedReasons, ShadowBook
from kaicore.rules.state.indexes.repairs import RepairLedger
from kaicore.rules.state.indexes.workload_index import RestingGroups, WorkloadIndex
from kaicore.rules.state.pods.pod_entry import (
    NO_CHARGE,
    Eviction,
    Home,
    PodEntry,
    Remembered,
    Sharing,
    Stage,
    share_entry,
    shared,
)
from kaicore.rules.state.pods.resolve import zone_charge
from kaicore.rules.state.pods.transitions import FoldContext, Release
from kaicore.rules.state.registries.queue_registry import QueueCharge, QueueRegistry, queue_charge
from kaicore.rules.state.shared_gpus import SharedGpus


class ClassRegistry:
    """Classes by key, each with the number of pods that are of it."""

    def __init__(self, constraints: ClusterConstraints) -> None:
        self.classes: dict[str, PodClass] = {}
        self._constraints = constraints
        self._by_identity: dict[bytes, str] = {}
        #: Keys of plain pods' classes by the parts that these have in common, while all classes stay.
        self._plain: Remembered[str] = Remembered()
        self._identities: dict[str, bytes] = {}
        self._pods: dict[str, int] = {}

    def enter(self, pod: Pod) -> str:
        """Count a pod under its class; returns the class's key."""
        parts = (pod.qos, pod.containers, pod.tolerations)
        plain = is_plain(pod)
        key = self._plain.get((), parts) if plain else None
        if key is None:
            identity = class_identity(pod)
            key = self._by_identity.get(identity)
            if key is None:
                new = pod_class(pod, identity)
                key = new.key
                self.restore(new, identity, 0)
            if plain:
                self._plain.put((), parts, key)
        self._pods[key] += 1
        return key

    def leave(self, key: str) -> bool:
        """Count a pod no more; returns whether it was the last one of its class."""
        self._pods[key] -= 1
        return not self._pods[key]

    def forget(self, key: str) -> None:
        """Forget a class that no pod is of."""
        self._constraints.class_forgotten(self.classes[key])
        self._plain.clear()
        del self._pods[key], self.classes[key], self._by_identity[self._identities.pop(key)]

    def record(self, key: str) -> tuple[bytes, int]:
        """Return a class's identity and how many pods are of it, for snapshots."""
        return self._identities[key], self._pods[key]

    def restore(self, pod_class: PodClass, identity: bytes, pods: int) -> None:
        """Put a class back."""
        self.classes[pod_class.key] = pod_class
        self._by_identity[identity] = pod_class.key
        self._identities[pod_class.key] = identity
        self._pods[pod_class.key] = pods
        self._constraints.class_known(pod_class)


_NOTHING_HELD = Placement(Provenance.OBSERVED)

#: Stages in which the end of a nomination gives nobody room: the pod takes it itself, or had it from no cycle.
_NOT_FOR_ROOM = (Stage.PLACED, Stage.ABSENT)


class PodIndexes:
    """The pods' entries, and the indexes that follow from them.

    Attributes:
        columns: nodes, and what is charged to them.
        context: the event that is being folded.
        revision: grows whenever something happened that can make the next cycle decide otherwise than the last.
        pods: the entries by uid.
        constraints: which selections select which pods, and the marks that charged pods leave on their nodes.
        class_registry: classes with their numbers of pods.
        charges: what pods hold of nodes and zones.
        shared_gpus: GPUs that are opened for sharing, and who holds parts of them.
        early_releases: what kubelets may have freed before the API server reported it.
        misses: placements that were observed otherwise than predicted.
        group_table: which pods belong together.
        workload_index: groups with their pods, by where these stand.
        queue_registry: queues, and what their pods use and wait for.
        waiting: uids of pods that cycles decide on.
        nominated: uids of waiting pods for which room is kept.
        misaligned: uids of pods with zones that violate their own NUMA policy.
        repairs: evictions of misaligned pods, and their replacements.
        rejections: rejections by node and class.
        freed_at: by node, the position of the last event by which room may have become free there.
        moved_at: when pods were last decided to be moved to make room, by `move_key`: those of the last day, in
            microseconds since the epoch.
        moved_pods: how many pods were decided to be moved to make room, by hour since the epoch: those of the last day.
        homes: where the successors of moved pods are to go that have not come yet, by `move_key` and class.
        resting: the waiting groups of which a cycle has nothing to find out.
        reasons: why pods wait, as last recorded.
        shadows: what shadows last decided about the pods of other schedulers.
        recent_work: classes of pods with devices that came in the last days.
        run_times: how long pods ran that came to their own end.
        gpu_use: the GPU time that namespaces and groups have had.
        node_trials: how nodes fared with the pods that were put on them.
        counters: counts over the whole log.
    """

    def __init__(self) -> None:
        self.columns = NodeColumns()
        self.context = FoldContext(self.columns)
        self.pods: dict[str, PodEntry] = {}
        self.constraints = ClusterConstraints(self.columns, self.pods)
        self.class_registry = ClassRegistry(self.constraints)
        self.charges = NodeCharges(self.columns, self.pods, self.class_registry.classes)
        self.shared_gpus = SharedGpus(self.columns, self.pods, self.charges)
        self.counters = Counters()
        self.early_releases = EarlyReleases(self.columns, self.class_registry.classes, self.charges, self.counters)
        self.misses = PredictionMisses(self.pods, self.early_releases, self.counters)
        self.group_table = GroupTable()
        self.workload_index = WorkloadIndex()
        self.queue_registry = QueueRegistry()
        self.waiting: set[str] = set()
        self.nominated: set[str] = set()
        self.misaligned: set[str] = set()
        self.repairs = RepairLedger()
        self.rejections = RejectionIndex()
        self.moved_at: dict[str, int] = {}
        self.moved_pods: dict[int, int] = {}
        self.homes: dict[str, list[Home]] = {}
        self.freed_at: dict[str, int] = {}
        self.resting = RestingGroups()
        self.reasons = RecordedReasons()
        self.shadows = ShadowBook()
        self.recent_work = RecentWork()
        self.run_times = RunTimes()
        self.gpu_use = GpuUse()
        self.node_trials = NodeTrials()
        self.revision = 0
        #: GPUs in requests, and devices of classes, which many pods have.
        self._gpus: Remembered[int] = Remembered()
        self._devices: Remembered[int] = Remembered()

    # One entry changed.

    def update(self, before: PodEntry, after: PodEntry, *, release: Release | None, only_status: bool = False) -> None:
        """Bring all indexes up to date after an event changed an entry, each of them once.

        Args:
            before: a copy of the entry as it was; of stage ABSENT for a pod that is new.
            release: how the pod let go of its node, if it did.
            only_status: of the pod itself nothing but its status changed, if anything.
        """
        # 1. The pod before and now. From placed to bound nothing moves: it is charged to its node already.
        was, stage, pod = before.stage, after.stage, after.pod
        new, gone = was is Stage.ABSENT, stage is Stage.ABSENT
        seen = new or pod is not before.pod
        held = before.node if was is Stage.BOUND or was is Stage.PLACED else ""
        holds = after.node if stage is Stage.BOUND or stage is Stage.PLACED else ""
        moved = held != holds or (was is not stage and not holds)
        leaves, waits = after.leaving, after.waiting
        left, waited = before.leaving is not leaves, before.waiting
        # 2. Its entry, its class, and the selections that it is in.
        if new:
            self.pods[pod.uid] = after
        if seen and not only_status:
            self._update_class(before, after)
        selected = seen and (not only_status or pod.finished) and self.constraints.pod_seen(pod)
        # 3. Its node: what it holds there, and what follows from that for the others there.
        if held != holds or (holds and (seen or after.observed is not before.observed)):
            self._update_node(before, after, held, holds, release)
        if (moved or left) and (leaves or after.releasing):
            self.charges.set_releasing(after)
        reserves = self.shared_gpus.is_reservation(pod.uid)
        if before.gpus or after.gpus or reserves:
            self._update_shared_gpus(before, after, held, holds, reserves=reserves)
        marked = (moved or left or selected) and self.constraints.remark(after)
        # 4. Its story: what became of it, what it replaces, and how long pods like it run.
        if after.rejection is not before.rejection:
            self.rejections.rejected(after)
        if after.eviction is not before.eviction:
            self._note_eviction(after, before.eviction, after.eviction)
        if moved or after.class_key != before.class_key or after.repairing is not before.repairing:
            self.repairs.update(before, after)
        ends = bool(held) and not holds
        if (new or ends or after.devices) and not reserves:
            self._update_recent_work(before, after, new=new, ends=ends)
        if ends:
            self._count_end(before, after, reserves=reserves)
        # 5. Its group and its queue, and whether it waits.
        if gone:
            self._forget(after)
        else:
            if seen:
                self._update_membership(after, only_status=only_status)
            if new and self.homes and (waits or holds):
                self._go_home(after, holds)
            self._update_waiting(before, after, waited=waited, waits=waits)
            if moved or seen or left:
                self._update_workload(after, waits=waits)
                self._update_queue_charge(before, after)
        # 6. Whether the next cycle may decide otherwise.
        self.revision += (
            (marked and bool(holds)) or (waits and (seen or not waited)) or (not new and self._matters(before, after))
        )

    def is_settled(self, entry: PodEntry) -> bool:
        """Tell whether nothing follows from a new status of a pod that keeps its node or its end."""
        return not self.workload_index.needed_by.get(entry.group) and not self.shared_gpus.concerns(entry)

    def pod_seen_again(self, entry: PodEntry) -> None:
        """Have the pod as it was seen now, where it is kept for itself; nothing else follows from its status."""
        pod = entry.pod
        self.constraints.pod_seen_again(pod)
        self.group_table.pod_seen_again(pod)
        self.resting.touch(entry.group)
        self.workload_index.touch(entry.group)

    def _update_node(self, before: PodEntry, after: PodEntry, held: str, holds: str, release: Release | None) -> None:
        """Bring a node's account up to date: the pod's charge, then the other pods' zones, then the causes of misses.

        Args:
            before, after, release: as in `update`.
            held: the node that the pod was charged to; empty for none.
            holds: the node that it is charged to now; empty for none.
        """
        node, stays, at, now = held or holds, held == holds, self.context.position, self.context.recorded_at
        ended = release is Release.ENDED and not stays
        observed = stays and after.observed is not before.observed
        placed = after.stage is Stage.PLACED and not stays
        change = self.charges.update(before, after, held, holds, ended=ended, at=at)
        if observed or not stays:
            self._update_alignment(after, anew=not stays)
        if ended or placed or change.otherwise:
            self.early_releases.update(after, node, change, ended=ended, at=at, now=now)
        if ended or observed:
            self.misses.update(after, node, ended=ended)
        if change.otherwise or (held and not stays and release is not Release.REJECTED):
            self.node_changed(node)

    def _update_shared_gpus(self, before: PodEntry, after: PodEntry, held: str, holds: str, *, reserves: bool) -> None:
        """Bring the shared GPUs of a pod that has parts of them, or reserves one, up to date."""
        self.shared_gpus.update(before, after, held, holds)
        self._update_exposed()
        if reserves and after.observed is not before.observed:
            for uid in self.shared_gpus.sharers(after.pod.uid):
                self._update_alignment(self.pods[uid])

    def _matters(self, before: PodEntry, after: PodEntry) -> bool:
        """Tell whether a cycle may decide otherwise because of a known pod, beside that it waits and what it holds."""
        if after.nomination is not before.nomination and after.stage not in _NOT_FOR_ROOM:
            return True
        # Pods may wait for just that: that zones become known, that a pod is observed, or that a pod stays.
        return (
            (before.unrecorded and not after.unrecorded)
            or (before.observed is None and after.observed is not None and bool(self.waiting))
            or (before.repairing and not after.repairing)
            or (before.eviction is not None and after.eviction is None)
            or bool(after.misaligned and not before.misaligned)
        )

    def _update_recent_work(self, before: PodEntry, after: PodEntry, *, new: bool, ends: bool) -> None:
        """Count a pod among recent work when it comes, and the rest of its run when it ends.

        Claims of a pod are often made after it, so one with devices of claims counts when a cycle gives it these.
        """
        given = bool(after.devices) and not before.devices
        if not (new or given or ends):
            return
        now, pod_class = self.context.recorded_at, self.class_registry.classes[after.class_key]
        requested = self._devices.get((), (pod_class,))
        if requested is None:
            requested = self._devices.put((), (pod_class,), pod_class.size[0])
        # What claims are made of for requested resources counts once.
        given_to = {} if requested else after.devices or before.devices
        claimed = sum(len(allocation.devices) for allocation in given_to.values())
        if claimed if given else new and (requested or pod_class.gpu_share):
            self.recent_work.came(pod_class, claimed=claimed, at_us=now)
        elif ends and after.started_at:
            self.recent_work.ended(pod_class, claimed=claimed, ran_us=now - after.started_at, at_us=now)

    def _count_end(self, before: PodEntry, after: PodEntry, *, reserves: bool) -> None:
        """Take in that a pod let go of its node; a reservation's (`reserves`) own end is but a run."""
        pod, now, started = before.pod, self.context.recorded_at, bool(after.started_at)
        if started and not before.leaving_by_decision and after.rejection is before.rejection:
            owner = pod.owner.uid if pod.owner is not None else pod.uid
            self.run_times.ended(run_keys(pod), owner, ran_us=max(now - before.running_since, 1), at_us=now)
        if reserves:
            return
        if after.moved:
            self._moved_pod_ended(after)
        self.node_trials.ended(before, after, position=self.context.position, at=now)
        parts = sum(part.milli for part in before.gpus) if before.gpus else 0
        if started and (gpus := self._whole_gpus(before) + parts):
            self.gpu_use.ended(move_key(before.group, pod), gpus, ran_us=now - before.running_since)

    def _update_class(self, before: PodEntry, after: PodEntry) -> None:
        """A pod may change class while it waits: gates fall, tolerations are added.

        One with a node keeps its class, unless it is resized in place: then it holds something else.
        """
        new = before.stage is Stage.ABSENT
        if not new and before.stage is not Stage.WAITING and not is_resized(before.pod, after.pod):
            return
        after.class_key = self.class_registry.enter(after.pod)
        if not new:
            self._leave_class(before.class_key)
        if after.class_key != before.class_key:
            after.requests = self.class_registry.classes[after.class_key].requests

    def _leave_class(self, key: str) -> None:
        """Forget a class with its last pod, unless a kubelet is known to have rejected it."""
        if self.class_registry.leave(key) and not self.rejections.has_class(key):
            self.class_registry.forget(key)
            self.reasons.forget_class(key)
            self.shadows.reasons.forget_class(key)

    def _update_exposed(self) -> None:
        """Note which pods share a GPU that nothing holds now, or are it no more."""
        for group in self.shared_gpus.take_turned():
            for uid in sorted(group.parts):
                if uid in self.pods:
                    self._update_alignment(self.pods[uid])
            self.node_changed(group.opened.node)
            self.revision += 1

    def _update_alignment(self, entry: PodEntry, *, anew: bool = False) -> None:
        """Note whether a pod has the zones that its own NUMA policy asks for; `anew` where its node is another."""
        pod_class = self.class_registry.classes[entry.class_key]
        if pod_class.numa_policy is None and not entry.gpus and not entry.misaligned:
            return
        text, charged = "", entry.charged
        row = self.columns.row(entry.node) if charged else -1
        topology = self.columns.topologies[row] if charged else None
        # Of a pod of which nothing is aligned, nothing but the GPUs that it shares is ever observed.
        observed = entry.observed or (_NOTHING_HELD if entry.gpus and pod_class.aligned.empty else None)
        if pod_class.numa_policy is not None and observed is not None and topology is not None:
            text = missed(
                self.columns.zones,
                row,
                zone_names=tuple(zone.name for zone in topology.zones),
                request=pod_class.aligned,
                own=pod_class.numa_policy,
                observed=observed,
                shared=shared_devices(pod_class.gpu_share, pod_class.numa_policy, pod_class.aligned),
                reservations=self.shared_gpus.observed(entry.gpus),
            )
        if not text and charged and entry.gpus:
            text = self.shared_gpus.exposed_by(entry.gpus)
        if not text and not entry.misaligned:
            return
        if text and (anew or not entry.misaligned):
            entry.misaligned_at = self.context.recorded_at
            self.counters.missed += 1
        entry.misaligned = text
        _set(self.misaligned, entry.pod.uid, member=bool(text))

    def _update_membership(self, entry: PodEntry, *, only_status: bool = False) -> None:
        if only_status:
            self.constraints.pod_seen_again(entry.pod)
            self.group_table.pod_seen_again(entry.pod)
            return
        place = self.group_table.pod_seen(entry.pod)
        entry.group, entry.pod_set, entry.group_problem = place.group, place.pod_set, place.problem

    def _update_waiting(self, before: PodEntry, after: PodEntry, *, waited: bool, waits: bool) -> None:
        self.resting.touch(after.group)
        if before.group != after.group:
            self.resting.touch(before.group)
        if waits:
            self.waiting.add(after.pod.uid)
        elif waited:
            self.waiting.discard(after.pod.uid)
        if after.nomination is not before.nomination:
            _set(self.nominated, after.pod.uid, member=after.nomination is not None)
            self._charge_nomination(after)

    def _charge_nomination(self, entry: PodEntry) -> None:
        """Work out what a nominated pod would hold of its node's zones; of another scheduler's nomination, nothing."""
        nomination = entry.nomination
        if nomination is None or nomination.foreign:
            return
        charge = zone_charge(
            self.columns.zones,
            self.columns.topologies[self.columns.row(nomination.node)],
            pod=entry.pod,
            predicted=nomination.placement,
            observed=None,
        )
        entry.nomination = msgspec.structs.replace(nomination, charge=charge or NO_CHARGE)

    def _note_eviction(self, entry: PodEntry, before: Eviction | None, eviction: Eviction | None) -> None:
        if eviction is None:
            self._take_home(entry, before.fits_on if before else "")
            return
        now = self.context.recorded_at
        self.workload_index.evicted(entry, at=now)
        if eviction.reason == EvictionReason.CONSOLIDATED:
            for key in [key for key, at in self.moved_at.items() if now - at >= DAY_US]:
                del self.moved_at[key]
            self.moved_at[move_key(entry.group, entry.pod)] = now
            hour = now // HOUR_US
            for old in [one for one in self.moved_pods if hour - one >= HOURS_OF_DAY]:
                del self.moved_pods[old]
            self.moved_pods[hour] = self.moved_pods.get(hour, 0) + 1
            for key, homes in list(self.homes.items()):
                if now - homes[-1].at >= DAY_US:
                    del self.homes[key]
            if eviction.fits_on:
                devices = self.constraints.devices.demand(entry.pod, again=True)
                home = Home.of(entry, eviction.fits_on, devices, at=now)
                self.homes.setdefault(_home_key(entry), []).append(home)

    def _moved_pod_ended(self, entry: PodEntry) -> None:
        """Start the time within which a moved pod's successor is to come; a pod that did its work has none."""
        key = _home_key(entry)
        homes = self.homes.get(key, [])
        leave = [one for one in self.workload_index.leaving.values() if one.moved and _home_key(one) == key]
        kept = [number for number, home in enumerate(homes) if not home.gone_at]
        if entry.eviction is not None and entry.pod.phase == "Succeeded":
            self._take_home(entry, entry.eviction.fits_on)
        elif len(kept) > len([one for one in leave if one is not entry]):
            homes[kept[0]] = msgspec.structs.replace(homes[kept[0]], gone_at=self.context.recorded_at)

    def _take_home(self, entry: PodEntry, node: str = "") -> Home | None:
        """Take out the home of a moved pod's successor, on any node unless one is named; None if it has none."""
        key = _home_key(entry)
        homes = self.homes.get(key, [])
        home = next((one for one in homes if node in ("", one.node)), None)
        if home is not None:
            homes.remove(home)
            if not homes:
                del self.homes[key]
        return home

    def _go_home(self, entry: PodEntry, holds: str) -> None:
        """A new pod may be the successor of a moved one: keep the home for it, unless it has a node (`holds`)."""
        home = self._take_home(entry, holds) or self._take_home(entry)
        if home is not None and entry.waiting and entry.nomination is None:
            entry.nomination = Nomination(home.node, at=home.at, foreign=True)

    def homes_to_keep(self, *, now: int, patience_us: int) -> Iterator[Home]:
        """Yield the homes that are kept, to which no successor has come yet.

        Args:
            now: microseconds since the epoch.
            patience_us: for how long after a move.
        """
        for key in sorted(self.homes):
            for home in self.homes[key]:
                if now < home.kept_until(patience_us):
                    yield home

    def home_of(self, entry: PodEntry) -> Home:
        """Return a home by its pod."""
        return next(home for home in self.homes[_home_key(entry)] if home.pod is entry)

    def _update_workload(self, entry: PodEntry, *, waits: bool) -> None:
        """Put a pod where it now stands in its group (`waits`: whether it waits)."""
        group = self.group_table.groups.get(entry.group)
        if group is None:
            self.workload_index.forget(entry, at=self.context.recorded_at)
        else:
            self.workload_index.seat(
                entry, group, waiting=waits and not entry.group_problem, at=self.context.recorded_at
            )

    def _update_queue_charge(self, before: PodEntry, after: PodEntry) -> None:
        """Count a pod in the usage of the queue that pays for it now."""
        charge = self.queue_charge_of(after)
        same = after.requests is before.requests and after.gpus is before.gpus
        if same and (charge is before.queue_charge or charge == before.queue_charge):
            return
        if before.queue_charge is not None:
            self._charge(before, before.queue_charge, sign=-1)
        after.queue_charge = charge
        if charge is not None:
            self._charge(after, charge, sign=1)

    def _charge(self, entry: PodEntry, charge: QueueCharge, *, sign: int) -> None:
        """Count a pod in the usage of its queue and of its namespace, or take it off again with `sign=-1`."""
        now, amounts = self.context.recorded_at, queue_amounts(entry, charge)
        self.queue_registry.charge(charge, amounts, sign=sign, at_us=now)
        if charge.running and (gpus := self._whole_gpus(entry) + amounts.get(SHARED_GPU, 0)):
            self.gpu_use.change(entry.pod.namespace, sign * gpus, at_us=now)

    def _whole_gpus(self, entry: PodEntry) -> int:
        """Return the thousandths of whole GPUs that a pod holds, worked out once for pods that request the same."""
        gpus = self._gpus.get((), (entry.requests,))
        return self._gpus.put((), (entry.requests,), gpus_of(entry.requests) * WHOLE) if gpus is None else gpus

    def queue_charge_of(self, entry: PodEntry) -> QueueCharge | None:
        """Return as what a pod counts in its queue's usage; None while it neither runs nor can start."""
        pod = entry.pod
        running = entry.charged and not entry.releasing
        if not running and (pod.scheduling_gates or not entry.waiting):
            return None
        if self.shared_gpus.is_reservation(pod.uid):
            return None
        group = self.group_table.groups.get(entry.group)
        preemptible = group is None or group.preemptible
        return queue_charge(pod.scheduler_name, *self.queue_of(entry), preemptible, running)

    def queue_of(self, entry: PodEntry) -> tuple[str, str]:
        """Return the queue that a pod names, or else an empty name and its namespace."""
        group = self.group_table.groups.get(entry.group)
        queue = queue_of(entry.pod) if group is None else group.queue
        return queue, "" if queue else entry.pod.namespace

    def _forget(self, entry: PodEntry) -> None:
        """Take a deleted pod out of all indexes; it holds nothing any more."""
        uid, now = entry.pod.uid, self.context.recorded_at
        if entry.queue_charge is not None:
            self._charge(entry, entry.queue_charge, sign=-1)
        del self.pods[uid]
        self.constraints.pod_gone(entry.pod)
        self._leave_class(entry.class_key)
        self.group_table.pod_gone(uid)
        self.waiting.discard(uid)
        self.resting.touch(entry.group)
        self.nominated.discard(uid)
        self.shadows.choices.pop(uid, None)
        self.workload_index.forget(entry, at=now)
        if entry.group not in self.workload_index.workloads:
            self.reasons.forget_group(entry.group)
            self.shadows.reasons.forget_group(entry.group)

    # Something around the pods changed.

    def node_changed(self, node: str) -> None:
        """Something of a node changed that may change its kubelet's mind."""
        self.rejections.node_changed(node)
        self.freed_at[node] = self.context.position
        self.revision += 1

    def set_topology(self, node: str, topology: NodeTopology | None) -> None:
        """Give a node other zones, or none; what its pods hold, and what is kept for others, follows."""
        self.charges.set_topology(node, topology)
        for entry in self.charges.held_on(node):
            self._update_alignment(entry)
        for uid in self.nominated:
            entry = self.pods[uid]
            if entry.nomination is not None and entry.nomination.node == node:
                self._charge_nomination(entry)
        self.node_changed(node)

    def regroup(self, uids: tuple[str, ...]) -> None:
        """Pods belong to other groups now."""
        for uid in uids:
            entry = self.pods[uid]
            self.resting.touch(entry.group)
            self._update_membership(entry)
            self.resting.touch(entry.group)
            self._update_queue_charge(entry, entry)
            self._update_workload(entry, waits=entry.waiting)
            self.revision += entry.waiting

    def groups_changed(self) -> None:
        """Groups are new, have changed or are gone: another queue may pay for their pods, and some may start now."""
        for key in sorted(self.group_table.changed):
            pods = self.group_table.pods_of(key)
            self.resting.touch(key)
            self.revision += not self.waiting.isdisjoint(pods)
            group = self.group_table.groups.get(key)
            if group is not None and len(pods) == 1 and self.workload_index.has(group):
                # Its one pod was just seen, and is seated and paid for by the group as it is now.
                continue
            seated = group is not None and self.workload_index.regroup(group, at=self.context.recorded_at)
            for uid in sorted(pods & self.pods.keys()):
                entry = self.pods[uid]
                self._update_queue_charge(entry, entry)
                if not seated:
                    self._update_workload(entry, waits=entry.waiting)
        self.group_table.changed.clear()

    def restore(self, entry: PodEntry, share: Sharing = shared) -> None:
        """Put a pod back as a snapshot has it; its node and its class are there already."""
        share_entry(entry, share)
        pod_class = self.class_registry.classes[entry.class_key]
        entry.class_key, entry.requests = pod_class.key, pod_class.requests
        self.pods[entry.pod.uid] = entry
        self.constraints.pod_seen(entry.pod)
        if entry.charged:
            self.charges.restore(entry)
            self.constraints.remark(entry)
        _set(self.misaligned, entry.pod.uid, member=bool(entry.misaligned))
        _set(self.nominated, entry.pod.uid, member=entry.nomination is not None)
        _set(self.waiting, entry.pod.uid, member=entry.waiting)
        self._update_membership(entry)
        self._update_workload(entry, waits=entry.waiting)


def _home_key(entry: PodEntry) -> str:
    return f"{move_key(entry.group, entry.pod)}/{entry.class_key}"


def queue_amounts(entry: PodEntry, charge: QueueCharge) -> Amounts:
    """Return what a pod counts as in its queue: of a node, and of parts of GPUs, also of those that it waits for.

    Until its node is known, memory of a GPU counts as `expected_parts` says.
    """
    share = entry.pod.gpu_share
    if share is None:
        return entry.requests
    if not charge.running:
        return entry.requests | share.waiting
    parts = sum(part.milli for part in entry.gpus)
    return {**entry.requests, SHARED_GPU: parts} if parts else entry.requests


def _set(uids: set[str], uid: str, *, member: bool) -> None:
    if member:
        uids.add(uid)
    else:
        uids.discard(uid)
