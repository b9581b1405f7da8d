"""`kai priority`: the order is the engine's own, and each neighbour's difference is named."""

from pathlib import Path

import pytest
from kaicore.analysis.ask.standings import priority_of
from kaicore.errors import UnknownSubject
from kaicore.rules.deciding.cycle_run import run_on
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.policies.book import NO_POLICIES
from kaicore.rules.events import payloads
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL

from tests.given.cluster.factory import Cluster, amounts, pod
from tests.given.cluster.hierarchy import queue
from tests.given.logs.exported import write_file
from tests.given.processes.kai_commands import kai


class _Order:
    """Notes in which order the first action takes groups up."""

    def __init__(self) -> None:
        self.actions = 0
        self.keys: list[str] = []

    def begins(self, action: str) -> None:
        self.actions += 1

    def takes_up(self, group: str) -> None:
        if self.actions == 1 and group not in self.keys:
            self.keys.append(group)

    def placing(self, *_: object) -> None:
        pass


def _crowded() -> Cluster:
    """Pods of three queues that wait for the one GPU, which a pod of `busy` has."""
    made = Cluster("test", hashes=True).add_node("n", amounts(cpu=64, memory=256, gpu=1))
    for one in (queue("dept"), queue("busy", "dept", quota=1), queue("calm", "dept", quota=1), queue("other")):
        made.record(f"queue/{one.name}", payloads.QueueObserved(one))

    def waits(name: str, queue_name: str, *, priority: int = 0, created_at: int = 100) -> None:
        labels = {KAI_QUEUE_LABEL: queue_name}
        made.add_pod(pod(name, cpu=1, gpu=1, labels=labels, priority=priority, created_at=created_at))

    waits("first", "busy")
    made.cycle()
    for number, name in enumerate(("busy", "calm", "other")):
        waits(f"{name}-old", name, created_at=101 + number)
        waits(f"{name}-new", name, created_at=200)
        waits(f"{name}-high", name, priority=50, created_at=300)
    return made


def test_groups_stand_as_a_cycle_takes_them_up_and_neighbours_differ_by_a_named_part() -> None:
    made, order = _crowded(), _Order()
    answer = priority_of(made.state, "", NO_POLICIES, now=made.now)
    run_on(made.state, EngineConfig(), now=made.now, observer=order)
    assert len(answer.groups) == 9
    assert [f"Pod/{row.namespace}/{row.name}" for row in answer.groups] == order.keys
    own = priority_of(made.state, "busy", NO_POLICIES, now=made.now)
    assert [(row.name, row.before_next) for row in own.groups] == [
        ("busy-high", "priority: 50 before 0"),
        ("busy-old", "age: 1970-01-01T00:01:41.000Z before 1970-01-01T00:03:20.000Z"),
        ("busy-new", ""),
    ]
    assert [row.name for row in own.queues] == ["busy"]
    below = [row.before_next for row in priority_of(made.state, "dept", NO_POLICIES, now=made.now).groups]
    assert any(why.startswith("queue calm before busy: over its") for why in below)
    with pytest.raises(UnknownSubject, match="did you mean"):
        priority_of(made.state, "bussy", NO_POLICIES, now=made.now)


def test_the_command_shows_the_order_of_a_file(tmp_path: Path) -> None:
    file = str(write_file(tmp_path / "test.log.gz", _crowded().events))
    shown = kai("priority", "busy", "--file", file).stdout
    assert "BEFORE THE NEXT BY" in shown
    assert "priority: 50 before 0" in shown
