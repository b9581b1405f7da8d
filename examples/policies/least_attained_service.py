"""Least attained service first, in few levels (Tiresias: Gu et al., NSDI 2019)."""

from kaicore.policy import Facts, NoArguments, Policy, Queue, Running, Waiting
from pydantic import Field


class LeastAttainedService(Policy):
    """Order and victims: by the level of the GPU time that a group has had; within a level the first comes first."""

    name, version = "least-attained-service", "1"
    order_before_priority = True

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
        served = running.gpus / 1000 * running.running_us / 1_000_000
        return 1000 * (levels - self._level(served)) // max(levels, 1)
