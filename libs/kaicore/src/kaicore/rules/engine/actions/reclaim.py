"""The action Reclaim: takes back the resources that other queues use beyond their fair share."""

from kaicore.rules.engine.actions.eviction import EvictionAction
from kaicore.rules.engine.config import Action
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.pending_group import PendingGroup
from kaicore.rules.engine.workload import Workload
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts
from kaicore.rules.queues.cycle_queues import GroupRequests
from kaicore.rules.reasons.reason import Reason


class Reclaim(EvictionAction):
    """Evict pods of queues that use more than their share, for groups of queues that use less."""

    action = Action.RECLAIM
    reason = EvictionReason.RECLAIMED
    spares_quotas = True

    def is_eligible(self, pending_group: PendingGroup, victim: Workload) -> bool:
        """Groups of other queues may make way, of lower priority only if the waiting group's queue says so."""
        return self.session.accounts.reclaims_from(pending_group.group, victim.group)

    def refusal(self, requests: GroupRequests) -> tuple[Reason, ...]:
        """A queue may not reclaim beyond its own share."""
        return self.session.accounts.reclaim_refusal(requests)

    def may_evict(self, requests: GroupRequests, victim: Workload) -> bool:
        """Only a queue that uses more than its share loses pods."""
        return self.session.accounts.may_reclaim(requests, victim.group)

    def keeps_quota(self, requests: GroupRequests, victim: Group, held: Amounts) -> bool:
        """A queue that uses more than its share keeps its quota if other victims suffice."""
        return self.session.accounts.keeps_quotas(requests, victim, held)

    def exchange_refusal(self, requests: GroupRequests, victims: GroupRequests) -> tuple[Reason, ...]:
        """All victims together may not be more than what the queues owe."""
        return self.session.accounts.exchange_refusal(requests, victims)
