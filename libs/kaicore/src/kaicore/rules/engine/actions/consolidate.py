"""The action Consolidate: moves running pods so that a group fits. Every moved pod has another place."""

from collections.abc import Sequence
from functools import cached_property

from kaicore.rules.engine.actions.eviction import EvictionAction
from kaicore.rules.engine.config import Action, PlacementStrategy
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.pending_group import PendingGroup
from kaicore.rules.engine.victims.moving import obstacle
from kaicore.rules.engine.workload import Workload
from kaicore.rules.queues.cycle_queues import GroupRequests
from kaicore.rules.reasons.reason import Reason


class Consolidate(EvictionAction):
    """Evict pods that fit elsewhere, where that makes room for a group that is larger than what is moved.

    It does nothing where any pods are to be spread, since it would pack what spreading has put apart.
    """

    action = Action.CONSOLIDATE
    reason = EvictionReason.CONSOLIDATED
    moves = True

    @property
    def is_on(self) -> bool:
        """See `EvictionAction`."""
        config = self.session.config
        packed = all(config.strategy(devices=devices) is PlacementStrategy.BINPACK for devices in (True, False))
        return packed and config.consolidate_groups > 0

    def _eligible(self, pending_group: PendingGroup) -> Sequence[Workload]:
        """See `EvictionAction`: it is the same for all waiting groups, and another matter for each running one."""
        return self._movable

    def _any_eligible(self, pending_group: PendingGroup) -> bool:
        """See `EvictionAction`."""
        return bool(self._movable)

    @cached_property
    def _movable(self) -> list[Workload]:
        return [one for one in self.session.running_groups.workloads if self._obstacle_of[one.group.key] is None]

    def is_eligible(self, pending_group: PendingGroup, victim: Workload) -> bool:
        """Any group may make way that may be moved at all."""
        return obstacle(self.session, victim) is None

    def refusal(self, requests: GroupRequests) -> tuple[Reason, ...]:
        """Moving pods gives no queue more than its limits, so the limits have to admit what is to start."""
        accounts = self.session.accounts
        refusals: list[Reason] = []
        before = accounts.savepoint()
        for group, request in requests:
            refusals += accounts.refusal(group, request)
            accounts.charge(group, request)
        accounts.undo(before)
        return tuple(refusals)
