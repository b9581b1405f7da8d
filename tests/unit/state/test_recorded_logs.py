"""Logs that real runs wrote are decided today as they were then."""

from pathlib import Path

import msgspec
import pytest
from kaicore.ledger.log.chain import GENESIS, event_hash

from tests.given.recorded import read_log, recorded_logs
from tests.given.work.workloads import Workloads
from tests.measured.digest.engine import replayed


@pytest.mark.parametrize("path", recorded_logs(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_log_replayed_has_no_differences(path: Path) -> None:
    events = read_log(path)
    previous = GENESIS
    for position, event in enumerate(events, 1):
        assert event.position == position
        assert event.hash == event_hash(previous, event)
        previous = event.hash
    cycles, decisions, _, differences = replayed(events)
    assert differences == []
    assert cycles == sum(event.type == "CycleCompleted" for event in events)
    assert decisions >= sum(event.type == "PodPlaced" for event in events) > 50


def test_replay_of_an_altered_decision_finds_it() -> None:
    events = read_log(recorded_logs()[-1])
    place = next(number for number, event in enumerate(events) if event.type == "PodPlaced")
    body = msgspec.json.decode(events[place].body)
    altered = msgspec.Raw(msgspec.json.encode({**body, "node": "elsewhere"}))
    events[place] = msgspec.structs.replace(events[place], body=altered)
    cycle = next(number for number in range(place, len(events)) if events[number].type == "CycleCompleted")
    differences = replayed(events[: cycle + 1])[3]
    assert any(f"{body['name']}: recorded elsewhere, replayed {body['node']}" in named for named in differences)


def test_replay_of_decisions_in_another_order_finds_it() -> None:
    cluster = Workloads().add_node("n1", cpu=4)
    cluster.gang("gang", 2, cpu=1)
    cluster.cycle()
    events = list(cluster.events)
    first, second = (number for number, event in enumerate(events) if event.type == "PodPlaced")
    events[first], events[second] = (
        msgspec.structs.replace(events[second], position=events[first].position),
        msgspec.structs.replace(events[first], position=events[second].position),
    )
    (difference,) = replayed(events)[3]
    assert "the order of its decisions" in difference
    assert difference.endswith("replayed default/gang-0, default/gang-1")
