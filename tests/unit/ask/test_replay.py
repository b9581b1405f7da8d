"""Replays of ranges, of single cycles, of cycles that were altered, and of those of another engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kaicore.analysis.replay.moments import Range
from kaicore.analysis.replay.replay import cycle_range, halves, replay_log
from kaicore.errors import UnknownMoment, UnknownSubject
from kaicore.ledger.log.files.log import FileLog
from kaicore.rules.deciding.decide import decide
from kaicore.rules.deciding.replay import MOST_DIFFERENCES, Difference, ReplayReport, UnreplayableCycle, merged
from kaicore.rules.engine.config import ENGINE_VERSION, EngineConfig
from kaicore.rules.events.envelope import Event

from tests.given.cluster.factory import pod
from tests.given.logs.exported import rechained, write_file
from tests.given.work.workloads import OWNER, Workloads

C = "test"


def history() -> Workloads:
    """Twelve cycles: pods come, run and go; some wait, and one of each cycle's batches is stale."""
    made = Workloads(C, hashes=True).add_nodes(3, cpu=8, memory=32)
    for wave in range(12):
        pods = [made.add_pod(pod(f"p{wave}-{number}", cpu=2, memory=4, owner=OWNER)) for number in range(3)]
        made.add_pod(pod(f"large-{wave}", cpu=64, memory=4))
        proposal = decide(made.state, EngineConfig(), shard="default", now=made.now, actor="scheduler")
        # The last one, which none follows, is seen anew while the cycle is decided: what is decided about it is stale.
        *others, last = pods
        made.see(last, labels={"seen": "anew"})
        made.append(proposal.units)
        made.run(*others)
        for one in others:
            made.see(one, phase="Succeeded")
            made.delete_pod(made.state.pods[one.uid].pod)
        made.delete_pod(made.state.pods[last.uid].pod)
    return made


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return history().events


@pytest.fixture(scope="module")
def file(events: list[Event], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_file(tmp_path_factory.mktemp("replay") / "log.gz", events)


def cycles(events: list[Event]) -> list[int]:
    return [event.position for event in events if event.type == "CycleCompleted"]


async def test_a_whole_log_replays_as_it_was_recorded(file: Path, events: list[Event]) -> None:
    async with FileLog(file) as log:
        report = await replay_log(log, C)
    assert report.differences == []
    assert (report.first, report.position, report.cycles) == (1, len(events), 12)
    assert (report.decisions, report.late, report.other_engine) == (24, 12, 0)
    assert report.engine_versions == {ENGINE_VERSION: 12}


async def test_any_range_replays_as_it_was_recorded_and_parts_add_up_to_the_whole(
    file: Path, events: list[Event]
) -> None:
    async with FileLog(file) as log:
        whole = await replay_log(log, C)
        for count in (2, 7, 30):
            parts = halves(Range(1, len(events)), count)
            assert [part.first for part in parts[1:]] == [part.last + 1 for part in parts[:-1]]
            reports = [await replay_log(log, C, part) for part in parts]
            assert all(not report.differences for report in reports)
            one = merged(reports)
            assert (one.cycles, one.decisions, one.late) == (whole.cycles, whole.decisions, whole.late)


async def test_one_cycle_is_replayed_by_its_name(file: Path, events: list[Event]) -> None:
    async with FileLog(file) as log:
        for number, position in enumerate(cycles(events), 1):
            assert await cycle_range(log, C, f"default/{number}") == Range(position, position)
        report = await replay_log(log, C, await cycle_range(log, C, "7"))
        assert (report.cycles, report.decisions, report.late, report.differences) == (1, 2, 1, [])
        for name, error, message in (
            ("13", UnknownSubject, "there is no cycle default/13; the one before it is 12"),
            ("0", UnknownSubject, "there is no cycle default/0"),
            ("defualt/3", UnknownSubject, "did you mean 'default'"),
            ("seven", UnknownMoment, "no number"),
        ):
            with pytest.raises(error, match=message):
                await cycle_range(log, C, name)


def altered(events: list[Event], type_: str, number: int, change: Callable[[dict[str, Any]], object]) -> list[Event]:
    """The log of one who changed a payload, and all hashes after it."""
    place = [index for index, event in enumerate(events) if event.type == type_][number]
    body = msgspec.json.decode(events[place].body)
    change(body)
    changed = msgspec.structs.replace(events[place], body=msgspec.Raw(msgspec.json.encode(body)))
    return rechained([*events[:place], changed, *events[place + 1 :]], place + 1)


async def replayed(events: list[Event], directory: Path) -> Any:
    async with FileLog(write_file(directory / "altered.gz", events)) as log:
        return await replay_log(log, C)


def elsewhere(body: dict[str, Any]) -> None:
    body["node"] = "n2" if body["node"] != "n2" else "n1"


async def test_a_decision_that_comes_out_otherwise_is_told_in_full(events: list[Event], tmp_path: Path) -> None:
    report = await replayed(altered(events, "PodPlaced", 5, elsewhere), tmp_path)
    first = report.differences[0]
    assert first.kind == "PodPlaced: node"
    assert (first.cycle, events[first.position - 1].type) == ("default/3", "PodPlaced")
    assert (first.recorded, first.replayed) == (first.recorded_event.node, first.replayed_event.node)
    assert first.recorded != first.replayed
    assert (first.recorded_event.uid, first.recorded_event.pod_class) == (
        first.replayed_event.uid,
        first.replayed_event.pod_class,
    )


@pytest.mark.parametrize(
    ("type_", "change", "kind"),
    [
        ("CycleCompleted", lambda body: body.update(placed=9), "CycleCompleted: placed"),
        ("CycleCompleted", lambda body: body.update(decisions_digest="0"), "CycleCompleted: decisions_digest"),
        ("CycleCompleted", lambda body: body.update(pending=[]), "CycleCompleted: why a class waits"),
        ("NodeCharged", lambda body: body.update(pods=["x"]), "NodeCharged: pods"),
        ("PodsLeftWaiting", lambda body: body["pods"][0].update(priority=7), "PodsLeftWaiting: pods"),
    ],
)
async def test_a_reason_or_report_that_comes_out_otherwise_is_a_difference(
    events: list[Event], tmp_path: Path, type_: str, change: Callable[[dict[str, Any]], object], kind: str
) -> None:
    report = await replayed(altered(events, type_, 0, change), tmp_path)
    assert report.differences[0].kind == kind


async def test_a_decision_of_no_cycle_is_a_difference(events: list[Event], tmp_path: Path) -> None:
    report = await replayed(altered(events, "PodPlaced", 0, lambda body: body.update(uid="u", cycle="x/1")), tmp_path)
    assert {difference.kind for difference in report.differences} >= {
        "PodPlaced not replayed",
        "PodPlaced not recorded",
    }


async def test_what_another_engine_decided_otherwise_is_summed_up_and_no_difference(
    events: list[Event], tmp_path: Path
) -> None:
    changed = events
    for number in range(12):
        changed = altered(changed, "CycleCompleted", number, lambda body: body.update(engine_version="7"))
    same = await replayed(changed, tmp_path)
    assert (same.differences, same.otherwise, same.other_engine) == ([], [], 12)
    other = await replayed(altered(changed, "PodPlaced", 5, elsewhere), tmp_path)
    assert other.differences == []
    assert other.engine_versions == {"7": 12}
    assert other.otherwise[0].kind == "PodPlaced: node"
    assert other.otherwise_kinds["PodPlaced: node"] >= 1
    assert other.otherwise[0].engine_version == "7"


async def test_a_cycle_without_its_configuration_cannot_be_run_again(events: list[Event], tmp_path: Path) -> None:
    with pytest.raises(UnreplayableCycle, match=r"cycle default/1: configuration .* is not in the log"):
        await replayed(altered(events, "ConfigRecorded", 0, lambda body: body.update(digest="x")), tmp_path)


def test_of_very_many_differences_all_are_counted_and_the_first_are_kept() -> None:
    report = ReplayReport(C)
    for position in range(MOST_DIFFERENCES + 50):
        report.differ(Difference(position, "default/1", "what", "a", "b", "kind"), other_engine=False)
    assert [difference.position for difference in report.differences] == list(range(MOST_DIFFERENCES))
    assert report.kinds == {"kind": MOST_DIFFERENCES + 50}
