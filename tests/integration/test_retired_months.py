"""Months that were put away into files are read, audited and replayed as if they were still in the log."""

import asyncio
import gzip
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kai_cli.main import main
from kaicore.analysis.ask.audits.audit_answers import Span
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.replay.replay import replay_log
from kaicore.errors import ConfigurationError, CorruptLog
from kaicore.ledger.log.files.retired import WholeLog, with_retired
from kaicore.ledger.log.partitions import Month
from kaicore.ledger.log.port import Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.audit import verify
from kaicore.rules.events.envelope import Event

from tests.integration.scheduling import Facts, placed, scheduling

C = "cluster-a"
DAY = 24 * 3600 * 1_000_000
#: Long past, so that both are over.
FIRST = Month(2024, 1)


class Retired:
    """A log of three months, of which the first two were put away."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url, self.directory = url, directory
        self.events: list[Event] = []

    async def make(self) -> None:
        now = FIRST.start + 5 * DAY
        async with await PostgresLog.open(self.url, clock=lambda: now) as log:
            await log.make_months()
            facts = Facts(log, C)
            await facts.add_nodes(2)
            for number, name in enumerate("abc"):
                now = (FIRST + number).start + 5 * DAY
                async with scheduling(log, C):
                    await facts.add_pods(name, cpu=2, gpu=1)
                    await placed(log, C, number + 1)
            self.events = await log.read(C, limit=1000)
            for month in (FIRST, FIRST + 1):
                seals = await log.detach_month(month)
                await log.put_away_month(month, seals, self.directory)

    @asynccontextmanager
    async def whole(self, scratch: Path) -> AsyncIterator[WholeLog]:
        async with await PostgresLog.open(self.url) as log, with_retired(log, self.directory, scratch) as whole:
            yield whole


@pytest.fixture
async def retired(monthless_url: str, tmp_path: Path) -> Retired:
    made = Retired(monthless_url, tmp_path / "away")
    await made.make()
    return made


async def test_what_was_put_away_is_read_audited_and_replayed_with_what_is_left(
    retired: Retired, tmp_path: Path
) -> None:
    events = retired.events
    async with retired.whole(tmp_path) as log:
        assert await log.read(C, limit=1000) == events
        for after in (0, 3, len(events) - 1):
            assert await log.read(C, after=after, limit=4) == events[after : after + 4]
        of_pods = [event for event in events if event.stream == "pod/uid-a"]
        assert await log.read(C, where=Filter(streams=("pod/uid-a",))) == of_pods
        report = await verify(log, C)
        assert (report.ok, report.after, report.events) == (True, 0, len(events)), report
        replayed = await replay_log(log, C)
        assert (replayed.differences, replayed.cycles, replayed.decisions) == ([], 3, 3)
        audit = await Inquiry(log).audit_node(C, "n0", Span())
        assert {held.pod for held in audit.holdings} <= {"default/a", "default/b", "default/c"}
        assert audit.span.first == 1
        with pytest.raises(ConfigurationError, match="nothing is appended"):
            await log.append(C, [])


async def test_only_the_last_months_are_needed_and_they_are_chained_to_the_seal_before(
    retired: Retired, tmp_path: Path
) -> None:
    (retired.directory / f"{FIRST.table}.csv.gz").unlink()
    async with retired.whole(tmp_path) as log:
        after = await log.retired(C)
        assert await log.read(C, after=after, limit=1000) == retired.events[after:]
        report = await verify(log, C)
        assert (report.ok, report.after, report.events) == (True, after, len(retired.events) - after), report
        assert len(report.seals) == 1


async def test_a_file_that_is_not_what_was_sealed_or_is_not_there_is_named(retired: Retired, tmp_path: Path) -> None:
    file = retired.directory / f"{FIRST.table}.csv.gz"
    whole = gzip.decompress(file.read_bytes())
    for spoiled in (whole.replace(b"n1", b"n7", 1), whole[: len(whole) // 2], b"nonsense"):
        file.write_bytes(gzip.compress(spoiled))
        with pytest.raises(CorruptLog, match=file.name):
            async with retired.whole(tmp_path):
                pass
    (retired.directory / f"{(FIRST + 1).table}.csv.gz").unlink()
    with pytest.raises(ConfigurationError, match=r"event_2024_02\.csv\.gz: is not there"):
        async with retired.whole(tmp_path):
            pass


async def test_commands_take_the_directory(
    retired: Retired, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def kai(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["kai", *arguments, "--retired", str(retired.directory)])
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out + output.err

    there = ("--database-url", retired.url)
    code, output = await asyncio.to_thread(kai, "audit", "verify", *there)
    assert (code, f"{len(retired.events)} events verified" in output) == (0, True), output
    code, output = await asyncio.to_thread(kai, "audit", "group", "default/a", *there)
    assert (code, "placed it on n0" in output) == (0, True), output
    assert (await asyncio.to_thread(kai, "retire", "2024-03", *there))[0] == 2
    assert (await asyncio.to_thread(kai, "audit", "node", "n0", "--api-url", "http://127.0.0.1:1"))[0] == 2
