"""Groups with the earliest deadline come first."""

from kaicore.policy import Facts, Policy, Queue, Waiting

HOURS = "deadline.example/hours"
HOUR_US = 3_600_000_000
#: Of groups without a deadline: after all others.
NEVER = 2**62


class DeadlineFirst(Policy):
    """Order: a label of the pods says within how many hours of their creation they are to have started."""

    name, version = "deadline-first", "1"
    pod_labels = (HOURS,)
    order_before_priority = True

    def order(self, group: Waiting, queue: Queue, facts: Facts) -> int:
        """Return the deadline, microseconds since the epoch."""
        hours = group.labels.get(HOURS, "")
        return group.created_us + int(hours) * HOUR_US if hours.isdecimal() and len(hours) < 6 else NEVER
