"""The ends of running pods, in the order in which they come, as vectors: what nodes and queues are rid of by them.

A pod ends by its declared limit, else by the runs of pods like it. One without both is assumed to go on for as long as
it has run: that only orders those pods. A reservation pod has no end of its own: it goes with the last pod that shares
its GPU.
"""

from collections.abc import Collection, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kaicore.rules.engine.placement.share_fit import reservation_class
from kaicore.rules.engine.placement.statement import PodCharge
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.victims.ending_groups import STAYING
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.queues.cycle_queues import GroupRequests

#: A pod without a limit is assumed to run for so long at least, microseconds.
_LEAST_US = 1_000_000


class End(NamedTuple):
    """The end of a pod.

    Attributes:
        at: microseconds since the epoch; for a pod without a limit assumed.
        group: key of the group with the queue that it counts for; empty where it counts for none.
        member: the pod.
        row: of its node.
        known: whether it ends by then by its limit, or leaves already.
        expected: whether runs like its own say so, where it has no limit.
        charge: what this cycle gave it; None for a pod that ran before.
    """

    at: int
    group: str
    member: Member
    row: int
    known: bool
    expected: bool
    charge: PodCharge | None = None

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.member.pod.uid


class Ends:
    """Ends in order. Those at one time are a moment.

    Attributes:
        each: in the order in which they come; of one time by group and uid.
        rows: of the nodes; shape (ends,).
        first: how many ends come before each moment, and how many there are in all; shape (moments + 1,).
    """

    def __init__(self, session: Session, each: Collection[End]) -> None:
        self._session = session
        self.each = sorted(each, key=lambda end: (end.at, end.group, end.member.pod.uid))
        self._at: Ints = np.array([end.at for end in self.each], np.int64)
        self.rows: Ints = np.array([end.row for end in self.each], np.int64)
        changes = np.flatnonzero(np.diff(self._at)) + 1
        self.first: Ints = np.concatenate([[0], changes, [len(self.each)]]) if self.each else np.zeros(1, np.int64)

    def __len__(self) -> int:
        """Return the number of moments."""
        return len(self.first) - 1

    def at(self, moment: int) -> int:
        """Return when a moment is, microseconds since the epoch."""
        return int(self._at[self.first[moment]])

    def until(self, at: int) -> int:
        """Return how many moments there are until a time, that time included."""
        return int(np.searchsorted(self.first[:-1], np.searchsorted(self._at, at, side="right")))

    def waited_for(self, rows: Collection[int], moments: int) -> list[End]:
        """Return the ends of the first moments that are yet to come: those on some rows, and all of the last moment.

        Where nodes are not all that is waited for, the last one is what queues wait for.
        """
        if not moments:
            return []
        stop, now = int(self.first[moments]), self._session.cycle_input.now
        wanted = np.isin(self.rows[:stop], list(rows))
        wanted[self.first[moments - 1] :] = True
        return [self.each[number] for number in np.flatnonzero(wanted & (self._at[:stop] > now)).tolist()]

    def released(self, begin: int, stop: int) -> GroupRequests:
        """Return what queues are rid of by some ends, summed up by what the accounts tell apart.

        Args:
            begin: number of the first of them.
            stop: number of the first one after them.
        """
        workloads, queue_of = self._session.cycle_input.workloads, self._session.accounts.queue_of
        members: dict[str, list[Member]] = {}
        for end in self.each[begin:stop]:
            if end.group:
                members.setdefault(end.group, []).append(end.member)
        alike: dict[tuple[object, bool, bool], list[str]] = {}
        for key in members:
            group = workloads[key].group
            alike.setdefault((queue_of(group), group.preemptible, group.admitted), []).append(key)
        requests_of = self._session.pods.requests_of
        return [
            (workloads[keys[0]].group, requests_of([member for key in keys for member in members[key]]))
            for keys in alike.values()
        ]

    def freed(self, resource: int, stop: int, among: Flags) -> Ints:
        """Return the amounts of a resource that the first ends leave free at most, by row.

        Args:
            resource: its column.
            stop: so many ends come first.
            among: the ends that count; shape (ends,).
        """
        freed = np.zeros(len(self._session.nodes.columns.present), np.int64)
        counted = among[:stop]
        amounts: Ints = self._amounts[:, resource][self._kinds[:stop][counted]]
        np.add.at(freed, self.rows[:stop][counted], amounts)
        return freed

    @cached_property
    def _by_kind(self) -> tuple[Ints, Ints]:
        """By end the number of its kind, and the amounts of each kind over the resources.

        Where pods have parts of GPUs, what holds these open may go, too.
        """
        columns, numbers = self._session.nodes.columns, dict[tuple[str, int], int]()
        kinds, amounts = np.zeros(len(self.each), np.int64), list[Ints]()
        for place, end in enumerate(self.each):
            member = end.member
            key = member.class_key, len(member.gpus)
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = len(numbers)
                held = columns.vector(member.requests)
                if member.gpus:
                    held = held + len(member.gpus) * columns.vector(reservation_class().requests)
                amounts.append(held)
            kinds[place] = number
        width = columns.used.shape[1]
        padded = [np.pad(one, (0, width - len(one))) for one in amounts]
        return kinds, np.array(padded, np.int64).reshape(len(padded), width)

    @property
    def _kinds(self) -> Ints:
        return self._by_kind[0]

    @property
    def _amounts(self) -> Ints:
        return self._by_kind[1]


class RunningEnds:
    """The ends of all pods that run in a cycle, worked out once for as long as it evicts no more."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._evicted = -1
        self._ends = Ends(session, [])

    def all(self) -> Ends:
        """Return the ends of all pods, those included that this cycle has put on nodes."""
        placed = list(_placed(self._session))
        return Ends(self._session, [*self._running().each, *placed]) if placed else self._running()

    def on(self, nodes: Collection[str]) -> Ends:
        """Return the ends of pods on some nodes."""
        names = self._session.nodes.columns.names
        placed = [end for end in _placed(self._session) if names[end.row] in nodes]
        return Ends(self._session, [*_running(self._session, nodes), *placed])

    @cached_property
    def known(self) -> bool:
        """True if a running pod ends later at a time that limits or runs of like pods say."""
        now = self._session.cycle_input.now
        return any((end.known and end.at > now) or end.expected for end in self._running().each)

    def _running(self) -> Ends:
        evicted = len(self._session.record.evicted)
        if evicted != self._evicted:
            self._evicted = evicted
            self._ends = Ends(self._session, list(_running(self._session, None)))
        return self._ends


def _running(session: Session, nodes: Collection[str] | None) -> Iterator[End]:
    given, evicted = session.cycle_input, session.record.evicted
    rows, now, own = given.columns.rows, given.now, session.config.scheduler_name
    reserves = given.columns.gpus.is_reservation
    for workload in given.workloads.values():
        for member in workload.leaving.values():
            if nodes is None or member.node in nodes:
                yield End(now, "", member, rows[member.node], known=True, expected=False)
        for uid, member in workload.active.items():
            if nodes is not None and member.node not in nodes:
                continue
            pod = member.pod
            if reserves(pod):
                continue
            if member.releasing or uid in evicted:
                yield End(now, "", member, rows[member.node], known=True, expected=False)
            elif pod.owner is None or pod.owner.kind not in STAYING:
                group = member.group if pod.scheduler_name == own else ""
                yield _end(session, member, group, rows[member.node], since=member.running_since)


def _placed(session: Session) -> Iterator[End]:
    """Yield the ends of pods that this cycle has put on nodes."""
    for pending_group in session.pending_groups.values():
        for assignment in pending_group.assignments:
            end = _end(session, assignment.member, pending_group.key, assignment.row, since=session.cycle_input.now)
            yield end._replace(charge=assignment.pod_charge)


def _end(session: Session, member: Member, group: str, row: int, *, since: int) -> End:
    given = session.cycle_input
    now, limit = given.now, given.limit_us(member)
    if limit >= 0:
        return End(max(since + limit, now), group, member, row, known=True, expected=False)
    age = max(now - since, 0)
    remaining = given.expected_us(member, age)
    if remaining >= 0:
        return End(now + remaining, group, member, row, known=False, expected=True)
    return End(now + max(age, _LEAST_US), group, member, row, known=False, expected=False)
