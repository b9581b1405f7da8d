"""The remains of a pod's name after its erasure: nothing in any table, and a log that is verified and replayed."""

import asyncio
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from itertools import groupby
from pathlib import Path

import msgspec
import psycopg
import pytest
from kai_cli.main import main
from kaicore.analysis.ask.hours.account import Held, HourOwner, Period
from kaicore.analysis.ask.hours.kept import KeptHours
from kaicore.analysis.replay.log_states import folded
from kaicore.analysis.replay.replay import replay_log
from kaicore.errors import ConfigurationError, UnknownSubject
from kaicore.ledger.log import snapshots
from kaicore.ledger.log.chain import mark_of
from kaicore.ledger.log.port import Snapshot
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.postgres.erasing import ErasureReport, ErasureRequest
from kaicore.ledger.log.postgres.rows import encode_rows
from kaicore.ledger.log.seals.audit import verify
from kaicore.ledger.log.snapshots import unpacked
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA, encode_state

from tests.conftest import as_role
from tests.given.recorded import read_log, recorded_logs

Erase = Callable[..., ErasureReport]


def recorded() -> list[Event]:
    return read_log(recorded_logs()[-1].parent / "demo-blind.jsonl.xz")


EVENTS = recorded()
CLUSTER = EVENTS[0].cluster


def load(url: str, events: list[Event]) -> None:
    """Put recorded events into a database, as they were recorded."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT kai_lock_head(%s)", [CLUSTER])
        for recorded_at, group in groupby(events, key=lambda event: event.recorded_at):
            some = list(group)
            connection.execute(
                "SELECT kai_append(%s, %s::json, %s, %s, %s)",
                [CLUSTER, encode_rows(some), some[-1].position, some[-1].hash, recorded_at],
            )


@pytest.fixture(scope="module")
def loaded(module_database_url: str) -> str:
    load(module_database_url, EVENTS)
    return module_database_url


@pytest.fixture
def url(loaded: str, copy_of: Callable[[str], AbstractContextManager[str]]) -> Iterator[str]:
    with copy_of(loaded) as copied:
        yield copied


@pytest.fixture
def erase(url: str) -> Erase:
    def run(subject: str, **options: object) -> ErasureReport:
        async def erased() -> ErasureReport:
            async with await PostgresLog.open(url) as log:
                return await log.erase(CLUSTER, ErasureRequest(subject, **options))  # type: ignore[arg-type]

        return asyncio.run(erased())

    return run


def deleted_pods() -> list[str]:
    return [event.subject for event in EVENTS if event.type == "PodDeleted"]


def tables_with(url: str, *texts: str) -> dict[str, set[str]]:
    """The tables that have a text, by text: every table of the database, every row, packed ones unpacked."""
    found: dict[str, set[str]] = {text: set() for text in texts}
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace::regnamespace::text "
            "NOT IN ('pg_catalog', 'information_schema', 'pg_toast')"
        ).fetchall()
        for (table,) in tables:
            for row in connection.execute(f"SELECT * FROM {table}".encode()):
                parts = b"\n".join(part for value in row for part in _bytes(value))
                for text in texts:
                    if text.encode() in parts:
                        found[text].add(table)
    return found


def _bytes(value: object) -> Iterator[bytes]:
    raw = value if isinstance(value, bytes) else msgspec.json.encode(value) if isinstance(value, dict) else None
    yield str(value).encode() if raw is None else raw
    if isinstance(value, bytes):
        for unpack in (zlib.decompress, unpacked):
            with suppress(zlib.error):
                yield unpack(value)


def about(check: Callable[[PostgresLog], object], url: str) -> object:
    async def run() -> object:
        async with await PostgresLog.open(url) as log:
            return await check(log)  # type: ignore[misc]

    return asyncio.run(run())


def test_no_row_of_any_table_holds_an_erased_name_and_the_log_is_verified_and_replayed(
    url: str, erase: Erase, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a large state is kept.
    monkeypatch.setattr(snapshots, "_PACKED_FROM", 0)
    state = ClusterState(CLUSTER).fold_all(EVENTS[:800])
    snapshot = Snapshot("state", state.position, SNAPSHOT_SCHEMA, encode_state(state))

    about(lambda log: log.save_snapshot(CLUSTER, snapshot), url)
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO kept_snapshot (cluster, seal, name, schema, position, body, digest) "
            "SELECT cluster, 1, name, schema, position, body, digest FROM snapshot"
        )
    subjects = deleted_pods()
    before = about(lambda log: folded(log, CLUSTER), url)
    assert isinstance(before, ClusterState)
    names = [subject.partition("/")[2] for subject in subjects]
    hour = Period("2026-11", EVENTS[0].recorded_at, EVENTS[-1].recorded_at + 1)
    hour.owners[HourOwner("", "", "", names[0], "")] = Held()
    about(lambda log: KeptHours(log.connections).save(CLUSTER, [hour], labels=()), url)
    assert "views.account_hour" in tables_with(url, names[0])[names[0]]
    with psycopg.connect(url) as connection:
        row = "INSERT INTO notices.waiting (target, cluster, made_at, body) VALUES ('t', %s, 0, %s)"
        connection.cursor().executemany(row, [(CLUSTER, f'{{"subject":"{subject}"}}') for subject in subjects])
    for name, tables in tables_with(url, *names).items():
        assert "event" in {table.partition("_")[0] for table in tables}, name
    erased = set()
    for subject in subjects:
        report = erase(subject, reason="ticket 7")
        assert report.left == ()
        erased |= set(report.positions)
        assert report.pseudonym.endswith(f"erased-{report.uids[0]}")
    assert tables_with(url, *names) == {name: set() for name in names}
    audit = about(lambda log: verify(log, CLUSTER), url)
    assert str(audit).startswith(f"cluster {CLUSTER}: {len(EVENTS) + len(subjects)} events verified, of {len(erased)} ")
    replayed = about(lambda log: replay_log(log, CLUSTER), url)
    assert replayed.differences == []  # type: ignore[attr-defined]
    assert replayed.cycles == sum(event.type == "CycleCompleted" for event in EVENTS)  # type: ignore[attr-defined]
    assert replayed.otherwise == []  # type: ignore[attr-defined]
    assert len(about(lambda log: log.kept_snapshots(CLUSTER, name="state"), url)) == 1  # type: ignore[arg-type]
    after = about(lambda log: folded(log, CLUSTER), url)
    assert isinstance(after, ClusterState)
    assert after.counters == before.counters
    assert after.pods.keys() == before.pods.keys()


def test_an_erasure_changes_names_and_labels_and_nothing_else(url: str, erase: Erase) -> None:
    subject = deleted_pods()[0]
    name = subject.partition("/")[2]
    report = erase(subject)
    events = about(lambda log: log.read(CLUSTER, limit=5000), url)
    assert isinstance(events, list)
    original = {event.position: event for event in EVENTS}
    for event in events[: len(EVENTS)]:
        was = original[event.position]
        assert event.hash == was.hash
        if event.position not in report.positions:
            assert event == was
            continue
        document, plain = msgspec.json.decode(event.body), msgspec.json.decode(was.body)
        assert document.pop("$erased") == mark_of(event)
        restored = msgspec.json.decode(msgspec.json.encode(document).replace(report.pseudonym.encode(), name.encode()))
        for one in (restored, plain):
            one.get("pod", {}).pop("labels", None)
        assert restored == plain
    labels = [
        msgspec.json.decode(event.body)["pod"]["labels"]
        for event in events
        if event.position in report.positions and event.type == "PodObserved"
    ]
    assert all(value == "erased" for each in labels for key, value in each.items() if "/" not in key)
    (record,) = (event for event in events if event.type == "FieldsErased")
    assert record.position == len(EVENTS) + 1
    assert name.encode() not in bytes(record.body)
    assert erase(report.uids[0]).positions == (), "what is erased is erased"


@pytest.mark.parametrize(
    ("statement", "position", "problem"),
    [
        ('body = replace(body::text, \'"node":"\', \'"node":"x\')::json', 0, "what is left is not what was left"),
        ("actor = 'mallory'", 0, "what is left is not what was left"),
        ("hash = sha256('x')", 0, "what is left is not what was left"),
        ("actor = 'mallory'", -1, "its hash is not that of its contents"),
        ("actor = 'mallory'", 1, "its hash is not that of its contents"),
    ],
)
def test_tampering_with_an_erased_log_is_found(
    url: str, erase: Erase, statement: str, position: int, problem: str
) -> None:
    report = erase(deleted_pods()[0])
    placed = next(
        event.position for event in EVENTS if event.position in report.positions and event.type == "PodPlaced"
    )
    tampered = placed + position
    with psycopg.connect(url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(f"UPDATE event SET {statement} WHERE position = {tampered}".encode())
    audit = about(lambda log: verify(log, CLUSTER), url)
    assert audit.first_broken == tampered  # type: ignore[attr-defined]
    assert problem in str(audit)


def test_an_erasure_that_nobody_recorded_is_tampering(url: str, erase: Erase) -> None:
    """A writer of the database can mark a row as the log's owner does; he cannot have it recorded in the chain."""
    from kaicore.ledger.log.chain import marked

    forged = msgspec.structs.replace(EVENTS[300], actor="mallory")
    body = bytes(marked(EVENTS[299].hash, forged).body).decode()
    with psycopg.connect(url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("UPDATE event SET actor = 'mallory', body = %s::json WHERE position = 301", [body])
    audit = about(lambda log: verify(log, CLUSTER), url)
    assert str(audit).endswith("event 301: something was erased of it, and no event says so")
    # And a record without an erasure is a lie.
    report = erase(deleted_pods()[0])
    first = report.positions[0]
    plain = bytes(EVENTS[first - 1].body).decode()
    with psycopg.connect(url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("UPDATE event SET body = %s::json WHERE position = %s", [plain, first])
    audit = about(lambda log: verify(log, CLUSTER), url)
    assert f"event {first}: event {report.recorded[0]} says that something was erased of it" in str(audit)


def test_only_the_owner_may_erase(url: str) -> None:
    for role in ("kai_append", "kai_read"):

        async def erase(role: str = role) -> None:
            async with await PostgresLog.open(as_role(url, role)) as log:
                await log.erase(CLUSTER, ErasureRequest(deleted_pods()[0]))

        with pytest.raises(ConfigurationError, match="may not do this"):
            asyncio.run(erase())
        refused(
            as_role(url, role),
            psycopg.errors.InsufficientPrivilege,
            "SELECT kai_erase('c', '[]')",
            "SELECT kai_erase_kept('c', 1, 'state', '', '')",
            "SET kai.erasing = 'on'; UPDATE event SET subject = 'x'",
        )
    refused(
        url,
        psycopg.errors.RestrictViolation,
        "UPDATE event SET subject = 'x' WHERE position = 1",
        "SET kai.erasing = 'on'; UPDATE event SET actor = 'x' WHERE position = 1",
        "SET kai.erasing = 'on'; DELETE FROM event WHERE position = 1",
    )


def refused(url: str, error: type[psycopg.Error], *statements: str) -> None:
    with psycopg.connect(url) as connection:
        for statement in statements:
            with pytest.raises(error):
                connection.execute(statement.encode())
            connection.rollback()


def test_what_cannot_be_erased_is_refused_and_a_dry_run_changes_nothing(url: str, erase: Erase) -> None:
    there = next(event for event in EVENTS if event.type == "PodObserved" and event.subject not in deleted_pods())
    with pytest.raises(ConfigurationError, match=f"pod {there.subject} .* is still there"):
        erase(there.subject)
    for unknown in ("default/nobody", "no-such-uid"):
        with pytest.raises(UnknownSubject, match="never heard of"):
            erase(unknown)
    assert len(erase(deleted_pods()[0], dry_run=True).positions) > 3
    assert about(lambda log: log.read(CLUSTER, limit=5000), url) == EVENTS


def test_the_command_says_what_it_did(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    subject = deleted_pods()[0]

    def kai(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["kai", *arguments, "--database-url", url])
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out + output.err

    code, output = kai("erase", "pod", subject, "--dry-run")
    assert (code, "would be erased" in output, "nothing was changed" in output) == (0, True, True)
    code, output = kai("erase", "pod", subject)
    assert (code, bool(re.search(r" [1-9]\d* events: erased; called [\w-]+~erased-", output))) == (0, True), output
    assert kai("erase", "pod", subject)[0] == 1
    assert kai("erase", "pod", "a/b/c")[0] == 2
    code, output = kai("replay")
    assert code == 0, output
    code, output = kai("audit", "verify")
    assert (code, "of them something was erased, as is recorded" in output) == (0, True), output
