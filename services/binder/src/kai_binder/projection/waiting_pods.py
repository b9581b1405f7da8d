"""The pods that schedulers left waiting, and why: content of their condition PodScheduled and of their events.

Folded from the log. A condition is computed when it is its turn to be written, once for everything that happened
since.
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Self, TypeVar

import msgspec
from kaicore.rules.engine.explain.waiting_reasons import (
    SingleStartKind,
    condition_reason,
    reasons_in_short,
    waiting_reasons,
)
from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import ClassPending, GroupPending, Payload, WaitingPod
from kaicore.rules.events.reasons.base import CodedReason
from kaicore.rules.model.replicas import replica_shard, split_shard

#: The events that matter here.
EVENT_TYPES = ("CycleCompleted", "PodDeleted", "PodObserved", "PodPlaced", "PodsLeftWaiting", "ReplicasChanged")

#: Reasons are kept of so many classes and groups, those recorded last: schedulers record them only when they change,
#: also of a class without a waiting pod for a while.
_MOST_REMEMBERED = 20_000


class PodCondition(msgspec.Struct, frozen=True):
    """The desired condition PodScheduled of a waiting pod.

    Attributes:
        reason: `Unschedulable`, `SchedulingGated`, or the code of a reason of ours.
        message: the first reasons in words.
        since: when the pod was first left waiting, microseconds since the epoch.
        position: of the event that recorded the newest of the reasons.
        digest: of reason and message.
        event_digest: of the codes of all reasons: an event tells of other codes, not of other amounts.
    """

    uid: str
    namespace: str
    name: str
    reason: str
    message: str
    since: int
    position: int
    digest: bytes
    event_digest: bytes


class _WaitingPod(msgspec.Struct):
    """A pod that waits, and digests of the reasons recorded last."""

    pod: WaitingPod
    since: int
    position: int
    condition: bytes = b""
    event: bytes = b""


_Pending = TypeVar("_Pending", ClassPending, GroupPending)


class _ByShard(msgspec.Struct):
    """The last record of a class or group by each shard; `position` is of the newest."""

    position: int = 0
    classes: dict[str, ClassPending] = {}
    groups: dict[str, GroupPending] = {}


class WaitingPodsRecord(msgspec.Struct):
    """All of it, for a snapshot."""

    pods: list[_WaitingPod] = []
    classes: dict[str, _ByShard] = {}
    groups: dict[str, _ByShard] = {}


class WaitingPods:
    """The pods of one cluster that were left waiting."""

    def __init__(self) -> None:
        self._pods: dict[str, _WaitingPod] = {}
        self._of_class: dict[str, set[str]] = {}
        self._of_group: dict[str, set[str]] = {}
        #: What was recorded, by class and by group; the oldest record first.
        self._classes: dict[str, _ByShard] = {}
        self._groups: dict[str, _ByShard] = {}
        #: Pods of which something has changed.
        self._due: set[str] = set()

    def fold(self, payload: Payload, *, position: int, recorded_at: int) -> set[str]:
        """Take in an event, recorded at microseconds since the epoch; return the groups with perhaps other reasons."""
        match payload:
            case payloads.CycleCompleted():
                return self._take_reasons(payload, position)
            case payloads.ReplicasChanged():
                reporters = {replica_shard(payload.shard, one) for one in payload.replicas or ("",)}
                return self._keep(payload.shard, reporters)
            case payloads.PodsLeftWaiting(pods=pods):
                for pod in pods:
                    self._put(pod, position=position, recorded_at=recorded_at)
                return {pod.group for pod in pods}
            case payloads.PodPlaced(uid) | payloads.PodDeleted(uid):
                return self._forget(uid)
            case payloads.PodObserved(pod) if pod.node_name or pod.finished or pod.deletion_at is not None:
                return self._forget(pod.uid)
            case _:
                return set()

    def again(self, is_due: Callable[[str], bool]) -> None:
        """Have the pods of these uids yielded again."""
        self._due.update(filter(is_due, self._pods))

    def news(self) -> Iterator[WaitingPod]:
        """Yield the pods of which something has changed since the last time."""
        due, self._due = self._due, set()
        for uid in sorted(due):
            yield self._pods[uid].pod

    def condition(self, uid: str) -> PodCondition | None:
        """Return what a pod's condition is to say; None where the pod does not wait, or there is no reason yet."""
        standing = self._pods.get(uid)
        if standing is None:
            return None
        reasons = self._reasons(standing.pod)
        if not reasons:
            return None
        pod, reason, message = standing.pod, condition_reason(reasons), reasons_in_short(reasons)
        codes = ",".join((reason, *sorted({item.code for item in reasons})))
        recorded = (self._classes.get(pod.pod_class), self._groups.get(pod.group))
        position = max([standing.position, *(item.position for item in recorded if item is not None)])
        return PodCondition(
            uid,
            pod.namespace,
            pod.name,
            reason,
            message,
            standing.since,
            position,
            _digest(f"{reason}\n{message}"),
            _digest(codes),
        )

    def is_new(self, condition: PodCondition) -> bool:
        """True if a condition differs from the one written last."""
        standing = self._pods.get(condition.uid)
        return standing is not None and standing.condition != condition.digest

    def is_new_event(self, condition: PodCondition) -> bool:
        """True if an event is due: the codes of the reasons differ from those of the last one."""
        standing = self._pods.get(condition.uid)
        return standing is not None and standing.event != condition.event_digest

    def mark_written(self, condition: PodCondition, *, event: bool) -> None:
        """Take note that a condition, or the event about it, was written, or never will be."""
        standing = self._pods.get(condition.uid)
        if standing is not None and event:
            standing.event = condition.event_digest
        elif standing is not None:
            standing.condition = condition.digest

    def reasons_of_group(self, group: str) -> list[CodedReason]:
        """Return why the waiting pods of a group wait: what keeps it as a whole first, then its classes in order."""
        kinds = {}
        for uid in self._of_group.get(group, ()):
            pod = self._pods[uid].pod
            kinds[pod.pod_class, pod.alone, pod.queue, pod.priority] = pod
        reasons: list[CodedReason] = []
        for kind in sorted(kinds):
            reasons += [reason for reason in self._reasons(kinds[kind]) if reason not in reasons]
        return reasons

    # Inside.

    def _reasons(self, pod: WaitingPod) -> list[CodedReason]:
        if pod.problem is not None:
            return [pod.problem]
        of_group, of_class = self._groups.get(pod.group), self._classes.get(pod.pod_class)
        return waiting_reasons(
            of_group.groups if of_group is not None else {},
            of_class.classes if of_class is not None else {},
            alone=SingleStartKind(pod.queue, pod.priority) if pod.alone else None,
        )

    def _take_reasons(self, payload: payloads.CycleCompleted, position: int) -> set[str]:
        groups: set[str] = set()
        for item in payload.pending:
            recorded = self._classes.pop(item.pod_class, _ByShard())
            recorded.position, recorded.classes = position, {**recorded.classes, payload.shard: item}
            self._classes[item.pod_class] = recorded
            uids = self._of_class.get(item.pod_class, set())
            self._due |= uids
            groups.update(self._pods[uid].pod.group for uid in uids)
        for group in payload.groups:
            recorded = self._groups.pop(group.group, _ByShard())
            others = {shard: item for shard, item in recorded.groups.items() if shard != payload.shard}
            recorded.position, recorded.groups = position, {**others, payload.shard: group} if group.pods else others
            if recorded.groups:
                self._groups[group.group] = recorded
            self._due |= self._of_group.get(group.group, set())
            groups.add(group.group)
        for remembered in (self._classes, self._groups):
            while len(remembered) > _MOST_REMEMBERED:
                del remembered[next(iter(remembered))]
        return groups

    def _keep(self, shard: str, reporters: set[str]) -> set[str]:
        """Forget what was recorded for a shard under other names; return the groups with perhaps other reasons."""
        groups: set[str] = set()

        def kept(by_shard: dict[str, _Pending]) -> dict[str, _Pending]:
            return {name: one for name, one in by_shard.items() if split_shard(name)[0] != shard or name in reporters}

        for key, recorded in self._classes.items():
            if len(left := kept(recorded.classes)) < len(recorded.classes):
                recorded.classes = left
                uids = self._of_class.get(key, set())
                self._due |= uids
                groups.update(self._pods[uid].pod.group for uid in uids)
        for key, recorded in self._groups.items():
            if len(of_group := kept(recorded.groups)) < len(recorded.groups):
                recorded.groups = of_group
                self._due |= self._of_group.get(key, set())
                groups.add(key)
        return groups

    def _put(self, pod: WaitingPod, *, position: int, recorded_at: int) -> None:
        before = self._pods.get(pod.uid)
        if before is not None:
            self._unlist(before.pod)
            before.pod, before.position = pod, position
        else:
            self._pods[pod.uid] = _WaitingPod(pod, recorded_at, position)
        self._list(pod)

    def _list(self, pod: WaitingPod) -> None:
        self._of_class.setdefault(pod.pod_class, set()).add(pod.uid)
        self._of_group.setdefault(pod.group, set()).add(pod.uid)
        self._due.add(pod.uid)

    def _unlist(self, pod: WaitingPod) -> None:
        for index, key in ((self._of_class, pod.pod_class), (self._of_group, pod.group)):
            uids = index[key]
            uids.discard(pod.uid)
            if not uids:
                del index[key]

    def _forget(self, uid: str) -> set[str]:
        standing = self._pods.pop(uid, None)
        if standing is None:
            return set()
        self._unlist(standing.pod)
        self._due.discard(uid)
        return {standing.pod.group}

    # For snapshots.

    def record(self) -> WaitingPodsRecord:
        """Return all of it."""
        return WaitingPodsRecord(list(self._pods.values()), self._classes, self._groups)

    @classmethod
    def restored(cls, record: WaitingPodsRecord) -> Self:
        """Return what was recorded; every pod is due, for it is not known what was written since."""
        restored = cls()
        for standing in record.pods:
            restored._pods[standing.pod.uid] = standing
            restored._list(standing.pod)
        restored._classes, restored._groups = record.classes, record.groups
        return restored


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=12).digest()
