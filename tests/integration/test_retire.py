"""`kai retire`, as an operator calls it: what it refuses, what it leaves behind, and that all goes on afterwards."""

import gzip
import json
import os
import stat
import subprocess
from pathlib import Path

import psycopg
import pytest
from kaicore.analysis.trial.dispatching import hub_of
from kaicore.errors import CorruptLog
from kaicore.ledger.log.files.archiving import check_archive
from kaicore.ledger.log.partitions import Month
from kaicore.ledger.log.port import Filter, Snapshot
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.payloads import ClusterRegistered, DispatchSubmitted, DispatchWithdrawn, QueueBounded
from kaicore.rules.hub.hub_state import HUB, DispatchStage, cluster_stream, dispatch_stream, queue_stream

from tests.given.doubles.stopped_clock import StoppedClock
from tests.given.processes.kai_commands import kai as run_kai
from tests.integration.scheduling import Facts, placed, scheduling

C = "cluster-a"
DAY = 24 * 3600 * 1_000_000


def kai(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KAI_")}
    return run_kai(*map(str, arguments), environment=environment)


@pytest.fixture
def url(monthless_url: str) -> str:
    return monthless_url


@pytest.fixture
async def old(url: str) -> Month:
    """The month before last: two nodes came and a pod was placed in it; another one in the month after it."""
    with psycopg.connect(url) as connection:
        ((now,),) = connection.execute("SELECT (extract(epoch FROM now()) * 1000000)::bigint").fetchall()
    month = Month.of(now) + -2
    clock = StoppedClock(month.start + 5 * DAY)
    async with await PostgresLog.open(url, clock=clock) as log:
        facts = Facts(log, C)
        await facts.add_nodes(2)
        async with scheduling(log, C):
            await facts.add_pods("a", cpu=2, gpu=1)
            await placed(log, C, 1)
        clock.now = (month + 1).start + DAY
        await log.make_months()
        await facts.add_pods("b", cpu=2, gpu=1)
    return month


async def test_a_month_is_put_away_and_all_goes_on_from_the_state_that_was_kept(
    url: str, old: Month, tmp_path: Path
) -> None:
    there = ("--database-url", url)
    async with await PostgresLog.open(url) as log:
        async with scheduling(log, C):
            await placed(log, C, 2)
        gone = await log.read(C, where=Filter(until=(old + 1).start))
    with psycopg.connect(url) as connection:
        # The state at the month's end is folded for it, whatever snapshots of it there are.
        connection.execute("DELETE FROM snapshot WHERE name = 'state'")
    before = kai("get", "pods", "-o", "json", *there)

    tried = kai("retire", str(old), "--to", tmp_path / "away", "--dry-run", *there)
    assert (tried.returncode, tried.stderr) == (0, "")
    assert f"cluster {C}: {len(gone)} events, 1 to {gone[-1].position}, hash {gone[-1].hash.hex()}" in tried.stdout
    assert "nothing was changed" in tried.stdout
    assert not (tmp_path / "away").exists()
    assert kai("get", "pods", "-o", "json", *there).stdout == before.stdout

    done = kai("retire", str(old), "--to", tmp_path / "away", *there)
    assert (done.returncode, done.stderr) == (0, "")
    assert "what reads it starts at" in done.stdout
    assert sorted(file.name for file in (tmp_path / "away").iterdir()) == [
        f"{old.table}.csv.gz",
        f"{old.table}.kept.csv.gz",
    ]

    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT to_regclass(%s)", [old.table]).fetchall() == [(None,)]
        connection.execute("DELETE FROM snapshot")
    for question in (("audit", "verify"), ("replay",), ("why", "b")):
        answer = kai(*question, *there)
        assert (answer.returncode, answer.stderr) == (0, ""), question
    replayed = json.loads(kai("replay", "-o", "json", *there).stdout)
    assert (replayed["differences"], replayed["decisions"]) == ([], 1)
    end = gone[-1].position
    assert f"what reads it starts at {end}\n" in done.stdout
    assert json.loads(kai("get", "pods", "--at", str(end), "-o", "json", *there).stdout)["total"] == 1
    assert kai("get", "pods", "--at", str(end - 1), *there).returncode == 1
    assert kai("get", "pods", "-o", "json", *there).stdout == before.stdout
    again = kai("retire", str(old), *there)
    assert (again.returncode, f"month {old} is not in the log" in again.stderr) == (2, True)
    _brings_back(url, old, tmp_path / "away", events=len(gone))


def _brings_back(url: str, month: Month, directory: Path, *, events: int) -> None:
    """As the documentation says, with `COPY`."""
    with psycopg.connect(url) as connection:
        connection.execute(f"CREATE TABLE {month.table} (LIKE event)".encode())
        with gzip.open(directory / f"{month.table}.csv.gz") as packed:
            body = packed.read()
        columns = body.partition(b"\n")[0]
        with connection.cursor().copy(
            b"COPY %s (%s) FROM STDIN (FORMAT csv, HEADER)" % (month.table.encode(), columns)
        ) as copy:
            copy.write(body)
        ((count,),) = connection.execute(f"SELECT count(*) FROM {month.table}".encode()).fetchall()
        assert count == events


async def test_a_month_that_a_service_needs_one_that_is_not_the_oldest_and_one_that_is_not_over_are_refused(
    url: str, old: Month
) -> None:
    there = ("--database-url", url)
    async with await PostgresLog.open(url) as log:
        await log.save_snapshot(C, Snapshot("binder", 1, "1", b"of before its end"))
    for month, expected in (
        (old, "no sound snapshot 'binder' at or after position"),
        (old + 1, f"month {old} is older than {old + 1} and must be detached first"),
        (old + 40, "is not in the log; its months are"),
    ):
        for flags in ((), ("--dry-run",)):
            refused = kai("retire", str(month), *flags, *there)
            assert (refused.returncode, expected in refused.stderr) == (2, True), refused.stderr
    assert kai("retire", "January", *there).returncode == 2
    async with await PostgresLog.open(url) as log:
        assert await log.retired(C) == 0


async def test_a_role_that_does_not_own_the_log_may_not_retire(database_url: str) -> None:
    assert kai("retire", str(Month(2020, 1)), "--database-url", database_url).returncode == 2


async def test_what_was_detached_but_not_put_away_is_put_away_later(url: str, old: Month, tmp_path: Path) -> None:
    there = ("--database-url", url)
    async with await PostgresLog.open(url) as log, scheduling(log, C):
        await placed(log, C, 2)
    detached = kai("retire", str(old), *there)
    assert (detached.returncode, f"its events are in table {old.table}" in detached.stdout) == (0, True)
    again = kai("retire", str(old), *there)
    assert (again.returncode, "--to DIR puts it away" in again.stderr) == (2, True)
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert kai("retire", str(old), "--to", blocked, *there).returncode == 2
    put_away = kai("retire", str(old), "--to", tmp_path / "away", *there)
    assert (put_away.returncode, f"table {old.table} is dropped" in put_away.stdout) == (0, True), put_away.stderr


async def test_a_file_that_is_not_what_was_sealed_is_noticed(
    url: str, old: Month, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode)))
    async with await PostgresLog.open(url) as log:
        async with scheduling(log, C):
            await placed(log, C, 2)
        seals = await log.detach_month(old)
        (file, _) = await log.put_away_month(old, seals, tmp_path)
    # Both files, and their names: the table is gone.
    assert synced == [False, False, True]
    before = {C: bytes(32)}
    check_archive(file, seals, before=before)
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    for spoilt in (lines[:-1], [*lines[:2], *lines[3:]], [line.replace(b"watcher", b"mallory") for line in lines]):
        file.write_bytes(gzip.compress(b"".join(spoilt)))
        with pytest.raises(CorruptLog, match=f"cluster {C}"):
            check_archive(file, seals, before=before)


async def test_a_hub_goes_on_from_the_state_that_was_kept_when_its_first_month_is_retired(url: str) -> None:
    with psycopg.connect(url) as connection:
        ((now,),) = connection.execute("SELECT (extract(epoch FROM now()) * 1000000)::bigint").fetchall()
    month = Month.of(now) + -2
    async with await PostgresLog.open(url, clock=StoppedClock(month.start + 5 * DAY)) as log, hub_of(log) as hub:
        await hub.append(cluster_stream("a"), ClusterRegistered(cluster="a", data=("images",)), subject="a")
        await hub.append(queue_stream("team"), QueueBounded(queue="team", limits={"gpu": 3}), subject="team")
        submitted = DispatchSubmitted("train", "[]", queue="team", demand={"gpu": 2})
        await hub.append(dispatch_stream("train"), submitted, subject="train")
        before = hub.state
    done = kai("retire", str(month), "--database-url", url)
    assert done.returncode == 0, done.stderr
    async with await PostgresLog.open(url) as log:
        assert await log.retired(HUB) == before.position
        async with hub_of(log) as hub:
            assert hub.state == before
            await hub.append(dispatch_stream("train"), DispatchWithdrawn(dispatch="train"), subject="train")
            assert hub.state.dispatches["train"].stage is DispatchStage.WITHDRAWN
