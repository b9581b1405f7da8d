"""The clock of cycles: the log's, as far as the log shows it."""

from kai_scheduler.scheduler import LogClock

HOUR_US = 3_600_000_000


class Machine:
    """A machine with a time of day an hour ahead of the log's."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.clock = LogClock(lambda: HOUR_US + int(self.seconds * 1e6), lambda: self.seconds)


def test_the_machines_own_clock_counts_until_the_log_has_recorded_something() -> None:
    machine = Machine()
    assert machine.clock() == HOUR_US
    machine.clock.appended(1_000_000)
    machine.seconds += 2.0
    assert machine.clock() == 3_000_000


def test_time_goes_on_while_recorded_times_stand_still() -> None:
    machine = Machine()
    for _ in range(3):
        machine.clock.appended(1_000_000)
        machine.seconds += 1.0
    assert machine.clock() == 4_000_000
    machine.clock.appended(2_000_000)
    assert machine.clock() == 2_000_000
