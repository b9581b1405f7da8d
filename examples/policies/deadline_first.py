"""Groups with the earliest deadline come first."""

import numpy as np
from kaicore.policy import Facts, Policy, Queue, Waiting

DEADLINE = "deadline.example/at"
#: Of groups without one: later than all others.
NEVER = 2**62


class DeadlineFirst(Policy):
    """Order: by the annotation of the group's pods, such as `2026-12-24T18:00:00Z`."""

    name, version = "deadline-first", "1"
    pod_annotations = (DEADLINE,)
    order_before_priority = True

    def order(self, group: Waiting, queue: Queue, facts: Facts) -> int:
        """Return the deadline, seconds since the epoch."""
        try:
            return int(np.datetime64(group.annotations.get(DEADLINE, "").removesuffix("Z"), "s").astype(np.int64))
        except ValueError:
            return NEVER
