"""Exported logs: asked alone, damaged, tampered with, and taken into another database."""

import filecmp
import gzip
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from kaicore.analysis.replay.moments import Moment
from kaicore.analysis.replay.replay import replay_log
from kaicore.errors import ConfigurationError, CorruptLog
from kaicore.ledger.log.files.log import FileLog
from kaicore.ledger.log.files.reader import LogFile
from kaicore.ledger.log.files.writer import Bundle, Footer, Header, end_member, member
from kaicore.ledger.log.postgres import PostgresLog, importing
from kaicore.ledger.log.seals.audit import verify
from kaicore.rules.events.codec import encode_event
from kaicore.rules.events.envelope import Event

from tests.given.logs.exported import export_to, import_to, rechained, write_file
from tests.given.processes.called_kai import caller
from tests.given.recorded import read_log, recorded_logs
from tests.integration.test_retire import kai

Changed = Callable[[list[Event]], list[Event]]


@pytest.fixture(scope="module")
def events() -> list[Event]:
    """The log of a whole demonstration."""
    return read_log(recorded_logs()[0])


@pytest.fixture(scope="module")
def file(events: list[Event], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_file(tmp_path_factory.mktemp("exported") / "demo.log.gz", events)


@pytest.fixture(scope="module")
def cluster(events: list[Event]) -> str:
    return events[0].cluster


def header_of(path: Path) -> Header:
    with LogFile(path) as opened:
        return opened.header


def forge(path: Path, header: Header, events: Sequence[Event]) -> Path:
    """Write a file as one would who knows the format, whatever the events are."""
    first = msgspec.json.encode(header) + b"\n"
    digest, packed, bundles = hashlib.sha256(first), member(first), []
    for start in range(0, len(events), 100):
        part = events[start : start + 100]
        lines = b"".join(encode_event(event) + b"\n" for event in part)
        digest.update(lines)
        bundles.append(Bundle(len(packed), part[0].position, part[0].recorded_at))
        packed += member(lines)
    footer = Footer(sha256=digest.hexdigest(), engine_versions={}, bundles=tuple(bundles))
    end = end_member(len(packed))
    path.write_bytes(packed + member(msgspec.json.encode(footer) + b"\n") + end)
    return path


def altered(events: list[Event]) -> list[Event]:
    body = msgspec.Raw(bytes(events[149].body).replace(b"{", b'{"forged":1,', 1))
    return [*events[:149], msgspec.structs.replace(events[149], body=body), *events[150:]]


def removed(events: list[Event]) -> list[Event]:
    return [*events[:149], *events[150:]]


def swapped(events: list[Event]) -> list[Event]:
    places = [
        msgspec.structs.replace(events[one], position=events[other].position) for one, other in ((150, 149), (149, 150))
    ]
    return [*events[:149], *places, *events[151:]]


@pytest.mark.parametrize("change", [altered, removed, swapped])
async def test_a_forged_file_is_named_with_the_position(
    events: list[Event], file: Path, cluster: str, tmp_path: Path, change: Changed
) -> None:
    forged = forge(tmp_path / "forged.gz", header_of(file), change(events))
    async with FileLog(forged) as log:
        report = await verify(log, cluster)
    assert report.first_broken == 150
    assert not report.ok


@pytest.mark.parametrize("change", [altered, removed, swapped])
async def test_a_file_that_was_unpacked_changed_and_packed_is_named_with_the_position(
    events: list[Event], file: Path, tmp_path: Path, change: Changed
) -> None:
    lines = b"".join(encode_event(event) + b"\n" for event in change(events))
    repacked = tmp_path / "repacked.gz"
    repacked.write_bytes(gzip.compress(msgspec.json.encode(header_of(file)) + b"\n" + lines))
    with pytest.raises(CorruptLog, match="event 150"):
        FileLog(repacked)


async def test_an_unbroken_chain_with_another_end_shows_against_an_anchor(
    events: list[Event], cluster: str, tmp_path: Path
) -> None:
    cut = write_file(tmp_path / "cut.gz", events[:-1])
    async with FileLog(cut) as log:
        assert (await verify(log, cluster)).ok
        last = events[-1]
        assert (await verify(log, cluster, anchors={last.position: last.hash})).first_broken == last.position


@pytest.mark.parametrize("part", [0.2, 0.9, 0.999])
def test_a_file_that_is_cut_off_says_how_far_it_goes(
    events: list[Event], file: Path, tmp_path: Path, part: float
) -> None:
    whole = file.read_bytes()
    cut = tmp_path / "cut.gz"
    cut.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(CorruptLog, match=rf"is cut off: .* is missing; the last one was {len(events)}|behind its last"):
        LogFile(cut)


def with_another_byte(file: Path, damaged: Path) -> Path:
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    damaged.write_bytes(whole)
    return damaged


async def test_a_byte_that_is_another_one_is_noticed(file: Path, cluster: str, tmp_path: Path) -> None:
    async with FileLog(with_another_byte(file, tmp_path / "damaged.gz")) as log:
        with pytest.raises(CorruptLog, match=r"events from \d+ on: cannot be unpacked"):
            await verify(log, cluster)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is no log"),
        (b"PK\x03\x04 a zip", "not gzip"),
        (None, "cannot be read"),
        (gzip.compress(b"cluster,position\n", mtime=0), "is no log"),
        (gzip.compress(b'{"kaiLedgerLog":99}\n', mtime=0), "layout 99, which a newer kai-ledger wrote"),
    ],
    ids=["empty", "zip", "missing", "other-lines", "newer-layout"],
)
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes | None, expected: str) -> None:
    foreign = tmp_path / "foreign.gz"
    if content is not None:
        foreign.write_bytes(content)
    with pytest.raises(ConfigurationError, match=expected):
        LogFile(foreign)


async def test_an_imported_log_is_the_same_log_and_replays(
    superuser_url: str, events: list[Event], file: Path, cluster: str, tmp_path: Path
) -> None:
    assert await import_to(superuser_url, file) == len(events)
    assert await import_to(superuser_url, file) == 0
    async with await PostgresLog.open(superuser_url) as log:
        assert await log.read(cluster, limit=10**6) == events
        assert (await verify(log, cluster)).ok
        assert (await replay_log(log, cluster)).differences == []
        again = await export_to(tmp_path / "again.gz", log, cluster)
    assert filecmp.cmp(again, file, shallow=False)


@pytest.mark.parametrize("limit", ["_PORTION", "_PORTION_BYTES"])
async def test_an_import_that_was_interrupted_goes_on_where_it_ended(
    superuser_url: str, events: list[Event], file: Path, *, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, limit, 1)

    def interrupt(done: int, _: int) -> None:
        raise KeyboardInterrupt(done)

    with pytest.raises(KeyboardInterrupt) as caught:
        await import_to(superuser_url, file, progress=interrupt)
    done = caught.value.args[0]
    assert 0 < done < len(events)
    assert await import_to(superuser_url, file) == len(events) - done
    async with await PostgresLog.open(superuser_url) as log:
        assert (await verify(log, events[0].cluster)).ok


async def test_a_log_is_copied_piece_by_piece_and_never_mixed(
    superuser_url: str, events: list[Event], file: Path, cluster: str, tmp_path: Path
) -> None:
    async with FileLog(file) as log:
        first, second, third = [
            await export_to(
                tmp_path / f"{begin}.gz", log, cluster, since=Moment(position=begin), until=Moment(position=end)
            )
            for begin, end in ((1, 200), (150, 400), (500, 600))
        ]
    other = write_file(tmp_path / "other.gz", events[:100])
    mixed = forge(tmp_path / "mixed.gz", header_of(file), altered(events))
    assert await import_to(superuser_url, first) == 200
    assert await import_to(superuser_url, second) == 200
    assert await import_to(superuser_url, other) == 0
    with pytest.raises(
        ConfigurationError, match=r"ends with event 400, and .* begins with 500: what is between is missing"
    ):
        await import_to(superuser_url, third)
    forged = [*events[:299], *(msgspec.structs.replace(event, actor="mallory") for event in events[299:])]
    rewritten = write_file(tmp_path / "rewritten.gz", rechained(forged, 300))
    with pytest.raises(ConfigurationError, match=r"its log is another one .* event 400 has hash"):
        await import_to(superuser_url, rewritten)
    with pytest.raises(CorruptLog, match="event 150: its hash"):
        await import_to_empty(superuser_url, mixed)


async def import_to_empty(url: str, path: Path) -> int:
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute("SET session_replication_role = replica")
        for table in ("event", "event_id", "stream", "log_head"):
            connection.execute(f"DELETE FROM {table}".encode())
    return await import_to(url, path)


@pytest.fixture(scope="module")
def first(events: list[Event]) -> list[Event]:
    """The first whole appends of it: to replay all takes seconds."""
    return [event for event in events if event.recorded_at <= events[300].recorded_at]


@pytest.fixture(scope="module")
def short(first: list[Event], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_file(tmp_path_factory.mktemp("short") / "demo.log.gz", first)


def test_a_file_alone_answers_every_question(
    first: list[Event], short: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = next(event for event in first if event.type == "PodPlaced")
    there = ("--file", short)
    replayed = json.loads(kai("replay", "--processes", "2", "-o", "json", *there).stdout)
    assert (replayed["differences"], replayed["position"]) == ([], len(first))
    assert replayed["cycles"] == sum(event.type == "CycleCompleted" for event in first)
    for question in (("audit", "verify"), ("why", pod.subject)):
        answer = kai(*question, *there)
        assert (answer.returncode, answer.stderr) == (0, ""), question
    for wrong, expected in (
        (("retire", "2026-01"), "needs a database"),
        (("status",), "status is about running services"),
        (("replay", "--data-dir", "x"), "asked alone"),
    ):
        code, said = caller(monkeypatch, capsys)(*wrong, "--file", str(short))
        assert (code, expected in said) == (2, True), said


def test_a_part_that_cannot_be_replayed_ends_the_replay(short: Path, tmp_path: Path) -> None:
    damaged = with_another_byte(short, tmp_path / "damaged.gz")
    failed = kai("replay", "--processes", "2", "--file", damaged)
    assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (1, "", 1)
    assert "cannot be unpacked" in failed.stderr


def test_a_range_is_exported_with_the_state_to_start_from(file: Path, events: list[Event], tmp_path: Path) -> None:
    part = tmp_path / "part.gz"
    done = kai("export", part, "--from", "500", "--to", "700", "-o", "json", "--file", file)
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert (answer["after"]["position"], answer["last"]["position"]) == (499, 700)
    assert answer["after"]["hash"] == events[498].hash.hex()
    replayed = json.loads(kai("replay", "-o", "json", "--file", part).stdout)
    assert (replayed["differences"], replayed["position"]) == ([], 700)
    assert kai("audit", "verify", "--file", part).returncode == 0
    refused = kai("export", tmp_path / "x.gz", "--from", "700", "--to", "500", "--file", file)
    assert (refused.returncode, "the range is empty" in refused.stderr) == (2, True), refused.stderr
    assert not (tmp_path / "x.gz").exists()
