"""Reserved nodes in cycles: who may start on them, and when."""

import json
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import msgspec
import pytest
from kaicore.analysis.json_spelling import time_text
from kaicore.errors import InvalidObject
from kaicore.kube.kinds.table import RESERVATION
from kaicore.kube.normalize.reservation import zone_named
from kaicore.rules.deciding.cycle_input import next_due
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import encode_payload
from kaicore.rules.events.reasons.node import NodeReserved
from kaicore.rules.model.pod import Owner
from kaicore.rules.model.queue import Queue
from kaicore.rules.model.reservation import NodeReservation, Window, ZoneOffset, reservation_terms

from tests.given.cluster.factory import pod
from tests.given.work.workloads import OWNER, Workloads

HOUR = 3_600_000_000


def reservation(cluster: Workloads, begins: float, hours: float = 4, **fields: Any) -> NodeReservation:
    """A reservation of node n0 that begins so many hours from now."""
    start = cluster.now + round(begins * HOUR)
    given = {"nodes": ("n0",), "queue": "lab", "start": start, "end": start + round(hours * HOUR)}
    return NodeReservation(**({"uid": "u", "name": "r", "resource_version": "1"} | given | fields))


def cluster_with(begins: float, hours: float = 4, **fields: Any) -> Workloads:
    """One node with 8 GPUs, reserved for queue lab unless fields say otherwise."""
    cluster = Workloads().add_node("n0", cpu=64, gpu=8, labels={"rack": "a"})
    for name, parent in (("department", ""), ("lab", "department"), ("other", "department")):
        cluster.record(f"queue/{name}", payloads.QueueObserved(Queue(name, uid=f"uid-{name}", parent=parent)))
    one = reservation(cluster, begins, hours, **fields)
    cluster.record("reservation/r", payloads.ReservationObserved(one))
    return cluster


@pytest.mark.parametrize(
    ("begins", "fields", "limit_h", "queue", "starts"),
    [
        # Ends in time, would not, and has no limit: then an hour's notice.
        (2, {}, 1, "other", True),
        (2, {}, 3, "other", False),
        (2, {}, 0, "other", True),
        (0.5, {}, 0, "other", False),
        (0.5, {"notice_us": 0}, 0, "other", True),
        (5, {"notice_us": 6 * HOUR}, 0, "other", False),
        # In the window, and after it.
        (-1, {}, 1, "other", False),
        (-5, {}, 1, "other", True),
        # Work that it is for, at any time.
        (2, {}, 3, "lab", True),
        (-1, {}, 3, "lab", True),
        (-1, {"queue": "department"}, 3, "lab", True),
        (-1, {"namespace": "default"}, 3, "lab", True),
        (-1, {"namespace": "another"}, 3, "lab", False),
        (-1, {"queue": "", "namespace": "default"}, 3, "other", True),
        (-1, {"queue": "", "namespace": "default", "work": "p"}, 3, "other", True),
        (-1, {"queue": "", "namespace": "default", "work": "q"}, 3, "other", False),
        # Maintenance is for nobody.
        (-1, {"queue": ""}, 3, "lab", False),
        # Nodes by labels.
        (-1, {"nodes": (), "node_labels": {"rack": "a"}}, 1, "other", False),
        (-1, {"nodes": (), "node_labels": {"rack": "b"}}, 1, "other", True),
        # Again and again: the next window counts.
        (-24 * 7, {"recurrence": "FREQ=WEEKLY"}, 1, "other", False),
        (-24 * 7 - 2, {"recurrence": "FREQ=WEEKLY"}, 1, "other", False),
        (-24 * 7 + 2, {"recurrence": "FREQ=WEEKLY"}, 1, "other", True),
        (-24 * 7 + 2, {"recurrence": "FREQ=WEEKLY"}, 3, "other", False),
        (-24 * 7, {"recurrence": "FREQ=WEEKLY;COUNT=1"}, 1, "other", True),
    ],
)
def test_work_starts_on_reserved_nodes_if_it_may_be_there_for_as_long_as_it_runs(
    begins: float, fields: dict[str, Any], limit_h: int, queue: str, starts: bool
) -> None:
    cluster = cluster_with(begins, **fields)
    cluster.restart()
    cluster.add_pod(pod("p", gpu=1, active_deadline_s=limit_h * 3600, labels={"kai.scheduler/queue": queue}))
    result = cluster.cycle()
    assert (cluster.placed(result) == {"p": "n0"}) is starts
    if not starts:
        ((reason,),) = [one.reasons for one in result.pending]
        assert isinstance(reason, NodeReserved)
        assert (reason.reservation, reason.terms.startswith("for ")) == ("r", True)


def test_pods_of_one_class_are_told_apart_by_their_limits_and_the_free_node_takes_the_long_one() -> None:
    cluster = cluster_with(2).add_node("n1", cpu=64, gpu=2)
    for name, hours in (("short", 1), ("long", 3), ("longer", 9), ("none", 0)):
        cluster.add_pod(pod(name, gpu=2, active_deadline_s=hours * 3600))
    placed = cluster.placed(cluster.cycle())
    assert placed["short"] == placed["none"] == "n0"
    assert sorted((placed.get("long"), placed.get("longer")), key=str) == [None, "n1"]


def test_work_that_waits_is_looked_at_again_when_the_window_ends_or_the_reservation_goes() -> None:
    cluster = cluster_with(-1)
    cluster.add_pod(pod("p", gpu=1))
    assert not cluster.cycle().placements
    window = cluster.state.reservations["r"].window(cluster.now)
    assert window is not None
    assert next_due(cluster.state, EngineConfig(), now=cluster.now) == window.end
    cluster.record("reservation/r", payloads.ReservationDeleted("another", "r"))
    assert not cluster.cycle().placements
    cluster.record("reservation/r", payloads.ReservationDeleted("u", "r"))
    assert cluster.placed(cluster.cycle()) == {"p": "n0"}


OBJECT = """{"metadata": {"name": "r", "uid": "u", "resourceVersion": "1"}, "spec": {
    "for": {"queue": "lab"}, "nodes": ["n1", "n0"],
    "start": "2026-12-05T02:00:00.9+01:00", "end": "2026-12-05T06:00:00Z",
    "recurrence": "FREQ=WEEKLY;BYDAY=SA", "notice": "30m"}}"""


def normalized(text: str) -> tuple[NodeReservation, list[str]]:
    lost: list[InvalidObject] = []
    model = RESERVATION.normalize(RESERVATION.decode(text.encode()), lost.append)
    assert isinstance(model, NodeReservation)
    return model, [str(error) for error in lost]


def test_object_says_for_whom_where_and_when() -> None:
    model, lost = normalized(OBJECT)
    assert not lost
    assert (model.queue, model.namespace, model.nodes, model.notice_us) == ("lab", "", ("n0", "n1"), HOUR // 2)
    first = model.window(0)
    assert first == Window(1_796_432_400_000_000, 1_796_450_400_000_000)
    assert model.windows(first.start, first.start + 14 * 24 * HOUR) == [
        Window(first.start + days * 24 * HOUR, first.end + days * 24 * HOUR) for days in (0, 7)
    ]


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ('"2026-12-05T06:00:00Z"', '"2026-12-05T01:00:00Z"', "spec.end: is not after spec.start"),
        ('"start": "2026-12-05T02:00:00.9+01:00", ', "", "spec.start: is missing"),
        ("+01:00", "", "spec.start: has no zone"),
        ('"queue"', '"work"', "spec.for.work: needs spec.for.namespace"),
        ('["n1", "n0"]', "[]", "spec.nodes: names no node, and nodeSelector no label"),
        ("WEEKLY;BYDAY=SA", "SECONDLY", "spec.recurrence: needs FREQ, one of DAILY, WEEKLY, MONTHLY, YEARLY"),
        ("BYDAY=SA", "BYHOUR=3", "spec.recurrence: BYHOUR is not supported"),
        ("BYDAY=SA", "BYDAY=XX", "spec.recurrence: is no rule of RFC 5545"),
        # No such day ever: to look for it would take a second each time.
        ("WEEKLY;BYDAY=SA", "MONTHLY;BYMONTHDAY=31;BYMONTH=2", "has no day in four years"),
        ("BYDAY=SA", "BYMONTH=2;BYMONTHDAY=30;UNTIL=20300101T000000Z", "has no day in four years"),
        ("WEEKLY;BYDAY=SA", "DAILY;INTERVAL=7;BYDAY=MO", "has no day in four years"),
        # dateutil takes all of these, and then never ends, or raises in a later cycle.
        ("BYDAY=SA", "INTERVAL=0", "INTERVAL cannot be '0'"),
        ("BYDAY=SA", "INTERVAL=-1", "INTERVAL cannot be '-1'"),
        ("BYDAY=SA", "BYMONTH=13", "BYMONTH cannot be '13'"),
        ("BYDAY=SA", "COUNT=3;UNTIL=20300101T000000Z", "COUNT and UNTIL exclude each other"),
        ("WEEKLY;BYDAY=SA", "MONTHLY;BYDAY=1MO,53MO", "BYDAY cannot be '1MO,53MO'"),
        ("WEEKLY;BYDAY=SA", "MONTHLY;BYDAY=MO,1TU", "BYDAY cannot be 'MO,1TU'"),
        ("BYDAY=SA", "BYDAY=1SA", "BYDAY=1SA needs FREQ=MONTHLY or YEARLY"),
        (
            '"notice"',
            '"timeZone": "Europe/Atlantis", "notice"',
            "Reservation r: spec.timeZone: is no time zone such as Europe/Berlin: 'Europe/Atlantis'",
        ),
        # Names are no paths, and the machine's own zone is none.
        ('"notice"', '"timeZone": "../Berlin", "notice"', "spec.timeZone: is no time zone"),
        ('"notice"', '"timeZone": "Local", "notice"', "spec.timeZone: is no time zone"),
        ("BYDAY=SA", r"BYMONTH=1\nRRULE:FREQ=SECONDLY", "spec.recurrence: must be a text of printable characters"),
    ],
)
def test_what_cannot_be_is_named(before: str, after: str, problem: str) -> None:
    assert before in OBJECT
    with pytest.raises(InvalidObject, match=problem):
        normalized(OBJECT.replace(before, after))


SATURDAYS, BERLIN = "FREQ=WEEKLY;BYDAY=SA", "Europe/Berlin"


def clocks_of(zone: str) -> tzinfo:
    """A zone as the pinned data have it; a machine may have older ones."""
    return zone_named(zone, subject="test", field="zone")


def recurring(start: str, rule: str, zone: str) -> NodeReservation:
    """A reservation of an hour that comes again by a zone's clocks; the start is theirs, too."""
    begin = datetime.fromisoformat(start).replace(tzinfo=clocks_of(zone)).astimezone(UTC)
    times = {"start": begin.isoformat(), "end": (begin + timedelta(hours=1)).isoformat()}
    spec = {"nodes": ["n0"], "recurrence": rule, "timeZone": zone} | times
    model, lost = normalized(json.dumps({"metadata": {"name": "r", "uid": "u"}, "spec": spec}))
    assert not lost
    return model


def begins(one: NodeReservation, day: str, days: int) -> list[str]:
    """When its windows of some days begin, in UTC; `window`, asked for each, must agree with `windows`."""
    begin = int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * 1_000_000
    found = one.windows(begin, begin + days * 24 * HOUR)
    before = [found[0].start, *(window.end for window in found)]
    assert [one.window(at) for at in before[: len(found)]] == found
    assert {window.end - window.start for window in found} == {HOUR}
    return [time_text(window.start)[5:16] for window in found]


@pytest.mark.parametrize(
    ("start", "rule", "zone", "day", "windows"),
    [
        # In summer an hour earlier by UTC, and in winter again an hour later.
        ("2026-12-05T08:00", SATURDAYS, BERLIN, "2027-03-21", ["03-27T07:00", "04-03T06:00"]),
        ("2026-12-05T08:00", SATURDAYS, BERLIN, "2027-10-24", ["10-30T06:00", "11-06T07:00"]),
        # 02:30 is skipped: it counts by the clocks before, which is 03:30. 02:30 comes twice: the first counts.
        ("2026-12-05T02:30", "FREQ=DAILY", BERLIN, "2027-03-27", ["03-27T01:30", "03-28T01:30", "03-29T00:30"]),
        ("2026-12-05T02:30", "FREQ=DAILY", BERLIN, "2027-10-30", ["10-30T00:30", "10-31T00:30", "11-01T01:30"]),
        # On Saturday there it is Friday in UTC; half an hour of summer; none at all.
        ("2026-12-05T08:00", SATURDAYS, "Pacific/Auckland", "2027-04-01", ["04-02T19:00", "04-09T20:00"]),
        ("2026-12-05T08:00", SATURDAYS, "Australia/Lord_Howe", "2027-04-01", ["04-02T21:00", "04-09T21:30"]),
        ("2026-12-05T08:00", SATURDAYS, "Asia/Kolkata", "2027-04-01", ["04-03T02:30", "04-10T02:30"]),
        # Before Saturday begins in UTC, the last one is over there.
        ("2026-12-05T08:00", SATURDAYS + ";UNTIL=20270402T200000Z", "Pacific/Auckland", "2027-04-01", ["04-02T19:00"]),
    ],
)  # fmt: skip
def test_windows_of_a_zone_begin_by_its_clocks(start: str, rule: str, zone: str, day: str, windows: list[str]) -> None:
    assert begins(recurring(start, rule, zone), day, 14 if "WEEKLY" in rule else 3) == windows


@pytest.mark.parametrize("zone", ["Europe/Dublin", "America/Santiago", "Africa/Casablanca", "Asia/Tehran", "EST5EDT"])
@pytest.mark.parametrize("clock", ["00:00", "01:30", "02:00", "03:00", "23:45"])
def test_windows_of_nine_years_begin_as_the_zones_data_say(zone: str, clock: str) -> None:
    one = recurring(f"2026-01-01T{clock}", "FREQ=WEEKLY;BYDAY=SU", zone)
    first = datetime.fromisoformat(f"2026-01-04T{clock}").replace(tzinfo=clocks_of(zone))
    found = one.windows(one.start + 1, one.start + 9 * 365 * 24 * HOUR)[1:]
    expected = [(first + timedelta(weeks=week)).timestamp() for week in range(len(found))]
    assert len(found) > 400
    assert [window.start / 1_000_000 for window in found] == expected


def test_fact_decides_and_not_what_a_machine_knows_of_zones() -> None:
    recorded = recurring("2026-12-05T08:00", SATURDAYS, BERLIN)
    law = (*recorded.offsets[:1], ZoneOffset(recorded.start + 1, 7_200))
    assert begins(msgspec.structs.replace(recorded, offsets=law), "2027-01-01", 7) == ["01-02T06:00"]
    assert begins(msgspec.structs.replace(recorded, offsets=law, time_zone="Gone/Zone"), "2027-01-01", 7) == [
        "01-02T06:00"
    ]


def test_fact_without_a_zone_is_what_it_was() -> None:
    model, _ = normalized(OBJECT)
    assert (
        not {"time_zone", "offsets"}
        & json.loads(encode_payload(payloads.ReservationObserved(model)))["reservation"].keys()
    )


def test_first_window_in_an_hour_that_comes_twice_is_the_one_that_was_named() -> None:
    text = OBJECT.replace('"notice"', '"timeZone": "Europe/Berlin", "notice"')
    text = text.replace("2026-12-05T02:00:00.9+01:00", "2027-10-31T02:30:00+01:00").replace("SA", "SU")
    model, _ = normalized(text.replace("2026-12-05T06", "2027-10-31T03"))
    begin = model.start - 24 * HOUR
    assert [time_text(one.start)[5:16] for one in model.windows(begin, begin + 9 * 24 * HOUR)] == [
        "10-31T01:30",
        "11-07T01:30",
    ]


def test_window_that_ends_with_the_calendar_has_repetitions_that_do_not_go_beyond() -> None:
    model, _ = normalized(OBJECT.replace("2026-12-05T06:00:00Z", "9999-12-31T23:59:59Z"))
    again = model.window(model.end)
    assert again is not None
    assert reservation_terms(model, again).endswith("to 9999-12-31T23:59:59Z")
    assert time_text(again.end) == "9999-12-31T23:59:59.000Z"


def test_notice_that_says_nothing_costs_only_itself() -> None:
    model, lost = normalized(OBJECT.replace("30m", "soon"))
    assert model.notice_us == HOUR
    assert "spec.notice: is no duration such as 90s or 1h30m: 'soon'" in lost[0]


def draining(cluster: Workloads, by: float, *, begins: float = -1) -> None:
    """Node n0 is drained for maintenance, from `begins` on."""
    until = cluster.now + round(by * HOUR)
    one = reservation(cluster, begins, 9, queue="", drain_by=until)
    cluster.record("reservation/r", payloads.ReservationObserved(one))


def crowded() -> Workloads:
    """A gang of two on n0, a pod of another owner there; n1 has room for two of the three."""
    cluster = Workloads().add_node("n0", cpu=64, gpu=6)
    labels = {"app": "spared"}
    cluster.full(cluster.gang("g", 2, gpu=2, labels=labels), cluster.add_pod(pod("lone", gpu=2, labels=labels)))
    cluster.add_node("n1", cpu=64, gpu=4)
    return cluster


def test_drained_node_loses_at_once_what_can_go_on_elsewhere_and_the_rest_in_time() -> None:
    cluster = crowded()
    draining(cluster, 1)
    # There is room for the gang, and not for the third pod.
    assert cluster.evicted(cluster.cycle()) == {"g-0": "Drained", "g-1": "Drained"}
    assert not cluster.cycle().evictions
    due = next_due(cluster.state, EngineConfig(), now=cluster.now)
    assert due is not None
    assert due <= cluster.now + HOUR
    cluster.now += HOUR
    assert cluster.evicted(cluster.cycle()) == {"lone": "Drained"}


@pytest.mark.parametrize("owner", [None, OWNER], ids=["alone", "with a controller"])
def test_drained_pod_goes_on_elsewhere_at_once_only_if_a_controller_makes_it_anew(owner: Owner | None) -> None:
    cluster = Workloads().add_nodes(1, cpu=64, gpu=2)
    cluster.full(cluster.add_pod(pod("lone", gpu=2, owner=owner)))
    cluster.add_node("n1", cpu=64, gpu=2)
    draining(cluster, 1)
    assert cluster.evicted(cluster.cycle()) == ({} if owner is None else {"lone": "Drained"})


@pytest.mark.parametrize(("begins", "deleted"), [(1, False), (-1, True)])
def test_nothing_leaves_before_a_drain_begins_or_after_it_is_taken_back(begins: float, deleted: bool) -> None:
    cluster = crowded()
    draining(cluster, 2, begins=begins)
    if deleted:
        cluster.record("reservation/r", payloads.ReservationDeleted("u", "r"))
    assert not cluster.cycle().evictions


def test_disruption_budget_keeps_pods_on_a_drained_node() -> None:
    cluster = crowded()
    cluster.budget(0)
    draining(cluster, -0.5)
    assert not cluster.cycle().evictions
