"""Accounts of queues over all clusters: the sum of what a queue's work holds in each cluster."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kaicore.rules.hub.cluster_side import DISPATCH_MARK
from kaicore.rules.hub.hub_state import HELD, DispatchStage, HubState
from kaicore.rules.model.pod import Amounts
from kaicore.rules.queues.resources import counted
from kaicore.rules.queues.tree import UNLIMITED
from kaicore.rules.state.cluster_state import ClusterState


@dataclass(slots=True)
class QueueSums:
    """What queues hold in all clusters together.

    Attributes:
        held: by queue, those below it included; what dispatches ask for counts from when they are given.
        fair: by queue, the sum of its fair shares.
        paths: of each queue, itself and those above it.
    """

    held: dict[str, Amounts] = field(default_factory=dict)
    fair: dict[str, Amounts] = field(default_factory=dict)
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def path(self, queue: str) -> tuple[str, ...]:
        """Return a queue and those above it."""
        return self.paths.get(queue, (queue,))

    def charge(self, queue: str, demand: Mapping[str, int], *, sign: int = 1) -> None:
        """Add what a dispatch asks for to its queue and those above it."""
        for name in self.path(queue):
            amounts = self.held.setdefault(name, {})
            for resource, amount in demand.items():
                amounts[resource] = amounts.get(resource, 0) + sign * amount

    def standing(self, queue: str) -> int:
        """Return how much of its fair share a queue holds, in thousandths, by the resource where it is furthest up."""
        held, fair = self.held.get(queue, {}), self.fair.get(queue, {})
        parts = (1000 * held.get(resource, 0) // amount for resource, amount in fair.items() if amount)
        return max(parts, default=0)


def queue_sums(hub: HubState, states: Iterable[ClusterState], *, now: int) -> QueueSums:
    """Return the accounts of all queues.

    Args:
        hub: whose dispatches count with all they ask for, as long as a cluster has them.
        states: of the clusters.
        now: microseconds since the epoch.
    """
    sums = QueueSums()
    for state in states:
        accounts = state.queue_accounts(state.config(), now=max(now, state.recorded_at))
        tree = accounts.tree
        for number, queue in enumerate(tree.queues):
            sums.paths.setdefault(queue.name, tuple(tree.queues[above].name for above in tree.paths[number]))
            for place, resource in enumerate(tree.resources):
                _add(sums.held, queue.name, resource, accounts.used[number][place])
                _add(sums.fair, queue.name, resource, min(accounts.shares.fair[number][place], UNLIMITED))
        for entry in state.pods.values():
            if entry.charged and DISPATCH_MARK in entry.pod.annotations:
                name, _ = state.queue_of(entry)
                if tree.configured and tree.find(name) is not None:
                    amounts = counted(entry.requests)
                    sums.charge(name, {one: amounts.get(one, 0) for one in tree.resources}, sign=-1)
    for dispatch in hub.dispatches.values():
        if dispatch.stage in HELD or (dispatch.stage is DispatchStage.WITHDRAWN and dispatch.left):
            sums.charge(dispatch.submitted.queue, dispatch.submitted.demand)
    return sums


def _add(amounts: dict[str, Amounts], queue: str, resource: str, amount: int) -> None:
    row = amounts.setdefault(queue, {})
    row[resource] = row.get(resource, 0) + amount
