"""The page of queues: their tree, with what each deserves, holds and waits for of one resource."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from kaicore.analysis.ask.listing import queues_of
from kaicore.rules.model.gpu_share import SHARED_GPU, SHARED_IN, WHOLE, gpus_text
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import format_amount
from kaicore.rules.queues.tree import GPU, UNLIMITED, counted, is_gpu
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.views import ClusterView, FleetView, QueuesView

#: How long a group waits, though its queue is owed the room, before it starves.
_STARVES_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class QueueLine:
    """A queue and one resource of its account, the queues below it included.

    Attributes:
        depth: 0 for a root.
        label: the last part of its name where that is a path.
        quota, limit, deserved, allocated, requested: for people; `deserved` is its fair share now.
        allocated_share, deserved_share, requested_share: of all there is in the cluster, in hundredths.
        over: whether it holds more than it deserves.
        waiting, running: pods that name it or a queue below it.
    """

    name: str
    kind: str
    depth: int
    stopped: bool
    quota: str
    limit: str
    deserved: str
    allocated: str
    requested: str
    allocated_share: float
    deserved_share: float
    requested_share: float
    over: bool
    waiting: int
    running: int


def queue_resources(state: QueuesView) -> tuple[str, ...]:
    """Return the resources that queues have accounts of; `gpu` first where it is one."""
    tree = state.queue_registry.tree
    names = set(tree.resources) or {GPU, "cpu", "memory"}
    return tuple(sorted(names, key=lambda name: (name != GPU, name)))


def queue_lines(state: ClusterView, resource: str) -> tuple[QueueLine, ...]:
    """Return the queues, parents before their children.

    Args:
        resource: as queues name it, such as `gpu`; where queues name it not, the first that they do.
    """
    accounts = state.queue_accounts(state.config(), now=state.recorded_at)
    tree = accounts.tree
    if not tree.configured:
        return _unconfigured(state, resource)
    resource = resource if resource in tree.resources else next(iter(queue_resources(state)), "")
    place = tree.resources.index(resource) if resource in tree.resources else -1
    whole = total_of(state, resource)
    waiting, running = _pods(state)
    lines: list[QueueLine] = []

    def visit(number: int, depth: int) -> None:
        queue = tree.queues[number]
        if place >= 0:
            allocated, deserved, requested, quota, limit = (
                tree.in_thousandths(place, int(table[number][place]))
                for table in (
                    accounts.used,
                    accounts.shares.fair,
                    accounts.shares.requested,
                    tree.quotas,
                    tree.limits,
                )
            )
        else:
            allocated = deserved = requested = quota = 0
            limit = UNLIMITED
        lines.append(
            QueueLine(
                name=queue.name,
                kind="" if number == tree.implied_default else queue.origin.partition(".")[0] or "Queue",
                depth=depth,
                stopped=queue.stopped,
                quota=amount_text(resource, quota),
                limit="" if limit >= UNLIMITED else amount_text(resource, limit),
                deserved=amount_text(resource, deserved),
                allocated=amount_text(resource, allocated),
                requested=amount_text(resource, requested),
                allocated_share=_share(allocated, whole),
                deserved_share=_share(deserved, whole),
                requested_share=_share(requested, whole),
                over=allocated > deserved,
                waiting=waiting[number],
                running=running[number],
            )
        )
        for child in tree.children[number]:
            visit(child, depth + 1)

    unused = -1 if state.queue_registry.uses_implied_default() else tree.implied_default
    for root in tree.roots:
        if root != unused and place not in tree.not_counted_by(root):
            visit(root, 0)
    return tuple(lines)


def total_of(state: FleetView, resource: str) -> int:
    """Return what all ready nodes have of a resource, as queues count it; GPUs in thousandths."""
    columns = state.columns
    rows = len(columns.names)
    ready = columns.present[:rows] & columns.ready[:rows]
    sums = {
        name: int(columns.allocatable[:rows, column][ready].sum(dtype=float))
        for name, column in columns.resources.items()
    }
    return amount_of(counted(sums), resource)


def amount_of(amounts: Amounts, resource: str) -> int:
    """Return an amount of a resource; of GPUs in thousandths, with the parts of GPUs that are shared."""
    amount = amounts.get(resource, 0)
    parts = amounts.get(SHARED_GPU, 0) if resource in SHARED_IN else 0
    return amount * WHOLE + parts if is_gpu(resource) else amount


def _unconfigured(state: ClusterView, resource: str) -> tuple[QueueLine, ...]:
    """Return the one queue that all work is in where there are no objects."""
    whole = total_of(state, resource)
    usages = state.queue_registry.usages.values()
    allocated = sum(amount_of(counted(usage.used), resource) for usage in usages)
    requested = allocated + sum(amount_of(counted(usage.pending), resource) for usage in usages)
    waiting, running = _pods(state)
    return tuple(
        QueueLine(
            name=queue.name,
            kind="",
            depth=0,
            stopped=False,
            quota="unlimited",
            limit="",
            deserved=amount_text(resource, whole),
            allocated=amount_text(resource, allocated),
            requested=amount_text(resource, requested),
            allocated_share=_share(allocated, whole),
            deserved_share=100.0,
            requested_share=_share(requested, whole),
            over=False,
            waiting=waiting[0],
            running=running[0],
        )
        for queue in queues_of(state)
    )


def _pods(state: QueuesView) -> tuple[Counter[int], Counter[int]]:
    """Count the pods of each queue and of those above it, by the tree's number: those that wait, those that run."""
    tree = state.queue_registry.tree
    paths: dict[tuple[str, str], tuple[int, ...]] = {}
    counts: Counter[tuple[tuple[int, ...], bool]] = Counter()
    for entry in state.pods.values():
        if not (entry.waiting or entry.charged):
            continue
        key = state.queue_of(entry)
        if key not in paths:
            number = tree.find(key[0], namespace=key[1])
            paths[key] = () if number is None else tree.paths[number]
        counts[paths[key], entry.charged] += 1
    waiting: Counter[int] = Counter()
    running: Counter[int] = Counter()
    for (path, charged), pods in counts.items():
        for number in path:
            (running if charged else waiting)[number] += pods
    return waiting, running


def amount_text(resource: str, amount: int) -> str:
    """Write an amount: of GPUs in thousandths, else in the resource's own unit."""
    if amount >= UNLIMITED:
        return "unlimited"
    return gpus_text(amount) if is_gpu(resource) else format_amount(resource, amount)


def _share(amount: int, whole: int) -> float:
    return round(min(100.0, 100 * amount / whole), 2) if whole else 0.0


def starving(state: ClusterView) -> set[str]:
    """Return the keys of groups that have waited for an hour, although none of their queues would exceed its share."""
    since = (state.recorded_at - _STARVES_US) // 1_000_000
    old = defaultdict[str, list[PodEntry]](list)
    for uid in state.waiting:
        entry = state.pods[uid]
        if entry.waiting and entry.pod.created_at < since:
            old[entry.group].append(entry)
    if not old:
        return set()
    accounts = state.queue_accounts(state.config(), now=state.recorded_at)
    tree = accounts.tree

    def owed(entries: list[PodEntry]) -> bool:
        name, namespace = state.queue_of(entries[0])
        number = tree.find(name, namespace=namespace)
        asked = Counter[str]()
        for entry in entries:
            asked.update(counted(entry.requests))
        return number is not None and all(
            tree.in_thousandths(place, int(accounts.used[at][place])) + amount_of(asked, resource)
            <= tree.in_thousandths(place, int(accounts.shares.fair[at][place]))
            for at in tree.paths[number]
            for place, resource in enumerate(tree.resources)
            if asked[resource]
        )

    return {key for key, entries in old.items() if owed(entries)}


@dataclass(frozen=True, slots=True)
class QueuesPage:
    """The queues and one resource.

    Attributes:
        resource: of `resources`, those that queues have accounts of.
        starving: how many groups of a queue starve.
    """

    resource: str
    resources: tuple[str, ...]
    lines: tuple[QueueLine, ...]
    starving: Mapping[str, int]


def queues_page(state: ClusterView, *, resource: str) -> QueuesPage:
    """Return the model of the page of queues.

    Args:
        resource: as queues name it; the first one that they do where they name no such.
    """
    resources = queue_resources(state)
    resource = resource if resource in resources else resources[0]
    members = (next(iter(state.group_table.pods_of(key))) for key in starving(state))
    hungry = Counter(state.queue_of(state.pods[uid])[0] for uid in members)
    return QueuesPage(resource, resources, queue_lines(state, resource), hungry)
