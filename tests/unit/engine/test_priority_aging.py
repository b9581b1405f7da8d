"""Priority that grows while groups wait (KAI-Scheduler's issue 1970): who comes first, and nothing else."""

from typing import Any

import pytest
from kaicore.rules.engine.config import Action, Backfill, EngineConfig, PriorityAging
from kaicore.rules.events import payloads
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL

from tests.given.cluster.factory import pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.workloads import OWNER, Workloads

_HOUR_S = 3_600
_HOUR_US = _HOUR_S * 1_000_000
_AGING = (PriorityAging(every_us=_HOUR_US, step=2, most=5), PriorityAging(queue="batch", every_us=_HOUR_US, most=50))


@pytest.mark.parametrize(
    ("queue_name", "hours", "gained"),
    [
        ("team", 0, 0),
        ("team", 0.9, 0),
        ("team", 1, 2),
        ("team", 2.5, 4),
        ("team", 3, 5),
        ("team", 100, 5),
        ("team", -1, 0),
        ("batch", 7, 7),
        ("batch", 100, 50),
    ],
)
def test_priority_grows_by_steps_up_to_the_most_of_its_queue(queue_name: str, hours: float, gained: int) -> None:
    config = EngineConfig(priority_aging=_AGING, backfill=Backfill.OFF)
    assert config.priority_gained(queue_name, int(hours * _HOUR_US)) == gained
    assert EngineConfig().priority_gained(queue_name, int(hours * _HOUR_US)) == 0


class OneNode(Workloads):
    """A node of 8 GPUs, and pods of queues `team` and `batch`."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("team", "batch"):
            self.record(f"queue/{name}", payloads.QueueObserved(queue(name, quota=8)))
        self.add_node("n0", cpu=64, gpu=8)

    def waits(self, name: str, hours: float, **spec: Any) -> None:
        """A pod that asks for the whole node has waited for hours."""
        created_at = self.now // 1_000_000 - int(hours * _HOUR_S)
        spec = {"labels": {KAI_QUEUE_LABEL: "team"}, "owner": OWNER, "priority": 10} | spec
        self.add_pod(pod(name, cpu=1, gpu=8, created_at=created_at, **spec))

    def first(self, *aging: PriorityAging, actions: tuple[Action, ...] = (Action.ALLOCATE,)) -> list[str]:
        """The names of what a cycle starts."""
        config = EngineConfig(actions=actions, backfill=Backfill.OFF, priority_aging=aging)
        return list(self.placed(self.cycle(config)))


@pytest.mark.parametrize(
    ("aging", "hours", "starts"),
    [((), 100, "high"), (_AGING, 0.9, "high"), (_AGING, 3, "low"), ((PriorityAging(queue="batch"),), 100, "high")],
)
def test_group_that_waited_long_comes_before_one_of_higher_priority(
    aging: tuple[PriorityAging, ...], hours: float, starts: str
) -> None:
    cluster = OneNode()
    cluster.waits("low", hours, priority=8)
    cluster.waits("high", 0)
    assert cluster.first(*aging) == [starts]


def test_group_that_waited_long_has_nothing_evicted_that_its_own_priority_does_not_allow() -> None:
    cluster = OneNode()
    cluster.waits("runs", 0)
    assert cluster.first() == ["runs"]
    cluster.run(cluster.state.pods["uid-runs"].pod)
    cluster.waits("low", 100, priority=8)
    config = EngineConfig(priority_aging=_AGING, backfill=Backfill.OFF)
    assert not cluster.cycle(config).evictions
    cluster.waits("high", 0, priority=11)
    assert list(cluster.evicted(cluster.cycle(config))) == ["runs"]


def test_group_that_has_started_and_grows_gains_nothing() -> None:
    cluster = OneNode()
    old = {"created_at": cluster.now // 1_000_000 - 100 * _HOUR_S, "labels": {KAI_QUEUE_LABEL: "team"}}
    group = {"created_at": old["created_at"], "queue": "team"}
    cluster.gang("elastic", 2, least=1, group=group, cpu=1, gpu=8, priority=8, **old)
    assert len(cluster.first(*_AGING)) == 1
    cluster.run(next(entry.pod for entry in cluster.state.pods.values() if entry.node))
    cluster.add_node("n1", cpu=64, gpu=8)
    cluster.waits("high", 0)
    assert cluster.first(*_AGING) == ["high"]
