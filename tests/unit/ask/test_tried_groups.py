"""Recorded cycles: the groups that one took up, and the last one that knew a pod."""

from kaicore.analysis.life.attempts import CycleRecords, RecordedCycle, attempts, tried_groups
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


def test_last_cycle_of_a_pod_is_at_its_own_record_where_a_cycle_that_knew_less_came_later() -> None:
    made = Workloads("c")
    one = made.add_pod(pod("one", cpu=1))

    def recorded(cycle: str, position: int, knew: int) -> RecordedCycle:
        made_of = {"config_digest": "", "engine_version": "", "now": 0, "decisions_digest": "", "pods": 1, "placed": 0}
        shard = cycle.partition("/")[0]
        completed = payloads.CycleCompleted(cycle=cycle, shard=shard, input_position=knew, **made_of)
        return RecordedCycle(position, position * 1_000_000, completed)

    records = CycleRecords(10, 10, last=[recorded("a/1", 11, 10), recorded("b/1", 12, 9)])
    answer = attempts(made.state, made.state.pods[one.uid], records)
    assert (answer.last_cycle, answer.last_position, answer.last_input_position) == ("a/1", 11, 10)
    assert answer.last_at == "1970-01-01T00:00:11.000Z"
