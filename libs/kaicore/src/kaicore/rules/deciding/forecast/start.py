"""Forecasts of the start of waiting groups: quantiles over scenarios.

Each scenario draws the ends of running pods (`lifetimes`) and runs the engine's own first action forward, on a session
of its own, until the groups in question start. The order of queues and groups, gangs, topology, zones and the room kept
for others count as in a cycle. Nothing is evicted, and no new pods arrive. The same state, history and time give the
same answer on every machine. A backtest measures how often such forecasts are right.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import NamedTuple

import numpy as np

from kaicore.rules.deciding.cycle_run import explained, input_to_explain
from kaicore.rules.deciding.forecast.runs import Lifetimes, PodRun, RunHistory
from kaicore.rules.deciding.run_length import limit_us
from kaicore.rules.engine.actions.allocate import Allocate
from kaicore.rules.engine.config import DAY_US, EngineConfig
from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.placement.placer import Assignment
from kaicore.rules.engine.placement.statement import PodCharge
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.engine.session.cycle_pods import CyclePods
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.victims.ending_groups import stays
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts
from kaicore.rules.state.indexes.past_runs import LEAST_RUNS, Basis, run_keys
from kaicore.rules.state.views import CycleView

#: Ends within this, or within this part of the time that has passed, are looked at together.
_STEP_US, _STEP_PART = 1_000_000, 16

#: Returns after how much time a pod that starts ends again, microseconds; -1 if not that is known.
Lasting = Callable[[Member], int]


class WorkExhausted(Exception):
    """The scenarios so far have cost all that they may."""


@dataclass(slots=True)
class Allowance:
    """The remaining budget of scenarios: each end of a pod, and each waiting group that is looked at, costs one."""

    left: int

    def spend(self, amount: int) -> None:
        """Raises WorkExhausted: that is more than there is."""
        self.left -= amount
        if self.left < 0:
            raise WorkExhausted


@dataclass(slots=True)
class ScenarioStarts:
    """The starts of groups in a scenario.

    Attributes:
        after_us: by the key of each group that starts, microseconds from now.
        ahead: by the key of each that is asked about, how many others start before.
    """

    after_us: dict[str, int] = field(default_factory=dict)
    ahead: dict[str, int] = field(default_factory=dict)


class PodEnd(NamedTuple):
    """The consequences of a pod's end.

    Attributes:
        charge: what its node is rid of.
        group: the group with the queue that is rid of `request`; None where it is on no queue's account.
        request: what it requests.
        leaving: whether it is gone already on the nodes as they will be when all that leave are gone.
    """

    charge: PodCharge
    group: Group | None
    request: Amounts
    leaving: bool = False


def pod_ends(given: CycleInput, config: EngineConfig, members: Iterable[Member]) -> list[PodEnd]:
    """Return what ends with pods that run."""
    pods = CyclePods(given)
    ends = []
    for member in members:
        # What leaves is on no queue's account any more, and what others schedule never was.
        accounted = member.pod.scheduler_name == config.scheduler_name and not member.releasing
        group = given.workloads[member.group].group if accounted else None
        ends.append(PodEnd(pods.charge_of(member), group, pods.class_of(member).requests, member.releasing))
    return ends


class Scenario:
    """Runs forward once."""

    def __init__(self, given: CycleInput, config: EngineConfig, *, lasting: Lasting, work: Allowance) -> None:
        """Args:
        given: what a cycle would decide on; put back by `run`.
        """
        self._given, self._config = given, config
        self._accounts_before = given.accounts.savepoint()
        self._session = Session(given, config)
        self._session.reservations.restore()
        self._lasting, self._work = lasting, work
        self._open = list(self._session.pending_groups.values())
        #: Ends of pods that started, with a number so that equal times have an order.
        self._later: list[tuple[int, int, PodEnd]] = []
        self._number = 0

    def run(self, ends: Iterable[tuple[int, PodEnd]], *, groups: Sequence[str], horizon_us: int) -> ScenarioStarts:
        """Run until all of some groups have started. Raises WorkExhausted: it cost more than it may.

        Args:
            ends: of pods that run, each with when it ends, in order; microseconds from now.
            groups: keys of the groups that are asked about.
            horizon_us: nothing is looked at that comes later.
        """
        starts = ScenarioStarts()
        wanted = set(groups)
        running = iter(ends)
        upcoming = next(running, None)
        now = 0
        try:
            while True:
                for key in self._allocate(now):
                    starts.after_us[key] = now
                    if key in wanted:
                        starts.ahead[key] = len(starts.after_us) - 1
                times = [self._later[0][0]] if self._later else []
                times += [upcoming[0]] if upcoming is not None else []
                if wanted <= starts.after_us.keys() or not times or min(times) > horizon_us:
                    return starts
                now = max(min(times), now + max(_STEP_US, now // _STEP_PART))
                gone: list[PodEnd] = []
                while upcoming is not None and upcoming[0] <= now:
                    gone.append(upcoming[1])
                    upcoming = next(running, None)
                while self._later and self._later[0][0] <= now:
                    gone.append(heapq.heappop(self._later)[2])
                self._release(gone)
        finally:
            self._given.accounts.undo(self._accounts_before)

    def _release(self, gone: Sequence[PodEnd]) -> None:
        session = self._session
        self._work.spend(len(gone))
        for end in gone:
            session.nodes.statement.evict(end.charge)
            if session.nodes.has_future and not end.leaving:
                session.nodes.future.statement.evict(end.charge)
            if end.group is not None:
                session.accounts.release(end.group, end.request)

    def _allocate(self, now: int) -> Iterator[str]:
        """Start what fits; yield the keys of groups of which the first pods start."""
        session = self._session
        self._work.spend(len(self._open))
        before = [len(pending_group.assignments) for pending_group in self._open]
        for pending_group in self._open:
            pending_group.blocked = False
        Allocate(session).run()
        for pending_group, count in zip(self._open, before, strict=True):
            for assignment in pending_group.assignments[count:]:
                self._plan_end(assignment, now)
            if pending_group.assignments and not count:
                yield pending_group.key
        self._open = [pending_group for pending_group in self._open if pending_group.unplaced]

    def _plan_end(self, assignment: Assignment, now: int) -> None:
        after = self._lasting(assignment.member)
        if after >= 0:
            self._number += 1
            member = assignment.member
            group = self._given.workloads[member.group].group
            end = PodEnd(assignment.pod_charge, group, self._session.pods.class_of(member).requests)
            heapq.heappush(self._later, (now + after, self._number, end))


#: The number of scenarios, a prime number, and the least number for quantiles.
SCENARIOS, LEAST_SCENARIOS = 31, 11

#: What the scenarios of one question may cost (`Allowance`).
WORK = 200_000

#: How long pods take that are asked to leave, where they do not say: Kubernetes' default grace.
_GRACE_US = 30 * 1_000_000


@dataclass(frozen=True, slots=True)
class StartForecast:
    """A forecast of a group's start.

    Attributes:
        p50_us, p90_us: in half, and in nine tenths, of the scenarios it starts within so many microseconds; None where
            not within the horizon.
        earliest_us: in no scenario it starts before; None where it starts in none within the horizon.
        latest_us: in all scenarios it has started by then; None where not in all within the horizon.
        horizon_us: beyond this nothing is claimed.
        within: in how many scenarios it starts within the horizon.
        scenarios: how many were computed.
        asked_scenarios: how many were to be computed; fewer were if that cost more than it may.
        ahead: how many of the groups that wait start before it, as median.
        runs: how many runs have ended, of all that the log tells of.
        bases: the number of running pods, by the kind of runs that predict their ends.
        unknown: how many running pods have no run-time data: they are assumed endless.
        deadlines: of how many a deadline (`activeDeadlineSeconds`) bounds it.
        work: what it cost (`Allowance`).
    """

    p50_us: int | None
    p90_us: int | None
    earliest_us: int | None
    latest_us: int | None
    horizon_us: int
    within: int
    scenarios: int
    asked_scenarios: int
    ahead: int
    runs: int
    bases: dict[Basis, int]
    unknown: int
    deadlines: int
    work: int


@dataclass(frozen=True, slots=True)
class NoForecast:
    """The reason why a group has no forecast."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastLimits:
    """The range and the fineness of forecasts.

    Attributes:
        horizon_us: microseconds.
        scenarios: how many; a prime number.
        work: what they may cost.
    """

    horizon_us: int = DAY_US
    scenarios: int = SCENARIOS
    work: int = WORK


_LIMITS = ForecastLimits()


def forecast_starts(
    state: CycleView,
    config: EngineConfig,
    history: RunHistory,
    groups: Sequence[str],
    *,
    now: int,
    limits: ForecastLimits = _LIMITS,
    policies: PolicyBook = NO_POLICIES,
) -> dict[str, StartForecast | NoForecast]:
    """Foretell when groups that wait start.

    Args:
        state: not changed.
        history: of the same log, up to the state's position or before.
        now: microseconds since the epoch.
        policies: the code of policies; those of which it has none, or that fail, are not asked.
    """

    def ask(able: EngineConfig) -> dict[str, StartForecast | NoForecast]:
        outlook = _Outlook(state, able, history, now=now, limits=limits, policies=policies)
        return _forecasts(outlook, history, groups)

    return explained(config, policies, ask)[0]


def _forecasts(
    outlook: "_Outlook", history: RunHistory, groups: Sequence[str]
) -> dict[str, StartForecast | NoForecast]:
    waiting = [key for key in groups if outlook.waits(key)]
    no_group = NoForecast("nothing of it waits that could start: see the reasons")
    if not outlook.lifetimes.suffices:
        least = LEAST_RUNS[Basis.CLUSTER]
        no_group = NoForecast(f"too little history: {history.ended} runs have ended so far, and it takes {least}")
        waiting = []
    forecasts = outlook.forecast(waiting) if waiting else {}
    return {key: forecasts.get(key, no_group) for key in groups}


class _Outlook:
    """One state, looked ahead from."""

    def __init__(
        self,
        state: CycleView,
        config: EngineConfig,
        history: RunHistory,
        *,
        now: int,
        limits: ForecastLimits,
        policies: PolicyBook,
    ) -> None:
        self._state, self._config, self._now, self._limits = state, config, now, limits
        # Whatever is not known of nodes yet, and what failed to be bound a moment ago, is past by then.
        given = input_to_explain(state, config, now=now, policies=policies)
        self._given: CycleInput = replace(given, matters=None, in_backoff=frozenset())
        self._seed = f"{state.cluster}/{state.position}"
        workloads = self._given.workloads.values()
        # A reservation pod ends with the last part of its GPU.
        reserves = state.shared_gpus.is_reservation
        active = (member for workload in workloads for member in workload.active.values())
        self._active = [member for member in active if not stays(member.pod) and not reserves(member.pod.uid)]
        self._runs = [self._pod_run(member, max(now - member.running_since, 0)) for member in self._active]
        self.lifetimes = Lifetimes(history, self._runs)
        self._active_ends = pod_ends(self._given, config, self._active)
        leaving = [member for workload in workloads for member in workload.leaving.values()]
        graces = map(self._grace, leaving)
        self._leaving_ends = list(zip(graces, pod_ends(self._given, config, leaving), strict=True))
        #: Of pods that start: how long they run, by scenario.
        self._after_start: dict[str, np.ndarray] = {}

    def waits(self, group: str) -> bool:
        """True if pods of a group wait for this scheduler, and all pods of its next step exist."""
        workload = self._given.workloads.get(group)
        if workload is None or not workload.waiting:
            return False
        name = self._config.scheduler_name
        ours = workload.in_order([one for one in workload.waiting.values() if one.pod.scheduler_name == name])
        return bool(workload.next_step(workload.own_counts, ours).members)

    def forecast(self, groups: Sequence[str]) -> dict[str, StartForecast | NoForecast]:
        """Foretell when groups start."""
        limits = self._limits
        ends = self.lifetimes.ends(self._runs, scenarios=limits.scenarios, seed=self._seed)
        deadlines = self._deadlines()
        bounded = (deadlines >= 0) & ((ends.after_us < 0) | (ends.after_us > deadlines))
        after = np.where(bounded, deadlines, ends.after_us)
        starts: list[ScenarioStarts] = []
        work = Allowance(limits.work)
        for number in range(limits.scenarios):
            try:
                starts.append(self._scenario(number, after[number], groups, work))
            except WorkExhausted:
                break
            if number + 1 == LEAST_SCENARIOS and not any(one.ahead for one in starts):
                # It is not for want of scenarios.
                break
        if len(starts) < LEAST_SCENARIOS:
            why = f"too much is to be looked at: {len(starts)} of {limits.scenarios} scenarios were computed"
            return dict.fromkeys(groups, NoForecast(why))
        bases = Counter(basis for basis in ends.bases if basis is not None)
        within = {key: [one.after_us[key] for one in starts if key in one.after_us] for key in groups}
        return {
            key: StartForecast(
                p50_us=_quantile([one.after_us.get(key) for one in starts], 0.5),
                p90_us=_quantile([one.after_us.get(key) for one in starts], 0.9),
                earliest_us=min(within[key], default=None),
                latest_us=max(within[key]) if len(within[key]) == len(starts) else None,
                horizon_us=limits.horizon_us,
                within=len(within[key]),
                scenarios=len(starts),
                asked_scenarios=limits.scenarios,
                ahead=int(np.median([one.ahead.get(key, len(one.after_us)) for one in starts])),
                runs=self.lifetimes.ended,
                bases={basis: bases[basis] for basis in Basis if bases[basis]},
                unknown=sum(basis is None for basis in ends.bases),
                deadlines=int(bounded.any(axis=0).sum()),
                work=limits.work - max(work.left, 0),
            )
            for key in groups
        }

    def _scenario(self, number: int, after: np.ndarray, groups: Sequence[str], work: Allowance) -> ScenarioStarts:
        ending = np.flatnonzero((after >= 0) & (after <= self._limits.horizon_us))
        order = ending[np.argsort(after[ending], kind="stable")]
        ends = [(int(after[place]), self._active_ends[place]) for place in order.tolist()]
        ends = sorted([*self._leaving_ends, *ends], key=lambda end: end[0]) if self._leaving_ends else ends
        scenario = Scenario(self._given, self._config, lasting=lambda member: self._lasting(member, number), work=work)
        return scenario.run(ends, groups=groups, horizon_us=self._limits.horizon_us)

    def _lasting(self, member: Member, number: int) -> int:
        """Return how long a pod runs that starts in a scenario, microseconds; -1 if not that is known."""
        run = self._pod_run(member, 0)
        after = self._after_start.get(run.together)
        if after is None:
            ends = self.lifetimes.ends([run], scenarios=self._limits.scenarios, seed=self._seed)
            after = self._after_start[run.together] = ends.after_us[:, 0]
        drawn, deadline = int(after[number]), limit_us(self._state, member)
        return drawn if deadline < 0 or 0 <= drawn < deadline else deadline

    def _pod_run(self, member: Member, age_us: int) -> PodRun:
        # Pods of a gang end together.
        gang = self._given.workloads[member.group].is_gang
        return PodRun(run_keys(member.pod), age_us, member.group if gang else member.pod.uid)

    def _grace(self, member: Member) -> int:
        gone_at = member.pod.deletion_at
        return _GRACE_US if gone_at is None else min(max(gone_at * 1_000_000 - self._now, 1), _GRACE_US)

    def _deadlines(self) -> np.ndarray:
        """Return when the deadlines of the pods that run are, microseconds from now; -1 for pods without one."""
        after = []
        for member, run in zip(self._active, self._runs, strict=True):
            deadline = limit_us(self._state, member)
            after.append(-1 if deadline < 0 else max(deadline - run.age_us, 1))
        return np.array(after, np.int64)


def _quantile(starts: Iterable[int | None], share: float) -> int | None:
    """Return within what time such a share of starts lies; None where that is not known.

    One more draw lies below the n-th of so many with a chance of n / (so many + 1).
    """
    listed = list(starts)
    within = sorted(start for start in listed if start is not None)
    place = ceil(share * (len(listed) + 1)) - 1
    return within[place] if place < len(within) else None
