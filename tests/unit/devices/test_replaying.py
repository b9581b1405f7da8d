"""Decisions about claims for devices replay from an exported log, bit for bit."""

from pathlib import Path
from random import Random

from kaicore.analysis.replay.moments import Range
from kaicore.analysis.replay.replay import halves, replay_log
from kaicore.ledger.log.files.log import FileLog

from tests.given.logs.exported import rechained, write_file
from tests.measured.digest.device_stories import devices
from tests.measured.digest.engine import Recorder


async def test_stories_with_claims_replay_as_they_were_recorded_whole_and_in_parts(tmp_path: Path) -> None:
    given = 0
    for number in range(3):
        recorder = Recorder()
        devices(recorder, Random(f"devices/{number}"))
        events = rechained(recorder.events, 1)
        given += sum(bool(recorder.decoded(one).devices) for one in events if one.type == "PodPlaced")
        async with FileLog(write_file(tmp_path / f"{number}.gz", events)) as log:
            whole = await replay_log(log, events[0].cluster)
            parts = [await replay_log(log, events[0].cluster, part) for part in halves(Range(1, len(events)), 3)]
        assert whole.differences == []
        assert (whole.cycles, whole.other_engine) == (recorder.cycles, 0)
        assert all(part.differences == [] for part in parts)
        assert sum(part.decisions for part in parts) == whole.decisions
    assert given > 10, "next to no pod has devices"
