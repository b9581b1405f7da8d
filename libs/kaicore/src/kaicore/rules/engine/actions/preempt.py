"""The actions that have running pods evicted so that something can start: consolidate, reclaim, preempt.

They differ in whom they may evict, and all keep the same rules (`facts/kai-scheduler.md` 3.5, seed
`koordinator-job-scheduling`, and what the peers break of them): nothing is evicted unless all that is to start at once
provably fits afterwards, zones included; a gang goes as a whole or keeps its minimum; budgets, minimum runtimes and
delays are honoured; the room is kept for the preemptor. What fits as soon as those who leave anyway are gone has
nobody evicted at all.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from kaicore.rules.engine.accounts import QueueAccounts
from kaicore.rules.engine.actions.queue_order import QueueOrder
from kaicore.rules.engine.config import PlacementStrategy
from kaicore.rules.engine.decisions import Eviction, EvictionReason
from kaicore.rules.engine.explain.reasons import Code
from kaicore.rules.engine.pending_group import PendingGroup
from kaicore.rules.engine.placement.placer import Assignment
from kaicore.rules.engine.session import Session
from kaicore.rules.engine.victims.candidates import Candidates
from kaicore.rules.engine.victims.moving import gain_of, is_scattered, obstacle
from kaicore.rules.engine.victims.room import Room, RoomSearch, Rule, Shortfall, Steps
from kaicore.rules.engine.victims.search import asked_of
from kaicore.rules.engine.workload import Member, Workload
from kaicore.rules.groups.membership import told_key
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts
from kaicore.rules.queues.cycle_queues import Asked
from kaicore.rules.reasons.reason import Reason


def consolidate(session: Session) -> None:
    """Move running pods so that something fits; whoever is moved has another place.

    Not where any pods are to be spread: it would pack what spreading has apart.
    """
    config = session.config
    packed = all(config.strategy(devices=devices) is PlacementStrategy.BINPACK for devices in (True, False))
    if config.consolidate_groups and packed:
        _run(session, _CONSOLIDATE)


def reclaim(session: Session) -> None:
    """Take back from other queues what they use beyond their due."""
    _run(session, _RECLAIM)


def preempt(session: Session) -> None:
    """Make way for higher priority within a queue."""
    _run(session, _PREEMPT)


def _run(session: Session, rule: Rule) -> None:
    action = _Action(session, rule)
    turns = [turn for turn in session.turns.values() if not turn.nominated and any(turn.queues.values())]
    order, growing = QueueOrder(session, turns), set[str]()
    while (turn := order.next()) is not None:
        key = turn.workload.group.key
        if turn.nominated and key not in growing:
            continue
        if action.make_room(turn):
            if turn.workload.satisfied(turn.workload.counts):
                # What is above a minimum that it has already follows pod by pod.
                growing.add(key)
                order.again(turn)
            # Evicting brings the victims' queues forward.
            order.renew()


class _Action:
    """One of the actions at work."""

    def __init__(self, session: Session, rule: Rule) -> None:
        self._session = session
        self._rule = rule
        self._pools: dict[tuple[str, int], Candidates] = {}
        self._failed: dict[object, _Failure] = {}
        #: Whether a queue's work of some priority has anybody to evict.
        self._victims: dict[tuple[str, int], bool] = {}

    def make_room(self, turn: PendingGroup) -> bool:
        """Make room for what a group is to start next; otherwise leave the reasons with it."""
        session, rule = self._session, self._rule
        steps, _ = session.steps_with(turn)
        if not steps or any(other.nominated for other, _ in steps if other is not turn):
            return False
        group = turn.workload.group
        queue = session.accounts.queue_of(group)
        kinds = Counter(session.key_of(member) for _, step in steps for member in step.members)
        if any(session.never_fits(key) for key in kinds):
            return False
        if refusal := _own_refusal(session, steps):
            self._tell(turn, refusal)
            return False
        if rule.moves and not is_scattered(session, steps):
            return False
        # Of one queue, who comes later has no more victims than who came before, but for those whom that one kept.
        workloads = session.given.workloads
        own = session.started_with([turn.workload.group.key for turn, _ in steps])
        kept = tuple(sorted(key for key in own if key in workloads and workloads[key].active))
        attempt = (queue, tuple(sorted(kinds.items())), group.preemptible, kept)
        if attempt not in self._failed:
            if session.steps_left <= 0:
                self._tell(turn, (_SEARCH_ENDED,))
                return False
            if refusal := _refusal(session, rule, steps):
                self._tell(turn, refusal)
                return False
            pool = self._pools.get((queue, group.priority))
            if pool is None:
                pool = self._pools[queue, group.priority] = _candidates(session, rule, turn)
            shortfall = _make_room(session, rule, steps, pool)
            if shortfall is None:
                return True
            self._failed[attempt] = _Failure(pool, shortfall)
        failure = self._failed[attempt]
        if group.priority not in failure.said:
            failure.said[group.priority] = self._in_the_way(steps, failure)
        self._tell(turn, failure.said[group.priority])
        return False

    def _tell(self, turn: PendingGroup, reasons: tuple[Reason, ...]) -> None:
        """Leave reasons with a group for which there might be anybody to evict."""
        if reasons and (self._anybody(turn) or (self._rule.moves and self._kept_back)):
            turn.reasons = (*turn.reasons, *(reason for reason in reasons if reason not in turn.reasons))

    def _in_the_way(self, steps: Steps, failure: "_Failure") -> tuple[Reason, ...]:
        """Say why a search found nobody for a group: what protects those who might have helped."""
        session, rule = self._session, self._rule
        turn, _ = steps[0]

        def eligible(victim: Workload) -> bool:
            return rule.eligible(session, turn, victim)

        reasons = []
        if rule.moves:
            reasons += [*_unmoved(session, steps, failure.shortfall), *self._kept_back]
        elif self._anybody(turn):
            reasons.append(Reason(code=Code.NO_VICTIMS, detail=rule.reason))
        budgets, queues, asked = session.budgets, session.accounts, asked_of(session, steps)
        for keys in sorted(failure.shortfall.budgets):
            if under := budgets.under(keys, failure.pool.members(eligible)):
                code = Code.DISRUPTION_BUDGET if len(keys) == 1 else Code.DISRUPTION_BUDGETS
                free = budgets.allowed(keys[0]) if len(keys) == 1 else 0
                reasons.append(Reason(code=code, detail=", ".join(keys), need=under, free=free))
        accounts = queues.savepoint()
        for group, request in asked:
            queues.charge(group, request)
        protected, until = failure.pool.protected(
            lambda victim: eligible(victim) and rule.may_evict(queues, asked, victim)
        )
        queues.undo(accounts)
        if protected:
            session.due(until)
            reasons.append(Reason(code=Code.MINIMUM_RUNTIME, need=protected, until=until))
        return tuple(reasons)

    @cached_property
    def _kept_back(self) -> tuple[Reason, ...]:
        """Say which running pods are not moved, whatever it would be good for.

        How many is not said: it changes all the time, and with it what is recorded of all who wait.
        """
        session = self._session
        examples: dict[Code, str] = {}
        ends: dict[Code, int] = {}
        for workload in _running(session):
            found = obstacle(session, workload)
            if found is not None:
                code, until = found
                names = [member.pod.subject for member in workload.active.values()]
                examples[code] = min([*names, examples.get(code, names[0])])
                ends[code] = min(until, ends.get(code, until))
        for until in filter(None, ends.values()):
            session.due(until)
        return tuple(Reason(code=code, example=examples[code], until=ends[code]) for code in sorted(examples))

    def _anybody(self, turn: PendingGroup) -> bool:
        """Whether there is anybody who might make way for a group, if it may have somebody evicted."""
        group = turn.workload.group
        key = self._session.accounts.queue_of(group), group.priority
        if key not in self._victims:
            self._victims[key] = next(_eligible(self._session, self._rule, turn), None) is not None
        return self._victims[key]


@dataclass(slots=True)
class _Failure:
    """A search that found nothing.

    Attributes:
        pool: among whom.
        shortfall: why.
        said: what there is to be said of it, by the priority of who looks for victims.
    """

    pool: Candidates
    shortfall: Shortfall
    said: dict[int, tuple[Reason, ...]] = field(default_factory=dict)


_SEARCH_ENDED = Reason(code=Code.SEARCH_ENDED)
_NEVER_PREEMPTS = Reason(code=Code.NEVER_PREEMPTS)


def _own_refusal(session: Session, steps: Steps) -> tuple[Reason, ...]:
    """Say what of a group itself keeps it from having anybody evicted."""
    now = session.given.now
    for turn, step in steps:
        if any(member.pod.preemption_policy == "Never" for member in step.members):
            return (_NEVER_PREEMPTS,)
        group = turn.workload.group
        until = max(group.created_at * 1_000_000, turn.workload.evicted_at) + group.preemption_delay_us
        if now < until:
            session.due(until)
            return (Reason(code=Code.PREEMPTION_DELAY, until=until),)
    return ()


def _running(session: Session) -> Iterator[Workload]:
    """Return the groups that run, are ours and may be preempted."""
    for workload in session.given.workloads.values():
        if workload.active and workload.group.preemptible:
            first = next(iter(workload.active.values()))
            if first.pod.scheduler_name == session.config.scheduler_name:
                yield workload


def _eligible(session: Session, rule: Rule, turn: PendingGroup) -> Iterator[Workload]:
    """Return who might make way for a group, by what both are."""
    return (workload for workload in _running(session) if rule.eligible(session, turn, workload))


def _unmoved(session: Session, steps: Steps, shortfall: Shortfall) -> Iterator[Reason]:
    """Say why nothing was moved for steps."""
    if shortfall.stuck:
        yield Reason(code=Code.NO_OTHER_PLACE, need=len(shortfall.stuck), example=told_key(min(shortfall.stuck)))
    if shortfall.failing:
        yield Reason(code=Code.JOB_WOULD_FAIL, need=len(shortfall.failing), example=told_key(min(shortfall.failing)))
    if shortfall.groups:
        free = session.config.consolidate_groups
        yield Reason(code=Code.TOO_MANY_MOVES, need=shortfall.groups, free=free)
    if shortfall.cost:
        yield Reason(code=Code.NOT_WORTH_MOVING, need=shortfall.cost, free=gain_of(session, steps))
    if shortfall == Shortfall(budgets=shortfall.budgets):
        yield Reason(code=Code.NO_MOVE)


def _candidates(session: Session, rule: Rule, turn: PendingGroup) -> Candidates:
    group, workloads = turn.workload.group, list(_eligible(session, rule, turn))
    ends = {
        workload.group.key: workload.started_at + session.accounts.min_runtime_us(workload.group, for_group=group)
        for workload in workloads
    }
    protected = {key: until for key, until in ends.items() if session.given.now < until}
    return Candidates(session, workloads, protected=protected)


def _lower(session: Session, steps: Steps) -> list[PendingGroup]:
    """Return the groups whose room steps may take."""
    return session.reserved(below=min(turn.workload.group.priority for turn, _ in steps))


def _refusal(session: Session, rule: Rule, steps: Steps) -> tuple[Reason, ...]:
    """Say why an action may not be taken for steps, whoever there is to be evicted."""
    accounts = session.accounts.savepoint()
    session.off_accounts(_lower(session, steps))
    refusal = rule.refusal(session.accounts, asked_of(session, steps))
    session.accounts.undo(accounts)
    return refusal


def _make_room(session: Session, rule: Rule, steps: Steps, pool: Candidates) -> Shortfall | None:
    """Look for victims, and decide on what is found; otherwise return why there is nothing."""
    lower = _lower(session, steps)
    trail = session.future.trail
    savepoint, accounts = trail.savepoint(), session.accounts.savepoint()
    session.lift(lower, future=True)
    session.off_accounts(lower)
    search = RoomSearch(session, rule, steps, pool, kept=session.kept_besides(lower))
    room = search.run()
    session.accounts.undo(accounts)
    if room is None:
        trail.rollback(savepoint)
        return search.shortfall
    _take_room(session, rule, steps, room, lower)
    return None


def _take_room(session: Session, rule: Rule, steps: Steps, room: Room, lower: list[PendingGroup]) -> None:
    """Decide that the victims go and what they leave is kept for what is to start."""
    units = room.found.units
    for unit in units:
        for released, held in unit.held_by(session):
            session.accounts.release(released, held)
    preemptor = steps[0][0].workload.group.key
    ended = {key for unit in units if not unit.shrinks for key in unit.groups}
    evictions = [
        (member, _eviction(session, rule, member, preemptor=preemptor, ended=ended, places=room.places))
        for unit in units
        for member in unit.members
    ]
    lifted = session.lift(lower)
    session.nominated(steps, room.found.spots, evictions, lifted)


def _eviction(
    session: Session,
    rule: Rule,
    member: Member,
    *,
    preemptor: str,
    ended: set[str],
    places: dict[str, Assignment],
) -> Eviction:
    spot = places.get(member.pod.uid)
    return Eviction(
        uid=member.pod.uid,
        namespace=member.pod.namespace,
        name=member.pod.name,
        node=member.node,
        group=member.group,
        reason=rule.reason,
        preemptor=preemptor,
        shrinks=member.group not in ended,
        fits_on="" if spot is None else session.trail.columns.names[spot.row],
        failures_left=session.failures.left(member),
    )


def _same_queue_and_lower(session: Session, turn: PendingGroup, victim: Workload) -> bool:
    group = turn.workload.group
    accounts = session.accounts
    return victim.group.priority < group.priority and accounts.queue_of(victim.group) == accounts.queue_of(group)


def _other_queue(session: Session, turn: PendingGroup, victim: Workload) -> bool:
    return session.accounts.reclaims_from(turn.workload.group, victim.group)


def _movable(session: Session, turn: PendingGroup, victim: Workload) -> bool:
    return obstacle(session, victim) is None


def _bound_in_the_way(queues: QueueAccounts, asked: Asked) -> tuple[Reason, ...]:
    refusals: list[Reason] = []
    before = queues.savepoint()
    for group, request in asked:
        refusals += queues.refusal(group, request)
        queues.charge(group, request)
    queues.undo(before)
    return tuple(refusals)


def _beyond_share(queues: QueueAccounts, asked: Asked) -> tuple[Reason, ...]:
    return queues.reclaim_refusal(asked)


def _not_within(queues: QueueAccounts, asked: Asked) -> tuple[Reason, ...]:
    return tuple(reason for group, _ in asked for reason in queues.preempt_refusal(group))


def _always(queues: QueueAccounts, asked: Asked, victim: Workload) -> bool:
    return True


def _reclaimable(queues: QueueAccounts, asked: Asked, victim: Workload) -> bool:
    return queues.may_reclaim(asked, victim.group)


def _any_exchange(queues: QueueAccounts, asked: Asked, victims: Asked) -> tuple[Reason, ...]:
    return ()


def _fair_exchange(queues: QueueAccounts, asked: Asked, victims: Asked) -> tuple[Reason, ...]:
    return queues.exchange_refusal(asked, victims)


def _keeps_quotas(queues: QueueAccounts, asked: Asked, victim: Group, held: Amounts) -> bool:
    return queues.keeps_quotas(asked, victim, held)


_CONSOLIDATE = Rule(
    EvictionReason.CONSOLIDATED, _movable, _bound_in_the_way, _always, exchange=_any_exchange, moves=True
)
_RECLAIM = Rule(
    EvictionReason.RECLAIMED,
    _other_queue,
    _beyond_share,
    _reclaimable,
    exchange=_fair_exchange,
    spares=_keeps_quotas,
)
_PREEMPT = Rule(EvictionReason.PREEMPTED, _same_queue_and_lower, _not_within, _always, exchange=_any_exchange)
