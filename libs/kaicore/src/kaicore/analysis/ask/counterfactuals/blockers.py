"""Running groups that would have to leave for a pod to fit, and whether a cycle may evict them by the engine's own
rules.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kaicore.analysis.ask.counterfactuals.asked import Asked
from kaicore.analysis.ask.counterfactuals.reason_details import frees
from kaicore.rules.engine.actions.eviction import EvictionAction, Preempt, Reclaim
from kaicore.rules.engine.config import Action
from kaicore.rules.engine.work.gang_planner import Steps
from kaicore.rules.engine.work.workload import Workload
from kaicore.rules.events.reasons.base import time_text
from kaicore.rules.queues.cycle_queues import GroupRequests

#: Groups that are shown.
MOST_BLOCKERS = 5


@dataclass(frozen=True, slots=True)
class Blocker:
    """A running group in the way.

    Attributes:
        frees: what it holds of what is asked for, in words.
        may_leave: whether a cycle may evict it for the pod.
        because: by which action it may, or why it may not.
        suffices: whether the pod fits after its end alone, as it was tried; else it is on the closest node.
    """

    workload: Workload
    frees: str
    may_leave: bool
    because: tuple[str, ...]
    suffices: bool


def blockers(asked: Asked) -> list[Blocker]:
    """Return the groups that block the pod: it fits after the end of any one of them; else those on the closest node.

    Nothing where no end helps: the pod waits for something else.
    """
    nomination = asked.entry.nomination
    if nomination is not None:
        held = asked.state.charges.held_on(nomination.node)
        keys = dict.fromkeys(one.group for one in held if one.leaving and one.group != asked.entry.group)
        workloads = asked.state.workload_index.workloads
        reason = f"is leaving {nomination.node}, where room is kept for it"
        return [Blocker(workloads[key], _frees(asked, workloads[key]), True, (reason,), True) for key in sorted(keys)]
    ends = asked.remedies.ends(asked.entry.group, most=MOST_BLOCKERS)
    groups = ends or _on_closest_node(asked)
    rules = _Rules(asked)
    return [_blocker(asked, one, rules, suffices=bool(ends)) for one in groups]


def _on_closest_node(asked: Asked) -> list[Workload]:
    """Return the groups on the node that is closest to taking the pod, where that is a matter of room."""
    if not asked.obstacles or not asked.obstacles[0].reasons:
        return []
    first = asked.obstacles[0]
    if any(reason.lasting for reason in first.reasons):
        return []
    workloads = asked.state.workload_index.workloads
    held = asked.state.charges.held_on(asked.columns.names[first.row])
    others = (one for one in held if not asked.state.shared_gpus.is_reservation(one.pod.uid))
    keys = dict.fromkeys(one.group for one in others if one.group in workloads and one.group != asked.entry.group)
    return [workloads[key] for key in sorted(keys)][:MOST_BLOCKERS]


def _blocker(asked: Asked, workload: Workload, rules: "_Rules", *, suffices: bool) -> Blocker:
    objections = tuple(rules.objections(workload))
    allowing = tuple(rules.allowing(workload)) if not objections else ()
    return Blocker(workload, _frees(asked, workload), bool(allowing), objections or allowing, suffices)


def _frees(asked: Asked, workload: Workload) -> str:
    return frees(asked, (*workload.active.values(), *workload.leaving.values()))


class _Rules:
    """The evicting actions' findings about victims for one waiting group."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._session = asked.session
        self._pending = self._session.pending_groups.get(asked.entry.group)
        steps: Steps = [] if self._pending is None else self._session.gangs.joint_steps(self._pending)[0]
        self._requests: GroupRequests = self._session.gangs.requests_of(steps)
        kinds: dict[Action, type[EvictionAction]] = {Action.PREEMPT: Preempt, Action.RECLAIM: Reclaim}
        self._actions = {one: kind(self._session) for one, kind in kinds.items() if one in asked.config.actions}

    def allowing(self, victim: Workload) -> Iterator[str]:
        """Yield the actions that may evict a group."""
        for action in self._actions.values():
            if self._pending is not None and action.is_eligible(self._pending, victim):
                yield f"may be evicted ({action.reason})"

    def objections(self, victim: Workload) -> Iterator[str]:  # long: one line or two for each rule
        """Yield why a group may not be evicted for the waiting one; nothing where it may."""
        asked, session, pending = self._asked, self._session, self._pending
        if pending is None:
            return
        if not victim.active:
            yield "is ending already"
            return
        accounts, group, theirs = session.accounts, pending.group, victim.group
        first = next(iter(victim.active.values()))
        if first.pod.scheduler_name != asked.config.scheduler_name:
            yield f"is of another scheduler: {first.pod.scheduler_name}"
            return
        if not theirs.preemptible:
            yield "cannot be preempted"
        same = accounts.queue_of(theirs) == accounts.queue_of(group)
        action = self._actions.get(Action.PREEMPT if same else Action.RECLAIM)
        if action is None:
            yield f"{'preempt' if same else 'reclaim'} is switched off"
            return
        if same and theirs.priority >= group.priority:
            yield f"its priority {theirs.priority} is not below {group.priority}"
        elif not action.is_eligible(pending, victim):
            yield f"queue {accounts.queue_of(group)} takes nothing from {accounts.queue_of(theirs)}"
        for reason in action.refusal(self._requests):
            yield str(reason)
        yield from self._of_shares(action, victim)
        until = victim.started_at + accounts.min_runtime_us(theirs, for_group=group)
        if asked.state.recorded_at < until:
            yield f"its minimum runtime lasts until {time_text(until)}"
        members = list(victim.active.values())
        for keys in sorted(session.budgets.refusing(members)):
            allowed = min(session.budgets.allowed(key) for key in keys)
            yield f"PodDisruptionBudget {', '.join(keys)} allows {allowed} disruptions now"

    def _of_shares(self, action: EvictionAction, victim: Workload) -> Iterator[str]:
        accounts = self._session.accounts
        before = accounts.savepoint()
        for group, request in self._requests:
            accounts.charge(group, request)
        if not action.may_evict(self._requests, victim):
            yield f"queue {accounts.queue_of(victim.group)} uses no more than its share"
        accounts.undo(before)
