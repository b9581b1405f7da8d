"""Reports that come late, and lines that were said before."""

from kai_ingest.ingest import RecentLines, Reporters
from kai_ingest.reports import Report, read_report

from tests.given.work.reports import report


def sent(instance: str, sequence: int, node: str = "n1") -> Report:
    return read_report(report(instance=instance, sequence=sequence, node=node))


def test_an_old_report_comes_too_late() -> None:
    reporters = Reporters()
    taken = [
        not reporters.superseded(one, now=1)
        for one in (
            sent("a", 5),
            sent("a", 5),
            sent("a", 7),
            sent("a", 6),
            sent("b", 1),
            sent("a", 8),
            sent("b", 2),
            sent("a", 1, "n2"),
        )
    ]
    assert taken == [True, True, True, False, True, False, True, True]


def test_age_of_the_oldest_report_is_that_of_the_most_silent_node() -> None:
    reporters = Reporters()
    assert reporters.oldest_age_us(now=50) == 0
    reporters.superseded(sent("a", 1), now=10)
    reporters.superseded(sent("a", 1, "n2"), now=40)
    assert (len(reporters), reporters.oldest_age_us(now=50)) == (2, 40)
    reporters.forget("n1")
    assert (len(reporters), reporters.oldest_age_us(now=50)) == (1, 10)


def test_a_line_is_said_once_in_ten_minutes() -> None:
    recent = RecentLines()
    times = [0, 1, 600, 601, 602]
    assert [recent.first_time("x", now=time * 1_000_000) for time in times] == [True, False, True, False, False]
    assert recent.first_time("y", now=0)
    for thing in range(10_000):
        recent.first_time(thing, now=602_000_000)
    assert recent.first_time("x", now=603_000_000), "the oldest are forgotten"
