"""The shares of queues at a point in time, and their accounts for a cycle, from the state.

The divided amount is the capacity of the cluster's ready nodes, less the pods of other schedulers, and less work in
queues that do not exist.
"""

from collections.abc import Sequence

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.node_matching import in_pool
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.events.payloads import QueueFigures
from kaicore.rules.model.gpu_share import WHOLE
from kaicore.rules.model.pod import Amounts
from kaicore.rules.queues.accounts import LeafUse, QueueAccounts
from kaicore.rules.queues.division import divide
from kaicore.rules.queues.resources import GPU, SHARED_GPU, SHARED_IN, counted
from kaicore.rules.queues.tree import UNLIMITED
from kaicore.rules.state.queue_registry import QueueRegistry, UsageKey

_HALF = 24


def queue_accounts(
    registry: QueueRegistry, columns: NodeColumns, config: EngineConfig, *, now: int, recorded_at: int
) -> QueueAccounts:
    """Return the queues' accounts at a time, their shares included.

    Args:
        registry: the state's.
        columns: the state's nodes.
        config: the shard's settings.
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
        used, pending = tree.demand(use.used, number).amounts, tree.demand(use.pending, number).amounts
        firm = tree.demand(use.non_preemptible, number).amounts
        row = requested[number]
        sums = uses.setdefault(number, ([0] * width, [0] * width))
        for place in range(width):
            row[place] += used[place] + pending[place]
            sums[0][place] += used[place]
            sums[1][place] += firm[place]
    fairness = config.fair_share
    usage = None
    if fairness.k_milli and width:
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
    shares = divide(tree, totals=there_is, requested=requested, usage=usage, k_milli=fairness.k_milli)
    leaves = {number: LeafUse(tuple(used), tuple(firm)) for number, (used, firm) in uses.items()}
    return QueueAccounts.of(tree, shares, leaves)


def figures(accounts: QueueAccounts) -> dict[str, QueueFigures]:
    """Return how each queue stands, by name: of objects, and of the default queue that is none."""
    tree, shares = accounts.tree, accounts.shares
    by_name = {}
    for number, queue in enumerate(tree.queues):
        if not queue.uid and number != tree.implied_default:
            continue
        names = ["" if place in tree.summed_by(number) else resource for place, resource in enumerate(tree.resources)]

        def named(row: "list[int] | tuple[int, ...]", names: Sequence[str] = names) -> Amounts:
            # Sums over a whole cluster are of no bound, and events hold 64 bits.
            amounts = zip(names, map(tree.whole, range(len(names)), row), strict=True)
            return {resource: min(amount, UNLIMITED) for resource, amount in amounts if amount and resource}

        by_name[queue.name] = QueueFigures(
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
