"""The first action: start what fits, by the order of queues and, within a queue, of groups.

A gang starts as a whole or not at all; what is above the minimum follows step by step, each behind the work of the
queues whose turn it then is.
"""

from collections import Counter
from collections.abc import Sequence

from kaicore.rules.engine.actions.queue_order import QueueOrder
from kaicore.rules.engine.explain.reasons import Code
from kaicore.rules.engine.pending_group import PendingGroup
from kaicore.rules.engine.session import Session
from kaicore.rules.engine.workload import Step
from kaicore.rules.reasons.reason import Reason


def allocate(session: Session) -> None:
    """Start what fits on what is free now."""
    order = QueueOrder(session, session.turns.values())
    tried = _Failures()
    while (turn := order.next()) is not None:
        if turn.blocked:
            continue
        steps, reasons = session.steps_with(turn)
        if not steps:
            turn.reasons, turn.blocked = reasons or turn.reasons, True
        elif _start(session, steps, tried):
            order.again(turn)
        else:
            key = turn.workload.group.key
            for other, _ in steps:
                # Whoever does not start only together with it may start all the same.
                other.blocked = other.blocked or other is turn or key in other.workload.group.together


class _Failures:
    """What was found not to fit. Nothing becomes free while a cycle allocates, so more of it will not fit either."""

    def __init__(self) -> None:
        self._least: dict[str, int] = {}
        self._others: set[tuple[tuple[str, int], ...]] = set()

    def known(self, kinds: Counter[str]) -> bool:
        """Tell whether so many pods by class are known not to fit."""
        if any(count >= self._least.get(key, count + 1) for key, count in kinds.items()):
            return True
        return len(kinds) > 1 and tuple(sorted(kinds.items())) in self._others

    def add(self, kinds: Counter[str]) -> None:
        """Note that so many pods by class do not fit."""
        if len(kinds) == 1:
            ((key, count),) = kinds.items()
            self._least[key] = min(count, self._least.get(key, count))
        else:
            self._others.add(tuple(sorted(kinds.items())))


def _start(session: Session, steps: list[tuple[PendingGroup, Step]], failures: _Failures) -> bool:
    """Place the pods of steps that start at once; otherwise leave the reasons with their groups."""
    members = [member for _, step in steps for member in step.members]
    kinds = Counter(session.key_of(member) for member in members)
    own, below = session.room_for(steps)
    known = not own and not below and failures.known(kinds)
    placed: int | None = None
    refusal: tuple[Reason, ...] = ()
    for lower in ([], below) if below else ([],):
        savepoint, accounts = session.trail.savepoint(), session.accounts.savepoint()
        lifted = session.lift([*own, *lower])
        refusal = _refusal(session, steps)
        if not refusal and not known:
            spots, stuck = session.place_all(members, session.placer)
            if stuck is None:
                if session.has_future:
                    session.lift([*own, *lower], future=True)
                session.started(steps, spots, lifted)
                return True
            placed = len(spots)
            pod_class = session.class_of(stuck)
            if pod_class.key not in session.class_reasons:
                session.class_reasons[pod_class.key] = session.placer.outlook(pod_class).reasons()
        session.trail.rollback(savepoint)
        session.accounts.undo(accounts)
    if refusal:
        for turn, _ in steps:
            turn.reasons = refusal
        return False
    lasting = placed is not None and not own
    if lasting and not any(session.placer.outlook(session.classes[key]).may_change for key in kinds):
        failures.add(kinds)
    _leave(session, steps, placed=placed)
    return False


def _refusal(session: Session, steps: Sequence[tuple[PendingGroup, Step]]) -> tuple[Reason, ...]:
    """Say why queues do not let steps start together; empty if they do."""
    before = session.accounts.savepoint()
    refusal: tuple[Reason, ...] = ()
    for turn, _ in steps:
        request = session.requests_of_step(turn)
        refusal = session.accounts.refusal(turn.workload.group, request)
        if refusal:
            break
        if len(steps) > 1:
            session.accounts.charge(turn.workload.group, request)
    session.accounts.undo(before)
    return refusal


def _leave(session: Session, steps: Sequence[tuple[PendingGroup, Step]], *, placed: int | None) -> None:
    wanted = sum(len(step.members) for _, step in steps)
    room = sum(member.nomination is not None for _, step in steps for member in step.members)
    classes = sorted({session.key_of(member) for _, step in steps for member in step.members})
    reasons = tuple(reason for key in classes for reason in session.class_reasons.get(key, ()))
    for turn, _ in steps:
        if turn.nominated:
            rows = sorted(member.nomination.node for member in turn.left if member.nomination is not None)
            first = Reason(code=Code.WAITS_FOR_VICTIMS, nodes=len(set(rows)), example=rows[0], need=room)
            turn.reasons = (first,)
        elif wanted > 1 and placed is not None:
            turn.reasons = (Reason(code=Code.GANG_SHORT, need=wanted, free=placed), *reasons)
        elif wanted > 1:
            turn.reasons = (Reason(code=Code.GANG_SHORT, need=wanted), *reasons)
        else:
            turn.reasons = reasons
