"""GPU-hours of a log: by whom, by right or borrowed, lost, and what there was besides; by month, and with prices."""

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from kaicore.analysis.ask.hours.account import ACCOUNT_SCHEMA
from kaicore.analysis.ask.hours.report import ReportQuestion, UsageReport, account_digest, account_of, usage_report
from kaicore.errors import InvalidObject, UnknownMoment
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import Event
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL

from tests.given.cluster.factory import Cluster, amounts, node, pod
from tests.given.cluster.hierarchy import queue
from tests.given.logs.exported import write_file
from tests.given.logs.recorded_history import log_of
from tests.given.processes.kai_commands import forked, kai
from tests.given.recorded import DEMO, read_log

_HOUR_US = 3_600_000_000
#: Two hours before December.
_BEGIN = int(datetime(2026, 11, 30, 22, tzinfo=UTC).timestamp())


def _about(hours: float) -> float:
    """Events of a test's log are a millisecond apart."""
    return pytest.approx(hours, abs=1e-4)


def story(seconds: int = _BEGIN, *, end: float = 5) -> list[Event]:
    """Two pods of a queue with a quota of one GPU; one fails, one is evicted; their node is cordoned before that.

    The last event comes after `end` hours.
    """
    cluster = Cluster("c1", hashes=True)
    cluster.now = begin = seconds * 1_000_000

    def at(hours: float) -> None:
        cluster.now = begin + int(hours * _HOUR_US)

    zone = amounts(cpu=16, memory=64, gpu=4)
    labels = {"nvidia.com/gpu.product": "A100"}
    cluster.add_node("n0", zone, labels=labels)
    cluster.record("queue/dept", payloads.QueueObserved(queue("dept", quota=1)))
    cluster.record("queue/team", payloads.QueueObserved(queue("team", "dept", quota=1)))
    pods = [
        pod(
            user,
            cpu=2,
            memory=1,
            gpu=1,
            created_at=seconds,
            labels={KAI_QUEUE_LABEL: "team", "user": user, "project": "p"},
        )
        for user in ("ann", "bob")
    ]
    for one in pods:
        cluster.add_pod(one)
    cluster.cycle()
    at(0.5)
    ann, bob = (msgspec.structs.replace(one, node_name="n0", phase="Running") for one in pods)
    cluster.add_pod(ann)
    cluster.add_pod(bob)
    at(2.5)
    cluster.add_pod(msgspec.structs.replace(ann, phase="Failed"))
    at(3.5)
    held = {"allocatable": {**zone, "pods": 110}, "labels": labels}
    cluster.record("node/n0", payloads.NodeObserved(node("n0", unschedulable=True, **held)))
    at(4.5)
    cluster.record(f"pod/{bob.uid}", payloads.PodEvicted(bob.uid, bob.namespace, bob.name, "n0"))
    cluster.add_pod(msgspec.structs.replace(bob, deletion_at=seconds))
    cluster.delete_pod(bob)
    at(end)
    cluster.record("queue/team", payloads.QueueObserved(queue("team", "dept", quota=1, resource_version="2")))
    return cluster.events


async def test_other_figures_for_the_same_log_raise_the_accounts_schema() -> None:
    log = await log_of(read_log(DEMO / "demo.jsonl.xz"))
    digest = account_digest(await account_of(log, "demo", 0, 1 << 62))
    assert (ACCOUNT_SCHEMA, digest[:12]) == (2, "6082c7f32f3f"), (
        "sealed months and kept hours are of older rules: raise it"
    )


async def _report(**asked: object) -> UsageReport:
    log = await log_of(story())
    return await usage_report(log, "c1", msgspec.convert(asked, ReportQuestion))


def _sums(report: UsageReport, name: str, figures: Sequence[str]) -> list[float]:
    rows = [row for row in report.owners if row.name == name]
    return [sum(getattr(row.gpu, figure) for row in rows) for figure in figures]


async def test_hours_of_a_story_are_by_right_borrowed_idle_and_lost_to_the_second() -> None:
    report = await _report(by="user")
    figures = ("held", "by_right", "borrowed", "idle", "evicted", "failed")
    assert _sums(report, "ann", figures) == [_about(hours) for hours in (2.5, 1.25, 1.25, 0.5, 0, 2)]
    assert _sums(report, "bob", figures) == [_about(hours) for hours in (4.5, 3.25, 1.25, 0.5, 4, 0)]
    assert sum(row.cpu.held for row in report.owners) == _about(14)
    assert sum(row.memory.held for row in report.owners) == _about(7)
    waits = [row.waits for row in report.owners if row.waits.count]
    assert [(one.count, one.p50, one.p99) for one in waits] == [
        (1, pytest.approx(1800, abs=0.1), pytest.approx(1800, abs=0.1))
    ] * 2
    assert {row.model for row in report.models} == {"A100"}
    gpu = [row.gpu for row in report.models]
    assert [sum(getattr(one, name) for one in gpu) for name in ("capacity", "held", "free", "out_of_service")] == (
        [_about(hours) for hours in (20, 7, 8, 5)]
    )


async def test_free_gpus_beside_which_no_cpus_are_left_are_stranded() -> None:
    cluster = Cluster("c1", hashes=True)
    cluster.now = _BEGIN * 1_000_000
    cluster.add_node("n0", amounts(cpu=4, memory=64, gpu=4))
    one = cluster.add_pod(pod("a", cpu=4, memory=1, gpu=1, created_at=_BEGIN))
    cluster.cycle()
    cluster.add_pod(msgspec.structs.replace(one, node_name="n0", phase="Running"))
    cluster.now += _HOUR_US
    cluster.cycle()
    (model,) = (await usage_report(await log_of(cluster.events), "c1", ReportQuestion())).models
    figures = (model.gpu.capacity, model.gpu.held, model.gpu.free, model.gpu.out_of_service)
    assert figures == (_about(4), _about(1), _about(3), 0)
    assert 3 * 59 / 60 <= model.gpu.stranded <= 3


async def test_a_month_ends_where_the_next_begins_and_parts_of_a_range_sum_up_to_it() -> None:
    whole = await _report()
    assert [(row.month, row.gpu.held) for row in whole.owners] == [("2026-11", _about(4)), ("2026-12", _about(3))]
    november, rest = await _report(month="2026-11"), await _report(since="2026-12-01T00:00:00Z")
    assert november.end == "2026-12-01T00:00:00.000Z"
    assert [row.gpu for row in november.owners + rest.owners] == [row.gpu for row in whole.owners]
    assert [row.gpu for row in november.models + rest.models] == [row.gpu for row in whole.models]


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("team", {"dept"}),
        ("queue", {"team"}),
        ("namespace", {"default"}),
        ("model", {"A100"}),
        ("label:project", {"p"}),
        ("label:none", {""}),
    ],
)
async def test_owners_are_told_apart_by_what_is_asked(by: str, names: set[str]) -> None:
    assert {row.name for row in (await _report(by=by)).owners} == names


async def test_prices_make_money_of_held_hours_and_a_model_without_one_is_named() -> None:
    priced = await _report(prices={"A100": Decimal("2.5")})
    assert [row.cost for row in priced.owners] == [10, 7.5]
    assert (await _report(prices={"*": Decimal(1)})).owners[0].cost == 4
    other = await _report(prices={"H100": Decimal(4)})
    assert (other.unpriced, other.owners[0].cost) == (["A100"], None)


async def test_what_cannot_be_reported_is_refused() -> None:
    for asked in ({"by": "colour"}, {"by": "label:"}, {"month": "2026-13"}, {"month": "2026-11", "since": "1"}):
        with pytest.raises(InvalidObject):
            await _report(**asked)
    with pytest.raises(UnknownMoment, match="nothing of that time"):
        await _report(month="2026-10")


def test_the_command_prints_a_table_csv_and_json_of_a_file(tmp_path: Path) -> None:
    file, prices = str(write_file(tmp_path / "c1.log.gz", story())), tmp_path / "prices.csv"
    prices.write_text("model,price\nA100,2.50\n")
    asked = ("report", "--file", file, "--month", "2026-11", "--prices", str(prices))
    table = kai(*asked).stdout
    assert "team" in table
    assert "10.00" in table
    head, line = kai(*asked, "-o", "csv").stdout.splitlines()
    row = dict(zip(head.split(","), line.split(","), strict=True))
    assert (row["month"], row["queue"], float(row["gpu_held_hours"]), row["cost"]) == (
        ("2026-11", "team", _about(4), "10.0")
    )
    with (tmp_path / "report.parquet").open("wb") as out, prices.open() as given:
        streams = (given.fileno(), out.fileno(), 2)
        assert forked("kai_cli.main", *asked, "-o", "parquet", streams=streams).wait() == 0
    (there,) = pq.read_table(tmp_path / "report.parquet").to_pylist()
    assert (there["queue"], there["gpu_held_hours"], there["cost"]) == ("team", _about(4), 10.0)
    answer = msgspec.json.decode(kai(*asked, "-o", "json").stdout, type=UsageReport)
    assert answer.owners[0].gpu.held == _about(4)
    prices.write_text("A100,cheap\n")
    refused = kai(*asked)
    assert (refused.returncode, "is no number from 0 on" in refused.stderr) == (2, True)
