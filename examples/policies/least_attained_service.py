"""Least attained service first, in few levels (Tiresias: Gu et al., NSDI 2019)."""

from kaicore.policy import Facts, NoArguments, PastUse, Policy, Queue, Running, Waiting
from pydantic import Field


class LeastAttainedService(Policy):
    """Order and victims: by the level of the GPU time that a group has had; within a level the first comes first."""

    name, version = "least-attained-service", "2"
    order_before_priority, history = True, (PastUse.OWNER,)

    class Arguments(NoArguments):
        """Arguments of the policy."""

        gpu_hours: list[float] = Field([1, 10, 100], description="GPU-hours at which the next level begins")

    def _level(self, gpu_seconds: float) -> int:
        return sum(bound <= gpu_seconds / 3600 for bound in self.arguments.gpu_hours)

    def order(self, group: Waiting, queue: Queue, facts: Facts) -> int:
        """Return the level, the least served first."""
        return self._level(group.used_gpu_seconds)

    def victims(self, running: Running, facts: Facts) -> int:
        """Return the cost of a victim: the less it was served, the more it costs."""
        levels = len(self.arguments.gpu_hours)
        return 1000 * (levels - self._level(running.used_gpu_seconds)) // max(levels, 1)
