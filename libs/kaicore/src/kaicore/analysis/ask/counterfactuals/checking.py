"""Search for changes that make a pod start: each candidate is tried on a copy of the state, the cheapest first.

Every reported change was tried. It was made to the copy, a whole engine cycle ran with all waiting pods, and the pod
was placed. Where that cycle decided on evictions, they were applied, and the next cycle placed the pod.

On the copy, facts are folded, a cycle runs, and the facts are undone for the next candidate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from kaicore.analysis.ask.counterfactuals.amendments import (
    node_amendments,
    pod_amendments,
    queue_amendments,
    volume_amendments,
)
from kaicore.analysis.ask.counterfactuals.asked import Amendment, Asked, Effort
from kaicore.analysis.ask.counterfactuals.group_amendments import group_amendments
from kaicore.analysis.ask.counterfactuals.room_amendments import ends, room_amendments
from kaicore.rules.deciding.cycle_run import run_on
from kaicore.rules.engine.config import Action, EngineConfig
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.events.envelope import NewEvent, derived_id
from kaicore.rules.events.payloads import Payload
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import RestorePoint, fold_unlogged, fork

#: What the rehearsal's own events are called; streams of this name have no version that any decision depends on.
_STREAM = "rehearsal"
#: The state as it is.
_NONE = Amendment("none", "", Effort.WAIT)
#: Rounds of evictions that are followed at most until a pod starts.
_MOST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Start:
    """Starts of pods after a change.

    Attributes:
        nodes: names of the nodes by the pods' uids.
        evicted: `<namespace>/<name>` of the pods that are evicted first.
    """

    nodes: dict[str, str]
    evicted: tuple[str, ...] = ()


class Rehearsal:
    """A state's copy, for changes one after the other; the state itself stays as it is."""

    def __init__(self, state: ClusterState, config: EngineConfig, policies: PolicyBook = NO_POLICIES) -> None:
        """Args:
        state: read while the first change is tried, and then not any more.
        """
        self._original = state
        self._config = config
        self._policies = policies
        actions = tuple(action for action in config.actions if action is Action.ALLOCATE)
        self._without_evictions = msgspec.structs.replace(config, actions=actions)
        self._copy: ClusterState | None = None

    def start_of(self, uid: str, amendment: Amendment | None = None) -> Start | None:
        """Return how a pod starts after a change, by itself or after evictions that cycles decide on; None if not.

        Args:
            amendment: the change; None for the state as it is.
        """
        amendment = amendment or _NONE
        state = self._state()
        restore_point = RestorePoint(state, state.pods[uid].group)
        undo, recorded_at = amendment.undo, state.recorded_at
        fold_rehearsed(state, amendment.facts)
        now = max(amendment.until, recorded_at)
        try:
            start, spoilt = self._start(state, uid, now=now, evicts=amendment.evicts)
        except Exception:
            self._copy = None
            raise
        if spoilt or undo is None:
            self._copy = None
        else:
            fold_rehearsed(state, undo)
            restore_point.restore()
        return start

    def _state(self) -> ClusterState:
        if self._copy is None:
            self._copy = fork(self._original)
        return self._copy

    def _start(self, state: ClusterState, uid: str, *, now: int, evicts: bool) -> tuple[Start | None, bool]:
        """Run cycles until a pod starts; tell besides whether the state is of no use any more."""
        # What a cycle places does not depend on whom it evicts afterwards, which is what takes long.
        result = run_on(state, self._without_evictions, now=now, policies=self._policies).result
        placed = {one.uid: one.node for one in result.placements}
        if uid in placed:
            return Start(placed), False
        evicted: list[str] = []
        for round_ in range(_MOST_ROUNDS if evicts else 0):
            result = run_on(state, self._config, now=now, policies=self._policies).result
            placed = {one.uid: one.node for one in result.placements}
            if uid in placed:
                return Start(placed, tuple(dict.fromkeys(evicted))), bool(round_)
            if not result.evictions or uid not in {one.uid for one in result.nominations}:
                return None, bool(round_)
            evicted += [f"{one.namespace}/{one.name}" for one in result.evictions]
            self._let_go(state, result)
        return None, evicts

    def _let_go(self, state: ClusterState, result: CycleResult) -> None:
        """Record a cycle's decisions, and the end of the pods that it evicts."""
        fold_rehearsed(state, list(result.decisions))
        fold_rehearsed(state, ends(state, [state.pods[one.uid].pod for one in result.evictions]))


def fold_rehearsed(state: ClusterState, facts: Sequence[Payload]) -> None:
    """Fold facts into a copy of a state, at the time of its last event."""
    for fact in facts:
        event_id = derived_id(_STREAM, str(state.position + 1))
        new = NewEvent(event_id, _STREAM, fact, actor=_STREAM, occurred_at=state.recorded_at)
        fold_unlogged(state, new, recorded_at=state.recorded_at)


#: So many changes that help are enough.
MOST_HELPFUL = 6
#: Of one kind so many are enough.
_MOST_OF_KIND = 2


@dataclass(frozen=True, slots=True)
class Helpful:
    """A change that was tried, and after which the pod starts."""

    amendment: Amendment
    start: Start


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of trying changes.

    Attributes:
        as_it_is: how the pod starts without any change: only a cycle has not been run since; None if it does not.
        helpful: changes after which it starts, the cheapest first.
        untried: how many more there were, for which there was no time, or no need.
    """

    as_it_is: Start | None
    helpful: tuple[Helpful, ...]
    tried: int
    untried: int


def check(asked: Asked, *, go_on: Callable[[], bool] = lambda: True) -> Checked:
    """Try changes; none where a policy of the shard cannot be asked, for it might hold the pod all the same.

    Args:
        go_on: asked before each trial; the others are left out once it says no.
    """
    if asked.policies.known(asked.config.policies) != asked.state.config().policies:
        return Checked(None, (), 0, 0)
    rehearsal, uid = Rehearsal(asked.state, asked.config, asked.policies), asked.pod.uid
    as_it_is = rehearsal.start_of(uid)
    if as_it_is is not None:
        return Checked(as_it_is, (), 0, 0)
    candidates = amendments(asked)
    helpful: list[Helpful] = []
    tried = 0
    for amendment in candidates:
        alike = [one for one in helpful if one.amendment.kind == amendment.kind]
        if len(helpful) == MOST_HELPFUL or len(alike) == _MOST_OF_KIND or not go_on():
            continue
        tried += 1
        start = rehearsal.start_of(uid, amendment)
        if start is not None:
            helpful.append(Helpful(amendment, start))
    helpful.sort(key=_price)
    return Checked(None, tuple(helpful), tried, len(candidates) - tried)


def _price(helpful: Helpful) -> int:
    """Return what a change costs; one by which others are evicted ends work as well."""
    effort = helpful.amendment.effort
    return max(effort, Effort.END_WORK) if helpful.start.evicted else effort


def amendments(asked: Asked) -> Sequence[Amendment]:
    """Return the changes that may help, the cheapest first; of equal ones as they are given."""
    kinds = (
        group_amendments,
        queue_amendments,
        volume_amendments,
        pod_amendments,
        node_amendments,
        room_amendments,
    )
    by_message = {one.message: one for amend in kinds for one in amend(asked)}
    return sorted(by_message.values(), key=lambda one: one.effort)
