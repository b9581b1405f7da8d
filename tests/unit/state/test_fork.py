"""A copy of a state: equal, and neither notices what is folded into the other."""

import pytest
from kaicore.rules.deciding.cycle_input import cycle_input
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.cycle import run_cycle
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import fork
from kaicore.rules.state.snapshot import encode_state

from tests.situations.every import SITUATIONS


def decided(state: ClusterState) -> str:
    return run_cycle(cycle_input(state, EngineConfig(), now=state.recorded_at), EngineConfig()).digest()


@pytest.mark.parametrize("reason", SITUATIONS, ids=lambda one: one.__name__)
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
