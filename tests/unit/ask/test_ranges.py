"""Ranges of a log, as people write their ends."""

import itertools

import pytest
from kaicore.analysis.replay.moments import Range, parse_moment, range_of
from kaicore.errors import KaiError, UnknownMoment
from kaicore.ledger.log.memory import MemoryLog

from tests.given.logs.new_events import unit

C = "c"


@pytest.fixture
async def log() -> MemoryLog:
    """Positions 1 to 9, recorded a second apart, the first at 2026-11-22T00:00:01Z."""
    made = MemoryLog(clock=itertools.count(1_795_305_601_000_000, 1_000_000).__next__)
    for _ in range(9):
        await made.append(C, [unit()])
    return made


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, Range(1, 9)),
        ("3", "5", Range(3, 5)),
        ("0", "end", Range(1, 9)),
        ("9", "9", Range(9, 9)),
        ("2026-11-22T00:00:03Z", "2026-11-22T00:00:05Z", Range(3, 5)),
        ("2026-11-22T00:00:03.5Z", "2026-11-22T00:00:05.5Z", Range(4, 5)),
        ("2025-01-01T00:00:00Z", None, Range(1, 9)),
        ("-2s", None, Range(8, 9)),
    ],
)
async def test_a_range_has_the_events_between_its_ends(
    log: MemoryLog, since: str | None, until: str | None, expected: Range
) -> None:
    moments = [None if text is None else parse_moment(text) for text in (since, until)]
    assert await range_of(log, C, since=moments[0], until=moments[1]) == expected


@pytest.mark.parametrize(
    ("since", "until", "error", "message"),
    [
        ("5", "4", UnknownMoment, "the range is empty: it begins with event 5, ends with 4"),
        ("1", "10", UnknownMoment, "position 10 is beyond the log's end"),
        ("10", "end", UnknownMoment, "position 10 is beyond the log's end"),
        ("2027-01-01T00:00:00Z", "end", UnknownMoment, "is beyond the log's end"),
        ("1", "2025-01-01T00:00:00Z", UnknownMoment, "is before its log begins"),
    ],
)
async def test_a_range_that_there_is_not_is_refused(
    log: MemoryLog, since: str, until: str, error: type[KaiError], message: str
) -> None:
    with pytest.raises(error, match=message):
        await range_of(log, C, since=parse_moment(since), until=parse_moment(until))


async def test_an_empty_log_has_no_range() -> None:
    with pytest.raises(UnknownMoment, match="cluster c: its log is empty"):
        await range_of(MemoryLog(clock=lambda: 0), C)
