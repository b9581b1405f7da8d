"""The actions that have running pods evicted so that something can start: consolidate, reclaim, preempt.

They differ in whom they may evict, and all keep the same rules (`facts/kai-scheduler.md` 3.5, seed
`koordinator-job-scheduling`, and what the peers break of them): nothing is evicted unless all that is to start at once
provably fits afterwards, zones included; a gang goes as a whole or keeps its minimum; budgets, minimum runtimes and
delays are honoured; the room is kept for the preemptor. What fits as soon as those who leave anyway are gone has
nobody evicted at all.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kaicore.engine.accounts import QueueAccounts
from kaicore.engine.candidates import Candidates
from kaicore.engine.config import PlacementStrategy
from kaicore.engine.decisions import Eviction, EvictionReason
from kaicore.engine.placer import Spot
from kaicore.engine.reasons import Code
from kaicore.engine.session import Session
from kaicore.engine.turn import Turn
from kaicore.engine.victims import Found, Search, asked_of, charge_all
from kaicore.engine.workload import Member, Step, Workload
from kaicore.events.payloads import Reason
from kaicore.queues.cycle_queues import Asked

Steps = list[tuple[Turn, Step]]
#: See `Search.budgets`.
Refusing = set[tuple[str, ...]]

#: A search that has taken pods of so many times more groups than may be moved will not end with few enough.
_HOPE = 4
#: How many sets of victims are looked at until some can all move elsewhere.
_TRIES = 4


@dataclass(frozen=True, slots=True)
class _Rule:
    """What tells one action from another.

    Attributes:
        eligible: whether a running group may make way for a waiting one, by what both are.
        refusal: why the waiting one may not make use of it at all.
        may_evict: whether its queue lets a running group make way, as things stand with what is to start charged.
        exchange: why all that is to start may not take the place of all that would be evicted.
        replaced: whether every victim must find another place.
    """

    reason: EvictionReason
    eligible: Callable[[Session, Turn, Workload], bool]
    refusal: Callable[[QueueAccounts, Asked], tuple[Reason, ...]]
    may_evict: Callable[[QueueAccounts, Asked, Workload], bool]
    exchange: Callable[[QueueAccounts, Asked, Asked], tuple[Reason, ...]]
    replaced: bool = False


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


def _run(session: Session, rule: _Rule) -> None:
    action = _Action(session, rule)
    turns = [turn for turn in session.turns.values() if not turn.nominated and any(turn.queues.values())]
    for turn in sorted(turns, key=lambda turn: (session.queue_turn(turn), session.turn_order(turn))):
        if turn.nominated:
            continue
        while action.make_room(turn) and turn.workload.satisfied(turn.workload.counts):
            # What is above a minimum that it has already follows pod by pod.
            pass


class _Action:
    """One of the actions at work."""

    def __init__(self, session: Session, rule: _Rule) -> None:
        self._session = session
        self._rule = rule
        self._pools: dict[tuple[str, int], Candidates] = {}
        self._failed: dict[object, _Failure] = {}
        #: Whether a queue's work of some priority has anybody to evict.
        self._victims: dict[tuple[str, int], bool] = {}

    def make_room(self, turn: Turn) -> bool:
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
            budgets = _make_room(session, rule, steps, pool)
            if budgets is None:
                return True
            self._failed[attempt] = _Failure(pool, budgets)
        failure = self._failed[attempt]
        if group.priority not in failure.said:
            failure.said[group.priority] = self._in_the_way(steps, failure)
        self._tell(turn, failure.said[group.priority])
        return False

    def _tell(self, turn: Turn, reasons: tuple[Reason, ...]) -> None:
        """Leave reasons with a group for which there might be anybody to evict."""
        if reasons and self._anybody(turn):
            turn.reasons = (*turn.reasons, *(reason for reason in reasons if reason not in turn.reasons))

    def _in_the_way(self, steps: Steps, failure: "_Failure") -> tuple[Reason, ...]:
        """Say why a search found nobody for a group: what protects those who might have helped."""
        session, rule = self._session, self._rule
        turn, _ = steps[0]
        if not self._anybody(turn):
            return ()

        def eligible(victim: Workload) -> bool:
            return rule.eligible(session, turn, victim)

        reasons = [Reason(code=Code.NO_VICTIMS, detail=rule.reason)]
        budgets, queues, asked = session.budgets, session.accounts, asked_of(session, steps)
        for keys in sorted(failure.budgets):
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
        # Whom nobody is moved for has somebody evicted by the other actions, or is told why not.
        return () if rule.replaced else tuple(reasons)

    def _anybody(self, turn: Turn) -> bool:
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
        budgets: PodDisruptionBudgets that kept any of them.
        said: what there is to be said of it, by the priority of who looks for victims.
    """

    pool: Candidates
    budgets: Refusing
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


def _eligible(session: Session, rule: _Rule, turn: Turn) -> Iterator[Workload]:
    """Return who might make way for a group, by what both are."""
    for workload in session.given.workloads.values():
        if not workload.active or not workload.group.preemptible:
            continue
        first = next(iter(workload.active.values()))
        if first.pod.scheduler_name == session.config.scheduler_name and rule.eligible(session, turn, workload):
            yield workload


def _candidates(session: Session, rule: _Rule, turn: Turn) -> Candidates:
    group, workloads = turn.workload.group, list(_eligible(session, rule, turn))
    ends = {
        workload.group.key: workload.started_at + session.accounts.min_runtime_us(workload.group, for_group=group)
        for workload in workloads
    }
    protected = {key: until for key, until in ends.items() if session.given.now < until}
    return Candidates(session, workloads, protected=protected)


def _lower(session: Session, steps: Steps) -> list[Turn]:
    """Return the groups whose room steps may take."""
    return session.reserved(below=min(turn.workload.group.priority for turn, _ in steps))


def _refusal(session: Session, rule: _Rule, steps: Steps) -> tuple[Reason, ...]:
    """Say why an action may not be taken for steps, whoever there is to be evicted."""
    accounts = session.accounts.savepoint()
    session.off_accounts(_lower(session, steps))
    refusal = rule.refusal(session.accounts, asked_of(session, steps))
    session.accounts.undo(accounts)
    return refusal


def _make_room(session: Session, rule: _Rule, steps: Steps, pool: Candidates) -> Refusing | None:
    """Look for victims, and decide on what is found; otherwise return the budgets that kept any of them."""
    budgets: Refusing = set()
    lower = _lower(session, steps)
    trail = session.future.trail
    savepoint, accounts = trail.savepoint(), session.accounts.savepoint()
    session.lift(lower, future=True)
    session.off_accounts(lower)
    found, places = _search(session, rule, steps, pool, kept=session.kept_besides(lower), budgets=budgets)
    session.accounts.undo(accounts)
    if found is None:
        trail.rollback(savepoint)
        return budgets
    for unit in found.units:
        for released, held in unit.held_by(session):
            session.accounts.release(released, held)
    preemptor = steps[0][0].workload.group.key
    ended = {key for unit in found.units if not unit.shrinks for key in unit.groups}
    evictions = [
        (member, _eviction(session, rule, member, preemptor=preemptor, ended=ended, places=places))
        for unit in found.units
        for member in unit.members
    ]
    lifted = session.lift(lower)
    session.nominated(steps, found.spots, evictions, lifted)
    return None


def _search(
    session: Session, rule: _Rule, steps: Steps, pool: Candidates, *, kept: Sequence[Spot], budgets: Refusing
) -> tuple[Found | None, dict[str, Spot]]:
    """Look for victims that may be exchanged for what is to start; returns them, and where their successors fit.

    They are off the future's columns and budgets then, and the successors on the columns. Without any, what is on the
    columns is the caller's to undo. The accounts are left as they are. `budgets` gets those that kept anybody.
    """
    queues, trail = session.accounts, session.future.trail
    asked = asked_of(session, steps)
    refused: list[Reason] = []
    unmovable: set[str] = set()

    def may_evict(victim: Workload) -> bool:
        if victim.group.key in unmovable or (refused and queues.is_about(refused, victim.group)):
            return False
        return rule.may_evict(queues, asked, victim)

    tries = 1
    while True:
        accounts, savepoint = queues.savepoint(), trail.savepoint()
        search = Search(
            session,
            pool,
            steps,
            may_evict=may_evict,
            kept=kept,
            most_groups=_HOPE * session.config.consolidate_groups if rule.replaced else None,
        )
        found = search.run()
        budgets |= search.budgets
        queues.undo(accounts)
        if found is None:
            return None, {}
        victims = [part for unit in found.units for part in unit.held_by(session)]
        again = rule.exchange(queues, asked, victims)
        stuck: set[str] = set()
        if not again:
            places, stuck = _replace(session, asked, found)
            if not rule.replaced or not (stuck or _too_many(session, found)):
                return found, places
        search.give_up(found)
        trail.rollback(savepoint)
        # Once more without those for whom it will not do, if that is not all the same.
        if not (stuck and tries < _TRIES) and not any(queues.is_about(again, group) for group, _ in victims):
            return None, {}
        unmovable |= stuck
        refused.extend(again)
        tries += 1


def _eviction(
    session: Session,
    rule: _Rule,
    member: Member,
    *,
    preemptor: str,
    ended: set[str],
    places: dict[str, Spot],
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
    )


def _replace(session: Session, asked: Asked, found: Found) -> tuple[dict[str, Spot], set[str]]:
    """Look where the victims' successors would fit, if their queues let them start; and of which groups one does not.

    The room is charged, so that nobody else counts on it.

    The successors leave no marks there: nothing says that they come, so nobody may count on being near them either.
    """
    places: dict[str, Spot] = {}
    without: set[str] = set()
    queues = session.accounts
    accounts = queues.savepoint()
    for group, request in asked:
        queues.charge(group, request)
    for unit in found.units:
        for group, held in unit.held_by(session):
            queues.release(group, held)
    for unit in found.units:
        trail = session.future.trail
        savepoint, before = trail.savepoint(), queues.savepoint()
        if not charge_all(queues, unit.held_by(session)):
            queues.undo(before)
            without.update(unit.groups)
            continue
        spots, stuck = session.place_all(unit.members, session.future)
        if stuck is None:
            places.update({spot.member.pod.uid: spot for spot in spots})
            for tenancy in (spot.tenancy for spot in spots if spot.marks):
                trail.evict(tenancy)
                trail.place(replace(tenancy, marks=()))
        else:
            trail.rollback(savepoint)
            queues.undo(before)
            without.update(unit.groups)
    queues.undo(accounts)
    return places, without


def _too_many(session: Session, found: Found) -> bool:
    groups = {key for unit in found.units for key in unit.groups}
    return len(groups) > session.config.consolidate_groups


def _same_queue_and_lower(session: Session, turn: Turn, victim: Workload) -> bool:
    group = turn.workload.group
    accounts = session.accounts
    return victim.group.priority < group.priority and accounts.queue_of(victim.group) == accounts.queue_of(group)


def _other_queue(session: Session, turn: Turn, victim: Workload) -> bool:
    return session.accounts.reclaims_from(turn.workload.group, victim.group)


def _movable(session: Session, turn: Turn, victim: Workload) -> bool:
    """What nobody makes again cannot be moved, nor what would not be let start again."""
    return not victim.unsupported and all(member.pod.owner is not None for member in victim.active.values())


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


_CONSOLIDATE = _Rule(
    EvictionReason.CONSOLIDATED, _movable, _bound_in_the_way, _always, exchange=_any_exchange, replaced=True
)
_RECLAIM = _Rule(EvictionReason.RECLAIMED, _other_queue, _beyond_share, _reclaimable, exchange=_fair_exchange)
_PREEMPT = _Rule(EvictionReason.PREEMPTED, _same_queue_and_lower, _not_within, _always, exchange=_any_exchange)
