"""One cycle: starts, evictions that let pods start later, and the reasons for which the rest waits.

Pure and deterministic: the same input, configuration and engine version give the same result on any machine. Ties go to
the first node by name; groups are taken by the order of queues, then by priority, age and name.
"""

from collections.abc import Iterator

from kaicore.rules.engine.actions.action import CycleAction
from kaicore.rules.engine.actions.allocate import Allocate
from kaicore.rules.engine.actions.eviction import Consolidate, EvictionAction, Preempt, Reclaim
from kaicore.rules.engine.actions.preempt_together import PreemptTogether
from kaicore.rules.engine.actions.promise import PromiseStart
from kaicore.rules.engine.actions.provision import Provision
from kaicore.rules.engine.actions.upkeep import Drain, Repair, Replace, StaleGang
from kaicore.rules.engine.config import Action, EngineConfig
from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.engine.placement.placer import PlacingObserver
from kaicore.rules.engine.session.session import Session

_EVICTING: dict[Action, type[EvictionAction]] = {one.action: one for one in (Consolidate, Reclaim, Preempt)}


def run_cycle(cycle_input: CycleInput, config: EngineConfig, *, observer: PlacingObserver | None = None) -> CycleResult:
    """Run the actions one after the other on one copy of the nodes.

    1. Restore the reservations for pods that earlier cycles nominated.
    2. Replace: find places for the successors of pods on failed nodes (`kaicore.rules.engine.actions.upkeep`). Then
       work out anew what is promised to the group that came first and does not fit (`engine.session.promises`).
    3. Allocate: evaluate each class on all nodes when its first pod comes up, afterwards on the nodes changed since;
       place each pod on the best node, predict its zones, and charge the node, so that no later pod sees them free. A
       gang that does not fit as a whole leaves no trace.
    4. Evict pods where all of a group fits afterwards: see `kaicore.rules.engine.actions.eviction`. For a group of
       higher priority that is done before others take the room that it needs. Rules of preemption come last, and what
       several of these actions make room for only together.
    5. Evict a misaligned pod if another node is free for its successor, one pod of an owner and class per cycle. Then
       evict what is to leave its nodes (`kaicore.rules.engine.actions.upkeep.Drain`).
    6. Promise a start: `kaicore.rules.engine.actions.promise`.
    7. Ask for nodes where only new ones would help a group: see `kaicore.rules.engine.actions.provision`.
    8. Give each class and each group with pods left its reasons, as they were when it found no node.

    An observer looks on while pods are placed, for explanations; nothing depends on it.
    """
    before = cycle_input.accounts.savepoint()
    session = Session(cycle_input, config, observer=observer)
    session.reservations.restore()
    if config.replace_failed_nodes:
        Replace(session).run()
    promise = PromiseStart(session)
    promise.renew()
    for action in _actions(session):
        action.run()
    session.reservations.clear_idle()
    Repair(session).run()
    if cycle_input.to_drain:
        Drain(session).run()
    promise.run()
    Provision(session).run()
    cycle_input.accounts.undo(before)
    # It has the session, which would be left to the collector.
    session.promise = None
    return session.result()


def _actions(session: Session) -> Iterator[CycleAction]:
    actions = session.config.actions
    evicting = {one: _EVICTING[one](session) for one in actions if one in _EVICTING}
    for_queues = [one for one in actions if one in (Action.RECLAIM, Action.PREEMPT)]
    for place, action in enumerate(actions):
        if session.observer is not None:
            session.observer.begins(action.value)
        if action in evicting:
            yield evicting[action]
            if Action.PREEMPT in for_queues and action is for_queues[-1]:
                yield PreemptTogether(session)
        elif action is Action.ALLOCATE:
            yield Allocate(session, [evicting[one] for one in actions[place:] if one in evicting])
        else:
            yield StaleGang(session)
