"""Statuses of PodGroups, folded from the log like everything that is left to do.

A status is written for PodGroups that have pods of ours: pods with a `schedulerName` that a scheduler of this cluster
has recorded. Where an operator says so, PodGroups without pods are ours as well. The exception are PodGroups of a
Volcano Job that will make pods of another scheduler. A status is computed when it is asked for, once for everything
that happened since. Its reasons are in KAI's words, as scheduling conditions of its PodGroups have them.

Source: KAI-Scheduler v0.17, `UnschedulableExplanation` in `pkg/apis/scheduling/v2alpha2/podgroup_types.go`.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from itertools import chain
from typing import Any, Self

import msgspec
from kaicore.rules.engine.explain.waiting_reasons import reasons_in_short
from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import Payload
from kaicore.rules.events.reasons.base import CodedReason
from kaicore.rules.events.reasons.group import GroupTreeInvalid
from kaicore.rules.events.reasons.making_room import PreemptionDelayNotElapsed
from kaicore.rules.events.reasons.queue import NonPreemptibleOverQuota, OverLimit, QueueDoesNotExist
from kaicore.rules.groups.composite import place_in_tree
from kaicore.rules.groups.labels import POD_GROUPS, VOLCANO_JOB
from kaicore.rules.groups.membership import named_membership
from kaicore.rules.groups.status import (
    INVALID,
    NATIVE,
    POD_SCHEDULING_ERRORS,
    Disruption,
    PodState,
    Verdict,
    census,
    initially_scheduled,
    status_document,
    verdict,
)
from kaicore.rules.groups.table import GroupTable
from kaicore.rules.model.group import SCHEDULER_NAMES, Group, GroupSource, leaves, source_key
from kaicore.rules.model.pod import Amounts, Pod
from kaicore.rules.model.quantity import canonical_quantity
from kaicore.rules.objects.wire import kubernetes_time
from kaicore.rules.queues.tree import GPU

Document = dict[str, Any]

#: Reasons that KAI has a word of its own for; they are called the same here.
_KAI_REASONS = (QueueDoesNotExist, OverLimit, NonPreemptibleOverQuota, PreemptionDelayNotElapsed)

#: The most reasons of one kind in a status; the first ones are of most nodes.
_MOST_MESSAGES = 3

#: Where KAI tells what a group asked for, by reason.
_REQUESTED = {
    OverLimit.__name__: "podGroupRequestedResources",
    NonPreemptibleOverQuota.__name__: "podGroupRequestedNonPreemptibleResources",
}


def explanations(reasons: Iterable[CodedReason]) -> list[Document]:
    """Return reasons as KAI explains them: each of its own kinds once by queue, then all others as one."""
    requested: dict[tuple[str, str], Amounts] = {}
    messages: dict[tuple[str, str], list[str]] = {}
    for reason in reasons:
        kai = isinstance(reason, _KAI_REASONS)
        kind = (reason.code, reason.queue_name) if kai else (POD_SCHEDULING_ERRORS, "")
        texts = messages.setdefault(kind, [])
        if (text := str(reason)) not in texts:
            texts.append(text)
        if isinstance(reason, (OverLimit, NonPreemptibleOverQuota)):
            requested.setdefault(kind, {})[reason.resource] = reason.whole(reason.requested)
    documents = []
    for code, queue in sorted(messages, key=lambda kind: kind[0] == POD_SCHEDULING_ERRORS):
        document: Document = {"reason": code, "message": "; ".join(messages[code, queue][:_MOST_MESSAGES])}
        if code in _REQUESTED:
            resources = _resource_list(requested.get((code, queue), {}))
            document["details"] = {"queueDetails": {"name": queue, _REQUESTED[code]: resources}}
        documents.append(document)
    return documents


def _resource_list(amounts: Amounts) -> dict[str, str]:
    return {
        "nvidia.com/gpu" if resource == GPU else resource: canonical_quantity(resource, amount)
        for resource, amount in sorted(amounts.items())
    }


#: The events that matter here.
EVENT_TYPES = (
    "BindFailed",
    "ConfigRecorded",
    "EvictionDecided",
    "EvictionFailed",
    "GroupSourceDeleted",
    "GroupSourceObserved",
    "PodDeleted",
    "PodObserved",
    "PodPlaced",
)

ReasonsOf = Callable[[str], list[CodedReason]]

_encoder = msgspec.json.Encoder(order="deterministic")


class GroupStatus(msgspec.Struct, frozen=True):
    """The desired status of a PodGroup; `status` is a part of the object, to be merged into it."""

    key: str
    kind: str
    namespace: str
    name: str
    uid: str
    status: dict[str, Any]
    digest: bytes


class _Member(msgspec.Struct):
    """A pod of a PodGroup; `node` is where it is or is decided to be."""

    pod: Pod
    node: str = ""


class _LastStatus(msgspec.Struct):
    """The digest of a group's last written status, and since when the group has, or has not, what it asks for."""

    scheduled: bool
    since: int
    digest: bytes = b""
    #: The uid of the object that this is of: another object of the same name begins anew.
    uid: str = ""
    #: Whether a native PodGroup has ever had what it asks for.
    once: bool = False
    #: What was decided against a native PodGroup as a whole, and when; empty once it is scheduled again.
    disruption: str = ""
    disrupted_at: int = 0


class GroupStatusesRecord(msgspec.Struct):
    """All of it, for a snapshot."""

    sources: list[GroupSource] = []
    pods: list[_Member] = []
    names: list[str] = []
    standings: dict[str, _LastStatus] = {}
    now: int = 0
    schedulers: dict[str, tuple[str, ...]] = {}


class GroupStatuses:
    """The statuses of a cluster's PodGroups."""

    def __init__(self, reasons_of: ReasonsOf, *, empty_groups: bool = False) -> None:
        """Args:
        reasons_of: returns why the waiting pods of a group wait, by its key.
        empty_groups: whether PodGroups without any pods are ours too.
        """
        self._reasons_of = reasons_of
        self._empty_groups = empty_groups
        self._table = GroupTable()
        self._pods: dict[str, _Member] = {}
        #: `schedulerName`s that are ours.
        self._names: set[str] = set()
        self._standings: dict[str, _LastStatus] = {}
        #: By the uid of a Volcano Job, the `schedulerName`s of the pods that it will make; none where it does not say.
        self._schedulers: dict[str, tuple[str, ...]] = {}
        #: By the uid of a Volcano Job that was not seen yet, the groups that are to be looked at once it is.
        self._ahead: dict[str, set[str]] = {}
        #: Groups of which something has changed.
        self._due: set[str] = set()
        self._now = 0

    def fold(self, payload: Payload, *, recorded_at: int) -> None:
        """Take in what an event says, recorded at microseconds since the epoch."""
        self._now = recorded_at
        match payload:
            case payloads.PodObserved(pod):
                self._pod_seen(pod)
            case payloads.PodPlaced(uid, node=node):
                self._node(uid, node)
            case payloads.BindFailed(uid):
                self._node(uid, "")
            case payloads.PodDeleted(uid):
                self._forget(uid)
            case payloads.GroupSourceObserved(source) if source.kind in POD_GROUPS:
                self._table.source_seen(source)
                # Another one of the name may have a status of its own.
                self._due.update(place_in_tree(source, self._table.sources.get).looked_at)
            case payloads.GroupSourceObserved(source) if source.kind == VOLCANO_JOB:
                names = source.kept.get(SCHEDULER_NAMES, "")
                self._schedulers[source.uid] = tuple(filter(None, names.split(",")))
                self._due |= self._ahead.pop(source.uid, set())
            case payloads.GroupSourceDeleted(kind, uid, namespace, name):
                self._schedulers.pop(uid, None)
                self._table.source_gone(source_key(kind, namespace, name), uid)
                self._due.add(source_key(kind, namespace, name))
            case payloads.EvictionDecided(group=key, shrinks=False) if key in self._standings:
                self._disrupted(key, payload)
            case payloads.EvictionFailed(uid):
                self._spared(self._group_of(uid))
            case payloads.ConfigRecorded(config=config):
                name = str(config.get("scheduler_name", ""))
                if name not in self._names:
                    self._names.add(name)
                    self._due.update(self._table.groups)
            case _:
                pass
        self._due |= self._table.changed
        self._table.changed.clear()

    def reasons_changed(self, groups: Iterable[str]) -> None:
        """Take note that the reasons of groups may be others."""
        self._due.update(groups)

    def again(self) -> None:
        """Have all statuses looked at again: some are another binder's no more."""
        self._due.update(self._table.groups)

    def news(self) -> Iterator[GroupStatus]:
        """Yield the statuses that are to be written, each of them until `mark_written`."""
        due, self._due = self._due, set()
        for key in sorted(due):
            group = self._table.groups.get(key)
            source = self._table.sources.get(key)
            if source is not None and source.parent:
                # A part of another group, with a status of its own only if it cannot be one.
                yield from self._invalid(source) if self._is_ours(key) else ()
            elif group is None or not group.uid:
                self._standings.pop(key, None)
            elif self._is_ours(key):
                pods = [self._pods[uid] for uid in sorted(self._table.pods_of(key))]
                by_set: dict[str, list[_Member]] = {}
                for member in pods:
                    by_set.setdefault(self._set_of(member), []).append(member)
                for part in self._table.parts_of(group):
                    inside = chain.from_iterable(by_set.get(one.name, ()) for one in leaves(part.sets))
                    status = self._status(part, pods if part is group else list(inside), of=key)
                    if status.digest != self._standings[part.key].digest:
                        yield status

    def mark_written(self, status: GroupStatus) -> None:
        """Take note that a status was written, or never will be."""
        standing = self._standings.get(status.key)
        if standing is not None:
            standing.digest = status.digest

    # Inside.

    def _invalid(self, source: GroupSource) -> Iterator[GroupStatus]:
        """Yield the statuses of the objects in a place that no tree has, from one of them upwards."""
        for key in place_in_tree(source, self._table.sources.get).looked_at:
            one = self._table.sources.get(key)
            problem = place_in_tree(one, self._table.sources.get).problem if one is not None else None
            if one is not None and isinstance(problem, GroupTreeInvalid):
                group = Group(key, one.namespace, one.name, uid=one.uid, origin=one.kind)
                scheduling = Verdict(False, INVALID, str(problem))
                standing = self._last_status(key, group, scheduling)
                status = status_document(group, census(()), scheduling, since=kubernetes_time(standing.since))
                if (written := _written(group, status)).digest != standing.digest:
                    yield written

    def _status(self, group: Group, pods: list[_Member], *, of: str) -> GroupStatus:
        """Return the status of a group with these pods, or of a part of one. `of`: key of the whole group."""
        counted = census(PodState(self._set_of(member), member.pod.phase, bool(member.node)) for member in pods)
        problem, reasons = self._problem(pods), self._reasons_of(of)
        why = reasons_in_short(reasons)
        scheduling = verdict(group, counted, why=why, problem=problem)
        standing = self._last_status(group.key, group, scheduling)
        disruption = None
        if group.origin in NATIVE:
            scheduling = initially_scheduled() if standing.once else scheduling
            whole = self._standings[of]
            if whole.disruption:
                disruption = Disruption(whole.disruption, kubernetes_time(whole.disrupted_at))
        explained = () if problem else explanations(reasons)
        status = status_document(
            group,
            counted,
            scheduling,
            since=kubernetes_time(standing.since),
            explanations=explained,
            disruption=disruption,
        )
        return _written(group, status)

    def _last_status(self, key: str, group: Group, scheduling: Verdict) -> _LastStatus:
        standing = self._standings.get(key)
        # Those of older snapshots do not name their object's uid.
        if standing is None or standing.uid not in ("", group.uid):
            digest = standing.digest if standing is not None else b""
            standing = self._standings[key] = _LastStatus(scheduling.scheduled, self._now, digest)
        standing.uid = group.uid
        if standing.scheduled != scheduling.scheduled:
            standing.scheduled = scheduling.scheduled
            if scheduling.scheduled:
                standing.disruption = ""
            if not standing.once or group.origin not in NATIVE:
                standing.since = self._now
        standing.once = standing.once or scheduling.scheduled
        return standing

    def _disrupted(self, key: str, eviction: payloads.EvictionDecided) -> None:
        """All pods of a group are to go: a native PodGroup tells so, whether or not for another one's sake."""
        standing = self._standings[key]
        if not standing.disruption:
            for_preemptor = f" to make room for {eviction.preemptor}" if eviction.preemptor else ""
            standing.disruption, standing.disrupted_at = f"{eviction.why}{for_preemptor}", self._now
            self._due.add(key)

    def _spared(self, key: str) -> None:
        """A pod of a group stays after all, and with it the group."""
        standing = self._standings.get(key)
        if standing is not None and standing.disruption:
            standing.disruption = ""
            self._due.add(key)

    def _problem(self, pods: list[_Member]) -> str:
        """Say why it is not known which pods one of the pods starts with."""
        places = (self._table.place_of(member.pod.uid) for member in pods)
        problems = (str(place.problem) for place in places if place is not None and place.problem is not None)
        return min(problems, default="")

    def _is_ours(self, key: str) -> bool:
        uids = self._table.pods_of(key)
        if not uids:
            return (self._empty_groups or key in self._standings) and self._will_be_ours(key)
        return any(self._pods[uid].pod.scheduler_name in self._names for uid in uids)

    def _will_be_ours(self, key: str) -> bool:
        """Tell whether the pods of a group that has none yet will be ours, as far as its owner says."""
        source = self._table.sources.get(key)
        owner = source.owner if source is not None else None
        if owner is None or f"{owner.kind}.{owner.api_version.partition('/')[0]}" != VOLCANO_JOB:
            return True
        names = self._schedulers.get(owner.uid)
        if names is None:
            self._ahead.setdefault(owner.uid, set()).add(key)
            return False
        # A watcher that was here before this version did not say.
        return not names or not self._names.isdisjoint(names)

    def _set_of(self, member: _Member) -> str:
        place = self._table.place_of(member.pod.uid)
        return place.pod_set if place is not None else ""

    def _group_of(self, uid: str) -> str:
        place = self._table.place_of(uid)
        return place.group if place is not None else ""

    def _pod_seen(self, pod: Pod) -> None:
        place = named_membership(pod, self._table.sources.get)
        if place is None:
            self._forget(pod.uid)
            return
        before = self._pods.get(pod.uid)
        member = _Member(pod, pod.node_name or (before.node if before is not None else ""))
        self._pods[pod.uid] = member
        self._table.pod_seen(pod)
        self._due.add(place.group)

    def _node(self, uid: str, node: str) -> None:
        member = self._pods.get(uid)
        if member is not None:
            self._pods[uid] = _Member(member.pod, node)
            self._due.add(self._group_of(uid))

    def _forget(self, uid: str) -> None:
        member = self._pods.get(uid)
        if member is not None:
            self._due.add(self._group_of(uid))
            del self._pods[uid]
            self._table.pod_gone(uid)

    # For snapshots.

    def record(self) -> GroupStatusesRecord:
        """Return all of it."""
        return GroupStatusesRecord(
            list(self._table.sources.values()),
            list(self._pods.values()),
            sorted(self._names),
            self._standings,
            self._now,
            self._schedulers,
        )

    @classmethod
    def restored(cls, record: GroupStatusesRecord, reasons_of: ReasonsOf, *, empty_groups: bool) -> Self:
        """Return what was recorded; everything is due, for it is not known what was written since."""
        statuses = cls(reasons_of, empty_groups=empty_groups)
        for source in record.sources:
            statuses._table.source_seen(source)
        for member in record.pods:
            statuses._pods[member.pod.uid] = member
            statuses._table.pod_seen(member.pod)
        statuses._names, statuses._standings, statuses._now = set(record.names), record.standings, record.now
        statuses._schedulers = record.schedulers
        statuses._table.changed.clear()
        statuses._due.update(statuses._table.groups)
        return statuses


def _written(group: Group, status: Document) -> GroupStatus:
    digest = blake2b(group.uid.encode() + _encoder.encode(status), digest_size=16).digest()
    return GroupStatus(group.key, group.origin, group.namespace, group.name, group.uid, status, digest)
