"""A pod in the state: its stage, its facts, and its charges."""

from enum import StrEnum
from sys import intern
from typing import Any, Generic, TypeVar

import msgspec

from kaicore.rules.engine.constraints.claims.demands import NO_DEVICES, DeviceDemand
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.work.workload import Nomination
from kaicore.rules.events.payloads import WaitingPod
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.groups.labels import NO_RANK
from kaicore.rules.model.device import Allocation
from kaicore.rules.model.gpu_share import WHOLE, GpuPart
from kaicore.rules.model.placement import ContainerPlacement, Placement
from kaicore.rules.model.pod import Amounts, Pod
from kaicore.rules.numa.kubelet.zones import ZoneCharge
from kaicore.rules.queues.tree import gpus_of
from kaicore.rules.state.pods.agreement import Agreement
from kaicore.rules.state.pods.pod_life import is_waiting
from kaicore.rules.state.registries.queue_registry import QueueCharge

#: Within which a controller is to make the successor of a moved pod that is gone. A Job's first wait takes 10 s.
SUCCESSOR_US = 60_000_000

_Value = TypeVar("_Value")
_MOST_SHARED = 20_000
_encode = msgspec.msgpack.Encoder().encode


class Sharing:
    """Values that many pods have, by their bytes; of so many kinds of them it begins anew."""

    def __init__(self, most: int = _MOST_SHARED) -> None:
        self._values: dict[bytes, object] = {}
        self._most = most

    def __call__(self, value: _Value) -> _Value:
        """Return the first of all values that look the same: most pods are like others, and each would keep a copy.

        Args:
            value: never changed afterwards; its members stand in the same order in what is returned.
        """
        looks = _encode(value)
        if len(self._values) >= self._most:
            self._values.clear()
        # Only what looks the same and is of one type is equal.
        found = self._values.setdefault(looks, value)
        return found if type(found) is type(value) else value


shared = Sharing()


class Remembered(Generic[_Value]):
    """Results by the shared values that they follow from, which are kept with them and compared by identity."""

    def __init__(self) -> None:
        self._results: dict[tuple[int, ...], tuple[tuple[object, ...], _Value]] = {}

    def get(self, numbers: tuple[int, ...], parts: tuple[object, ...]) -> _Value | None:
        """Return the result of parts; None for none. `numbers` are all else that it depends on."""
        found = self._results.get((*numbers, *map(id, parts)))
        return None if found is None else found[1]

    def put(self, numbers: tuple[int, ...], parts: tuple[object, ...], value: _Value) -> _Value:
        """Remember a result; return it."""
        if len(self._results) >= _MOST_SHARED:
            self.clear()
        self._results[*numbers, *map(id, parts)] = parts, value
        return value

    def clear(self) -> None:
        """Forget all of them."""
        self._results.clear()


def share_containers(placement: Placement, share: Sharing = shared) -> Placement:
    """Let an observation have its containers in common with others; return it."""
    msgspec.structs.force_setattr(placement, "containers", share(placement.containers))
    return placement


#: Fields of a pod that most pods have empty, that it seldom changes, and texts that many have in common.
_MOSTLY_EMPTY = ("labels", "annotations", "overhead", "node_selector")
_LASTING = ("uid", "name", "owner", "labels", "annotations")
_TEXTS = ("namespace", "scheduler_name", "phase", "priority_class", "preemption_policy", "node_name")
#: The one empty dict of pods that have nothing there.
EMPTY: dict[str, Any] = {}


def share_parts(pod: Pod, before: Pod | None = None, share: Sharing = shared) -> Pod:
    """Let a pod have what is the same with others, and with itself as it was before; return it."""
    put = msgspec.structs.force_setattr
    put(pod, "containers", share(pod.containers))
    if pod.tolerations:
        put(pod, "tolerations", share(pod.tolerations))
    for name in _MOSTLY_EMPTY:
        if not getattr(pod, name):
            put(pod, name, EMPTY)
    for name in _TEXTS:
        put(pod, name, intern(getattr(pod, name)))
    if before is None or before is pod:
        for name in ("owner", "labels"):
            if value := getattr(pod, name):
                put(pod, name, share(value))
    else:
        for name in _LASTING:
            value = getattr(before, name)
            if getattr(pod, name) == value:
                put(pod, name, value)
    return pod


class Stage(StrEnum):
    """The progress of a pod. `kaicore.rules.state.pods.transitions` has the table of changes.

    Attributes:
        ABSENT: the log has not seen it yet, or has seen it deleted.
        WAITING: it has no node.
        PLACED: a cycle chose its node; the API server has not taken the binding yet.
        BOUND: the API server has its node.
        FINISHED: it has succeeded or failed, or a kubelet rejected it.
    """

    ABSENT = "absent"
    WAITING = "waiting"
    PLACED = "placed"
    BOUND = "bound"
    FINISHED = "finished"


#: Of a pod that holds nothing of zones. As a plain default it would be left out of snapshots, and its equals not.
NO_CHARGE = ZoneCharge()

#: The stages of pods that there are.
PRESENT = (Stage.WAITING, Stage.PLACED, Stage.BOUND, Stage.FINISHED)


class Eviction(msgspec.Struct, frozen=True):
    """A decision to evict a pod for another group's sake.

    Attributes:
        reason: see `kaicore.rules.engine.decisions.EvictionReason`.
        at: recorded time of the decision, microseconds since the epoch.
        fits_on: as in `EvictionDecided`.
    """

    reason: str
    at: int
    fits_on: str = ""


class KubeletRejection(msgspec.Struct, frozen=True):
    """A kubelet rejected the pod (`reason`: as in `PodRejected`)."""

    node: str
    reason: str
    position: int


class PodEntry(msgspec.Struct, omit_defaults=True, gc=False):
    """A pod: facts that handlers set (`transitions`), and what `PodIndexes` derives from them.

    Facts:
        pod: as the watcher saw it last.
        stage: how far it has come.
        node: where it is placed or bound; empty while it waits.
        predicted: its zones as the cycle that placed it predicted them.
        observed: its zones as they were observed last.
        agreement: how both compare; None until a pod with predicted zones is observed.
        implausible: why its last observation is not believed; empty if it is, or if there is none.
        exporter_reports, implausible_reports: how many observations of it were taken over, and how many were not
            believed; annotations are not counted among the former.
        volumes: volumes that its claims get by the decision that placed it, by the claim's name.
        devices: devices that its resource claims get by the decision that placed it, by the claim's name.
        rank: its place among the pods of its set, by that decision; -1 for none.
        gpus: the parts of GPUs that it gets by that decision.
        decided_at: the position that the cycle which placed it knew.
        cycle: the cycle that placed it.
        placed_at: the clock of that cycle, microseconds since the epoch.
        bound_at: recorded time of the event that first showed it bound; 0 before.
        bind_failures: failed binds so far; `failed_at` is the last one's recorded time.
        failed_on: nodes on which it did not get what it needs before it is bound, or that admission refused, by name.
        gone: the API server does not have it any more, as a failed bind reported.
        started_at: recorded time of the event that first showed it running; 0 before.
        eviction: the decision to evict it for another group's sake; None if there is none, or if it failed.
        repairing: its eviction because of its NUMA policy was decided, and has not failed.
        repair_failures: failed evictions of that kind; `repair_failed_at` is the last one's recorded time.
        nomination: the room that is kept for it while it waits.
        nominated_for: the node of the last room that was kept for it, as long as its status may still name that node.
        reported: as what it was last recorded to be left waiting; None while it does not wait.
        rejection: the kubelet's rejection; None without one.

    Derived:
        class_key: of its class.
        requests: what it takes of a node as a whole.
        releasing: whether its charge counts as being released.
        zone_charge: what it is charged with on zones, from `observed` if that is usable, else from `predicted`.
        kept_by_init: what its ordinary init containers keep, predicted again given the zones on which the others were
            observed; None while the first prediction stands.
        expected: the zones that its kubelet is expected to give it, of a pod that another scheduler bound; until they
            are observed, or a node without an exporter publishes while it runs. None where not all that its node held
            then was known.
        alternatives: other placements that the kubelet may have given it, until it is observed: the kubelet may have
            freed something before the log knew that.
        charged_at: position of the event that charged it: the order in which pods came to a node.
        unrecorded: it has something bound to zones of its node, and no record tells which zones, or of all of it.
        misaligned: in what its observed placement differs from what its own NUMA policy asks; empty if in nothing.
        misaligned_at: when that was recorded.
        replaces_on: it replaces a pod that was evicted from this node because of its NUMA policy; a pod that replaces
            another is never evicted for that itself.
        group: key of the group that it belongs to.
        pod_set: name of the set in that group that it counts for.
        group_problem: why its group cannot be decided on with it (`kaicore.rules.events.reasons`); None if it can.
        queue_charge: what it counts as in its queue's usage; None while it neither runs nor can start.
    """

    pod: Pod
    class_key: str = ""
    requests: Amounts = {}
    stage: Stage = Stage.ABSENT
    node: str = ""
    releasing: bool = False
    predicted: Placement | None = None
    observed: Placement | None = None
    expected: Placement | None = None
    zone_charge: ZoneCharge = msgspec.field(default_factory=lambda: NO_CHARGE)
    kept_by_init: tuple[ContainerPlacement, ...] | None = None
    alternatives: tuple[Placement, ...] = ()
    decided_at: int = 0
    charged_at: int = 0
    unrecorded: bool = False
    agreement: Agreement | None = None
    exporter_reports: int = 0
    implausible_reports: int = 0
    bind_failures: int = 0
    failed_at: int = 0
    cycle: str = ""
    placed_at: int = 0
    bound_at: int = 0
    gone: bool = False
    started_at: int = 0
    misaligned: str = ""
    misaligned_at: int = 0
    implausible: str = ""
    repairing: bool = False
    repair_failures: int = 0
    repair_failed_at: int = 0
    replaces_on: str = ""
    group: str = ""
    pod_set: str = ""
    group_problem: Reason | None = None
    queue_charge: QueueCharge | None = None
    nomination: Nomination | None = None
    nominated_for: str = ""
    reported: WaitingPod | None = None
    eviction: Eviction | None = None
    rejection: KubeletRejection | None = None
    volumes: dict[str, str] = {}
    devices: dict[str, Allocation] = {}
    rank: int = NO_RANK
    gpus: tuple[GpuPart, ...] = ()
    failed_on: tuple[str, ...] = ()

    @property
    def charged(self) -> bool:
        """True if its requests and its zones are charged to its node."""
        return self.stage is Stage.BOUND or self.stage is Stage.PLACED

    @property
    def predicts_zones(self) -> bool:
        """True if the cycle that placed it predicted zones for at least one container."""
        return self.predicted is not None and bool(self.predicted.containers)

    @property
    def waiting(self) -> bool:
        """See `is_waiting`."""
        return self.stage is Stage.WAITING and is_waiting(self.pod, unplaced=True, vanished=self.gone)

    @property
    def running_since(self) -> int:
        """See `kaicore.rules.engine.work.workload.Member`."""
        return self.pod.start_time * 1_000_000 or self.placed_at or self.pod.created_at * 1_000_000

    @property
    def work_since(self) -> int:
        """See `kaicore.rules.engine.work.workload.Member`."""
        return max(self.running_since, self.pod.checkpoint_at * 1_000_000)

    @property
    def evicting(self) -> bool:
        """True if its eviction for another group was decided and has not failed."""
        return self.eviction is not None

    @property
    def moved(self) -> bool:
        """True if its eviction was decided so that others get together what is free."""
        return self.eviction is not None and self.eviction.reason == EvictionReason.CONSOLIDATED

    @property
    def leaving_by_decision(self) -> bool:
        """True if a cycle had it evicted, so that it does not reach its own end."""
        return self.eviction is not None or self.repairing

    @property
    def leaving(self) -> bool:
        """True if it is terminating or about to be evicted, though it may still hold its node."""
        return self.pod.deletion_at is not None or self.eviction is not None or self.repairing


#: Fields of an entry that many pods have in common, beside those that `share_entry` names.
_ALIKE = ("predicted", "zone_charge", "queue_charge", "agreement")


def share_entry(entry: PodEntry, share: Sharing) -> None:
    """Let an entry that was decoded have what is the same with others, as folding does."""
    share_parts(entry.pod, share=share)
    if entry.observed is not None:
        share_containers(entry.observed, share)
    for name in _ALIKE:
        if value := getattr(entry, name):
            setattr(entry, name, share(value))
    entry.node, entry.cycle = intern(entry.node), intern(entry.cycle)
    entry.volumes, entry.devices = entry.volumes or EMPTY, entry.devices or EMPTY


class Home(msgspec.Struct, frozen=True):
    """Room for the successor of a moved pod.

    Attributes:
        pod: the moved one as far as placements depend on it: it may be gone before its successor comes.
        at: when the move was decided, microseconds since the epoch.
        gone_at: when the moved pod let go of its node; 0 before.
        devices: that the claims of its successor will ask for.
    """

    node: str
    pod: PodEntry
    at: int
    gone_at: int = 0
    devices: DeviceDemand = NO_DEVICES

    @classmethod
    def of(cls, entry: PodEntry, node: str, devices: DeviceDemand, *, at: int) -> "Home":
        """Return the home on a node of the pod that takes the place of a moved one."""
        alike = PodEntry(entry.pod, entry.class_key, entry.requests, group=entry.group, pod_set=entry.pod_set)
        return cls(node, alike, at, devices=devices)

    def kept_until(self, patience_us: int) -> int:
        """Return when the room is kept no more (microseconds since the epoch), by how long after the move at most."""
        return min(self.at + patience_us, self.gone_at + SUCCESSOR_US if self.gone_at else self.at + patience_us)


def gpus_asked(entry: PodEntry) -> int:
    """Return the GPUs of a pod in thousandths: its parts, once it has them.

    Before, memory of a GPU counts as the whole one, as queues count it: how much of a GPU it is depends on the node.
    """
    share, parts = entry.pod.gpu_share, sum(part.milli for part in entry.gpus)
    asked = 0 if share is None else (WHOLE if share.mib else share.milli) * share.devices
    return gpus_of(entry.requests) * WHOLE + (parts or asked)
