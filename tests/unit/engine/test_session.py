"""The session of a cycle: what it leaves behind."""

import gc

from kaicore.rules.deciding.cycle_input import cycle_input
from kaicore.rules.engine.actions.cycle import run_cycle
from kaicore.rules.engine.placement.statement import Statement
from kaicore.rules.engine.session.session import Session
from kaicore.rules.events.reasons import group, making_room

from tests.simulation.situations.every import SITUATIONS

#: One for each part that keeps more than the others: victims and moves, a promised start, a topology.
KINDS = (making_room.NotWorthMoving, making_room.WaitsForVictims, making_room.WouldDelay, group.TopologyHasNoRoom)


def _held() -> int:
    return sum(isinstance(one, Session | Statement) for one in gc.get_objects())


def test_cycle_that_is_over_leaves_its_nodes_to_no_collector() -> None:
    situations = [SITUATIONS[kind]() for kind in KINDS]
    gc.collect()
    gc.disable()
    try:
        before = _held()
        for situation in situations:
            state = situation.cluster.state
            run_cycle(cycle_input(state, situation.config, now=state.recorded_at), situation.config)
        assert _held() == before
    finally:
        gc.enable()
