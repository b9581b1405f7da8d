"""Pages about pods: the waiting line, stories, shadows' decisions, and the pods of a caller with a few namespaces."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
from kaicore.analysis.ask.answers import GroupRow, PodRow, RowSelection, Why
from kaicore.analysis.ask.listing import list_rows, pod_message, pod_status
from kaicore.analysis.json_spelling import duration_text
from kaicore.rules.deciding.shadow import shadow_notes, shadow_shard
from kaicore.rules.deciding.why import pending_reasons, story_of
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import Event
from kaicore.rules.groups.membership import POD
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
from kaicore.rules.state.pods.pod_life import LifeEvent, LifeStage, LifeStep, PodLife, life_steps
from kaicore.rules.state.views import ClusterView, FleetView, LogView, WorkView
from kaicore.runtime.access.scopes import View

from kai_api.answering import redacted
from kai_api.pages.frame import page_of, short_time
from kai_api.pages.node import asked_of_claims, asked_text

#: Pods of a group with stories that are drawn.
MOST_LANES = 60


@dataclass(frozen=True, slots=True)
class Span:
    """A time that a pod stood somehow.

    Attributes:
        kind: waiting, placed, bound, running, leaving, ended or failed; its class in the style sheet.
        start, width: in hundredths of the lane.
    """

    kind: str
    start: float
    width: float
    text: str


@dataclass(frozen=True, slots=True)
class Lane:
    """The time of a pod, and of the others that have the very same."""

    namespace: str
    name: str
    node: str
    spans: tuple[Span, ...]
    more: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """An event of a story.

    Attributes:
        kind: what it is about, a class in the style sheet.
        after: how long after the one before; empty for the first.
    """

    position: int
    recorded_at: int
    after: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class PodsAlike:
    """Pods of a group that stand alike, for the same reason. `first`: of them; `more` is how many others there are."""

    first: PodRow
    more: int = 0


@dataclass(frozen=True, slots=True)
class Story:
    """The story of something.

    Attributes:
        why: what is to be said of it as of the position.
        lanes: its pods' time, from `began` to `ended` (microseconds since the epoch).
        more_pods: pods that are not drawn.
        pods: those of a group, alike ones as one.
    """

    why: Why
    lanes: tuple[Lane, ...]
    began: int
    ended: int
    more_pods: int
    steps: tuple[Step, ...]
    pods: tuple[PodsAlike, ...]


#: Classes of the style sheet, by the part of an event in the pod's life.
_KINDS = {
    LifeEvent.REJECTED: "failed",
    LifeEvent.PLACED: "placed",
    LifeEvent.NOMINATED: "placed",
    LifeEvent.BOUND: "bound",
    LifeEvent.BIND_FAILED: "failed",
    LifeEvent.OBSERVED: "running",
    LifeEvent.EVICTION_DECIDED: "leaving",
    LifeEvent.EVICTED: "leaving",
    LifeEvent.EVICTION_FAILED: "failed",
    LifeEvent.DELETED: "ended",
}


def story(why: Why, events: Sequence[Event], *, now: int) -> Story:
    """Return the model of a story.

    Args:
        events: of its pods, in order, from any streams.
        now: the end of what is drawn, microseconds since the epoch.
    """
    by_stream: dict[str, list[Event]] = {}
    for event in events:
        if event.stream.startswith("pod/"):
            by_stream.setdefault(event.stream, []).append(event)
    if why.kind == "Pod":
        by_stream = {stream: one for stream, one in by_stream.items() if stream == f"pod/{why.uid}"}
    began = min((one[0].recorded_at for one in by_stream.values()), default=now)
    lanes = sorted(
        (lane for one in by_stream.values() if (lane := _lane(one, began, now)) is not None), key=lambda lane: lane.name
    )
    alike = Counter(lane.spans for lane in lanes)
    firsts = {lane.spans: lane for lane in reversed(lanes)}
    shown = [replace(lane, more=alike[lane.spans] - 1) for lane in lanes if firsts[lane.spans] is lane]
    own = by_stream.get(f"pod/{why.uid}", [])
    return Story(
        why=why,
        lanes=tuple(shown[:MOST_LANES]),
        began=began,
        ended=now,
        more_pods=sum(lane.more + 1 for lane in shown[MOST_LANES:]),
        steps=tuple(_steps(own)) if why.kind == "Pod" else (),
        pods=_alike(why),
    )


def _alike(why: Why) -> tuple[PodsAlike, ...]:
    """Return the pods of a group; those without a node that stand alike are one row."""
    rows: dict[object, PodsAlike] = {}
    for pod in why.pods:
        key = pod.uid if pod.node else (pod.status, pod.message)
        rows[key] = replace(rows[key], more=rows[key].more + 1) if key in rows else PodsAlike(pod)
    return tuple(rows.values())


def _steps(events: list[Event]) -> Iterable[Step]:
    kinds = {step.event.position: _kind(step) for step in life_steps(events)}
    before = 0
    for line in story_of(events):
        after = duration_text((line.recorded_at - before) / 1e6) if before else ""
        before = line.recorded_at
        yield Step(line.position, line.recorded_at, after, kinds[line.position], line.text)


def _kind(step: LifeStep) -> str:
    if isinstance(step.payload, payloads.PredictionMissed):
        return "failed"
    if isinstance(step.payload, payloads.PodObserved):
        return {"Running": "running", "Failed": "failed", "Succeeded": "ended"}.get(step.payload.pod.phase, "")
    return "" if step.part is None else _KINDS.get(step.part, "")


def _lane(events: list[Event], began: int, ended: int) -> Lane | None:
    """Return a pod's time as spans; None where the log does not tell of it."""
    marks: list[tuple[LifeStage, Event]] = []
    life = PodLife()
    for event, _, _, life in life_steps(events):
        if not marks or marks[-1][0] is not life.stage:
            marks.append((life.stage, event))
    if life.seen is None:
        return None
    whole = max(1, ended - began)
    spans = []
    for (kind, event), until in zip(marks, [*(event.recorded_at for _, event in marks[1:]), ended], strict=True):
        if kind is not LifeStage.GONE:
            lasted = until - event.recorded_at
            start, width = (round(100 * part / whole, 2) for part in (event.recorded_at - began, lasted))
            spans.append(Span(kind, start, width, f"{kind} for {duration_text(lasted / 1e6)}"))
    return Lane(life.seen.namespace, life.seen.name, life.node, tuple(spans))


#: Rows of one page.
PAGE_ROWS = 100


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A waiting thing: a pod of its own, or a group.

    Attributes:
        kind, namespace, name: the object of the story.
        asks: what each of its waiting pods asks for; where they ask for different things, what they ask for in all.
        asks_of: `each` or `in all`, and nothing for one that has one pod.
        since: how long it has waited, for people.
        reason: why, in a line.
        status: of the first waiting pod, in a word.
        moved: from when to when its promised start was moved; empty if it was not.
    """

    kind: str
    namespace: str
    name: str
    queue: str
    priority: int
    waiting: int
    pods: int
    asks: str
    asks_of: str
    since: str
    created_at: int
    status: str
    reason: str
    moved: str


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """A kind of reason, and how many pods it keeps waiting."""

    code: str
    pods: int
    share: float


@dataclass(frozen=True, slots=True)
class WaitingLine:
    """The waiting things, the longest wait first.

    Attributes:
        total: rows that there are, over all pages.
        reasons: the first reason of each waiting pod, by kind, over all of them.
        page, pages: which page of rows this is, from 1.
        promised, kept: groups of the cluster that started after a start with a time was reserved for them, and how many
            of them no later than that; 0 for a caller who sees some namespaces only.
    """

    rows: tuple[WaitingRow, ...]
    total: int
    pods: int
    reasons: tuple[ReasonCount, ...]
    page: int = 1
    pages: int = 1
    queue: str = ""
    promised: int = 0
    kept: int = 0


def waiting_line(
    state: ClusterView,
    *,
    queue: str = "",
    namespaces: Collection[str] | None = None,
    number: int = 1,
    limit: int = PAGE_ROWS,
) -> WaitingLine:
    """Return a page of the waiting line.

    Args:
        queue: only what names this one; empty for all.
        namespaces: only what is in these; None for all.
        number: which page, from 1; the last one where there are not so many.
        limit: rows of a page.
    """
    waiting = [
        entry
        for entry in state.pods.values()
        if entry.waiting
        and queue in ("", state.queue_of(entry)[0])
        and (namespaces is None or entry.pod.namespace in namespaces)
    ]
    by_group: dict[str, list[PodEntry]] = {}
    for entry in waiting:
        by_group.setdefault(entry.group or entry.pod.uid, []).append(entry)
    ordered = sorted(by_group.values(), key=lambda entries: min(map(_age, entries)))
    shown, number, pages = page_of(ordered, number, limit)
    promises = state.counters.promises if namespaces is None else {}
    kept = promises.get("kept", 0)
    return WaitingLine(
        rows=tuple(_row(state, entries) for entries in shown),
        total=len(ordered),
        pods=len(waiting),
        reasons=_reasons(state, waiting),
        page=number,
        pages=pages,
        queue=queue,
        promised=kept + promises.get("late", 0),
        kept=kept,
    )


def _age(entry: PodEntry) -> tuple[int, str]:
    return entry.pod.created_at, entry.pod.subject


def _row(state: ClusterView, entries: list[PodEntry]) -> WaitingRow:
    first = min(entries, key=_age)
    group = state.groups.get(first.group)
    pod = first.pod
    alone = group is None or group.origin == POD or first.group.startswith(f"{POD}/")
    members = 1 if alone else len(state.group_table.pods_of(first.group))
    pods = max(members, len(entries))
    asks = dict.fromkeys(_asks(state, entry) for entry in entries)
    is_same = len(asks) == 1
    if not is_same:
        total: Counter[str] = Counter()
        for entry in entries:
            total.update(entry.requests)
        asks = dict.fromkeys((asked_text(total), *(text for entry in entries for text in _asks_besides(state, entry))))
    return WaitingRow(
        kind="Pod" if alone or group is None else group.origin.partition(".")[0],
        namespace=pod.namespace,
        name=pod.name if alone or group is None else group.name,
        queue=state.queue_of(first)[0],
        priority=0 if group is None else group.priority,
        waiting=len(entries),
        pods=pods,
        asks=", ".join(filter(None, asks)),
        asks_of="" if pods == 1 else "each" if is_same else "in all",
        since=duration_text(state.recorded_at / 1e6 - pod.created_at),
        created_at=pod.created_at * 1_000_000,
        status=pod_status(first),
        reason=pod_message(state, first) or _undecided(state, first),
        moved=_moved(state, first.group),
    )


def _moved(state: WorkView, group: str) -> str:
    promise = state.reasons.promise_of(group)
    if promise is None or not promise.moved or promise.first_starts_at in (0, promise.starts_at):
        return ""
    until = short_time(promise.starts_at) if promise.starts_at else "no known time"
    return f"{short_time(promise.first_starts_at)} to {until}"


def _asks(state: FleetView, entry: PodEntry) -> str:
    return ", ".join(filter(None, (asked_text(entry.requests), *_asks_besides(state, entry))))


def _asks_besides(state: FleetView, entry: PodEntry) -> tuple[str, str]:
    share = entry.pod.gpu_share
    return ("" if share is None else str(share)), asked_of_claims(state, entry.pod)


def _is_ours(state: LogView, entry: PodEntry) -> bool:
    return entry.pod.scheduler_name == state.config().scheduler_name


def _undecided(state: WorkView, entry: PodEntry) -> str:
    """Say what a pod waits for when no cycle has recorded it; of another scheduler's also what a shadow decided."""
    if _is_ours(state, entry):
        return "waits for its first cycle"
    return "; ".join((f"waits for another scheduler: {entry.pod.scheduler_name}", *shadow_notes(entry, state)))


def _reasons(state: WorkView, waiting: list[PodEntry]) -> tuple[ReasonCount, ...]:
    by_likeness: Counter[tuple[str, str]] = Counter()
    example: dict[tuple[str, str], PodEntry] = {}
    for entry in waiting:
        likeness = entry.group, entry.class_key
        by_likeness[likeness] += 1
        example.setdefault(likeness, entry)
    counts: Counter[str] = Counter()
    for likeness, pods in by_likeness.items():
        reasons = pending_reasons(example[likeness], state)
        other = not _is_ours(state, example[likeness])
        counts[reasons[0].code if reasons else "OtherScheduler" if other else "NotDecidedYet"] += pods
    return tuple(
        ReasonCount(code, pods, round(100 * pods / max(1, len(waiting)), 2)) for code, pods in counts.most_common()
    )


#: Pods that are shown.
MOST_PODS = 200


@dataclass(frozen=True, slots=True)
class ShadowedPod:
    """A pod of another scheduler.

    Attributes:
        node: that the other scheduler chose; empty while it waits.
        shadow_node: that the shadow chose; empty where it would wait, or was not decided on.
        text: what the shadow decided, for people.
        position: of that decision; 0 for none.
    """

    namespace: str
    name: str
    status: str
    node: str
    shadow_node: str
    text: str
    position: int

    @property
    def compared(self) -> str:
        """Both choices in a word."""
        if not self.node:
            return "waits"
        if not self.shadow_node:
            return "not decided"
        return "same node" if self.node == self.shadow_node else "another node"


@dataclass(frozen=True, slots=True)
class ShadowPage:
    """The pods of other schedulers beside what shadows decided about them.

    Attributes:
        counts: pods by how both choices compare.
        pods: the first of `total`, those first where the two differ.
        evicted: pods that the shadows would evict now, at most as many; `more_evicted` are not shown.
    """

    schedulers: tuple[str, ...]
    counts: tuple[tuple[str, int], ...]
    pods: tuple[ShadowedPod, ...]
    total: int
    evicted: tuple[tuple[str, str], ...]
    more_evicted: int


_ORDER = ("another node", "waits", "not decided", "same node")


def shadow_page(state: WorkView) -> ShadowPage:
    """Return the model of the page."""
    shards = state.shadows.evicted
    entries = [entry for entry in state.pods.values() if shadow_shard(entry.pod.scheduler_name) in shards]
    pods = [_pod(state, entry) for entry in entries if entry.stage is not Stage.FINISHED]
    pods.sort(key=lambda pod: (_ORDER.index(pod.compared), pod.namespace, pod.name))
    evicted = sorted(
        (entry.pod.namespace, entry.pod.name)
        for uid in {uid for uids in shards.values() for uid in uids}
        if (entry := state.pods.get(uid)) is not None
    )
    return ShadowPage(
        schedulers=tuple(sorted(shard.partition("/")[2] for shard in shards)),
        counts=tuple((word, sum(pod.compared == word for pod in pods)) for word in _ORDER),
        pods=tuple(pods[:MOST_PODS]),
        total=len(pods),
        evicted=tuple(evicted[:MOST_PODS]),
        more_evicted=max(0, len(evicted) - MOST_PODS),
    )


def _pod(state: WorkView, entry: PodEntry) -> ShadowedPod:
    choice = state.shadows.choices.get(entry.pod.uid)
    return ShadowedPod(
        namespace=entry.pod.namespace,
        name=entry.pod.name,
        status=pod_status(entry),
        node="" if entry.stage is Stage.WAITING else entry.node,
        shadow_node="" if choice is None else choice.node,
        text="; ".join(shadow_notes(entry, state)),
        position=0 if choice is None else choice.position,
    )


#: Rows that the page shows of each list.
_ROWS = 100


@dataclass(frozen=True, slots=True)
class NamespaceFigures:
    """A namespace in figures: pods by how they stand."""

    name: str
    waiting: int
    running: int
    others: int


@dataclass(frozen=True, slots=True)
class OwnPage:
    """A caller's namespaces.

    Attributes:
        groups: the first of them, of `total_groups`; `pods` likewise, those that hold a node.
    """

    namespaces: tuple[NamespaceFigures, ...]
    waiting: WaitingLine
    groups: tuple[GroupRow, ...]
    total_groups: int
    pods: tuple[PodRow, ...]
    total_pods: int


def own_page(state: ClusterView, view: View) -> OwnPage:
    """Return the model of a caller's namespaces."""
    wanted = RowSelection(namespaces=view.namespaces)
    pods = [row for row in list_rows(state, "pods", wanted) if isinstance(row, PodRow)]
    groups = [row for row in list_rows(state, "groups", wanted) if isinstance(row, GroupRow)]
    placed = [row for row in pods if row.node and row.stage != "finished"]
    shown = msgspec.convert(redacted(msgspec.to_builtins(groups[:_ROWS]), view), list[GroupRow])
    return OwnPage(
        namespaces=tuple(_figures(name, pods) for name in sorted(view.namespaces)),
        waiting=visible_line(waiting_line(state, namespaces=view.namespaces), view),
        groups=tuple(shown),
        total_groups=len(groups),
        pods=tuple(placed[:_ROWS]),
        total_pods=len(placed),
    )


def _figures(name: str, pods: list[PodRow]) -> NamespaceFigures:
    own = [row for row in pods if row.namespace == name]
    waiting = sum(row.stage == "waiting" for row in own)
    running = sum(row.status == "Running" for row in own)
    return NamespaceFigures(name, waiting, running, len(own) - waiting - running)


def visible_line(line: WaitingLine, view: View) -> WaitingLine:
    """Return a waiting line without the names of what is in other namespaces."""
    if view.whole:
        return line
    return replace(line, rows=tuple(replace(row, reason=str(redacted(row.reason, view))) for row in line.rows))


def visible_why(why: Why, view: View) -> Why:
    """Return an answer without the names of what is in namespaces that are not seen."""
    return why if view.whole else msgspec.convert(redacted(msgspec.to_builtins(why), view), Why)


def visible_story(story: Story, view: View) -> Story:
    """Return a story likewise; its answer is seen to by `visible_why`."""
    if view.whole:
        return story
    return replace(story, steps=tuple(replace(step, text=str(redacted(step.text, view))) for step in story.steps))
