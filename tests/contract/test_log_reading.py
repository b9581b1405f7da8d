"""The promises of every implementation of `kaicore.ledger.log.port.EventLog` to readers, and the names it takes."""

import asyncio
from itertools import product

import pytest
from kaicore.errors import InvalidObject, LogUnavailable
from kaicore.ledger.log.chain import GENESIS, event_hash
from kaicore.ledger.log.port import EventLog, Filter, Snapshot
from kaicore.rules.events import codec
from kaicore.rules.events.codec import decode_payload, encode_payload
from kaicore.rules.events.payloads import NodeDeleted, Payload, PodDeleted, TopologyDeleted

from tests.given.logs.new_events import new_event, unit
from tests.given.logs.reading import everything


async def test_reading_between_positions_gives_those_events(log: EventLog, cluster: str) -> None:
    await log.append(cluster, [unit() for _ in range(10)])
    assert [event.position for event in await log.read(cluster, after=3, upto=6)] == [4, 5, 6]
    assert [event.position for event in await log.read(cluster, after=3, limit=2)] == [4, 5]
    assert [event.position for event in await log.read(cluster, after=8, upto=100)] == [9, 10]
    assert await log.read(cluster, after=10) == []
    assert await log.read(cluster, after=5, upto=5) == []
    assert await log.read(cluster, limit=0) == []


@pytest.fixture
async def varied(log: EventLog, cluster: str) -> EventLog:
    """Positions 1 to 12: streams a, b, c in turn; types NodeDeleted and TopologyDeleted in turn."""
    for number in range(12):
        payload: Payload = NodeDeleted(uid="u", name="n") if number % 2 == 0 else TopologyDeleted(node="n")
        await log.append(
            cluster,
            [unit(new_event(f"node/{'abc'[number % 3]}", payload=payload, subject="odd" if number % 2 else ""))],
        )
    await log.append(f"{cluster}-other", [unit(new_event("node/a"))])
    return log


#: Filters, and the positions that they let through.
FILTERED = (
    (Filter(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
    (Filter(streams=("node/a",)), [1, 4, 7, 10]),
    (Filter(streams=("node/c", "node/a", "node/c", "node/x")), [1, 3, 4, 6, 7, 9, 10, 12]),
    (Filter(streams=()), []),
    (Filter(types=("TopologyDeleted",)), [2, 4, 6, 8, 10, 12]),
    (Filter(types=("TopologyDeleted", "NodeDeleted", "Unknown")), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
    (Filter(types=()), []),
    (Filter(subject="odd"), [2, 4, 6, 8, 10, 12]),
    (Filter(subject=""), [1, 3, 5, 7, 9, 11]),
    (Filter(subject="even"), []),
    (Filter(streams=("node/a", "node/b"), types=("NodeDeleted",)), [1, 5, 7, 11]),
    (Filter(streams=("node/a",), subject="odd"), [4, 10]),
    (Filter(subject="odd", types=("TopologyDeleted",)), [2, 4, 6, 8, 10, 12]),
    (Filter(subject="odd", types=("NodeDeleted",)), []),
    (Filter(streams=("node/b",), subject="odd", types=("TopologyDeleted",)), [2, 8]),
)


async def test_filter_selects_the_expected_events(varied: EventLog, cluster: str) -> None:
    for where, positions in FILTERED:
        assert [event.position for event in await varied.read(cluster, where=where)] == positions, where
        page = await varied.read(cluster, where=where, after=4, upto=11, limit=2)
        assert [event.position for event in page] == [one for one in positions if 4 < one <= 11][:2], where


async def test_filter_by_time_selects_the_events_recorded_then(varied: EventLog, cluster: str) -> None:
    events = await everything(varied, cluster)
    since, until = events[3].recorded_at, events[8].recorded_at
    for where in (Filter(since=since), Filter(until=until), Filter(since=since, until=until), Filter(since=until + 1)):
        wanted = [
            event.position
            for event in events
            if (where.since is None or event.recorded_at >= where.since)
            and (where.until is None or event.recorded_at < where.until)
        ]
        assert [event.position for event in await varied.read(cluster, where=where)] == wanted
    far = events[-1].recorded_at + 10**9
    assert await varied.read(cluster, where=Filter(since=far)) == []
    assert len(await varied.read(cluster, where=Filter(until=far))) == 12


# Waiting


async def test_waiting_ends_when_the_log_grows(log: EventLog, cluster: str) -> None:
    for position in range(3):
        waiting = [asyncio.create_task(log.wait_beyond(cluster, position, timeout_s=600)) for _ in range(3)]
        elsewhere = asyncio.create_task(log.wait_beyond(f"{cluster}-other", 0, timeout_s=600))
        await log.append(cluster, [unit()])
        assert await asyncio.gather(*waiting) == [position + 1] * 3
        assert not elsewhere.done()
        elsewhere.cancel()


async def test_waiting_ends_at_once_when_the_log_has_grown_already(log: EventLog, cluster: str) -> None:
    await log.append(cluster, [unit(), unit()])
    assert await log.wait_beyond(cluster, 1, timeout_s=600) == 2


async def test_waiting_ends_after_the_timeout(log: EventLog, cluster: str) -> None:
    assert await log.wait_beyond(cluster, 0, timeout_s=0) == 0
    await log.append(cluster, [unit()])
    assert await log.wait_beyond(cluster, 1, timeout_s=0.01) == 1


# Snapshots


async def test_kept_snapshot_is_read_back(log: EventLog, cluster: str) -> None:
    assert await log.load_snapshot(cluster, name="state", schema="1") is None
    first = Snapshot("state", 5, "1", b"\x00\xff five")
    await log.save_snapshot(cluster, first)
    await log.save_snapshot(cluster, Snapshot("state", 7, "2", b"of another schema"))
    await log.save_snapshot(cluster, Snapshot("other", 8, "1", b"of another name"))
    assert await log.load_snapshot(cluster, name="state", schema="1") == first
    assert await log.load_snapshot(cluster, name="state", schema="1", upto=5) == first
    assert await log.load_snapshot(cluster, name="state", schema="1", upto=4) is None
    assert await log.load_snapshot(f"{cluster}-other", name="state", schema="1") is None


async def test_a_snapshot_is_replaced_unless_it_is_newer(log: EventLog, cluster: str) -> None:
    for position, body in ((5, b"old"), (9, b"new"), (9, b"newer"), (6, b"late")):
        await log.save_snapshot(cluster, Snapshot("state", position, "1", body))
    assert await log.load_snapshot(cluster, name="state", schema="1") == Snapshot("state", 9, "1", b"newer")


# What cannot be said, and what can


async def test_any_text_in_a_payload_is_kept_to_the_byte(log: EventLog, cluster: str) -> None:
    texts = "Zürich 東京 🚀", "quote ' double \" backslash \\ brace {}", "line\nfeed\ttab\x7f\x01", "\0"
    given = [PodDeleted(uid=text, namespace="default", name="p") for text in texts]
    await log.append(cluster, [unit(new_event(payload=payload)) for payload in given])
    for event, payload in zip(await log.read(cluster), given, strict=True):
        assert bytes(event.body) == encode_payload(payload)
        assert decode_payload(event) == payload


async def test_name_with_any_text_but_nul_is_kept(log: EventLog, cluster: str) -> None:
    name = "Zürich 東京 🚀 '\"\\{}%s\n"
    await log.append(name, [unit(new_event(name, subject=name, correlation=name))])
    (event,) = await log.read(name, where=Filter(streams=(name,), subject=name))
    assert (event.cluster, event.stream, event.subject, event.correlation) == (name, name, name, name)
    assert await log.wait_beyond(name, 0, timeout_s=600) == 1


async def test_a_name_that_no_database_takes_is_refused(log: EventLog, cluster: str) -> None:
    for field, text in product(
        ("stream", "subject", "correlation"), ("nul\0", "surrogate \ud800", "x" * 1025, "ü" * 513)
    ):
        with pytest.raises(InvalidObject) as caught:
            await log.append(cluster, [unit(), unit(new_event(**{field: text}))])
        assert caught.value.field == field
    assert (await log.head(cluster)).position == 0
    for name in ("", "nul\0", "x" * 1025):
        with pytest.raises(InvalidObject, match="cluster"):
            await log.append(name, [unit()])


async def test_a_payload_that_cannot_be_written_is_refused(log: EventLog, cluster: str) -> None:
    with pytest.raises(InvalidObject, match="cannot be encoded"):
        await log.append(cluster, [unit(new_event(payload=NodeDeleted(uid="\ud800", name="n")))])
    with pytest.raises(InvalidObject, match="more than"):
        await log.append(cluster, [unit(new_event(payload=NodeDeleted(uid="x" * 9_000_000, name="n")))])


async def test_large_payload_comes_back_as_it_was(log: EventLog, cluster: str) -> None:
    payload = NodeDeleted(uid="x" * 3_000_000, name="n")
    await log.append(cluster, [unit(new_event(payload=payload)), unit()])
    first, _ = await log.read(cluster)
    assert decode_payload(first) == payload


async def test_old_events_are_upcast_as_they_are_read(
    log: EventLog, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append(cluster, [unit(new_event(payload=NodeDeleted(uid="u1", name="old")))])
    name, decoder, _ = codec._READERS["NodeDeleted"]
    monkeypatch.setitem(codec._SCHEMAS, "NodeDeleted", 2)
    monkeypatch.setitem(codec._READERS, "NodeDeleted", (name, decoder, 2))
    monkeypatch.setitem(codec._UPCASTERS, ("NodeDeleted", 1), lambda old: {**old, "name": old["name"] + "-upcast"})
    await log.append(cluster, [unit(new_event(payload=NodeDeleted(uid="u1", name="new")))])
    events = await log.read(cluster)
    assert [event.schema for event in events] == [1, 2]
    assert [decode_payload(event) for event in events] == [NodeDeleted("u1", "old-upcast"), NodeDeleted("u1", "new")]
    assert events[0].hash == event_hash(GENESIS, events[0])


async def test_a_closed_log_is_unavailable(log: EventLog, cluster: str) -> None:
    waiting = asyncio.create_task(log.wait_beyond(cluster, 0, timeout_s=600))
    await log.append(f"{cluster}-other", [unit()])
    await log.close()
    with pytest.raises(LogUnavailable):
        await waiting
    for call in (log.append(cluster, [unit()]), log.head(cluster), log.read(cluster), log.clusters()):
        with pytest.raises(LogUnavailable):
            await call
