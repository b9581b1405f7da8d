"""The clock of leases."""

import time


def lease_clock() -> float:
    """Return seconds of a clock that is never set and that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
