"""The queues of a cluster, the use of their pods, and their shares at a point in time.

Usage is counted by the fold, under the queue name that pods have, also while no such queue exists. Which queue of the
hierarchy a name means is looked up when a cycle asks. The divided amount is the capacity of the cluster's ready nodes,
less the pods of other schedulers, and less work in queues that do not exist.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.claims.demands import ANY_FLAVOR, FlavorDemand, flavor_demand
from kaicore.rules.engine.constraints.node_matching import in_pool
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.events import payloads
from kaicore.rules.model.gpu_share import SHARED_GPU, SHARED_IN, WHOLE, expected_parts
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import add_amounts
from kaicore.rules.model.queue import Queue, ResourceFlavor
from kaicore.rules.queues.accounts import LeafUse, QueueAccounts
from kaicore.rules.queues.division import HOUR_US, RETENTION_HOURS, divide
from kaicore.rules.queues.tree import GPU, UNLIMITED, QueueTree, counted
from kaicore.rules.queues.usage import UsageReader, UseHistory

QueueFact = payloads.QueueObserved | payloads.QueueDeleted | payloads.FlavorObserved | payloads.FlavorDeleted


class UsageKey(NamedTuple):
    """Under what the usage of pods is counted.

    Attributes:
        scheduler: the pods' `spec.schedulerName`.
        queue: that the pods name; empty for none.
        namespace: of pods that name no queue, for there may be a default one in their namespace.
    """

    scheduler: str
    queue: str
    namespace: str = ""


class QueueCharge(msgspec.Struct, frozen=True, gc=False):
    """The state of a pod in the usage of its queue.

    Attributes:
        preemptible: whether the pod may be preempted.
        running: whether it holds its amounts; otherwise it waits for them.
    """

    key: UsageKey
    preemptible: bool
    running: bool


@lru_cache(maxsize=1 << 14)
def queue_charge(scheduler: str, queue: str, namespace: str, preemptible: bool, running: bool) -> QueueCharge:
    """Return a charge; equal arguments give the same object, for there are few."""
    return QueueCharge(UsageKey(scheduler, queue, namespace), preemptible=preemptible, running=running)


class QueueUsage(msgspec.Struct):
    """The pods' holdings, their part that cannot be preempted, their waiting demand, and their use over time."""

    used: Amounts = {}
    non_preemptible: Amounts = {}
    pending: Amounts = {}
    history: UseHistory = msgspec.field(default_factory=UseHistory)

    @property
    def empty(self) -> bool:
        """True if nothing is counted, and nothing was within any window."""
        return not (self.used or self.pending or self.history.hours)

    def count(self, charge: QueueCharge, amounts: Amounts, *, pods: int, at_us: int) -> None:
        """Count the amounts of so many pods more, or fewer; `at_us` in microseconds since the epoch."""
        if not charge.running:
            add_amounts(self.pending, amounts, pods)
            return
        add_amounts(self.used, amounts, pods)
        if not charge.preemptible:
            add_amounts(self.non_preemptible, amounts, pods)
        self.history.change(counted(amounts), sign=pods, at_us=at_us)

    def forget(self, hour: int) -> bool:
        """Forget what is too long before an hour (since the epoch) for any window; return whether nothing is left."""
        return self.history.forget(hour - RETENTION_HOURS) and not (self.used or self.pending)

    def record(self, key: UsageKey) -> "UsageRecord":
        """Return it as plain data."""
        hours = [(resource, sorted(by_hour.items())) for resource, by_hour in sorted(self.history.hours.items())]
        # Of what neither uses anything nor has, the time says nothing, and depends on when it was asked for last.
        settled_ms = self.history.settled_ms if self.history.rate or hours else 0
        return UsageRecord(key, self.used, self.non_preemptible, self.pending, settled_ms, hours)


class UsageRecord(msgspec.Struct):
    """Usage as plain data; `hours` by resource and hour, in order."""

    key: UsageKey
    used: Amounts
    non_preemptible: Amounts
    pending: Amounts
    settled_ms: int
    hours: list[tuple[str, list[tuple[int, int]]]]

    def restored(self) -> QueueUsage:
        """Return the usage of a record."""
        hours = {resource: dict(by_hour) for resource, by_hour in self.hours}
        history = UseHistory(counted(self.used), self.settled_ms, hours)
        return QueueUsage(self.used, self.non_preemptible, self.pending, history)


#: How many demands of flavors are remembered, by queue and class.
_MOST_DEMANDS = 1 << 14


class _Change(msgspec.Struct):
    """A change of usage by pods that are alike, at one time."""

    charge: QueueCharge
    amounts: Amounts
    pods: int = 0


#: How many changes of one time wait at most.
_MOST_CHANGES = 1000


class QueueRegistryRecord(msgspec.Struct):
    """The whole registry, for snapshots."""

    queues: list[Queue]
    flavors: list[ResourceFlavor]
    usages: list[UsageRecord]
    reported: dict[str, payloads.QueueFigures]
    reported_at: int
    since: int
    forgotten_at: int


class QueueRegistry:
    """The queues of a cluster and the usage of their pods.

    Events that were recorded together change usage together: their changes wait, those of alike pods as one, until
    another time's come or somebody asks.

    Attributes:
        queues: by name.
        flavors: by name.
        reported: what was last reported of each queue.
        reported_at: when, by the cycle's clock; microseconds since the epoch.
        since: when usage began to be counted, microseconds since the epoch.
        reader: weighs histories.
        revision: grows with whatever may change what is to be reported.
    """

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.flavors: dict[str, ResourceFlavor] = {}
        self._usages: dict[UsageKey, QueueUsage] = {}
        self._changes: dict[tuple[int, int], _Change] = {}
        self._changed_at = 0
        self.reported: dict[str, payloads.QueueFigures] = {}
        self.reported_at = 0
        self.since = 0
        self.revision = 0
        self.reader: UsageReader[UsageKey] = UsageReader()
        self._forgotten_at = 0
        self._tree: QueueTree | None = None
        self._trees: dict[tuple[str | None, bool], QueueTree] = {}
        self._demands: dict[tuple[str, str, str], FlavorDemand] = {}

    @property
    def usages(self) -> dict[UsageKey, QueueUsage]:
        """Usages by key."""
        self.settle()
        return self._usages

    @property
    def tree(self) -> QueueTree:
        """The hierarchy as it is now."""
        if self._tree is None:
            self._tree = QueueTree(self.queues)
        return self._tree

    def uses_implied_default(self) -> bool:
        """Tell whether any work is in the default queue that is no object."""
        tree = self.tree
        return tree.implied_default >= 0 and any(
            tree.find(key.queue, namespace=key.namespace) == tree.implied_default for key in self.usages
        )

    def tree_of(self, config: EngineConfig) -> QueueTree:
        """Return the hierarchy of the queues that are a shard's, by its node pool."""
        pool, parts = config.node_pool, config.gpu_sharing
        if (pool is None or not self.queues) and not parts:
            return self.tree
        if (pool, parts) not in self._trees:
            every = {
                name: one for name, one in self.queues.items() if pool is None or one.node_pool == pool or one.rules
            }
            self._trees[pool, parts] = QueueTree(every, parts=parts)
        return self._trees[pool, parts]

    def flavor_demand(self, queue: str, namespace: str, pod_class: PodClass) -> FlavorDemand:
        """Return where the flavors of a queue let pods of a class go.

        Args:
            queue: as the pods name it; empty for pods that name none.
            namespace: the pods', if they name none.
        """
        key = (queue, namespace, pod_class.key)
        demand = self._demands.get(key)
        if demand is None:
            number = self.tree.find(queue, namespace=namespace)
            demand = ANY_FLAVOR
            if number is not None:
                demand = flavor_demand(
                    self.tree.queues[number],
                    self.flavors,
                    requests=pod_class.requests,
                    tolerations=pod_class.tolerations,
                )
            if len(self._demands) >= _MOST_DEMANDS:
                self._demands.clear()
            self._demands[key] = demand
        return demand

    def flavor_topologies(self, queue: str, namespace: str) -> tuple[str, ...]:
        """Return the names of the topologies that the flavors of a queue are in, in the queue's order.

        Args:
            queue: as a group names it; empty for one that names none.
        """
        number = self.tree.find(queue, namespace=namespace) if self.flavors else None
        if number is None:
            return ()
        named = (self.flavors.get(quota.flavor) for quota in self.tree.queues[number].flavors)
        return tuple(dict.fromkeys(flavor.topology for flavor in named if flavor is not None and flavor.topology))

    def _hierarchy_changed(self) -> None:
        self.revision += 1
        self._tree = None
        self._trees.clear()
        self._demands.clear()

    def take(self, payload: QueueFact) -> None:
        """Take in a fact about a queue or a flavor; of the end of one that has a successor nothing."""
        match payload:
            case payloads.QueueObserved(queue):
                self.queues[queue.name] = queue
            case payloads.FlavorObserved(flavor):
                self.flavors[flavor.name] = flavor
            case payloads.QueueDeleted(uid=uid, name=name):
                if name not in self.queues or self.queues[name].uid != uid:
                    return
                del self.queues[name]
                self.reported.pop(name, None)
            case payloads.FlavorDeleted(uid=uid, name=name):
                if name not in self.flavors or self.flavors[name].uid != uid:
                    return
                del self.flavors[name]
        self._hierarchy_changed()

    def report_recorded(self, report: payloads.QueuesReported) -> None:
        """Take over what a cycle reported of queues."""
        self.reported_at = report.now
        self.reported.update((item.queue, item) for item in report.queues if item.queue in self.queues)

    def charge(self, charge: QueueCharge, amounts: Amounts, *, sign: int = 1, at_us: int) -> None:
        """Count a pod's amounts, or take them off again with `sign=-1`; `at_us` in microseconds since the epoch."""
        if at_us != self._changed_at or len(self._changes) >= _MOST_CHANGES:
            self.settle()
            self._changed_at, self.since = at_us, self.since or at_us
        self.revision += 1
        key = id(charge), id(amounts)
        change = self._changes.get(key)
        if change is None:
            change = self._changes[key] = _Change(charge, amounts)
        change.pods += sign

    def settle(self) -> None:
        """Bring usage up to date with the changes that wait."""
        if not self._changes:
            return
        changes, self._changes = self._changes.values(), {}
        self._forget_old_usage(self._changed_at)
        for change in changes:
            key = change.charge.key
            usage = self._usages.get(key)
            if usage is None:
                usage = self._usages[key] = QueueUsage()
            usage.count(change.charge, change.amounts, pods=change.pods, at_us=self._changed_at)
        for key in {change.charge.key for change in changes}:
            if self._usages[key].empty:
                del self._usages[key]

    def of_scheduler(self, name: str) -> Iterator[tuple[UsageKey, QueueUsage]]:
        """Return the usage of a scheduler's pods, in order of the keys."""
        return ((key, self.usages[key]) for key in sorted(self.usages) if key.scheduler == name)

    def used_by_others(self, scheduler: str) -> Amounts:
        """Return what the pods of all other schedulers hold."""
        held: Amounts = {}
        for key, usage in self.usages.items():
            if key.scheduler != scheduler:
                add_amounts(held, usage.used, 1)
        return held

    def record(self) -> QueueRegistryRecord:
        """Return the registry as plain data; equal registries give equal data."""
        return QueueRegistryRecord(
            queues=[self.queues[name] for name in sorted(self.queues)],
            flavors=[self.flavors[name] for name in sorted(self.flavors)],
            usages=[self.usages[key].record(key) for key in sorted(self.usages)],
            reported=self.reported,
            reported_at=self.reported_at,
            since=self.since,
            forgotten_at=self._forgotten_at,
        )

    @classmethod
    def restored(cls, record: QueueRegistryRecord) -> "QueueRegistry":
        """Return the registry of a record."""
        registry = cls()
        registry.queues = {queue.name: queue for queue in record.queues}
        registry.flavors = {flavor.name: flavor for flavor in record.flavors}
        registry._usages = {usage.key: usage.restored() for usage in record.usages}
        registry.reported, registry.reported_at = record.reported, record.reported_at
        registry.since, registry._forgotten_at = record.since, record.forgotten_at
        return registry

    def _forget_old_usage(self, at_us: int) -> None:
        """Once an hour, forget what is too long ago for any window."""
        hour = at_us // HOUR_US
        if hour == self._forgotten_at:
            return
        self._forgotten_at = hour
        for key in [key for key, usage in self._usages.items() if usage.forget(hour)]:
            del self._usages[key]


_HALF = 24


def queue_accounts(
    registry: QueueRegistry, columns: NodeColumns, config: EngineConfig, *, now: int, recorded_at: int
) -> QueueAccounts:
    """Return the queues' accounts at a time, their shares included.

    Args:
        now: the cycle's clock, microseconds since the epoch.
        recorded_at: when the state's last event was recorded.
    """
    tree = registry.tree_of(config)
    size, width = len(tree), len(tree.resources)
    totals = ready_amounts(columns, config)
    _take_off(totals, registry.used_by_others(config.scheduler_name))
    requested = [[0] * width for _ in range(size)]
    uses: dict[int, tuple[list[int], list[int]]] = {}
    places: dict[UsageKey, int] = {}
    for account, use in registry.of_scheduler(config.scheduler_name):
        number = tree.find(account.queue, namespace=account.namespace)
        if number is None:
            _take_off(totals, use.used)
            continue
        places[account] = number
        used = tree.demand(use.used, number).amounts
        pending = tree.demand(expected_parts(use.pending, columns.least_gpu_memory), number).amounts
        firm = tree.demand(use.non_preemptible, number).amounts
        row = requested[number]
        sums = uses.setdefault(number, ([0] * width, [0] * width))
        for place in range(width):
            row[place] += used[place] + pending[place]
            sums[0][place] += used[place]
            sums[1][place] += firm[place]
    fairness = config.fair_share
    usage = None
    if (fairness.k_milli or config.policies) and width:
        usage = [[0] * width for _ in range(size)]
        histories = {account: registry.usages[account].history for account in places}
        capacity = counted(totals)
        if config.gpu_sharing:
            capacity[SHARED_GPU] = capacity.get(GPU, 0) * WHOLE
        parts = registry.reader.parts(
            histories, fairness, totals=capacity, since_us=registry.since, recorded_us=recorded_at, now_us=now
        )
        for account, by_resource in parts.items():
            uncounted = tree.not_counted_by(places[account])
            for above in tree.paths[places[account]]:
                for place, resource in enumerate(tree.resources):
                    if place not in uncounted:
                        shared = by_resource.get(SHARED_GPU, 0) if resource in SHARED_IN else 0
                        usage[above][place] += by_resource.get(resource, 0) + shared
    there_is = [max(0, amount) for amount in tree.demand(totals).amounts]
    counting = usage if fairness.k_milli else None
    shares = divide(tree, totals=there_is, requested=requested, usage=counting, k_milli=fairness.k_milli)
    leaves = {number: LeafUse(tuple(used), tuple(firm)) for number, (used, firm) in uses.items()}
    return QueueAccounts.of(tree, shares, leaves, usage)


def figures(accounts: QueueAccounts, *, thousandths: bool = False) -> dict[str, payloads.QueueFigures]:
    """Return how each queue stands, by name: of objects, and of the default queue that is none.

    Args:
        thousandths: GPUs in thousandths; otherwise whole ones, rounded up, as events and statuses have them.
    """
    tree, shares = accounts.tree, accounts.shares
    count = tree.in_thousandths if thousandths else tree.whole
    by_name = {}
    for number, queue in enumerate(tree.queues):
        if not queue.uid and number != tree.implied_default:
            continue
        names = ["" if place in tree.summed_by(number) else resource for place, resource in enumerate(tree.resources)]

        def named(row: "list[int] | tuple[int, ...]", names: Sequence[str] = names) -> Amounts:
            # Sums over a whole cluster are of no bound, and events hold 64 bits.
            amounts = zip(names, map(count, range(len(names)), row), strict=True)
            return {resource: min(amount, UNLIMITED) for resource, amount in amounts if amount and resource}

        by_name[queue.name] = payloads.QueueFigures(
            queue=queue.name,
            uid=queue.uid,
            requested=named(list(shares.requested[number])),
            allocated=named(accounts.used[number]),
            non_preemptible=named(accounts.non_preemptible[number]),
            fair_share=named(list(shares.fair[number])),
            children=tuple(tree.queues[child].name for child in tree.children[number]),
        )
    return by_name


def ready_amounts(columns: NodeColumns, config: EngineConfig | None = None) -> Amounts:
    """Return what all ready nodes have, of the node pool of a shard with these settings."""
    count = len(columns.names)
    ready = columns.present[:count] & columns.ready[:count]
    if config is not None and config.node_pool is not None:
        ready = ready & in_pool(columns, config)[:count]
    allocatable = columns.allocatable[:count][ready]
    # In two halves, for many nodes may each have as much as is believed of any.
    high, low = (allocatable >> _HALF).sum(axis=0), (allocatable & ((1 << _HALF) - 1)).sum(axis=0)
    return {name: (int(high[column]) << _HALF) + int(low[column]) for name, column in columns.resources.items()}


def _take_off(totals: Amounts, amounts: Amounts) -> None:
    for resource, amount in amounts.items():
        totals[resource] = max(0, totals.get(resource, 0) - amount)
