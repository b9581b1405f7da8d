"""The order in which a recorded cycle took up groups: the cycle is run again, and an observer records the order."""

from collections import Counter
from dataclasses import dataclass, field

from kaicore.analysis.inquiry.answer import Answer
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.cycle import run_cycle
from kaicore.rules.engine.placement.feasible_nodes import FeasibleNodes
from kaicore.rules.engine.workload import Member
from kaicore.rules.events.payloads import CycleCompleted
from kaicore.rules.groups.membership import display_key
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.cycle_input import cycle_input


class TriedGroup(Answer, frozen=True, kw_only=True):
    """A group that an action of a cycle took up.

    Attributes:
        action: which, such as `allocate` or `preempt`.
        group: `<kind> <namespace>/<name>`.
        queue: that pays for it.
        waiting: how many of its pods waited before the cycle.
        placed: how many of them the cycle placed, by all its actions; `nominated` likewise those that it kept room for.
    """

    action: str
    group: str
    queue: str
    waiting: int
    placed: int
    nominated: int


@dataclass(slots=True)
class _Onlooker:
    """Notes which groups are taken up."""

    action: str = ""
    taken: list[tuple[str, str]] = field(default_factory=list)

    def begins(self, action: str) -> None:
        self.action = action

    def takes_up(self, group: str) -> None:
        # One that goes on step by step is told once in a row.
        if not self.taken or self.taken[-1] != (self.action, group):
            self.taken.append((self.action, group))

    def placing(self, member: Member, row: int, feasible: FeasibleNodes) -> None:
        """Nothing of that is told."""


def tried_groups(state: ClusterState, config: EngineConfig, cycle: CycleCompleted) -> list[TriedGroup]:
    """Return the groups that a cycle took up, in its order.

    Args:
        state: as it was at the cycle's input position; not changed.
        config: with which the cycle was decided.
        cycle: its record.
    """
    onlooker = _Onlooker()
    given = cycle_input(state, config, now=cycle.now, cycle=cycle.cycle)
    waiting = {key: len(workload.waiting) for key, workload in given.workloads.items()}
    queues = {key: given.accounts.queue_of(workload.group) for key, workload in given.workloads.items()}
    result = run_cycle(given, config, observer=onlooker)
    placed = Counter(state.pods[one.uid].group for one in result.placements)
    nominated = Counter(state.pods[one.uid].group for one in result.nominations)
    return [
        TriedGroup(
            action=action,
            group=display_key(key),
            queue=queues.get(key, ""),
            waiting=waiting.get(key, 0),
            placed=placed[key],
            nominated=nominated[key],
        )
        for action, key in onlooker.taken
    ]
