"""Lines that say the same are limited, and a log that cannot be written costs no service."""

import logging
import subprocess
import sys
from typing import Any

import msgspec
import pytest
import structlog
from kaicore.runtime.rate_limit import RateLimit, RateLimits
from kaicore.runtime.service.logs import SameLines

from tests.given.doubles.stopped_clock import StoppedClock


def test_a_rate_limit_fills_up_again() -> None:
    limit = RateLimit(per_s=2, burst=3, now=0.0)
    assert [limit.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [limit.take(0.5), limit.take(0.5)] == [True, False]
    limit.give_back()
    assert limit.take(0.5)
    assert [limit.take(100.0) for _ in range(4)] == [True, True, True, False]


def test_rate_limits_forget_the_key_not_used_for_longest() -> None:
    limits = RateLimits(per_s=0, burst=1, keys=2)
    assert limits.of("a", 0.0).take(0.0)
    assert limits.of("b", 0.0).take(0.0)
    assert not limits.of("a", 0.0).take(0.0)
    assert limits.of("c", 0.0).take(0.0)
    assert not limits.of("a", 0.0).take(0.0)
    assert limits.of("b", 0.0).take(0.0), "it was forgotten"


def test_a_flood_of_equal_lines_is_cut_and_the_next_line_says_how_many_were_dropped() -> None:
    clock = StoppedClock(0)
    lines = SameLines(clock)
    passed = 0
    for number in range(500):
        try:
            lines(None, "warning", {"event": "report refused", "node": f"n{number}"})
            passed += 1
        except structlog.DropEvent:
            pass
    assert passed == 100
    assert lines(None, "warning", {"event": "other"}) == {"event": "other"}
    clock.now = 1
    line: Any = lines(None, "warning", {"event": "report refused"})
    assert line == {"event": "report refused", "same_lines_dropped": 400}


def test_a_flood_of_a_librarys_lines_is_cut_whatever_they_are_filled_with() -> None:
    clock = StoppedClock(0)
    lines = SameLines(clock)

    def passes(number: int) -> tuple[bool, str]:
        record = logging.LogRecord("uvicorn", logging.WARNING, "", 0, "bad request %d", (number,), None)
        return bool(lines.filter(record)), record.getMessage()

    assert sum(passes(number)[0] for number in range(300)) == 100
    clock.now = 1
    assert passes(7) == (True, "bad request 7 (200 same lines dropped)")


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux'")
def test_a_bus_lost_and_found_is_two_lines_a_pool_that_tries_again_is_none_and_a_full_disk_costs_no_service() -> None:
    code = """
import logging, os, sys
from logging import getLogger
from kaicore.runtime.service import configure_logging, get_logger
configure_logging("x")
getLogger("kaicore.ledger.bus").warning("lost")
getLogger("kaicore.ledger.bus").info("found")
getLogger("psycopg.pool").warning("tries")
getLogger("nats").info("chats")
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
get_logger().warning("one")
logging.warning("two")
sys.stdout.write("alive")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert [msgspec.json.decode(line)["event"] for line in done.stderr.splitlines()] == ["lost", "found"]
    assert done.stdout == "alive"
