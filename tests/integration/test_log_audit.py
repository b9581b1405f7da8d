"""The findings of an audit when the log is changed behind its back."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from kaicore.ledger.log.chain import event_hash
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.postgres.log import PostgresAuditView
from kaicore.ledger.log.seals.audit import MOST_FINDINGS, AuditReport, AuditView, verify
from kaicore.rules.events.payloads import NodeDeleted

from tests.given.logs.new_events import new_event, unit

LAST = 9


@pytest.fixture
def url(module_database_url: str) -> str:
    return module_database_url


@pytest.fixture
def cluster(cluster_name: str) -> str:
    """The tests share a database, but no cluster."""
    return cluster_name


@pytest.fixture
async def log(url: str) -> AsyncIterator[PostgresLog]:
    async with await PostgresLog.open(url) as opened:
        yield opened


@pytest.fixture
async def written(log: PostgresLog, cluster: str) -> PostgresLog:
    """Positions 1 to 9 on three streams in turn, and another cluster's log beside them."""
    await log.append(cluster, [unit(new_event(f"node/{'abc'[number % 3]}", correlation="x")) for number in range(LAST)])
    await log.append(f"{cluster}-other", [unit(), unit()])
    return log


def tamper(url: str, statement: str) -> None:
    """Change the log as only the database's superuser can."""
    with psycopg.connect(url) as connection:
        connection.execute("SET session_replication_role = replica")
        assert connection.execute(statement).rowcount > 0


async def audited(url: str, cluster: str) -> AuditReport:
    async with await PostgresLog.open(url, application="kai audit") as log:
        assert (await verify(log, f"{cluster}-other")).ok
        return await verify(log, cluster)


async def test_unchanged_log_is_verified(written: PostgresLog, cluster: str) -> None:
    report = await verify(written, cluster)
    assert report.ok
    assert report.first_broken is None
    assert (report.events, report.after, report.head) == (LAST, 0, await written.head(cluster))
    assert str(report) == f"cluster {cluster}: 9 events verified\nhead 9 {report.head.hash.hex()}"
    assert (await verify(written, "no-such-cluster")).ok


#: Changes of event 4, and what is found there.
CHANGES = [
    ('body = \'{"uid":"u1","name":"n2"}\'', "hash"),
    ("body = (replace(body::text, ':', ': '))::json", "hash"),
    ("type = 'NodeObserved'", "hash"),
    ("schema = 2", "hash"),
    ("actor = 'mallory'", "hash"),
    ("subject = 'n2'", "hash"),
    ("correlation = ''", "hash"),
    ("cause = id", "hash"),
    ("id = gen_random_uuid()", "hash"),
    ("occurred_at = occurred_at + 1", "hash"),
    ("recorded_at = recorded_at - 1000000", "hash"),
    ("version = 7", "hash"),
    ("stream = 'node/b'", "hash"),
    ("hash = sha256('x')", "hash"),
    ("position = 1000", "missing"),
    ("position = 5", "missing"),
    ("cluster = 'nowhere'", "missing"),
]

#: Other damage, the position where it shows, and what is found there.
DAMAGE = [
    ("DELETE FROM event WHERE cluster = '{cluster}' AND position = 4", 4, "is missing; the next event is 5"),
    ("DELETE FROM event WHERE cluster = '{cluster}' AND position = 1", 1, "is missing"),
    ("DELETE FROM event WHERE cluster = '{cluster}' AND position >= 8", 8, "is missing; the head of the log is 9"),
    ("DELETE FROM event WHERE cluster = '{cluster}'", 1, "is missing; the head of the log is 9"),
    (
        "INSERT INTO event SELECT * FROM event WHERE cluster = '{cluster}' AND position = 4",
        4,
        "is there twice",
    ),
    (
        "UPDATE event SET position = 9 - position WHERE cluster = '{cluster}' AND position IN (4, 5)",
        4,
        "its hash is not that of its contents",
    ),
    ("UPDATE log_head SET hash = sha256('x') WHERE cluster = '{cluster}'", 9, "not what the head of the log says"),
    ("UPDATE log_head SET position = 8 WHERE cluster = '{cluster}'", 9, "not what the head of the log says"),
    ("UPDATE log_head SET position = 11 WHERE cluster = '{cluster}'", 10, "is missing"),
    ("UPDATE log_head SET recorded_at = 0 WHERE cluster = '{cluster}'", 9, "not what the head of the log says"),
    ("DELETE FROM log_head WHERE cluster = '{cluster}'", 9, "not what the head of the log says"),
    ("DELETE FROM event_id WHERE cluster = '{cluster}' AND position = 6", 6, "is not in the table of ids"),
    (
        "UPDATE event_id SET position = 2 WHERE cluster = '{cluster}' AND position = 6",
        2,
        "has not the id",
    ),
    (
        "UPDATE event_id SET fingerprint = '12345678' WHERE cluster = '{cluster}' AND position = 6",
        6,
        "another fingerprint",
    ),
    (
        "INSERT INTO event_id VALUES ('{cluster}', gen_random_uuid(), 6, '12345678')",
        6,
        "has not the id",
    ),
    ("UPDATE stream SET version = 4 WHERE cluster = '{cluster}' AND stream = 'node/b'", 0, "ends with version 3"),
    ("DELETE FROM stream WHERE cluster = '{cluster}' AND stream = 'node/b'", 0, "the table of streams says 0"),
    ("INSERT INTO stream VALUES ('{cluster}', 'node/x', 1)", 0, "the table of streams says 1"),
]


@asynccontextmanager
async def tampered(url: str, statement: str) -> AsyncIterator["Tampered"]:
    """Give a log that is changed as only the database's superuser can; the change is taken back in the end."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute("SET session_replication_role = replica")
        assert (await connection.execute(statement.encode())).rowcount > 0
        yield Tampered(connection)
        await connection.rollback()


class Tampered(MemoryLog):
    """What a transaction sees of a log in Postgres."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        super().__init__(clock=lambda: 0)
        self._connection = connection

    @asynccontextmanager
    async def audit_view(self, cluster: str) -> AsyncIterator[AuditView]:
        yield PostgresAuditView(self._connection, cluster)


@pytest.mark.usefixtures("written")
async def test_a_changed_event_is_named(cluster: str, url: str) -> None:
    for change, problem in CHANGES:
        statement = f"UPDATE event SET {change} WHERE cluster = '{cluster}' AND position = 4"
        async with tampered(url, statement) as log:
            report = await verify(log, cluster)
        assert report.first_broken == 4, change
        assert problem in report.findings[0].problem, change
        assert f"event 4: {report.findings[0].problem}" in str(report)
        assert "BROKEN" in str(report)


@pytest.mark.usefixtures("written")
async def test_one_change_is_one_finding(cluster: str, url: str) -> None:
    for change in ("body = '{}'", "hash = sha256('x')"):
        statement = f"UPDATE event SET {change} WHERE cluster = '{cluster}' AND position IN (4, 7)"
        async with tampered(url, statement) as log:
            assert [finding.position for finding in (await verify(log, cluster)).findings] == [4, 7]


@pytest.mark.usefixtures("written")
async def test_other_damage_is_named(cluster: str, url: str) -> None:
    for statement, broken, problem in DAMAGE:
        async with tampered(url, statement.format(cluster=cluster)) as log:
            report = await verify(log, cluster)
            assert (await verify(log, f"{cluster}-other")).ok
        assert report.first_broken == broken, statement
        assert problem in report.findings[0].problem, statement


async def test_a_log_that_was_rewritten_to_its_end_shows_only_against_an_anchor(
    written: PostgresLog, cluster: str, url: str
) -> None:
    kept = (await verify(written, cluster)).head
    assert (await verify(written, cluster, anchors={kept.position: kept.hash, 12: b""})).first_broken == 12
    previous = (await written.read(cluster))[2].hash
    for event in (await written.read(cluster))[3:]:
        body = b'{"uid":"u1","name":"forged"}' if event.position == 4 else bytes(event.body)
        forged = event.__class__(**{**{name: getattr(event, name) for name in event.__struct_fields__}, "body": body})
        previous = event_hash(previous, forged)
        tamper(
            url,
            f"UPDATE event SET body = '{body.decode()}', hash = '\\x{previous.hex()}' "
            f"WHERE cluster = '{cluster}' AND position = {event.position}",
        )
    tamper(url, f"UPDATE log_head SET hash = '\\x{previous.hex()}' WHERE cluster = '{cluster}'")
    assert (await audited(url, cluster)).ok
    report = await verify(written, cluster, anchors={kept.position: kept.hash})
    assert report.first_broken == kept.position
    assert "anchor" in str(report)


async def test_findings_are_limited_in_number(log: PostgresLog, cluster: str, url: str) -> None:
    await log.append(cluster, [unit() for _ in range(60)])
    tamper(url, f"UPDATE event SET body = '{{}}' WHERE cluster = '{cluster}'")
    report = await verify(log, cluster)
    assert len(report.findings) == MOST_FINDINGS
    assert "left out" in str(report)


async def test_reading_over_a_gap_fails(written: PostgresLog, cluster: str, url: str) -> None:
    from kaicore.errors import CorruptLog

    tamper(url, f"DELETE FROM event WHERE cluster = '{cluster}' AND position = 4")
    assert len(await written.read(cluster, upto=3)) == 3
    with pytest.raises(CorruptLog, match="event 4 is missing"):
        await written.read(cluster)
    with pytest.raises(CorruptLog, match="event 4 is missing"):
        await written.read(cluster, after=3)


async def test_other_logs_cannot_be_audited(cluster: str) -> None:
    with pytest.raises(TypeError, match="MemoryLog"):
        await verify(MemoryLog(clock=lambda: 0), cluster)


def test_the_hash_is_the_one_that_is_documented() -> None:
    """Every field with its length before it, after the previous hash; see docs/explanation/log.md."""
    import struct
    import uuid

    import msgspec
    from kaicore.rules.events.codec import encode_payload
    from kaicore.rules.events.envelope import Event

    body = encode_payload(NodeDeleted(uid="u1", name="n1"))
    event = Event("c", 7, "node/n1", 3, "NodeDeleted", 1, uuid.UUID(int=1), "a", 5, 6, msgspec.Raw(body), b"", "n1")
    fields = [b"c", b"node/n1", b"NodeDeleted", uuid.UUID(int=1).bytes, b"n1", b"a", b"", b"", body]
    numbers = struct.pack(">5q", 7, 3, 1, 5, 6) + struct.pack(">9q", *map(len, fields))
    assert event_hash(b"p" * 32, event) == hashlib.sha256(b"p" * 32 + numbers + b"".join(fields)).digest()
