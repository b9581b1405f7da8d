"""`RepairRequested` in a log that was recorded while it was `HealRequested`: read, verified and decided as it was."""

from pathlib import Path

import pytest
from kai_binder.projection.open_work import BinderProjection
from kaicore.analysis.replay.replay import replay_log
from kaicore.ledger.log.files.log import FileLog
from kaicore.ledger.log.port import Filter
from kaicore.ledger.log.seals.audit import verify
from kaicore.rules.deciding.forecast.runs import RunHistory
from kaicore.rules.engine.config import ENGINE_VERSION
from kaicore.rules.events.codec import decode_payload, encode_event, names_in_logs
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import RepairRequested
from kaicore.rules.state.cluster_state import ClusterState

from tests.given.logs.exported import write_file
from tests.given.recorded import DIRECTORY, read_log

FORMER = "HealRequested"


@pytest.fixture(scope="module")
def events() -> list[Event]:
    """The log of `tests/e2e/test_repair.py` by engine 24, before the rename."""
    return read_log(DIRECTORY / "renamed" / "heal-requested.jsonl.xz")


async def test_log_with_the_former_name_verifies_and_replays_as_recorded(events: list[Event], tmp_path: Path) -> None:
    (asked,) = (event for event in events if event.type == FORMER)
    assert FORMER.encode() in encode_event(asked)
    async with FileLog(write_file(tmp_path / "log.gz", events)) as log:
        audit = await verify(log, asked.cluster)
        assert audit.ok, str(audit)
        report = await replay_log(log, asked.cluster)
        found = await log.read(asked.cluster, where=Filter(types=names_in_logs((RepairRequested.__name__,))))
    assert found == [asked]
    assert report.differences == []
    # Three placements and the repair; the digests over them are compared where this engine decided them.
    assert report.decisions == sum(event.type in (FORMER, "PodPlaced") for event in events)
    assert report.engine_versions == {"24": report.cycles}
    assert report.other_engine == (0 if ENGINE_VERSION == "24" else report.cycles)


def test_readers_take_the_former_name_as_the_present_one(events: list[Event]) -> None:
    state, binder, runs = ClusterState(events[0].cluster), BinderProjection(), RunHistory()
    tasks = []
    for event in events:
        state.fold(event)
        tasks.append(binder.fold(event))
        runs.take(event)
    (asked,) = (event for event in events if event.type == FORMER)
    payload = decode_payload(asked)
    assert isinstance(payload, RepairRequested)
    assert (state.counters.evictions_decided, state.counters.evictions) == ({"Repaired": 1}, 1)
    task = tasks[asked.position - 1]
    assert task is not None
    assert (task.event_id, task.decision) == (asked.id, payload)
    # A run that a repair cut short did not come to its own end.
    assert runs.ended == 0
