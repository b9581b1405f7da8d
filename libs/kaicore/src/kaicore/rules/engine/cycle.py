"""One cycle: what starts, what is evicted so that something can start later, and why the rest waits.

Pure and deterministic: the same input, configuration and engine version give the same result on any machine. Ties go to
the first node by name; groups are taken by the order of queues, then by priority, age and name.
"""

from collections.abc import Callable

from kaicore.rules.engine.actions.allocate import allocate
from kaicore.rules.engine.actions.preempt import consolidate, preempt, reclaim
from kaicore.rules.engine.actions.repair import heal
from kaicore.rules.engine.actions.stale_gang import end_stale_gangs
from kaicore.rules.engine.config import Action, EngineConfig
from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.engine.session import Session

_ACTIONS: dict[Action, Callable[[Session], None]] = {
    Action.ALLOCATE: allocate,
    Action.CONSOLIDATE: consolidate,
    Action.RECLAIM: reclaim,
    Action.PREEMPT: preempt,
    Action.STALE_GANG: end_stale_gangs,
}


def run_cycle(given: CycleInput, config: EngineConfig) -> CycleResult:
    """Run the actions one after the other on one copy of the nodes.

    1. Keep the room that earlier cycles nominated pods for.
    2. Allocate: evaluate each class on all nodes when its first pod comes up, afterwards on the nodes changed since;
       place each pod on the best node, predict its zones, and charge the node, so that no later pod sees them free. A
       gang that does not fit as a whole leaves no trace.
    3. Have others evicted where all of a group then fits: see `kaicore.rules.engine.actions.preempt`.
    4. Have a stray pod evicted if another node is left for its successor, one pod of an owner and class per cycle.
    5. Give each class and each group with pods left its reasons, as they were when it found no node.
    """
    before = given.accounts.savepoint()
    session = Session(given, config)
    session.reserve()
    for action in config.actions:
        _ACTIONS[action](session)
    session.forget_idle_room()
    heal(session)
    given.accounts.undo(before)
    return session.result()
