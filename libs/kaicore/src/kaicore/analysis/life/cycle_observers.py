"""Observers of a recorded cycle that is run again: the order of its groups, and the ranking of nodes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kaicore.analysis.json_spelling import Answer
from kaicore.policy import Point, PolicyBand
from kaicore.rules.deciding.cycle_run import run_on
from kaicore.rules.deciding.share import Share
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.placement.feasible_nodes import FeasibleNodes
from kaicore.rules.engine.placement.node_score import RowScore
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.events.payloads import CycleCompleted
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.groups.membership import display_key
from kaicore.rules.state.views import CycleView


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
        # A decision that goes on step by step appears once in a row.
        if not self.taken or self.taken[-1] != (self.action, group):
            self.taken.append((self.action, group))

    def placing(self, member: Member, row: int, feasible: FeasibleNodes) -> None:
        """Nothing of that is shown."""


def tried_groups(
    state: CycleView, config: EngineConfig, cycle: CycleCompleted, policies: PolicyBook = NO_POLICIES
) -> list[TriedGroup]:
    """Return the groups that a cycle took up, in its order.

    Args:
        state: as it was at the cycle's input position; not changed.
        config: with which the cycle was decided.
        cycle: its record.
        policies: the code of policies.

    Raises:
        PolicyMismatch: there is no code of a policy.
    """
    onlooker = _Onlooker()
    run = run_on(
        state,
        config,
        now=cycle.now,
        cycle=cycle.cycle,
        observer=onlooker,
        policies=policies,
        policies_left_out=cycle.policies_left_out,
    )
    given, result = run.given, run.result
    waiting = {key: len(workload.waiting) for key, workload in given.workloads.items()}
    queues = {key: given.accounts.queue_of(workload.group) for key, workload in given.workloads.items()}
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


#: Nodes that are shown of those that could have taken the pod.
_MOST_RANKED = 5


@dataclass(slots=True)
class PlacementScores:
    """The cycle's knowledge when it put a pod on a node.

    Attributes:
        ranked: nodes that could have taken the pod, by name, the best first; the chosen one is among them.
        ruled_out: why the others could not.
        able: how many could.
        doubtful: nodes that ranked before the chosen one and admit the pod, but not whatever is not known of them yet.
        bands: of the policies that score nodes, by name, in the order of the settings.
    """

    ranked: list[tuple[str, RowScore]] = field(default_factory=list)
    ruled_out: tuple[Reason, ...] = ()
    able: int = 0
    doubtful: tuple[str, ...] = ()
    bands: Mapping[str, PolicyBand] = field(default_factory=dict)


class _ScoreOnlooker:
    """Keeps what was known when a pod was put on a node for the last time."""

    def __init__(self, uid: str, node: str, names: list[str]) -> None:
        self.scores: PlacementScores | None = None
        self._uid = uid
        self._node = node
        self._names = names

    def begins(self, action: str) -> None:
        """It does not matter by which action."""

    def takes_up(self, group: str) -> None:
        """Nor in which order."""

    def placing(self, member: Member, row: int, feasible: FeasibleNodes) -> None:
        if member.pod.uid != self._uid or self._names[row] != self._node:
            return
        rows = feasible.ranked_rows().tolist()
        shown = rows[:_MOST_RANKED] if row in rows[:_MOST_RANKED] else [*rows[: _MOST_RANKED - 1], row]
        ranked = [(self._names[one], feasible.row_score(one)) for one in shown]
        doubtful = tuple(self._names[one] for one in feasible.doubtful_before(row))
        self.scores = PlacementScores(ranked, feasible.reasons(), len(rows), doubtful)


def placement_scores(
    state: CycleView,
    config: EngineConfig,
    cycle: CycleCompleted,
    *,
    uid: str,
    node: str,
    policies: PolicyBook = NO_POLICIES,
) -> PlacementScores | None:
    """Run a recorded cycle again and tell what it knew when it placed a pod; None where it does not place it so.

    Args:
        state: as it was at the cycle's input position; not changed.
        config: with which the cycle was decided.
        cycle: its record.
        uid: the pod's.
        policies: the code of policies.

    Raises:
        PolicyMismatch: there is no code of a policy.
    """
    onlooker = _ScoreOnlooker(uid, node, list(state.columns.names))
    share = Share(state, cycle.cycle.rpartition("/")[0], config)
    result = run_on(
        state,
        config,
        now=cycle.now,
        cycle=cycle.cycle,
        share=share,
        observer=onlooker,
        policies=policies,
        policies_left_out=cycle.policies_left_out,
    ).result
    placed = any(one.uid == uid and one.node == node for one in result.placements)
    if onlooker.scores is None or not placed:
        return None
    scoring = [one for one in policies.policies(config.policies) if Point.SCORE in one[1].points()]
    return replace(onlooker.scores, bands={setting.name: PolicyBand(policy.band) for setting, policy in scoring})
