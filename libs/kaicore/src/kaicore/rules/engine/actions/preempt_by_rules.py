"""The action that evicts what rules of preemption select, where the other actions have made no room.

The rules are those of the PreemptionConfig that a ClusterQueue of Kueue names
(`kaicore.rules.queues.preemption_rules`). Rules with `Always` come first. While the quotas do not suffice, those with
`InsufficientQuota` follow; once they do, those with `QuotaFeasibleAndInsufficientTopology`. Work that the queue lets go
by itself may go with them. All else is as for the other evicting actions: the step provably fits, gangs go as a whole,
budgets and minimum runtimes are kept.

Source: Kueue 0.20 (alpha, ConfigurablePreemptions), `pkg/scheduler/preemption`.
"""

from collections.abc import Sequence

from kaicore.rules.engine.actions.action import GroupOrder
from kaicore.rules.engine.actions.eviction import EvictionAction
from kaicore.rules.engine.config import Action
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.work.gang_planner import Steps
from kaicore.rules.engine.work.pending_group import PendingGroup
from kaicore.rules.engine.work.workload import Workload
from kaicore.rules.events.reasons.queue import PreemptionRuleUnsupported
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.queues.cycle_queues import GroupRequests
from kaicore.rules.queues.preemption_rules import ALWAYS, QUOTA, TOPOLOGY, RuledWork


class PreemptByRules(EvictionAction):
    """Evict pods that rules of preemption select."""

    action = Action.PREEMPT
    reason = EvictionReason.PREEMPTED

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        #: The triggers of the rules that count now.
        self._triggers: tuple[str, ...] = ()
        self._works: dict[str, RuledWork | None] = {}

    def run(self) -> None:
        """See `EvictionAction`; each group is looked at for itself, because rules go by labels."""
        session = self.session
        ruled = [
            one
            for one in session.pending_groups.values()
            if not (one.nominated or one.deferred)
            and any(one.waiting.values())
            and session.accounts.rules_of(one.group)
        ]
        if ruled:
            self.serve(GroupOrder(session, ruled), None)

    def make_room(self, pending_group: PendingGroup) -> bool:
        """See `EvictionAction`; by one trigger after the other."""
        rules = self.session.accounts.rules_of(pending_group.group)
        triggers = {rule.trigger for rule in rules if not rule.unsupported}
        self._triggers = (ALWAYS,)
        if ALWAYS in triggers and super().make_room(pending_group):
            return True
        if self._lacks_quota(pending_group):
            self._triggers = (ALWAYS, QUOTA)
            if QUOTA in triggers and super().make_room(pending_group):
                return True
        if TOPOLOGY in triggers and not self._lacks_quota(pending_group):
            self._triggers = (*self._triggers, TOPOLOGY)
            if super().make_room(pending_group):
                return True
        left_out = tuple(
            PreemptionRuleUnsupported(
                rule=rule.name, queue=self.session.accounts.queue_of(pending_group.group), what=what
            )
            for rule in rules
            if (what := rule.unsupported)
        )
        pending_group.reasons = (*pending_group.reasons, *(one for one in left_out if one not in pending_group.reasons))
        return False

    def _lacks_quota(self, pending_group: PendingGroup) -> bool:
        """Tell whether quotas would not admit a group if all were gone that the rules select that count now."""
        session = self.session
        steps, _ = session.gangs.joint_steps(pending_group)
        before = session.accounts.savepoint()
        for workload in self._eligible(pending_group):
            staying = [one for uid, one in workload.active.items() if uid not in session.record.evicted]
            session.accounts.release(workload.group, session.pods.requests_of(staying))
        refused = session.accounts.refusals(session.gangs.requests_of(steps))
        session.accounts.undo(before)
        return bool(refused)

    def is_eligible(self, pending_group: PendingGroup, victim: Workload) -> bool:
        """Groups may make way that a rule selects, and those that the queue lets go by itself."""
        accounts, group = self.session.accounts, pending_group.group
        mine, theirs = self._work(pending_group.workload), self._work(victim)
        if mine is None or theirs is None:
            return False
        if mine.queue == theirs.queue and theirs.priority < mine.priority and not accounts.preempt_refusal(group):
            return True
        return accounts.is_selected(mine, theirs, self._triggers)

    def refusal(self, requests: GroupRequests) -> tuple[Reason, ...]:
        """Nothing is in the way but the rules themselves."""
        return ()

    def _work(self, workload: Workload) -> RuledWork | None:
        """Return a group as rules see it; None for one of no queue."""
        key = workload.group.key
        if key not in self._works:
            members = [*workload.active.values(), *workload.waiting.values()]
            oldest = min((one.pod for one in members), key=lambda pod: (pod.created_at, pod.name), default=None)
            labels = {} if oldest is None else oldest.labels
            self._works[key] = self.session.accounts.ruled(workload.group, labels)
        return self._works[key]

    def _kind(self, pending_group: PendingGroup) -> object:
        return pending_group.key, self._triggers

    def _attempt(self, steps: Steps, class_counts: object) -> object:
        return tuple(pending_group.key for pending_group, _ in steps), self._triggers

    def _eligible(self, pending_group: PendingGroup) -> Sequence[Workload]:
        return [one for one in self.session.running_groups.workloads if self.is_eligible(pending_group, one)]

    def _any_eligible(self, pending_group: PendingGroup) -> bool:
        return any(self.is_eligible(pending_group, one) for one in self.session.running_groups.workloads)
