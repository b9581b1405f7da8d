"""Audit of a group: the decisions about it, who took them with which rules, and their outcome.

The log does not record which pods are in a group: the fold finds it out. So only the part of the log in which the
group's object, or its pod, existed is folded. Everything else is read from the pods' streams.
"""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from kaicore.analysis.ask.audits.audit_answers import GroupAudit, GroupEvent, SpanAnswer
from kaicore.analysis.ask.audits.audit_node import CycleBook, decision
from kaicore.analysis.ask.audits.audit_placements import StateAt
from kaicore.analysis.json_spelling import time_text
from kaicore.analysis.replay.log_states import events_of
from kaicore.errors import UnknownSubject
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.deciding.why import story_of
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload, names_in_logs
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import EvictionDecided
from kaicore.rules.model.group import Group
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.views import WorkView
from kaicore.spelling import did_you_mean

#: Streams that are read at once.
_STREAMS = 200

#: Events of a group's pods in the answer: decisions and their outcomes.
_DECISIONS = (
    payloads.PodPlaced,
    payloads.PodNominated,
    payloads.NominationCleared,
    payloads.EvictionDecided,
    payloads.RepairRequested,
)
_OUTCOMES = (
    payloads.PodBound,
    payloads.BindFailed,
    payloads.PodRejected,
    payloads.PodEvicted,
    payloads.EvictionFailed,
)
_TOLD = names_in_logs(cls.__name__ for cls in (*_DECISIONS, *_OUTCOMES))
_DECIDED = names_in_logs(cls.__name__ for cls in _DECISIONS)


#: What tells that a group's object, or its only pod, is there, or is not.
_GOING = (payloads.GroupSourceDeleted.__name__, payloads.PodDeleted.__name__)
_COMING_AND_GOING = (payloads.GroupSourceObserved.__name__, payloads.PodObserved.__name__, *_GOING)


@dataclass(slots=True)
class _Members:
    """The pods of groups that are called alike, as the fold finds them."""

    namespace: str
    name: str
    #: Names by uid.
    pods: dict[str, str] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)

    def look(self, state: WorkView) -> None:
        """Take in all pods of a state."""
        for entry in state.pods.values():
            self._see(state, entry)

    def fold(self, state: ClusterState, event: Event) -> None:
        """Fold an event, and take in the pod that it is about, by the group that it is in before or after."""
        uid = event.stream.removeprefix("pod/") if event.stream.startswith("pod/") else ""
        for _ in range(2):
            entry = state.pods.get(uid)
            if entry is not None:
                self._see(state, entry)
            if state.position < event.position:
                state.fold(event)

    def _see(self, state: WorkView, entry: PodEntry) -> None:
        if not self.is_meant(entry.group):
            return
        self.pods[entry.pod.uid] = entry.pod.subject
        self.keys.add(entry.group)
        if (group := state.groups.get(entry.group)) is not None:
            self.groups[entry.group] = group

    def is_meant(self, key: str) -> bool:
        """True if a group's key, `<kind>/<namespace>/<name>`, is of the namespace and name."""
        return key.endswith(f"/{self.namespace}/{self.name}")


async def audit_group(
    log: EventLog, cluster: str, namespace: str, name: str, span: SpanAnswer, *, state_at: StateAt
) -> GroupAudit:
    """Return what was decided about a group in a part of a log.

    Args:
        name: the group's, that of its PodGroup, Job or other owner, or of a pod without one.
        state_at: returns the state at a position, for us alone: it is folded on here.

    Raises:
        UnknownSubject: no pod was in such a group there.
    """
    members = _Members(namespace, name)
    first, last = await _presence(log, cluster, f"{namespace}/{name}", span)
    state = await state_at(first - 1)
    members.look(state)
    async for event in events_of(log, cluster, after=state.position, upto=last):
        members.fold(state, event)
    members.look(state)
    if not members.pods:
        close = did_you_mean(f"{namespace}/{name}", (key.partition("/")[2] for key in state.groups))
        where = f"from position {span.first} to {span.last}"
        raise UnknownSubject(f"cluster {cluster}: no pod was in a group {namespace}/{name} {where}{close}")
    events = await _events(log, cluster, members.pods, span)
    preemptions = [event async for event in _evictions_for(log, cluster, members, span)]
    cycles = CycleBook(log, cluster)
    decided = [event for event in (*events, *preemptions) if event.type in _DECIDED]
    await cycles.look_up({event.correlation: event.position for event in decided})
    answers = [_answer(event, cycles) for event in events]
    by_rules = [one.decided for one in answers if one.decided is not None]
    group = next((members.groups[key] for key in sorted(members.groups)), None)
    return GroupAudit(
        cluster=cluster,
        group=", ".join(sorted(members.keys)),
        queue="" if group is None else group.queue,
        priority=0 if group is None else group.priority,
        preemptible=True if group is None else group.preemptible,
        span=span,
        pods=sorted(members.pods.values()),
        events=answers,
        evicted_for_it=[_answer(event, cycles) for event in preemptions],
        configs=sorted({one.config for one in by_rules if one.config}),
        engines=sorted({one.engine for one in by_rules if one.engine}),
    )


async def _presence(log: EventLog, cluster: str, subject: str, span: SpanAnswer) -> tuple[int, int]:
    """Return from which position to which a group may have had pods: while there is an object, or a pod, of its name.

    Where nothing is called so, as with groups that labels name, that is all of the span.
    """
    first, last = span.first, span.last
    where = Filter(subject=subject, types=_COMING_AND_GOING)
    about = [event async for event in events_of(log, cluster, after=span.first - 1, upto=span.last, where=where)]
    if not about:
        return first, last
    ends = {event.stream: event for event in about}
    if about[0].version == 1:
        first = about[0].position
    if all(event.type in _GOING for event in ends.values()):
        last = about[-1].position
    return first, last


async def _events(log: EventLog, cluster: str, pods: Iterable[str], span: SpanAnswer) -> list[Event]:
    """Return decisions about pods and their outcomes, in order."""
    streams = [f"pod/{uid}" for uid in pods]
    events: list[Event] = []
    for start in range(0, len(streams), _STREAMS):
        where = Filter(streams=tuple(streams[start : start + _STREAMS]))
        page = events_of(log, cluster, after=span.first - 1, upto=span.last, where=where)
        events += [event async for event in page if event.type in _TOLD]
    return sorted(events, key=lambda event: event.position)


async def _evictions_for(log: EventLog, cluster: str, members: _Members, span: SpanAnswer) -> AsyncIterator[Event]:
    where = Filter(types=(EvictionDecided.__name__,))
    async for event in events_of(log, cluster, after=span.first - 1, upto=span.last, where=where):
        payload = decode_payload(event)
        if isinstance(payload, EvictionDecided) and members.is_meant(payload.preemptor):
            yield event


def _answer(event: Event, cycles: CycleBook) -> GroupEvent:
    payload = decode_payload(event)
    line = next((one.text for one in story_of([event])), "")
    fields = {name: str(getattr(payload, name, "") or "") for name in ("uid", "node", "reason", "preemptor")}
    return GroupEvent(
        position=event.position,
        recorded_at=time_text(event.recorded_at),
        what=event.type,
        pod=event.subject,
        text=line,
        decided=cycles.of(decision(event)) if event.type in _DECIDED else None,
        **fields,
    )
