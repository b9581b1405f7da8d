"""Events to append, for tests of the log: small, and alike but for what a test says."""

import time
import uuid
from collections import Counter
from collections.abc import Sequence

import msgspec
import psycopg
import pytest
from kaicore.ledger.log.chain import event_hash
from kaicore.ledger.log.port import Head
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.postgres.rows import encode_rows
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event, NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import CycleCompleted, EvictionDecided, NodeDeleted, Payload, PodPlaced
from kaicore.rules.state.cluster_state import ClusterState

OCCURRED_AT = 1_700_000_000_000_000


def new_event(
    stream: str = "node/n1",
    *,
    id: uuid.UUID | None = None,  # noqa: A002
    payload: Payload | None = None,
    subject: str = "n1",
    cause: uuid.UUID | None = None,
    correlation: str = "",
) -> NewEvent:
    return NewEvent(
        id=id or uuid.uuid4(),
        stream=stream,
        payload=payload or NodeDeleted(uid="u1", name="n1"),
        actor="test",
        occurred_at=OCCURRED_AT,
        subject=subject,
        cause=cause,
        correlation=correlation,
    )


def unit(*events: NewEvent, **expect: int) -> Unit:
    """Make a unit; `n1=3` expects version 3 of `node/n1`."""
    return Unit(events or (new_event(),), {f"node/{name}": version for name, version in expect.items()})


def as_new(event: Event) -> NewEvent:
    return NewEvent(
        id=event.id,
        stream=event.stream,
        payload=decode_payload(event),
        actor=event.actor,
        occurred_at=event.occurred_at,
        subject=event.subject,
        cause=event.cause,
        correlation=event.correlation,
    )


def forged(stream: str = "node/n1", type: str = "NodeDeleted", **fields: object) -> dict[str, object]:  # noqa: A002
    """A row as `kai_append` takes it, without its hash."""
    row = {"stream": stream, "version": 1, "type": type, "schema": 1, "id": str(uuid.uuid4()), "actor": "mallory"}
    return {**row, "occurred_at": 0, "subject": "", "correlation": "", "body": "{}", **fields}


def signed(cluster: str, after: Head, *rows: dict[str, object]) -> tuple[str, Head]:
    """Rows with the hashes that they must have after a log's head, all recorded at its time, and the head then."""
    events = []
    for row in rows:
        body = msgspec.Raw(str(row["body"]).encode())
        known = {**row, "cluster": cluster, "position": after.position + 1, "body": body, "hash": b""}
        event = msgspec.convert({**known, "recorded_at": after.recorded_at}, Event)
        events.append(msgspec.structs.replace(event, hash=event_hash(after.hash, event)))
        after = Head(event.position, events[-1].hash, after.recorded_at)
    return encode_rows(events), after


async def attempt(url: str, cluster: str, *rows: dict[str, object], ahead_us: int = 0) -> str:
    """The server's answer when a role appends rows with sound hashes; empty where it takes them."""
    async with await PostgresLog.open(url) as log:
        head = await log.head(cluster)
    now = max(head.recorded_at, time.time_ns() // 1000) + ahead_us
    text, end = signed(cluster, Head(head.position, head.hash, now), *rows)
    with psycopg.connect(url) as connection:
        try:
            connection.execute("SELECT FROM kai_lock_head(%s)", [cluster])
            connection.execute(
                "SELECT kai_append(%s, %s::json, %s, %s, %s)", [cluster, text, end.position, end.hash, now]
            )
        except psycopg.Error as error:
            return f"{error.sqlstate} {error}"
    return ""


def cycle_id(cluster: str, cycle: int) -> uuid.UUID:
    """The id of the record of a cycle, which all of its decisions have as their cause."""
    return derived_id(cluster, "CycleCompleted", str(cycle))


def cycle_unit(cluster: str, cycle: int, *decisions: Payload) -> list[Unit]:
    """The record of a cycle that made what is a decision among these."""
    if not any(hasattr(one, "cycle") for one in decisions):
        return []
    counts = Counter(map(type, decisions))
    summary = CycleCompleted(
        cycle=f"default/{cycle}",
        shard="default",
        input_position=0,
        config_digest="",
        engine_version="test",
        now=0,
        decisions_digest="",
        pods=len(decisions),
        placed=counts[PodPlaced],
        evicted=counts[EvictionDecided],
    )
    return [Unit((NewEvent(cycle_id(cluster, cycle), "cycle/default", summary, "test", 0, "default"),))]


def append_of_cycle(cluster: str, cycle: int, units: Sequence[Unit]) -> list[Unit]:
    """Return the append of a cycle that made these decisions."""
    decided = [
        Unit(tuple(msgspec.structs.replace(event, cause=cycle_id(cluster, cycle)) for event in unit.events))
        for unit in units
    ]
    return [*cycle_unit(cluster, cycle, *(event.payload for unit in units for event in unit.events)), *decided]


def break_fold_of(broken: Payload, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the fold of a topology raise half way, as a defect would."""
    fold = ClusterState._HANDLERS[payloads.TopologyObserved]
    assert fold is not None

    def folded(state: ClusterState, payload: Payload) -> None:
        fold(state, payload)
        if payload == broken:
            raise OverflowError("no such amount")

    monkeypatch.setitem(ClusterState._HANDLERS, payloads.TopologyObserved, folded)
