"""Audit of a node: every pod that held it, when, how much of which zone, and by which decision.

The node's stream lists the pods that were charged to it; each pod's stream has the rest. Only the state at the
beginning is folded, and only where that is not the log's beginning.

A question about one GPU leaves the pods that held it. The log knows the devices of shares, by their reservation pods,
and those of claims. It does not know which whole GPUs a kubelet gave to a pod: such pods are kept, and it says so.

Audit of a group: the decisions about it, who took them with which rules, and their outcome. The log does not record
which pods are in a group: the fold finds it out. So only the part of the log in which the group's object, or its pod,
existed is folded. Everything else is read from the pods' streams.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from kaicore.analysis.ask.audits import audit_answers
from kaicore.analysis.ask.audits.audit_answers import DecisionAnswer, GroupAudit, GroupEvent, Span, SpanAnswer
from kaicore.analysis.ask.audits.audit_placements import StateAt
from kaicore.analysis.json_spelling import time_text
from kaicore.analysis.life.attempts import CycleBook
from kaicore.analysis.life.why_answers import GpuPartAnswer
from kaicore.analysis.replay.log_states import events_of
from kaicore.analysis.replay.moments import Moment, appended_together, parse_moment, range_of
from kaicore.errors import UnknownSubject
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.snapshots import STATE_SNAPSHOT
from kaicore.rules.deciding.why import story_of
from kaicore.rules.engine.placement.pod_class import WorkKind, node_requests
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload, names_in_logs
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import EvictionDecided
from kaicore.rules.model.gpu_share import GPU, GPU_GROUP_LABEL, GPU_INDEX_ANNOTATION, GpuPart, gpus_text
from kaicore.rules.model.group import Group
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import QosClass
from kaicore.rules.model.quantity import exact_amount
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.agreement import compare
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.views import WorkView
from kaicore.spelling import did_you_mean

_CLEARED = {"Probed": "its probe lasted", "FollowsWork": "the failures follow the work, not the node"}


async def span_of(log: EventLog, cluster: str, span: Span) -> SpanAnswer:
    """Return where a part of a log begins and ends.

    Raises:
        EventsRetired: it begins in a month that was retired.
        UnknownMoment: there is no such moment; the log is empty, or the part is.
    """
    since = parse_moment(span.since) if span.since else None
    until = parse_moment(span.until) if span.until else None
    retired = await log.retired(cluster)
    if retired and since is None:
        # A question begins at a state, and there is none before the one that was kept.
        kept = await log.kept_snapshots(cluster, name=STATE_SNAPSHOT)
        since = Moment(position=max([retired + 1, *(snapshot.position + 1 for snapshot in kept[-1:])]))
    there = await range_of(log, cluster, since=since, until=until)
    first, last = there.first, there.last
    ends = [await log.read(cluster, after=position - 1, limit=1) for position in (first, last)]
    times = [time_text(page[0].recorded_at) for page in ends if page] or [""]
    return SpanAnswer(first=first, last=last, from_time=times[0], to_time=times[-1], retired=retired)


def _decision(event: Event | None, cycles: CycleBook) -> DecisionAnswer | None:
    """Return who decided an event; without a cycle where it was not appended with that cycle's record."""
    if event is None:
        return None
    answer = DecisionAnswer.copied(
        event, recorded_at=time_text(event.recorded_at), id=str(event.id), cycle=event.correlation
    )
    if event.correlation not in cycles.records:
        return answer
    record, cycle = cycles.records[event.correlation]
    if not appended_together(record, event):
        return msgspec.structs.replace(answer, cycle="")
    return msgspec.structs.replace(
        answer,
        cycle_position=record.position,
        input_position=cycle.input_position,
        config=cycle.config_digest,
        engine=cycle.engine_version,
    )


#: Streams that are read at once.
_STREAMS = 200


@dataclass(slots=True)
class _Holding:
    """A pod's time on the node, as far as its stream has been read."""

    since: Event
    decided: Event | None
    predicted: Placement | None = None
    records: list[audit_answers.ZoneRecord] = field(default_factory=list)
    until: Event | None = None
    ended: str = ""
    #: Whether the kubelet may have bound something of it to zones.
    bound: bool = True
    #: Parts of GPU groups, and devices of claims by name.
    parts: tuple[GpuPart, ...] = ()
    devices: tuple[str, ...] = ()


@dataclass(slots=True)
class _PodStory:
    """Facts about one node from a pod's stream."""

    node: str
    uid: str
    name: str = ""
    #: Whole GPUs that its containers ask for.
    whole: int = 0
    #: The group that it reserves a GPU for, as its labels have it, and the GPU's name.
    group: str = ""
    gpu: str = ""
    holdings: list[_Holding] = field(default_factory=list)
    rejections: list[tuple[Event, payloads.PodRejected, Event | None]] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Take the next event of the stream."""
        payload = decode_payload(event)
        open_ = self.holdings[-1] if self.holdings and self.holdings[-1].until is None else None
        match payload:
            case payloads.PodPlaced(node=self.node):
                self._begin(event, payload)
            case payloads.PodPlaced() if open_ is not None:
                self._end(open_, event, f"placed on {payload.node}")
            case payloads.PodObserved():
                self._observed(event, payload, open_)
            case payloads.PlacementObserved(node=self.node):
                self._record(event, payload.placement)
            case payloads.PodRejected(node=self.node):
                self.name = f"{payload.namespace}/{payload.name}"
                decided = self.holdings[-1].decided if self.holdings else None
                self.rejections.append((event, payload, decided))
                if open_ is not None:
                    self._end(open_, event, payload.reason)
                elif self.holdings and self.holdings[-1].ended == "Failed":
                    self.holdings[-1].ended = payload.reason
            case payloads.BindFailed(node=self.node) if open_ is not None:
                self._end(open_, event, f"BindFailed: {payload.reason}")
            case payloads.PodDeleted() if open_ is not None:
                self._end(open_, event, "deleted")
            case _:
                pass

    def _begin(self, event: Event, placed: payloads.PodPlaced) -> None:
        self.name = f"{placed.namespace}/{placed.name}"
        holding = _Holding(event, event, placed.placement)
        # What is decided here says so where nothing of the pod is bound to a zone.
        holding.bound = placed.placement is not None and bool(placed.placement.containers)
        holding.parts = placed.gpus
        holding.devices = tuple(one.device for given in placed.devices.values() for one in given.devices)
        if placed.placement is not None:
            holding.records.append(_record(event, placed.placement))
        self.holdings.append(holding)

    def _observed(self, event: Event, payload: payloads.PodObserved, open_: _Holding | None) -> None:
        pod = payload.pod
        self.name = pod.subject
        self.whole = node_requests(pod).get(GPU, 0)
        if pod.gpu_share is None:
            self.group = pod.labels.get(GPU_GROUP_LABEL, "")
            self.gpu = pod.annotations.get(GPU_INDEX_ANNOTATION, self.gpu)
        if pod.finished:
            if open_ is not None:
                self._end(open_, event, pod.phase)
        elif pod.node_name == self.node and open_ is None:
            # Another scheduler, or a person, put it there.
            unbound = pod.qos is not QosClass.GUARANTEED and not _devices(payload)
            self.holdings.append(_Holding(event, None, bound=not unbound))

    def _record(self, event: Event, placement: Placement) -> None:
        if self.holdings:
            self.holdings[-1].records.append(_record(event, placement, self.holdings[-1].predicted))

    def _end(self, holding: _Holding, event: Event, how: str) -> None:
        holding.until, holding.ended = event, how


class _Gpus:
    """The GPUs of a node that were opened for sharing, by group."""

    def __init__(self) -> None:
        self._pods: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def opened(self, opened: payloads.GpuOpened, name: str = "") -> None:
        """Take over that a GPU was opened, and its name where that is known."""
        self._pods[opened.group] = f"{opened.namespace}/{opened.name}"
        self._names[opened.group] = name

    def reserved(self, story: _PodStory) -> None:
        """Take over what a reservation pod said about its GPU; harmless for other pods."""
        if story.gpu and self._reserves(story):
            self._names[story.group] = story.gpu

    def _reserves(self, story: _PodStory) -> bool:
        return bool(story.group) and self._pods.get(story.group) == story.name

    def held(self, story: _PodStory, holding: _Holding, *, whole: bool) -> list[GpuPartAnswer]:
        """Return the GPUs that a pod held for a time; with `whole`, also those that are not shared."""
        if self._reserves(story):
            return [GpuPartAnswer(group=story.group, gpu=self._names[story.group], reserves=True)]
        parts = [
            GpuPartAnswer(group=part.group, gpu=self._names.get(part.group, ""), part=gpus_text(part.milli))
            for part in holding.parts
        ]
        if not whole:
            return parts
        parts += [GpuPartAnswer(gpu=name, part="1") for name in holding.devices]
        return parts + ([GpuPartAnswer(part=str(story.whole))] if story.whole else [])


def _may_be(held: GpuPartAnswer, gpu: str) -> bool:
    """Tell whether what a pod held is, or may be, of a GPU: of that name or group, or of no known name."""
    return held.group[:8] == gpu[:8] or held.gpu in (gpu, "")


async def audit_node(
    log: EventLog, cluster: str, node: str, span: audit_answers.SpanAnswer, *, state_at: StateAt, gpu: str = ""
) -> audit_answers.NodeAudit:
    """Return everything that held a node in a part of a log.

    Raises UnknownSubject: the log has never heard of the node.

    Args:
        state_at: returns the state at a position.
        gpu: index, UUID or device name of a GPU, as lists name it (`3`, `GPU 3`), or its group; only pods that held it,
            or may have, are kept. Empty for all pods.
    """
    gpu = gpu.removeprefix("GPU group ").removeprefix("GPU ")
    gpus = _Gpus()
    suspicions: list[str] = []
    uids = await _charged(log, cluster, node, span, state_at=state_at, gpus=gpus, suspicions=suspicions)
    stories: list[_PodStory] = []
    for start in range(0, len(uids), _STREAMS):
        some = {f"pod/{uid}": _PodStory(node, uid) for uid in uids[start : start + _STREAMS]}
        async for event in events_of(log, cluster, upto=span.last, where=Filter(streams=tuple(some))):
            some[event.stream].take(event)
        stories += some.values()
    for story in stories:
        gpus.reserved(story)
    cycles = CycleBook(log, cluster)
    holdings = sorted(
        (
            (story, holding)
            for story in stories
            for holding in story.holdings
            if (holding.until is None or holding.until.position >= span.first)
            and (not gpu or any(_may_be(one, gpu) for one in gpus.held(story, holding, whole=True)))
        ),
        key=lambda one: (one[1].since.position, one[0].uid),
    )
    rejections = [one for story in stories if not gpu for one in story.rejections if one[0].position >= span.first]
    decided = [holding.decided for _, holding in holdings] + [one[2] for one in rejections]
    await cycles.look_up(event for event in decided if event is not None)
    return audit_answers.NodeAudit(
        cluster=cluster,
        node=node,
        gpu=gpu,
        span=span,
        holdings=[
            _holding(story, holding, cycles, gpus.held(story, holding, whole=bool(gpu))) for story, holding in holdings
        ],
        rejections=[_rejection(*one, cycles) for one in sorted(rejections, key=lambda one: one[0].position)],
        gaps=[gap for story, holding in holdings for gap in _gaps(story, holding)],
        suspicions=suspicions,
    )


async def _charged(
    log: EventLog,
    cluster: str,
    node: str,
    span: audit_answers.SpanAnswer,
    *,
    state_at: StateAt,
    gpus: _Gpus,
    suspicions: list[str],
) -> list[str]:
    """Return the uids of the pods that a node was ever charged with in a part of a log; note GPUs and suspicions."""
    named: dict[str, None] = {}
    if span.first > 1:
        state = await state_at(span.first - 1)
        named = {entry.pod.uid: None for entry in state.charges.held_on(node)}
        heard = node in state.columns.rows
        for group in state.shared_gpus.groups.values():
            if group.opened.node == node:
                gpus.opened(group.opened, group.index)
    else:
        heard = False
    where = Filter(streams=(f"node/{node}", f"suspect/{node}"))
    async for event in events_of(log, cluster, after=span.first - 1, upto=span.last, where=where):
        heard = True
        payload = decode_payload(event)
        if isinstance(payload, payloads.NodeCharged):
            named.update(dict.fromkeys(payload.pods))
        elif isinstance(payload, payloads.GpuOpened):
            gpus.opened(payload)
        elif isinstance(payload, payloads.NodeSuspected | payloads.NodeCleared):
            suspicions.append(f"{event.position} {time_text(event.recorded_at)}: {_suspicion(payload)}")
    if not heard:
        close = did_you_mean(node, (await state_at(span.last)).columns.rows)
        raise UnknownSubject(f"cluster {cluster}: the log knows of no node {node}{close}")
    return list(named)


def _suspicion(news: payloads.NodeSuspected | payloads.NodeCleared) -> str:
    kind = "devices" if news.kind == WorkKind.DEVICES else "work without devices"
    if isinstance(news, payloads.NodeCleared):
        return f"cleared for {kind}: {_CLEARED.get(news.reason, news.reason)}"
    problems = f"; it reports {', '.join(news.problems)}" if news.problems else ""
    return (
        f"suspect for {', '.join(news.works) or kind} (failures: events {', '.join(map(str, news.failures))}{problems})"
    )


def _devices(payload: payloads.PodObserved) -> bool:
    """True if a pod asks for devices, which a kubelet binds to zones whatever its quality of service is."""
    names = {name for container in payload.pod.containers for name in container.requests}
    return any("/" in name for name in names)


def _record(event: Event, placement: Placement, predicted: Placement | None = None) -> audit_answers.ZoneRecord:
    zones: dict[str, dict[str, str]] = {}
    for zone in placement.zone_amounts():
        zones[zone.zone] = {name: exact_amount(name, amount) for name, amount in zone.amount.items()}
    for container in placement.containers:
        for span in container.spans:
            amounts = {name: exact_amount(name, amount) for name, amount in sorted(span.amount.items())}
            zones.setdefault("+".join(span.zones), {}).update(amounts)
    return audit_answers.ZoneRecord(
        position=event.position,
        recorded_at=time_text(event.recorded_at),
        provenance=str(placement.provenance.value),
        zones=zones,
        agreement="" if predicted is None else str(compare(predicted, placement).value),
    )


def _holding(
    story: _PodStory, holding: _Holding, cycles: CycleBook, gpus: list[GpuPartAnswer]
) -> audit_answers.HoldingAnswer:
    until = holding.until
    return audit_answers.HoldingAnswer(
        uid=story.uid,
        pod=story.name,
        since=holding.since.position,
        since_time=time_text(holding.since.recorded_at),
        until=0 if until is None else until.position,
        until_time="" if until is None else time_text(until.recorded_at),
        ended=holding.ended,
        decided=_decision(holding.decided, cycles),
        records=holding.records,
        gpus=gpus,
    )


def _rejection(
    event: Event, rejected: payloads.PodRejected, decided: Event | None, cycles: CycleBook
) -> audit_answers.RejectionAnswer:
    return audit_answers.RejectionAnswer.copied(
        rejected,
        position=event.position,
        recorded_at=time_text(event.recorded_at),
        pod=f"{rejected.namespace}/{rejected.name}",
        decided=_decision(decided, cycles),
    )


def _gaps(story: _PodStory, holding: _Holding) -> Iterator[audit_answers.KnowledgeGap]:
    """Yield the time in which no record said what a pod held: from its coming to its first record, or to its end."""
    first, until = holding.records[0] if holding.records else None, holding.until
    if not holding.bound or (first is not None and first.position == holding.since.position):
        return
    end, end_time = (0, "") if until is None else (until.position, time_text(until.recorded_at))
    if first is not None:
        end, end_time = first.position, first.recorded_at
    yield audit_answers.KnowledgeGap(
        uid=story.uid,
        pod=story.name,
        since=holding.since.position,
        since_time=time_text(holding.since.recorded_at),
        until=end,
        until_time=end_time,
    )


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
_OF_PODS = names_in_logs(cls.__name__ for cls in (*_DECISIONS, *_OUTCOMES))
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

    Raises UnknownSubject: no pod was in such a group there.

    Args:
        name: the group's, that of its PodGroup, Job or other owner, or of a pod without one.
        state_at: returns the state at a position, for us alone: it is folded on here.
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
    await cycles.look_up(event for event in (*events, *preemptions) if event.type in _DECIDED)
    answers = [_answer(event, cycles) for event in events]
    by_rules = [one.decided for one in answers if one.decided is not None]
    group = next((members.groups[key] for key in sorted(members.groups)), None)
    return GroupAudit(
        cluster=cluster,
        group=", ".join(sorted(members.keys)),
        queue="" if group is None else state.queue_registry.tree.name_for(group.queue, group.namespace),
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
        events += [event async for event in page if event.type in _OF_PODS]
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
        decided=_decision(event, cycles) if event.type in _DECIDED else None,
        **fields,
    )
