"""Notices for people, each made of one event and the state before it: work started, was evicted, waits, was put off.

They are a function of the log alone. So whoever makes them again makes the same ones, with the same ids.

A group of pods has one notice where its pods would have many: when as many run as it needs, and when the first of it is
evicted.
"""

from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from typing import Any
from uuid import uuid5

import msgspec
from kaicore.analysis.ask.listing import QueueNames
from kaicore.analysis.json_spelling import Answer, spelled, time_text
from kaicore.analysis.life.traces import CloudEvent, cloud_event
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.reasons.making_room import RoomPromised
from kaicore.rules.groups.labels import user_of
from kaicore.rules.groups.membership import POD
from kaicore.rules.model.group import min_pods
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import PodEntry

#: How often work that waits is looked at: at the first event after each full minute.
_LOOK_US = 60_000_000


class NoticeKind(StrEnum):
    """The kind of a notice.

    Attributes:
        STARTED: as many pods of the group run as it needs.
        EVICTED: a cycle decided to evict a pod of it, and none of it was leaving by a decision.
        LATE: it waits beyond the start that was promised to it first.
        WAITING: it has waited for as long as a rule says.
        MOVED: another start is promised to it than before.
    """

    STARTED = "started"
    EVICTED = "evicted"
    LATE = "late"
    WAITING = "waiting"
    MOVED = "moved"


class Notice(Answer, frozen=True, kw_only=True):
    """Something that people may want to know.

    Attributes:
        group: the group's key; `Pod/<namespace>/<name>` of a pod that is in none.
        name: of the group.
        pod: one of its pods, that which the notice is about where it is about one.
        queues: its queue and those above it.
        user: by the pod's label; empty without one.
        waited_s: seconds since its first pod was created, of work that has not started.
        text: all of it in one sentence, with the command that tells more.
    """

    kind: NoticeKind
    cluster: str
    group: str
    namespace: str
    name: str
    pod: str
    queues: tuple[str, ...]
    user: str
    waited_s: int = 0
    text: str

    def as_cloud_event(self, event: Event) -> CloudEvent:
        """Return it as a CloudEvent: its `id` is the same however often it is made, and `causeid` is the event's."""
        return msgspec.structs.replace(
            cloud_event(event, spelled(self)),
            id=str(uuid5(event.id, f"{self.kind} {self.group} {self.waited_s}")),
            type=f"kai.notice.{self.kind}",
            subject=f"{self.namespace}/{self.name}",
            time=time_text(event.recorded_at),
            causeid=str(event.id),
        )


def notices(state: ClusterState, event: Event, *, waits_s: Collection[int] = ()) -> list[Notice]:
    """Return what an event gives people to know.

    Args:
        state: before the event.
        waits_s: seconds of waiting, since the creation of the first pod, after which there is a notice.
    """
    before, now = (time // _LOOK_US * _LOOK_US for time in (state.recorded_at, event.recorded_at))
    found = list(_late(state, before, now, waits_s)) if 0 < before < now else []
    payload = decode_payload(event)
    maker = _OF_EVENTS.get(type(payload))
    return found if maker is None else [*found, *maker(state, payload)]


def _started(state: ClusterState, payload: payloads.PodObserved) -> Iterator[Notice]:
    entry = state.pods.get(payload.pod.uid)
    if entry is None or entry.started_at or payload.pod.phase != "Running":
        return
    group = state.groups.get(entry.group)
    needed = 1 if group is None else max(1, min_pods(group.sets))
    if sum(bool(one.started_at) and one.charged for one in _members(state, entry)) + 1 == needed:
        pods = f" with {needed} pods" if needed > 1 else ""
        yield _notice(state, entry, NoticeKind.STARTED, f"runs{pods}, on {payload.pod.node_name}")


def _evicted(state: ClusterState, payload: payloads.EvictionDecided | payloads.RepairRequested) -> Iterator[Notice]:
    entry = state.pods.get(payload.uid)
    if entry is None or any(one.leaving_by_decision for one in _members(state, entry)):
        return
    if isinstance(payload, payloads.RepairRequested):
        why = "it did not get the zones that its own NUMA policy asks for"
    else:
        why = payload.why + (f" for {payload.preemptor}" if payload.preemptor else "")
    yield _notice(state, entry, NoticeKind.EVICTED, f"is evicted from {payload.node}: {why}")


def _moved(state: ClusterState, payload: payloads.CycleCompleted) -> Iterator[Notice]:
    for group in payload.groups:
        before = state.reasons.promise_of(group.group)
        promised = next((one for one in group.reasons if isinstance(one, RoomPromised)), None)
        if before is None or promised is None or before.starts_at == promised.starts_at:
            continue
        entry = _waiting(state, group.group)
        if entry is not None:
            start, was = (
                f"at {time_text(one.starts_at)}" if one.starts_at else "as soon as it fits"
                for one in (promised, before)
            )
            why = f": {promised.moved}" if promised.moved else ""
            yield _notice(state, entry, NoticeKind.MOVED, f"is to start {start}, not {was}{why}")


def _late(state: ClusterState, before: int, now: int, waits_s: Collection[int]) -> Iterator[Notice]:
    """Yield notices of work that waits beyond a time that passed after `before`, and until `now`."""
    for key in sorted(state.reasons.by_group):
        promised = state.reasons.promise_of(key)
        if promised is not None and before < promised.first_starts_at <= now:
            entry = _waiting(state, key)
            if entry is not None:
                text = f"still waits: its start was promised for {time_text(promised.first_starts_at)}"
                yield _notice(state, entry, NoticeKind.LATE, text)
    if not waits_s:
        return
    for key in sorted({state.pods[uid].group for uid in state.waiting}):
        if (entry := _waiting(state, key)) is not None:
            for wait in waits_s:
                if before < (entry.pod.created_at + wait) * 1_000_000 <= now:
                    yield _notice(state, entry, NoticeKind.WAITING, f"has waited for {wait} s", waited_s=wait)


def _waiting(state: ClusterState, key: str) -> PodEntry | None:
    """Return the first pod of a group that waits; None where none does."""
    waiting = [state.pods[uid] for uid in state.group_table.pods_of(key) if uid in state.waiting]
    return min(waiting, key=lambda one: (one.pod.created_at, one.pod.uid), default=None)


def _members(state: ClusterState, entry: PodEntry) -> list[PodEntry]:
    """Return the pods of a pod's group, itself included."""
    uids = {entry.pod.uid, *state.group_table.pods_of(entry.group)}
    return [state.pods[uid] for uid in uids if uid in state.pods]


def _notice(state: ClusterState, entry: PodEntry, kind: NoticeKind, text: str, *, waited_s: int = 0) -> Notice:
    pod, group = entry.pod, state.groups.get(entry.group)
    alone = group is None or group.origin == POD
    name = pod.name if group is None else group.name
    called = f"pod {pod.subject}" if alone else f"{entry.group}"
    queues = tuple(dict.fromkeys(filter(None, QueueNames(state).all_of(entry))))
    where = f" (queue {queues[0]})" if queues else ""
    return Notice(
        kind=kind,
        cluster=state.cluster,
        group=entry.group or f"{POD}/{pod.subject}",
        namespace=pod.namespace,
        name=name,
        pod=pod.subject,
        queues=queues,
        user=user_of(pod),
        waited_s=waited_s,
        text=f"{called}{where} {text}; `kai why {pod.subject}`",
    )


_OF_EVENTS: dict[type[payloads.Payload], Callable[[ClusterState, Any], Iterator[Notice]]] = {
    payloads.PodObserved: _started,
    payloads.EvictionDecided: _evicted,
    payloads.RepairRequested: _evicted,
    payloads.CycleCompleted: _moved,
}
