"""The action that evicts together what the other actions evict each for itself, and what rules of preemption select.

Preempt evicts work of the same queue, Reclaim what other queues owe. Where neither makes room alone, both together may,
as in Kueue: so it is for work of ClusterQueues that may do both.

The rules are those of the PreemptionConfig that a ClusterQueue names (`kaicore.rules.queues.preemption_rules`). Rules
with `Always` come first. While the quotas do not suffice, those with `InsufficientQuota` follow; once they do, those
with `QuotaFeasibleAndInsufficientTopology`. All else is as for the other evicting actions: the step provably fits,
gangs go as a whole, budgets and minimum runtimes are kept. Each eviction has its own ground.

Source: Kueue 0.20 (ConfigurablePreemptions is alpha), `pkg/scheduler/preemption`. There candidates of rules come after
all others, and what is not needed stays; here the cheapest of all go.
"""

from collections import Counter
from collections.abc import Sequence

from kaicore.rules.engine.actions.action import GroupOrder
from kaicore.rules.engine.actions.eviction import EvictionAction
from kaicore.rules.engine.config import Action
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.victims.candidates import Candidates
from kaicore.rules.engine.work.gang_planner import Steps
from kaicore.rules.engine.work.pending_group import PendingGroup
from kaicore.rules.engine.work.workload import Workload
from kaicore.rules.events.reasons.queue import PreemptionRuleUnsupported, VictimWithinShare
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.queue import CLUSTER_QUEUE_PREFIX, Queue
from kaicore.rules.queues.cycle_queues import GroupRequests
from kaicore.rules.queues.preemption_rules import ALWAYS, PRIORITY_CLASS_LABEL, QUOTA, TOPOLOGY, RuledWork


class PreemptTogether(EvictionAction):
    """Evict pods of lower priority of the same queue, pods that other queues owe, and pods that rules select."""

    action = Action.PREEMPT
    reason = EvictionReason.PREEMPTED_BY_RULE
    spares_quotas = True

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        #: The group that needs room, and the triggers of the rules that count for it now.
        self._asking: PendingGroup | None = None
        self._triggers: tuple[str, ...] = ()
        self._works: dict[str, RuledWork | None] = {}
        self._rulings: dict[tuple[str, str, tuple[str, ...]], str] = {}
        #: See `_own_held`.
        self._own: dict[tuple[object, int], GroupRequests] = {}

    def run(self) -> None:
        """See `EvictionAction`; groups with rules are looked at each for itself, because rules go by labels."""
        session, queue_of = self.session, self.session.accounts.queue_of
        tree = session.accounts.accounts.tree
        ruled = {queue.name for number, queue in enumerate(tree.queues) if tree.rules_of(number)}
        of_kueue = (one for one in tree.queues if one.name.startswith(CLUSTER_QUEUE_PREFIX))
        both = {one.name for one in of_kueue if one.parent and one.may_preempt and self._may_take_back(one)} - ruled
        if not ruled and not both:
            return
        apart, in_lines = self.wanting()
        groups = [one for line in in_lines if line.queue in ruled for one in session.pending_groups.make(line)]
        groups += [one for one in apart if queue_of(one.group) in ruled]
        if groups:
            self.serve(GroupOrder(session, groups), None)
        apart = [one for one in apart if queue_of(one.group) in both]
        self.serve_all(apart, [line for line in in_lines if line.queue in both])

    def make_room(self, pending_group: PendingGroup) -> bool:
        """See `EvictionAction`; by one trigger of rules after the other."""
        self._asking, self._triggers = pending_group, ()
        rules, before = self.session.accounts.rules_of(pending_group.group), pending_group.reasons
        if not rules:
            # Preempt and Reclaim have left their reasons.
            made = self.might_help(pending_group) and self._takes_back() and super().make_room(pending_group)
            pending_group.reasons = before
            return made
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
        """Tell whether quotas would not admit a group if all were gone that may go as things stand."""
        accounts = self.session.accounts
        steps, _ = self.session.gangs.joint_steps(pending_group)
        requests = self.session.gangs.requests_of(steps)
        before = accounts.savepoint()
        for group, request in requests:
            accounts.charge(group, request)
        for workload in sorted(self._eligible(pending_group), key=self._is_let_go):
            if self._is_let_go(workload) or accounts.may_reclaim(requests, workload.group):
                accounts.release(workload.group, self._held(workload))
        for group, request in requests:
            accounts.release(group, request)
        refused = accounts.refusals(requests)
        accounts.undo(before)
        return bool(refused)

    def is_eligible(self, pending_group: PendingGroup, victim: Workload) -> bool:
        """Groups may make way that a rule selects, and those that the other actions evict."""
        return self._is_let_go(victim) or self._is_owing(victim)

    def ground(self, victim: Workload) -> tuple[EvictionReason, str]:
        """See `EvictionAction`: a rule where neither the queue itself nor what is owed to it lets a group go."""
        if self._is_own(victim):
            return EvictionReason.PREEMPTED, ""
        rule = self._ruling(victim)
        return (self.reason, rule) if rule else (EvictionReason.RECLAIMED, "")

    def refusal(self, requests: GroupRequests) -> tuple[Reason, ...]:
        """Nothing is in the way but the rules themselves."""
        return ()

    def owes(self, victim: Workload) -> bool:
        """See `VictimRules`."""
        return not self._is_let_go(victim)

    def may_evict(self, requests: GroupRequests, victim: Workload) -> bool:
        """See `VictimRules`; in which order a search comes to victims makes no difference.

        So the own queue is taken to be without all that it may let go, and what rules let go of others to be there.
        """
        if self._is_let_go(victim):
            return True
        accounts, candidates = self.session.accounts, self._candidates_for(self._asked)
        before = accounts.savepoint()
        for group, held in self._own_held(candidates):
            accounts.release(group, held)
        for key in +candidates.taken:
            workload = candidates.workloads[key]
            if self._is_let_go(workload):
                accounts.charge(workload.group, self._held(workload, but=candidates))
        allowed = accounts.may_reclaim(requests, victim.group)
        for group, request in requests:
            accounts.release(group, request)
        allowed = allowed and not accounts.reclaim_refusal(requests)
        accounts.undo(before)
        return allowed

    def keeps_quota(self, requests: GroupRequests, victim: Group, held: Amounts) -> bool:
        """See `VictimRules`."""
        workload = self.session.cycle_input.workloads[victim.key]
        return self._is_let_go(workload) or self.session.accounts.keeps_quotas(requests, victim, held)

    def exchange_refusal(self, requests: GroupRequests, victims: GroupRequests) -> tuple[Reason, ...]:
        """All that is taken back must be owed, once all is gone that the own queue lets go."""
        accounts, workloads = self.session.accounts, self.session.cycle_input.workloads
        owed = [(group, held) for group, held in victims if not self._is_let_go(workloads[group.key])]
        if not owed:
            return ()
        before = accounts.savepoint()
        for group, held in victims:
            if self._is_of_own_queue(workloads[group.key]):
                accounts.release(group, held)
        if accounts.reclaim_refusal(requests):
            refused: tuple[Reason, ...] = tuple(VictimWithinShare(queue=accounts.queue_of(group)) for group, _ in owed)
        else:
            refused = accounts.exchange_refusal(requests, owed)
        accounts.undo(before)
        return refused

    def _takes_back(self) -> bool:
        """Tell whether the queue may take anything back once all is gone that it may let go itself."""
        session, accounts = self.session, self.session.accounts
        steps, _ = session.gangs.joint_steps(self._asked)
        before = accounts.savepoint()
        for group, held in self._own_held(self._candidates_for(self._asked)):
            accounts.release(group, held)
        refused = accounts.reclaim_refusal(session.gangs.requests_of(steps))
        accounts.undo(before)
        return not refused

    def _own_held(self, candidates: Candidates) -> GroupRequests:
        """Return what the own queue may let go before a search: the sum, with one of the groups that hold it."""
        key = self._kind(self._asked), len(self.session.record.evicted)
        if key not in self._own:
            self._own[key] = self.held_by([one for one in candidates.workloads.values() if self._is_of_own_queue(one)])
        return self._own[key]

    def _held(self, workload: Workload, *, but: Candidates | None = None) -> Amounts:
        """Return what pods of a group hold that the cycle has not decided to evict.

        Args:
            but: only of those that a search has taken from these; None for all.
        """
        evicted = self.session.record.evicted
        staying = (one for uid, one in workload.active.items() if uid not in evicted)
        return self.session.pods.requests_of(one for one in staying if but is None or not but.has(one))

    # What a group is to the one that needs room.

    @property
    def _asked(self) -> PendingGroup:
        assert self._asking is not None
        return self._asking

    def _is_let_go(self, victim: Workload) -> bool:
        """Tell whether a group may go whatever its queue holds: by its own queue's settings, or by a rule."""
        return self._is_own(victim) or bool(self._ruling(victim))

    def _is_own(self, victim: Workload) -> bool:
        group = self._asked.group
        lower = victim.group.priority < group.priority and self._is_of_own_queue(victim)
        return lower and not self.session.accounts.preempt_refusal(group)

    def _is_owing(self, victim: Workload) -> bool:
        accounts, group = self.session.accounts, self._asked.group
        queue = accounts.payer(group)
        if queue is None or not self._may_take_back(queue) or not accounts.reclaims_from(group, victim.group):
            return False
        return accounts.is_over_quota(victim.group, beside=group)

    def _may_take_back(self, queue: Queue) -> bool:
        return queue.may_reclaim and Action.RECLAIM in self.session.config.actions

    def _is_of_own_queue(self, victim: Workload) -> bool:
        accounts = self.session.accounts
        return accounts.queue_of(victim.group) == accounts.queue_of(self._asked.group)

    def _ruling(self, victim: Workload) -> str:
        if not self._triggers:
            return ""
        key = self._asked.key, victim.group.key, self._triggers
        if key not in self._rulings:
            mine, theirs = self._work(self._asked.workload), self._work(victim)
            if mine is None or theirs is None:
                self._rulings[key] = ""
            else:
                self._rulings[key] = self.session.accounts.ruling(mine, theirs, self._triggers)
        return self._rulings[key]

    def _work(self, workload: Workload) -> RuledWork | None:
        """Return a group as rules see it; None for one of no queue."""
        key = workload.group.key
        if key not in self._works:
            members = [*workload.active.values(), *workload.waiting.values()]
            oldest = min((one.pod for one in members), key=lambda pod: (pod.created_at, pod.name), default=None)
            labels = {} if oldest is None else oldest.labels
            if oldest is not None and oldest.priority_class:
                labels = {PRIORITY_CLASS_LABEL: oldest.priority_class, **labels}
            self._works[key] = self.session.accounts.ruled(workload.group, labels)
        return self._works[key]

    def _kind(self, pending_group: PendingGroup) -> object:
        return (pending_group.key if self._triggers else super()._kind(pending_group)), self._triggers

    def _attempt(self, steps: Steps, class_counts: Counter[str]) -> object:
        own = tuple(pending_group.key for pending_group, _ in steps)
        return (own if self._triggers else super()._attempt(steps, class_counts)), self._triggers

    def _eligible(self, pending_group: PendingGroup) -> Sequence[Workload]:
        self._asking, running = pending_group, self.session.running_groups
        if not self._triggers:
            return super()._eligible(pending_group)
        return [one for one in running.workloads if self.is_eligible(pending_group, one)]

    def _any_eligible(self, pending_group: PendingGroup) -> bool:
        """See `EvictionAction`: without rules, there must be groups of both kinds."""
        self._asking, running = pending_group, self.session.running_groups
        if not self._triggers:
            return running.any_where(self._is_own) and running.any_where(self._is_owing)
        return any(self.is_eligible(pending_group, one) for one in running.workloads)
