"""One scenario: pods end at times that are drawn, and the engine starts waiting pods, until the groups in question
start.

It runs the engine's own first action, on a session of its own. The order of queues and groups, gangs, topology, zones
and the room kept for others count as in a cycle. Nothing is evicted, and no new pods arrive.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kaicore.rules.engine.actions.allocate import Allocate
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.placement.placer import Assignment
from kaicore.rules.engine.placement.statement import PodCharge
from kaicore.rules.engine.session.cycle_pods import CyclePods
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.work.pending_group import PendingGroup
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts

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
        config: the shard's settings.
        lasting: of pods that start.
        work: what this may cost.
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
        """Run until all of some groups have started.

        Args:
            ends: of pods that run, each with when it ends, in order; microseconds from now.
            groups: keys of the groups that are asked about.
            horizon_us: nothing is looked at that comes later.

        Raises:
            WorkExhausted: it cost more than it may.
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
        self._open = [pending_group for pending_group in self._open if _may_go_on(pending_group)]

    def _plan_end(self, assignment: Assignment, now: int) -> None:
        after = self._lasting(assignment.member)
        if after >= 0:
            self._number += 1
            member = assignment.member
            group = self._given.workloads[member.group].group
            end = PodEnd(assignment.pod_charge, group, self._session.pods.class_of(member).requests)
            heapq.heappush(self._later, (now + after, self._number, end))


def _may_go_on(pending_group: PendingGroup) -> bool:
    return bool(pending_group.unplaced)
