"""A copy of a state: equal, and neither notices what is folded into the other."""

import pytest
from kaicore.rules.deciding.cycle_input import cycle_input
from kaicore.rules.engine.actions.cycle import run_cycle
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import fork
from kaicore.rules.state.snapshot import encode_state

from tests.given.examples import FEW
from tests.simulation.situations.every import SITUATIONS
from tests.unit.ask.test_audits import recorded


def decided(state: ClusterState) -> str:
    return run_cycle(cycle_input(state, EngineConfig(), now=state.recorded_at), EngineConfig()).digest()


# Situations that are alike differ in a reason, and not in the parts of their states.
@pytest.mark.parametrize("reason", [*SITUATIONS][:: 3 if FEW else 1], ids=lambda one: one.__name__)
def test_fork_is_equal_decides_alike_and_is_not_changed_by_what_follows(reason: type) -> None:
    cluster = SITUATIONS[reason]().cluster
    before, digest = encode_state(cluster.state), decided(cluster.state)
    copied = fork(cluster.state)
    assert (encode_state(copied), decided(copied)) == (before, digest)
    for uid in list(cluster.state.pods):
        cluster.delete_pod(cluster.state.pods[uid].pod)
    cluster.add_node("another", cpu=1)
    cluster.cycle()
    assert (encode_state(copied), decided(copied)) == (before, digest)
    changed = encode_state(cluster.state)
    copied.fold_all(
        event for event in cluster.events if event.position > copied.position and event.cluster == copied.cluster
    )
    assert encode_state(copied) == changed == encode_state(cluster.state)


@pytest.mark.parametrize("position", [0, 5, 200, 700])
def test_fork_of_a_young_state_goes_on_as_the_state_does(position: int) -> None:
    # Early states have empty parts, which several others refer to.
    events = recorded("demo")
    state = ClusterState(events[0].cluster)
    state.fold_all(events[:position])
    copied = fork(fork(state))
    copied.fold_all(events[position:])
    assert state.position == position
    state.fold_all(events[position:])
    assert encode_state(copied) == encode_state(state)
    for name in state.columns.rows:
        assert copied.charges.held_on(name) == state.charges.held_on(name)
