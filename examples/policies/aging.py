"""Priority grows while a group waits, so that nothing waits for ever."""

from kaicore.policy import Facts, NoArguments, Policy, Queue, Waiting
from pydantic import Field


class Aging(Policy):
    """Order: by priority, and one step more for each time that the group has waited for."""

    name, version = "aging", "1"
    order_before_priority = True

    class Arguments(NoArguments):
        """Arguments of the policy."""

        minutes: int = Field(60, gt=0, description="wait for one step")
        step: int = Field(1, ge=0, description="priority that a step adds")
        most: int = Field(10, ge=0, description="priority that all steps add at most")

    def order(self, group: Waiting, queue: Queue, facts: Facts) -> int:
        """Return the group's priority with what it gained, the highest first."""
        steps = max(group.waited_us, 0) // (self.arguments.minutes * 60_000_000)
        return -(group.priority + min(steps * self.arguments.step, self.arguments.most))
