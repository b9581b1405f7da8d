"""Large groups start outside business hours."""

from kaicore.policy import Facts, Hold, NoArguments, Policy, Queue, Waiting
from pydantic import Field

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
#: The first of January 1970 was a Thursday.
THURSDAY = 3


class BusinessHours(Policy):
    """Admission: holds large groups from morning to evening, Monday to Friday."""

    name, version = "business-hours", "1"

    class Arguments(NoArguments):
        """Arguments of the policy."""

        begin: int = Field(8, ge=0, le=23, description="first hour of business")
        end: int = Field(18, ge=1, le=24, description="hour in which it ends")
        east: int = Field(0, ge=-12, le=14, description="hours that the clock is ahead of UTC")
        gpus: int = Field(8, ge=0, description="groups of so many GPUs and fewer start at any time")

    def admit(self, group: Waiting, queue: Queue, facts: Facts) -> Hold | None:
        """Return until when the group is held."""
        given = self.arguments
        day, time_us = divmod(facts.now_us + given.east * HOUR_US, DAY_US)
        open_now = (day + THURSDAY) % 7 < 5 and given.begin * HOUR_US <= time_us < given.end * HOUR_US
        if group.gpus <= given.gpus * 1000 or not open_now:
            return None
        return Hold("large groups start after business hours", facts.now_us - time_us + given.end * HOUR_US)
