"""`kai export --format parquet`: a log as tables, read by an independent reader."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from kai_cli.history.parquet import write_tables
from kaicore.analysis.ask.projections.tables import TABLES, Tables
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.cluster_state import ClusterState

from tests.given.processes.called_kai import caller
from tests.given.recorded import DEMO, read_log
from tests.measured.assistants import log_file


@pytest.fixture(scope="module")
def log() -> list[Event]:
    return read_log(DEMO / "demo.jsonl.xz")


async def test_tables_hold_what_the_events_say(log: list[Event], tmp_path: Path) -> None:
    async def events() -> AsyncIterator[Event]:
        for event in log:
            yield event

    counts = await write_tables(tmp_path / "new" / "tables", events(), ClusterState("demo"), {"kai.cluster": "demo"})
    tables = {name: pq.read_table(tmp_path / "new" / "tables" / f"{name}.parquet") for name in TABLES}
    assert {name: table.num_rows for name, table in tables.items()} == counts
    assert tables["pods"].schema.metadata[b"kai.cluster"] == b"demo"
    described = (tmp_path / "new" / "tables" / "README.md").read_text()
    assert all(f"`{name}`" in described for table in tables.values() for name in table.column_names)
    decoded = [(event, decode_payload(event)) for event in log]
    placed = [one for _, one in decoded if isinstance(one, payloads.PodPlaced)]
    pods = {one.pod.uid for _, one in decoded if isinstance(one, payloads.PodObserved)}
    assert set(tables["pods"]["uid"].to_pylist()) == pods
    assert pc.sum(tables["pods"]["placements"]).as_py() == len(placed)
    decisions = Counter(tables["decisions"]["decision"].to_pylist())
    assert decisions == {"PodPlaced": len(placed), "EvictionDecided": 1, "PodNominated": 1}
    for name, some in (
        ("placements", [one.placement for one in placed if one.placement is not None]),
        ("observations", [one.placement for _, one in decoded if isinstance(one, payloads.PlacementObserved)]),
    ):
        held = sum(zone.amount.get("cpu", 0) for one in some for part in one.containers for zone in part.zones)
        cpus = tables[name].filter(pc.equal(tables[name]["resource"], "cpu"))
        assert pc.sum(cpus["amount"]).as_py() == held > 0
    ((first, *_), times) = decoded, tables["decisions"]["at"]
    assert pc.min(times).as_py().timestamp() >= first[0].recorded_at // 1_000_000
    assert tables["pods"]["gone_at"].null_count == len(pods) - 1


def test_rows_are_the_same_wherever_batches_end(log: list[Event]) -> None:
    def rows(every: int) -> dict[str, set[str]]:
        tables, made = Tables(ClusterState("demo")), {name: list[str]() for name in TABLES}
        for number, event in enumerate(log, start=1):
            tables.take(event)
            if number % every == 0:
                for name, some in tables.batch().items():
                    made[name] += map(repr, some)
        for name, some in tables.batch(last=True).items():
            made[name] += map(repr, some)
        assert all(len(some) == len(set(some)) for some in made.values())
        return {name: set(some) for name, some in made.items()}

    assert rows(10) == rows(10_000)


def test_kai_export_writes_tables_and_refuses_what_they_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, source = caller(monkeypatch, capsys), f"--file={log_file(tmp_path, 'demo')}"
    code, output = run("export", str(tmp_path / "tables"), "--format=parquet", source)
    assert (code, "events 1 to 955 in" in output) == (0, True), output
    code, output = run("export", str(tmp_path / "tables"), "--format=parquet", "--from=100", source)
    assert (code, "tables begin with the log" in output) == (2, True), output
    (tmp_path / "taken").write_text("")
    code, output = run("export", str(tmp_path / "taken"), "--format=parquet", source)
    assert (code, f"{tmp_path}/taken: " in output) == (2, True), output


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        # Nothing is at the beginning of a process's memory.
        (("get", "pods", "--file=/proc/self/mem"), 1, "Input/output error"),
        (("why", "\udcff", "--file={}"), 2, r"no Unicode text: 'default/\udcff'"),
        (("reserve", "r", "--maintenance", "--start=0001-01-01T00:00:00+23:59", "--end=+1h"), 2, "--start: is no time"),
    ],
)
def test_what_a_machine_or_a_shell_spoils_ends_a_command_with_a_sentence(
    arguments: tuple[str, ...],
    code: int,
    problem: str,
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = log_file(tmp_path, "demo")
    ended, output = caller(monkeypatch, capsys)(*(one.format(file) for one in arguments))
    assert (ended, output.startswith("kai: "), problem in output) == (code, True, True), output
