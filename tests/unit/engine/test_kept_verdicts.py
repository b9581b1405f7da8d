"""Kept results about nodes' zones change no later decision."""

from kaicore.rules.deciding.decide import Proposal, decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.bench.replay import BusyCluster


def test_a_state_that_saw_many_cycles_decides_as_one_that_saw_none() -> None:
    cluster = BusyCluster(5, 100)

    def decided(state: object) -> Proposal:
        return decide(state, EngineConfig(), shard="default", now=cluster.now, actor="a")  # type: ignore[arg-type]

    for _ in range(25):
        cluster.turn(9)
        cluster.arrive(5)
        assert decided(cluster.state).units == decided(decode_state(encode_state(cluster.state))).units
    assert cluster.state.waiting, "the cluster is full"
