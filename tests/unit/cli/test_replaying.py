"""The output of `kai replay` for a report."""

import asyncio

import pytest
from kai_cli.history.replaying import replay, report_lines
from kaicore.errors import ConfigurationError, UnknownMoment
from kaicore.rules.deciding.replay import Difference, ReplayReport
from kaicore.rules.engine.config import ENGINE_VERSION
from kaicore.rules.events.payloads import PodPlaced

RECORDED = PodPlaced("u1", "default", "train-0", "n1", "default/17", "class-a")
REPLAYED = PodPlaced("u1", "default", "train-0", "n2", "default/17", "class-a")
DIFFERENCE = Difference(
    1234, "default/17", "default/train-0", "n1", "n2", "PodPlaced: node", ENGINE_VERSION, RECORDED, REPLAYED
)


def report(**fields: object) -> ReplayReport:
    made = ReplayReport("prod", first=1, position=2000, cycles=20, decisions=40, late=1)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_a_replay_without_differences_is_one_line() -> None:
    assert list(report_lines(report())) == [
        "cluster prod: 20 cycles at positions 1 to 2000, 40 decisions replayed (1 more were stale): 0 differences"
    ]
    (one,) = report_lines(report(cycles=1, decisions=1, late=0))
    assert one == "cluster prod: 1 cycle at positions 1 to 2000, 1 decision replayed (0 more were stale): 0 differences"


def test_the_first_difference_is_printed_with_both_events_side_by_side() -> None:
    lines = list(report_lines(report(differences=[DIFFERENCE, DIFFERENCE], kinds={"PodPlaced: node": 250})))
    assert lines[0].endswith("250 differences")
    assert lines[1].split() == ["250", "PodPlaced:", "node"]
    assert lines[2] == "  first: position 1234, cycle default/17: default/train-0"
    rows = [line.split() for line in lines[3:]]
    assert rows[0] == ["FIELD", "RECORDED", "REPLAYED"]
    assert ["*", "node", "n1", "n2"] in rows
    assert ["pod_class", "class-a", "class-a"] in rows
    assert lines[-1] == f"  {DIFFERENCE}"


def test_what_another_engine_decided_is_summed_up() -> None:
    kinds = {"PodPlaced: node": 3, "PodPlaced not recorded": 1}
    lines = list(
        report_lines(report(other_engine=20, engine_versions={"12": 20}, otherwise=[DIFFERENCE], otherwise_kinds=kinds))
    )
    assert lines[0].endswith(": 0 differences")
    assert lines[1] == (
        f"  20 cycles were decided by engine version 12; version {ENGINE_VERSION} decides 4 things otherwise"
    )
    assert [line.split()[0] for line in lines[2:4]] == ["3", "1"]
    (same,) = list(report_lines(report(other_engine=20, engine_versions={"12": 20})))[1:]
    assert same.endswith(f"version {ENGINE_VERSION} decides the same")


def test_a_range_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--cycle selects one cycle"):
        asyncio.run(replay(cycle="3", begin="5"))
    with pytest.raises(UnknownMoment, match="is no moment"):
        asyncio.run(replay(begin="yesterday"))
