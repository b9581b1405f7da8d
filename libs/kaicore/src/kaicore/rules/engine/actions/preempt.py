"""The action Preempt: evicts pods of lower priority within a queue."""

from kaicore.rules.engine.actions.eviction import EvictionAction
from kaicore.rules.engine.config import Action
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.pending_group import PendingGroup
from kaicore.rules.engine.session import Session
from kaicore.rules.engine.workload import Workload
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts
from kaicore.rules.queues.cycle_queues import GroupRequests
from kaicore.rules.reasons.reason import Reason


class Preempt(EvictionAction):
    """Evict pods of lower priority of the same queue."""

    action = Action.PREEMPT
    reason = EvictionReason.PREEMPTED

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        #: See `making_way`; by queue and priority, with how many pods the cycle had evicted by then.
        self._making_way: dict[tuple[str, int], tuple[int, list[tuple[Group, Amounts]]]] = {}

    def making_way(self, pending_group: PendingGroup) -> GroupRequests:
        """See `EvictionAction`; nothing if the queue does not let it preempt."""
        session, group = self.session, pending_group.group
        key, evicted = (session.accounts.queue_of(group), group.priority), session.record.evicted
        known = self._making_way.get(key)
        if known is None or known[0] != len(evicted):
            eligible = [] if session.accounts.preempt_refusal(group) else self._eligible(pending_group)
            held = session.pods.requests_of(
                one for workload in eligible for uid, one in workload.active.items() if uid not in evicted
            )
            known = self._making_way[key] = len(evicted), [(eligible[0].group, held)] if held else []
        return known[1]

    def is_eligible(self, pending_group: PendingGroup, victim: Workload) -> bool:
        """Groups of lower priority of the same queue may make way."""
        group, accounts = pending_group.group, self.session.accounts
        return victim.group.priority < group.priority and accounts.queue_of(victim.group) == accounts.queue_of(group)

    def refusal(self, requests: GroupRequests) -> tuple[Reason, ...]:
        """A queue may forbid preemption within it."""
        return tuple(reason for group, _ in requests for reason in self.session.accounts.preempt_refusal(group))
