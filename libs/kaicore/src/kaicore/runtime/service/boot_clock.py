"""The clock of whoever holds a lease: nobody sets it, and it goes on while the machine sleeps."""

import time

#: `CLOCK_BOOTTIME` of Linux; elsewhere the monotonic clock, which may stand still while a machine sleeps.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_clock_us() -> int:
    """Return microseconds since some moment that stays the same until the machine is started again."""
    return time.clock_gettime_ns(_CLOCK) // 1000
