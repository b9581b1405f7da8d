"""The groups that a recorded cycle took up."""

from kaicore.analysis.life.attempts import tried_groups
from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.model.replicas import replica_shard, replicas_stream

from tests.given.cluster.factory import amounts, pod
from tests.given.work.workloads import Workloads


def test_a_replicas_cycle_took_up_its_own_groups_only() -> None:
    made = Workloads("c")
    made.add_nodes(2, amounts(cpu=16))
    made.record(replicas_stream("default"), payloads.ReplicasChanged("default", ("a", "b")))
    for number in range(12):
        made.add_pod(pod(f"p{number}", cpu=1))
    taken: list[set[str]] = []
    for name in ("a", "b"):
        proposal = decide(
            made.state, EngineConfig(), shard=replica_shard("default", name), now=made.now, actor="scheduler"
        )
        (cycle,) = [
            event.payload
            for unit in proposal.units
            for event in unit.events
            if isinstance(event.payload, payloads.CycleCompleted)
        ]
        taken.append({one.group for one in tried_groups(made.state, EngineConfig(), cycle)})
    first, second = taken
    assert first
    assert second
    assert not first & second
    assert len(first | second) == 12
