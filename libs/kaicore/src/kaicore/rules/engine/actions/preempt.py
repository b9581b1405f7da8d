"""Make way for higher priority within a queue."""

from kaicore.rules.engine.actions.eviction import EvictionAction
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.pending_group import PendingGroup
from kaicore.rules.engine.workload import Workload
from kaicore.rules.queues.cycle_queues import GroupRequests
from kaicore.rules.reasons.reason import Reason


class Preempt(EvictionAction):
    """Evict pods of lower priority of the same queue."""

    reason = EvictionReason.PREEMPTED

    def is_eligible(self, pending_group: PendingGroup, victim: Workload) -> bool:
        """Groups of lower priority of the same queue may make way."""
        group, accounts = pending_group.group, self.session.accounts
        return victim.group.priority < group.priority and accounts.queue_of(victim.group) == accounts.queue_of(group)

    def refusal(self, requests: GroupRequests) -> tuple[Reason, ...]:
        """A queue may forbid preemption within it."""
        return tuple(reason for group, _ in requests for reason in self.session.accounts.preempt_refusal(group))
