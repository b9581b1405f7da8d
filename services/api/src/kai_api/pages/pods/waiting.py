"""The waiting line: what waits, for how long, and why."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from kaicore.analysis.ask.listing import pod_message, pod_status
from kaicore.rules.deciding.shadow import shadow_notes
from kaicore.rules.deciding.why import pending_reasons
from kaicore.rules.groups.membership import POD
from kaicore.rules.model.quantity import CPU, MEMORY, format_amount
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.views import ClusterView, FleetView, LogView, WorkView

from kai_api.pages.devices import asked_of_claims
from kai_api.pages.frame import duration

#: Rows of one page.
PAGE_ROWS = 100


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A waiting thing: a pod of its own, or a group.

    Attributes:
        kind, namespace, name: the object of the story.
        waiting: pods of it that wait.
        pods: that it has.
        asks: what each of its waiting pods asks for; where they ask for different things, what they ask for in all.
        asks_of: `each` or `in all`, and nothing for one that has one pod.
        since: how long it has waited, for people.
        reason: why, in a line.
        status: of the first waiting pod, in a word.
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
        pods: that wait.
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
        state: of the cluster.
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
    pages = max(1, -(-len(ordered) // limit))
    number = min(max(1, number), pages)
    promises = state.counters.promises if namespaces is None else {}
    kept = promises.get("kept", 0)
    return WaitingLine(
        rows=tuple(_row(state, entries) for entries in ordered[(number - 1) * limit : number * limit]),
        total=len(ordered),
        pods=len(waiting),
        reasons=_reasons(state, waiting),
        page=number,
        pages=pages,
        queue=queue,
        promised=kept + promises.get("late", 0),
        kept=kept,
    )


def asked_text(amounts: dict[str, int]) -> str:
    """Write what a pod asks for, devices first."""
    order = sorted(amounts, key=lambda name: (name in (CPU, MEMORY), name))
    shown = [name for name in order if amounts[name] and name != "pods"]
    return ", ".join(f"{format_amount(name, amounts[name])} {name.rpartition('/')[2]}" for name in shown)


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
        since=duration(state.recorded_at / 1e6 - pod.created_at),
        created_at=pod.created_at * 1_000_000,
        status=pod_status(first),
        reason=pod_message(state, first) or _undecided(state, first),
    )


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
