"""A cycle on a state, without what makes it raise.

A group or a node may be such that no cycle with it comes to an end: a value that no rule foresees, or a defect. The
cycle is then run again without it, so that the cluster goes on. The group waits for that reason; the node gets no pods
and gives up none. Each cycle tries first with everything.

What is left out follows from the state and the settings alone. So a replay leaves out the same, and no event says it
beforehand. A policy of the operator that fails is left out first, and the cycle begins anew. A failure of time or
memory does not follow from the state: the cycle's record says it, and a replay is given it.

1. The group that was taken up last is left out, if that suffices.
2. Else the fewest groups are looked for, and where those are several, the fewest nodes. Fewer nodes than groups are
   left out instead of the groups: a node makes the cycle of every group raise.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from kaicore.rules.deciding.cycle_input import cycle_input
from kaicore.rules.deciding.share import Share
from kaicore.rules.engine.actions.cycle import run_cycle
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.engine.placement.placer import PlacingObserver
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.engine.policies.cycle_policies import guarded
from kaicore.rules.engine.policies.guarded import OF_MACHINE, PolicyFailed
from kaicore.rules.events.payloads import GroupPending, PolicyLeftOut
from kaicore.rules.events.reasons.group import Unsupported
from kaicore.rules.events.reasons.node import HistoryIncomplete
from kaicore.rules.groups.membership import display_key
from kaicore.rules.state.views import CycleView

_Answer = TypeVar("_Answer")
#: What the reasons begin with that say why something is left out.
_RAISES = "no cycle with it comes to an end: "
#: So many groups, or nodes, are looked for before the other kind is tried.
_FEW = 3
#: Of this machine, and not of the state; and of a policy.
_NOT_OF_PARTS = (MemoryError, RecursionError, PolicyFailed)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The groups or nodes that a cycle left out.

    Attributes:
        groups: keys of groups, sorted.
        nodes: names, sorted.
        error: what the cycle raised with all of them; None where nothing is left out.
    """

    groups: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    error: Exception | None = None

    def __bool__(self) -> bool:
        return self.error is not None

    @property
    def why(self) -> str:
        """The reason as it is recorded: the kind of error only, for its message may differ between machines."""
        return f"{_RAISES}{type(self.error).__name__}"

    def __str__(self) -> str:
        named = [*(f"group {display_key(key)}" for key in self.groups), *(f"node {name}" for name in self.nodes)]
        return f"{', '.join(named)}: {self.why}: {self.error}" if self else ""


NOTHING_LEFT_OUT = LeftOut()


@dataclass(frozen=True, slots=True)
class CycleRun:
    """A cycle that came to an end.

    Attributes:
        given: what it decided on.
        result: with the reason of what was left out.
        left_out: nothing in almost every cycle.
        policies_left_out: the policies that failed, in the order in which they did.
    """

    given: CycleInput
    result: CycleResult
    left_out: LeftOut = NOTHING_LEFT_OUT
    policies_left_out: tuple[PolicyLeftOut, ...] = ()


def run_on(
    state: CycleView,
    config: EngineConfig,
    *,
    now: int,
    cycle: str = "",
    share: Share | None = None,
    observer: PlacingObserver | None = None,
    policies: PolicyBook = NO_POLICIES,
    policies_left_out: Sequence[PolicyLeftOut] = (),
) -> CycleRun:
    """Run a cycle on a state, without what makes it raise, and without the policies that fail.

    Args:
        state: not changed.
        now: the cycle's clock, microseconds since the epoch.
        cycle: the cycle's id; empty where nothing is recorded.
        share: of the groups in this cycle; None for all of them.
        observer: looks on at the cycle that comes to an end, and at those before.
        policies: the code of the policies that the settings name.
        policies_left_out: what a record says of this cycle; of it counts what does not follow from the state.

    Raises:
        PolicyMismatch: the book has no code of a policy that the settings name.
        Exception: whatever the cycle raises, where it does so without any group, and without any node, too.
    """
    policies.guard.begin()
    failed = [one for one in policies_left_out if one.why in OF_MACHINE]
    while True:
        but = frozenset(one.policy for one in failed)

        def given(*, in_lines: bool = False) -> CycleInput:
            entered = guarded(policies.policies(config.policies), policies.guard, but=but)  # noqa: B023 (used at once)
            return cycle_input(state, config, now=now, cycle=cycle, share=share, policies=entered, in_lines=in_lines)

        try:
            run = _run(given(in_lines=observer is None), given, config, observer=observer)
        except PolicyFailed as error:
            failed.append(error.left_out)
        else:
            return replace(run, policies_left_out=tuple(failed))


def _run(
    everything: CycleInput, given: Callable[[], CycleInput], config: EngineConfig, *, observer: PlacingObserver | None
) -> CycleRun:
    """Run a cycle; one that raises is run again without parts, on an input where no group rests (`given`)."""
    try:
        return CycleRun(everything, run_cycle(everything, config, observer=observer))
    except _NOT_OF_PARTS:
        raise
    except Exception as error:
        left_out = _Search(given, config).what_to_leave_out(error)
        rest = without(given(), left_out)
        return CycleRun(rest, _explained(run_cycle(rest, config, observer=observer), left_out, everything), left_out)


def without(given: CycleInput, left_out: LeftOut) -> CycleInput:
    """Return the input of a cycle without some groups, or on other nodes only."""
    if left_out.groups:
        gone = set(left_out.groups)
        given = replace(
            given,
            pending=[key for key in given.pending if key not in gone],
            below=[key for key in given.below if key not in gone],
            misaligned=[one for one in given.misaligned if one.member.group not in gone],
            on_failed_nodes=[one for one in given.on_failed_nodes if one.group not in gone],
            provisioning={key: one for key, one in given.provisioning.items() if key not in gone},
        )
    if left_out.nodes:
        columns = given.columns.copy()
        columns.present = columns.present.copy()
        columns.present[[columns.row(name) for name in left_out.nodes]] = False
        given = replace(given, columns=columns)
    return given


def recorded_left_out(state: CycleView) -> dict[str, dict[str, str]]:
    """Return what the last cycles left out, as far as it is recorded: why, by the keys of groups and names of nodes."""
    found: dict[str, dict[str, str]] = {"group": {}, "node": {}}
    for key, by_shard in state.reasons.by_group.items():
        for pending in by_shard.values():
            for reason in pending.reasons:
                if isinstance(reason, Unsupported) and reason.features.startswith(_RAISES):
                    found["group"][key] = reason.features
    for classes in state.reasons.by_class.values():
        for of_class in classes.values():
            for reason in of_class.reasons:
                if isinstance(reason, HistoryIncomplete) and reason.gap.startswith(_RAISES):
                    found["node"][reason.example] = reason.gap
    return found


def left_out_of_cycles(state: CycleView) -> list[str]:
    """Say what the last cycles left out, and why, as far as it is recorded; sorted."""
    found = recorded_left_out(state)
    groups = (f"group {display_key(key)}: {why}" for key, why in found["group"].items())
    return sorted((*groups, *(f"node {name}: {why}" for name, why in found["node"].items())))


def input_to_explain(
    state: CycleView, config: EngineConfig, *, now: int, policies: PolicyBook = NO_POLICIES
) -> CycleInput:
    """Return the input of a cycle for explanations: without what the last cycles left out, for it would raise.

    Args: see `run_on`; policies of which the book has no code are not asked.
    """
    found = recorded_left_out(state)
    nodes = tuple(name for name in found["node"] if name in state.columns.rows)
    entered = guarded(policies.policies(policies.known(config.policies)), policies.guard, but=frozenset())
    given = cycle_input(state, config, now=now, policies=entered)
    return without(given, LeftOut(tuple(found["group"]), nodes))


def explained(
    config: EngineConfig, policies: PolicyBook, ask: Callable[[EngineConfig], _Answer]
) -> tuple[_Answer, tuple[str, ...]]:
    """Ask something with the policies that can be asked; return the answer, and the names of the other policies.

    Args:
        policies: the code; a policy is left out of which it has none.
        ask: is given the settings with the policies that can be asked, and asked again without one that fails.
    """
    able = policies.known(config.policies)
    while True:
        policies.guard.begin()
        try:
            answer = ask(msgspec.structs.replace(config, policies=able) if able != config.policies else config)
        except PolicyFailed as failed:
            able = tuple(one for one in able if one.name != failed.left_out.policy)
        else:
            return answer, tuple(one.name for one in config.policies if one not in able)


class _LastTakenUp(PlacingObserver):
    """Notes the group that was taken up last."""

    group = ""

    def begins(self, action: str) -> None:
        self.group = ""

    def takes_up(self, group: str) -> None:
        self.group = group


class _Search:
    """Looks for what makes a cycle raise, by running it without parts."""

    def __init__(self, given: Callable[[], CycleInput], config: EngineConfig) -> None:
        self._given, self._config = given, config

    def what_to_leave_out(self, error: Exception) -> LeftOut:
        """Return the groups or nodes without which the cycle comes to an end.

        Raises Exception: the error; nothing helps.
        """
        onlooker, given = _LastTakenUp(), self._given()
        self._raises(NOTHING_LEFT_OUT, observer=onlooker)
        if onlooker.group and not self._raises(LeftOut(groups=(onlooker.group,))):
            return LeftOut(groups=(onlooker.group,), error=error)

        def among_groups(most: int) -> Sequence[str] | None:
            keys = sorted({*given.pending, *given.below, *(one.member.group for one in given.misaligned)})
            return _fewest(keys, lambda some: self._raises(LeftOut(groups=tuple(some))), most)

        groups = among_groups(_FEW)
        if groups is not None and len(groups) == 1:
            return LeftOut(groups=tuple(groups), error=error)
        names = [given.columns.names[row] for row in given.columns.present.nonzero()[0].tolist()]
        nodes = _fewest(sorted(names), lambda some: self._raises(LeftOut(nodes=tuple(some))), _FEW)
        if nodes is not None and (groups is None or len(nodes) < len(groups)):
            return LeftOut(nodes=tuple(sorted(nodes)), error=error)
        groups = among_groups(len(given.workloads)) if groups is None else groups
        if groups is None:
            raise error
        return LeftOut(groups=tuple(sorted(groups)), error=error)

    def _raises(self, left_out: LeftOut, *, observer: PlacingObserver | None = None) -> bool:
        try:
            run_cycle(without(self._given(), left_out), self._config, observer=observer)
        except _NOT_OF_PARTS:
            raise
        except Exception:
            return True
        return False


def _fewest(candidates: Sequence[str], raises: Callable[[Collection[str]], bool], most: int) -> Sequence[str] | None:
    """Return few candidates without which nothing is raised, found one by one.

    Args:
        candidates: sorted.
        raises: tells whether a cycle without some of them raises.
        most: so many at most.

    Returns:
        None where that takes more, or it raises without all of them.
    """
    found: list[str] = []
    if raises(candidates):
        return None
    while raises(found):
        # It raises without the first `low`, and does not without the first `high`: the one between is to blame.
        low, high = 0, len(candidates)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if raises([*found, *candidates[:middle]]) else (low, middle)
        if len(found) == most or candidates[high - 1] in found:
            return None
        found.append(candidates[high - 1])
    return found


def _explained(result: CycleResult, left_out: LeftOut, everything: CycleInput) -> CycleResult:
    """Return a result with the reasons of what was left out."""
    pending, why = result.pending, (Unsupported(features=left_out.why),)
    waiting = {key: len(everything.workloads[key].waiting) for key in left_out.groups}
    groups = [GroupPending(group=key, pods=count, reasons=why) for key, count in waiting.items() if count]
    if left_out.nodes:
        reasons = [HistoryIncomplete(nodes=1, example=name, gap=left_out.why) for name in left_out.nodes]
        pending = tuple(msgspec.structs.replace(one, reasons=(*one.reasons, *reasons)) for one in pending)
    return msgspec.structs.replace(
        result, pending=pending, groups=tuple(sorted((*result.groups, *groups), key=lambda item: item.group))
    )
