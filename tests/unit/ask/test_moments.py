"""Moments of a log: how they are written, which position they are, and the state there."""

import pytest
from kaicore.analysis.replay.moments import END, Moment, parse_moment, position_of, state_at
from kaicore.errors import UnknownMoment
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import Snapshot
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA, encode_state

from tests.integration.scheduling import Facts

C = "c"
S = 1_000_000
#: 2026-11-22T02:55:00Z
NIGHT = 1795316100 * S


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = NIGHT

    def __call__(self) -> int:
        return self.now


async def filled(clock: Clock) -> MemoryLog:
    """Two events at once at 02:55:00, one at 02:55:10, three at once at 02:56:00."""
    log = MemoryLog(clock)
    facts = Facts(log, C)
    for names, pause in (("ab", 10), ("c", 50), ("def", 0)):
        await facts.add_pods(*names, cpu=1)
        clock.now += pause * S
    return log


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("12345", Moment(position=12345)),
        ("0", Moment(position=0)),
        ("2026-11-22T02:55:00Z", Moment(time=NIGHT)),
        ("2026-11-22T03:55:00.25+01:00", Moment(time=NIGHT + S // 4)),
        ("2026-11-22 02:55:00+00:00", Moment(time=NIGHT)),
        ("02:55Z", Moment(time_of_day=(2 * 60 + 55) * 60 * S)),
        ("-5m", Moment(before_end=300 * S)),
        (" 1h30m ago ", Moment(before_end=5400 * S)),
        ("-1d12h", Moment(before_end=36 * 3600 * S)),
        ("end", END),
    ],
)
def test_moment_is_read(text: str, moment: Moment) -> None:
    assert parse_moment(text) == moment


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("yesterday", "a moment is a position"),
        ("", "a moment is a position"),
        ("-5", "no duration such as -90s"),
        ("--5m", "after the log's end"),
        ("5 minutes ago", "no duration such as"),
        ("02:55", "for UTC write 02:55Z"),
        ("25:00Z", "no such time of day"),
        ("2026-11-22T02:55:00", "for UTC write 2026-11-22T02:55:00Z"),
        ("2026-11-22", "for UTC write 2026-11-22T00:00:00Z"),
        ("2026-13-22T02:55:00Z", "a moment is a position"),
        ("0001-01-01T00:00:00+14:00", "no log is so old"),
        ("9" * 19, "no log has such a position"),
        ("9" * 5000, "no log has such a position"),
    ],
)
def test_what_is_no_moment_is_refused_with_what_there_is(text: str, why: str) -> None:
    with pytest.raises(UnknownMoment, match=why):
        parse_moment(text)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("2026-11-22T02:55:00Z", 2),
        ("2026-11-22T02:55:09.999999Z", 2),
        ("2026-11-22T02:55:10Z", 3),
        ("2026-11-22T02:56:00Z", 6),
        ("end", 6),
        ("-0s", 6),
        ("-1s", 3),
        ("55s ago", 2),
        ("02:55Z", 2),
        ("02:56Z", 6),
        ("4", 4),
        ("0", 0),
    ],
)
async def test_time_is_the_last_event_recorded_at_or_before_it(text: str, position: int) -> None:
    assert await position_of(await filled(Clock()), C, parse_moment(text)) == position


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("7", "position 7 is beyond the log's end, position 6, recorded at 2026-11-22T02:56:00.000Z"),
        ("2026-11-22T02:56:01Z", "is beyond the log's end"),
        ("2026-11-22T02:54:59Z", "is before its log begins, at 2026-11-22T02:55:00.000Z"),
        ("-2h", "is before its log begins"),
        ("02:57Z", "2026-11-21T02:57:00.000Z is before its log begins"),
    ],
)
async def test_moment_that_is_not_in_the_log_is_refused_with_its_bounds(text: str, why: str) -> None:
    with pytest.raises(UnknownMoment, match=why):
        await position_of(await filled(Clock()), C, parse_moment(text))


async def test_log_without_events_has_no_times_and_one_position() -> None:
    log = MemoryLog(Clock())
    assert await position_of(log, C, Moment(position=0)) == 0
    with pytest.raises(UnknownMoment, match="its log is empty"):
        await position_of(log, C, END)


async def test_state_is_that_of_the_first_events_whatever_snapshot_there_is() -> None:
    log = await filled(Clock())
    events = await log.read(C)
    for saved in (None, 4, 6):
        if saved is not None:
            body = encode_state(ClusterState(C).fold_all(events[:saved]))
            await log.save_snapshot(C, Snapshot("state", saved, SNAPSHOT_SCHEMA, body))
        for position in range(7):
            expected = ClusterState(C).fold_all(events[:position])
            assert encode_state(await state_at(log, C, position)) == encode_state(expected)
    with pytest.raises(UnknownMoment, match="position 7 is beyond"):
        await state_at(log, C, 7)
    with pytest.raises(UnknownMoment, match="position -1 is before"):
        await state_at(log, C, -1)
