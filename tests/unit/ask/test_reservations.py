"""`kai reserve` and `kai reservations`: plans, what is in the way, and the calendar."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from dateutil.rrule import rrulestr
from dateutil.tz import tzical
from icalendar import Calendar
from kaicore.analysis.ask.answers import NodeRow, RowSelection
from kaicore.analysis.ask.counterfactuals.drains import DrainPlan, planned_drain
from kaicore.analysis.ask.counterfactuals.reservations import (
    ReservationPlan,
    ReservationQuestion,
    planned_reservation,
    reservation_of,
    standing_reservations,
)
from kaicore.analysis.ask.explanations import why_node
from kaicore.analysis.ask.listing import list_rows
from kaicore.analysis.json_spelling import time_text
from kaicore.errors import InvalidObject
from kaicore.rules.engine.policies.book import NO_POLICIES
from kaicore.rules.events import payloads
from kaicore.rules.model.pod import PodDisruptionBudget
from kaicore.rules.model.reservation import NodeReservation
from kaicore.rules.model.selector import PodSelector
from kaicore.rules.state.snapshot import encode_state

from tests.given.cluster.factory import pod
from tests.given.logs.exported import write_file
from tests.given.processes.kai_commands import kai
from tests.given.work.workloads import Workloads

HOUR = 3_600_000_000


def fleet() -> Workloads:
    """Seven nodes of four GPUs in four racks, d0 not ready. On a0 runs a pod without a limit, on b0 one for an hour."""
    cluster = Workloads("test", hashes=True)
    for name in ("a0", "a1", "b0", "b1", "c0"):
        cluster.add_node(name, cpu=64, gpu=4, labels={"rack": name[0]})
    cluster.add_node("d0", cpu=64, gpu=4, labels={"rack": "d"}, ready=False)
    for name, node, hours in (("endless", "a0", 0), ("short", "b0", 1)):
        one = pod(name, gpu=2, active_deadline_s=hours * 3600, node_selector={"at": node})
        cluster.add_node(node, cpu=64, gpu=4, labels={"rack": node[0], "at": node})
        cluster.add_pod(one)
        cluster.full(one)
    return cluster


def made(cluster: Workloads, name: str, nodes: tuple[str, ...], begins: int, hours: int = 4, **fields: Any) -> None:
    start = cluster.now + begins * HOUR
    one = NodeReservation(f"uid-{name}", name, "1", start, start + hours * HOUR, nodes=nodes, **fields)
    cluster.record(f"reservation/{name}", payloads.ReservationObserved(one))


def plan(cluster: Workloads, begins: int = 2, hours: int = 4, **asked: Any) -> ReservationPlan:
    start = cluster.now + begins * HOUR
    times = {"start": time_text(start), "end": time_text(start + hours * HOUR)}
    return planned_reservation(cluster.state, ReservationQuestion(**({"name": "plan"} | times | asked)))


@pytest.mark.parametrize(
    ("asked", "nodes", "displaced"),
    [
        # What ends before the window displaces nothing.
        ({"count": 4}, ["a1", "b0", "b1", "c0"], []),
        ({"count": 5}, ["a0", "a1", "b0", "b1", "c0"], ["endless"]),
        ({"nodes": "b0", "begins": 0}, ["b0"], ["short"]),
        ({"gpus": 7, "within": "rack"}, ["b0", "b1"], []),
        ({"gpus": 3}, ["a1"], []),
        ({"labels": "rack=a"}, ["a0", "a1"], ["endless"]),
        # Without a number all that have the labels, also what is not ready.
        ({"labels": "rack=d"}, ["d0"], []),
        ({"nodes": "a0,c0"}, ["a0", "c0"], ["endless"]),
        ({"nodes": "c0, a0,c0"}, ["a0", "c0"], ["endless"]),
        # It is for the work that is there.
        ({"nodes": "a0", "namespace": "default"}, ["a0"], []),
        ({"nodes": "a0", "namespace": "default", "work": "endless"}, ["a0"], []),
        ({"nodes": "a0", "namespace": "default", "work": "short"}, ["a0"], ["endless"]),
        # Of a rule, the start is its first day.
        ({"nodes": "c0", "recurrence": "FREQ=DAILY"}, ["c0"], []),
    ],
)
def test_nodes_are_chosen_that_displace_least(asked: dict[str, Any], nodes: list[str], displaced: list[str]) -> None:
    answer = plan(fleet(), **asked)
    assert (answer.refusal, answer.nodes, answer.gpus) == ("", nodes, 4 * len(nodes))
    assert [row.name for row in answer.displaces] == displaced
    assert answer.manifest["spec"]["nodes"] == nodes  # type: ignore[index]


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        ({"nodes": "b1"}, "node b1 is reserved by taken then"),
        ({"nodes": "b1", "begins": 5}, "node b1 is reserved by taken then"),
        # Another week's window touches it.
        ({"nodes": "c0", "begins": 24 * 14, "hours": 1}, "node c0 is reserved by weekly then"),
        ({"nodes": "c0", "begins": -24, "hours": 1, "recurrence": "FREQ=DAILY"}, "node c0 is reserved by weekly then"),
        ({"nodes": "nowhere"}, "no node nowhere"),
        # A rack is all of its nodes, or none.
        ({"labels": "rack=b"}, "node b1 is reserved by taken then"),
        ({"labels": "rack=z"}, "no node has rack=z"),
        ({"nodes": "a0", "name": "taken"}, "there is a reservation taken already"),
        ({"count": 5}, "5 nodes cannot be had beside other reservations: 3 at most"),
        (
            {"gpus": 8, "within": "rack", "labels": "rack=b"},
            "8 GPUs cannot be had in one rack beside other reservations",
        ),
        ({"nodes": "a0", "begins": -9}, "its last window is over"),
        ({"nodes": "a0", "queue": "lab"}, "there is no queue lab, and no work that names it"),
        ({"nodes": "a0", "recurrence": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=3"}, "its start, 20"),
        ({"nodes": "a0", "hours": 30, "recurrence": "FREQ=DAILY"}, "one of its windows begins before"),
    ],
)
def test_what_cannot_be_had_is_refused(asked: dict[str, Any], refusal: str) -> None:
    cluster = fleet()
    made(cluster, "taken", ("b1",), begins=4)
    made(cluster, "weekly", ("c0",), begins=0, recurrence="FREQ=WEEKLY")
    answer = plan(cluster, **asked)
    assert answer.refusal.startswith(refusal)
    assert not answer.manifest


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({}, "nodes: say which: names, labels, GPUs, or a count of nodes"),
        ({"nodes": "a0", "gpus": 4}, "nodes: are named: no labels, GPUs, count or domain besides"),
        ({"labels": "rack"}, "labels: must be key=value"),
        ({"count": 1, "hours": -1}, "spec.end: is not after spec.start"),
        ({"count": 1, "notice": "soon"}, "spec.notice: is no duration"),
        ({"count": -1}, "gpus, count: must not be negative: '0, -1'"),
        ({"count": 1, "work": "train"}, "spec.for.work: needs spec.for.namespace"),
    ],
)
def test_question_that_makes_no_sense_is_named(asked: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidObject, match=problem):
        plan(fleet(), **asked)


def test_reservations_are_listed_with_what_is_in_their_way() -> None:
    cluster = fleet()
    made(cluster, "later", ("a0", "gone"), begins=2, queue="lab")
    made(cluster, "now", ("b0",), begins=-1)
    made(cluster, "past", ("b0",), begins=-9)
    rows = standing_reservations(cluster.state).reservations
    assert [(row.name, row.state, row.whom, row.missing) for row in rows] == [
        ("now", "Active", "maintenance", []),
        ("later", "Planned", "queue lab", ["gone"]),
        ("past", "Over", "maintenance", []),
    ]
    assert [[pod.name for pod in row.in_the_way] for row in rows] == [["short"], ["endless"], []]
    later = standing_reservations(cluster.state, now=cluster.now + 3 * HOUR).reservations
    assert [(row.name, row.state) for row in later] == [("later", "Active"), ("past", "Over"), ("now", "Over")]
    why = why_node(cluster.state, "b0")
    assert why is not None
    assert [note for note in why.notes if note.startswith("is reserved by now for maintenance, 20")] == why.notes


@pytest.mark.parametrize(
    ("hours", "expected"), [(0, "will be reserved"), (2.5, "is reserved"), (7, ""), (25, "will be reserved")]
)
def test_why_of_a_node_has_the_window_of_the_asked_moment_however_long_the_log_is_silent(
    hours: float, expected: str
) -> None:
    cluster = fleet()
    # Of a0 there is one window, of b0 another each week.
    made(cluster, "soon", ("a0",), begins=2, queue="lab")
    made(cluster, "weekly", ("b0",), begins=-1, recurrence="FREQ=WEEKLY")
    now = cluster.now + int(hours * HOUR)
    why = why_node(cluster.state, "a0" if hours < 20 else "b0", now=now)
    assert why is not None
    assert [note.partition(" by ")[0] for note in why.notes] == ([expected] if expected else [])
    assert why.node is not None
    assert ("Reserved" in why.node.status) is (expected == "is reserved")


def test_command_lists_them_and_writes_a_calendar(tmp_path: Path) -> None:
    cluster = fleet()
    made(cluster, "weekly", ("a0", "a1"), begins=-24, queue="lab", recurrence="FREQ=WEEKLY;COUNT=3")
    file = write_file(tmp_path / "log.gz", cluster.events)
    listed = kai("reservations", "--file", str(file))
    assert "weekly   Planned   queue lab" in listed.stdout
    assert "default/endless" in listed.stdout
    calendar = Calendar.from_ical(kai("reservations", "--ical", "--file", str(file)).stdout)
    (event,) = calendar.walk("VEVENT")
    # Of three windows the first is over, and still counts.
    assert event.decoded("dtstart").timestamp() == (cluster.now - 24 * HOUR) // 1_000_000
    assert (event["summary"], event["rrule"]["FREQ"]) == ("weekly: 2 nodes for queue lab", ["WEEKLY"])
    window = ("--start", "2036-01-05T02:00:00Z", "--end", "+1h", "--repeat", "FREQ=DAILY")
    planned = kai("reserve", "x", "--maintenance", "--nodes", "a0", *window, "--file", str(file))
    assert "2036-01-05T02:00:00Z to 2036-01-05T03:00:00Z, again FREQ=DAILY" in planned.stdout
    assert "1 pod there when its window begins" in planned.stdout
    refused = kai(
        "reserve", "x", "--maintenance", "--nodes", "no", "--start", "+1h", "--end", "+1h", "--file", str(file)
    )
    assert (refused.returncode, refused.stdout) == (1, "refused: no node no\n")
    assert kai("drain", "a0", "--by", "+1h", "--name", "A", "--file", str(file)).returncode == 2
    drained = kai("drain", "a0", "--by", "+1h", "--file", str(file))
    assert "default/endless" in drained.stdout
    assert "drainBy: " in drained.stdout


def test_calendar_of_a_zone_has_the_windows_that_the_schedule_heeds(tmp_path: Path) -> None:
    cluster = fleet()
    cluster.now = int(datetime(2027, 3, 1, tzinfo=UTC).timestamp()) * 1_000_000
    times = {"start": "2027-03-06T02:30:00+01:00", "end": "2027-03-06T04:30:00+01:00"}
    spec = times | {"nodes": ["a0"], "recurrence": "FREQ=DAILY;COUNT=300", "timeZone": "Europe/Berlin"}
    one = reservation_of({"metadata": {"name": "nightly", "uid": "u"}, "spec": spec})
    cluster.record("reservation/nightly", payloads.ReservationObserved(one))
    file = write_file(tmp_path / "log.gz", cluster.events)
    assert "FREQ=DAILY;COUNT=300 Europe/Berlin" in kai("reservations", "--file", str(file)).stdout
    text = kai("reservations", "--ical", "--file", str(file)).stdout
    (event,) = Calendar.from_ical(text).walk("VEVENT")
    assert "DTSTART;TZID=Europe/Berlin:20270306T023000" in text
    # As another program reads it, by the file's own zone.
    path = tmp_path / "zone.ics"
    path.write_text(text)
    zone = tzical(str(path)).get("Europe/Berlin")
    read = list(rrulestr(event["rrule"].to_ical().decode(), dtstart=datetime(2027, 3, 6, 2, 30, tzinfo=zone)))
    windows = one.windows(one.start, one.start + 400 * 24 * HOUR)
    assert len(windows) == 300
    differ = [at for at, window in zip(read, windows, strict=True) if at.timestamp() != window.start / 1_000_000]
    # dateutil does not read the hour that is skipped as RFC 5545 has it.
    assert [at.isoformat()[:16] for at in differ] == ["2027-03-28T02:30"]


def test_times_without_a_zone_are_of_the_zone_that_is_named(tmp_path: Path) -> None:
    file = write_file(tmp_path / "log.gz", fleet().events)
    asked = ("reserve", "x", "--maintenance", "--nodes", "a0", "--start", "2036-01-05T08:00", "--end", "+1h")
    weekly = ("--repeat", "FREQ=WEEKLY;BYDAY=SA", "--file", str(file))
    planned = kai(*asked, *weekly, "--time-zone", "Europe/Berlin").stdout
    assert "2036-01-05T07:00:00Z to 2036-01-05T08:00:00Z, again FREQ=WEEKLY;BYDAY=SA in Europe/Berlin" in planned
    assert "  timeZone: Europe/Berlin\n" in planned
    unknown = kai(*asked, *weekly, "--time-zone", "Berlin")
    assert (unknown.returncode, "reserve: --time-zone: is no time zone" in unknown.stderr) == (2, True)
    assert "needs a zone" in kai(*asked, *weekly).stderr


def test_node_is_reserved_once_its_window_has_begun_although_the_log_is_silent() -> None:
    cluster = fleet()
    made(cluster, "later", ("a0",), begins=1)

    def status(hours: int) -> str:
        (row,) = list_rows(cluster.state, "nodes", RowSelection(name="a0"), now=cluster.now + hours * HOUR)
        assert isinstance(row, NodeRow)
        return row.status

    assert [status(hours) for hours in (-9, 0, 1, 4, 5)] == ["Ready", "Ready", *["Ready,Reserved"] * 2, "Ready"]


def busy(*, waiting: bool = False) -> Workloads:
    """A gang of two runs on n0, and a bare pod; n1 has room for two of them; another pod may be about to start."""
    cluster = Workloads("test", hashes=True)
    cluster.add_node("n0", cpu=64, gpu=6)
    gang = cluster.gang("g", 2, gpu=2)
    lone = cluster.add_pod(pod("lone", gpu=2))
    cluster.full(gang, lone)
    cluster.add_node("n1", cpu=64, gpu=4)
    if waiting:
        cluster.add_pod(pod("next", gpu=2, created_at=9_999))
    return cluster


def drain(cluster: Workloads, nodes: str) -> DrainPlan:
    times = [time_text(cluster.now + hours * HOUR) for hours in (0, 1, 9)]
    asked = ReservationQuestion(name="d", start=times[0], end=times[2], nodes=nodes, drain_by=times[1])
    return planned_drain(cluster.state, asked, NO_POLICIES)


@pytest.mark.parametrize(
    ("waiting", "room_h", "goes_on", "waits"),
    [
        (False, 0, "at once: n1", []),
        (True, 0, "no room now: leaves once there is, or at {by}; goes on by {end} on n0, n1", []),
        (True, 2, "no room now: leaves once there is, or at {by}; goes on by {room} on n1, n2", []),
    ],
    ids=["room", "none until the drain ends", "room by a limit"],
)
def test_drain_says_what_each_group_loses_and_where_and_when_it_goes_on_and_changes_nothing(
    waiting: bool, room_h: int, goes_on: str, waits: list[str]
) -> None:
    cluster = busy(waiting=waiting)
    ends = pod("ends", gpu=4, active_deadline_s=room_h * 3600)
    if room_h:
        cluster.add_node("n2", cpu=64, gpu=4)
        cluster.full(cluster.add_pod(ends))
    before = encode_state(cluster.state)
    cluster.now += HOUR
    answer = drain(cluster, "n0")
    assert encode_state(cluster.state) == before
    rows = {row.group.rpartition("/")[2]: row for row in answer.groups}
    spec = answer.manifest["spec"]
    planned = reservation_of(answer.manifest)
    by, end = time_text(planned.drain_by), time_text(planned.end)
    assert (rows["lone"].pods, rows["lone"].gpus) == (1, "2")
    assert rows["lone"].goes_on == f"ends at {by}: no controller makes it anew"
    room = time_text(cluster.state.pods[ends.uid].started_at + room_h * HOUR) if room_h else ""
    assert rows["g"].goes_on == goes_on.format(by=by, end=end, room=room)
    # Although the log has been silent since they began.
    assert {name: (row.pods, row.lost) for name, row in rows.items()} == {
        "lone": (1, "2 GPU-hours"),
        "g": (2, "4 GPU-hours"),
    }
    assert answer.waits_longer == waits
    assert spec["drainBy"] == time_text(cluster.now + HOUR)  # type: ignore[index]


@pytest.mark.parametrize("kept", [False, True])
def test_drain_names_who_waits_longer_and_what_a_budget_keeps_and_nothing_of_other_drains(kept: bool) -> None:
    cluster = busy()
    # On n1 it is short that keeps the gang off, and another pod that came later.
    short = cluster.add_pod(pod("short", gpu=2, active_deadline_s=7200))
    cluster.full(short)
    cluster.add_node("n2", cpu=64, gpu=2, labels={"at": "n2"})
    cluster.full(cluster.add_pod(pod("other", gpu=2, node_selector={"at": "n2"})))
    made(cluster, "another", ("n2",), begins=0, drain_by=cluster.now + HOUR)
    cluster.add_pod(pod("next", gpu=3, created_at=cluster.now // 1_000_000 + 1))
    if kept:
        budget = PodDisruptionBudget("uid-b", "default", "b", "1", PodSelector(("default",), None, ()))
        cluster.record("pdb/default/b", payloads.PodDisruptionBudgetObserved(budget))
    answer = drain(cluster, "n0")
    stays, by = "stays: a disruption budget keeps it", time_text(reservation_of(answer.manifest).drain_by)
    ends = time_text(cluster.state.pods[short.uid].started_at + 2 * HOUR)
    assert {row.group.rpartition("/")[2]: row.goes_on for row in answer.groups} == {
        "g": stays if kept else f"no room now: leaves once there is, or at {by}; goes on by {ends} on n1",
        "lone": stays if kept else f"ends at {by}: no controller makes it anew",
    }
    assert answer.waits_longer == ([] if kept else ["Pod default/next"])


def test_node_with_a_window_that_is_planned_is_drained_for_it_but_not_twice() -> None:
    cluster = busy()
    made(cluster, "window", ("n0",), begins=1)
    assert drain(cluster, "n0").refusal == ""
    made(cluster, "first", ("n0",), begins=0, drain_by=cluster.now + HOUR)
    assert drain(cluster, "n0").refusal == "node n0 is reserved by first then"
    cluster.record("reservation/first", payloads.ReservationDeleted("uid-first", "first"))
    made(cluster, "theirs", ("n0",), begins=1, queue="lab")
    assert drain(cluster, "n0").refusal == "node n0 is reserved by theirs then"


def test_nodes_without_work_are_drained_at_once_and_unknown_ones_refused() -> None:
    assert drain(busy(), "n1").groups == []
    assert drain(busy(), "n9").refusal == "no node n9"
