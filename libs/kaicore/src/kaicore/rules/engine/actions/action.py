"""The base of all actions of a cycle, and what they share: the dynamic order of groups (the first queue, and within it
the first group), and the outcome of groups that are alike.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.work.pending_group import AlikeLine, PendingGroup
from kaicore.rules.engine.work.workload import OrderKey, alone_kind
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.queues.cycle_queues import Standing


class CycleAction(ABC):
    """One action of a cycle, made for one session and run once."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @abstractmethod
    def run(self) -> None:
        """Decide what the action can decide now, and leave reasons with the groups that it can do nothing for."""


#: Of a group, or of all that are alike.
Reasons = tuple[Reason, ...]
#: A group with its place in its queue, and its key.
Entry = tuple[OrderKey, str, PendingGroup]


@dataclass(slots=True)
class _Line:
    """Groups of one kind, as a heap by their order.

    Attributes:
        entries: the place and the key of each.
        kind: its number.
        before: the reasons that each of them has so far.
        reasons: what those of them that are passed are left with; None as long as that is not known.
        alike: of which these are the groups; None where all of them are objects.
        gone: keys of those that were taken out of `alike`.
    """

    entries: list[tuple[OrderKey, str]]
    kind: int
    before: Reasons
    reasons: Reasons | None = None
    alike: AlikeLine | None = None
    gone: set[str] = field(default_factory=set)


class AlikeGroups:
    """The reasons that an action leaves with groups of which one pod is to start, for all groups that are alike.

    An attempt that starts nothing leaves the session as it was. So what follows is alike, too, until the cycle decides
    something, which is a batch of its record. Groups are alike that differ in nothing by which an attempt is decided:

    | what an attempt goes by                             | how alike groups have it                    |
    |-----------------------------------------------------|---------------------------------------------|
    | nodes, accounts, reservations, victims              | no batch was recorded in between            |
    | requests, constraints, devices and more of the pod  | the same class                              |
    | the queue, its limits, the place among groups       | the same queue, namespace and priorities    |
    | what the group may take, and from whom              | the same rights, and the pod's policy       |
    | companions, pods that run, room that is kept, holds | none                                        |
    | the delay before evictions                          | over                                        |
    | the reasons so far                                  | the very same, as those before it left them |

    An observer is shown every attempt.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        #: By kind and reasons so far: how many batches there were, those reasons, and the reasons afterwards.
        self._left: dict[int, tuple[int, Reasons, Reasons]] = {}

    def note(self, pending_group: PendingGroup, before: Reasons) -> None:
        """Take notice of the reasons that are left with a group for which nothing could be done.

        Args:
            before: its reasons until then.
        """
        kind = self.kind_of(pending_group)
        if kind and self._session.observer is None:
            self._left[kind] = self._session.record.batches, before, pending_group.reasons

    def reasons_of(self, pending_group: PendingGroup) -> Reasons | None:
        """Return the reasons that were left with a group that is alike; None where there is none."""
        return self.reasons_of_kind(self.kind_of(pending_group), pending_group.reasons) if self._left else None

    def reasons_of_kind(self, kind: int, before: Reasons) -> Reasons | None:
        """Return the reasons that were left with a group of a kind that had these before; None where there is none."""
        left = self._left.get(kind)
        if left is None or left[0] != self._session.record.batches or left[1] is not before:
            return None
        return left[2]

    def kind_of(self, pending_group: PendingGroup) -> int:
        """Return the number of what alike groups have in common; 0 for a group that is not alike others."""
        if pending_group.kind is None:
            kind = self._kind(pending_group)
            kinds = self._session.pending_groups.kinds
            pending_group.kind = 0 if kind is None else kinds.setdefault(kind, len(kinds) + 1)
        return pending_group.kind

    def _kind(self, pending_group: PendingGroup) -> tuple[object, ...] | None:
        workload, group = pending_group.workload, pending_group.group
        if workload.is_gang or workload.active or workload.constrained or len(group.sets) > 1 or group.together:
            return None
        if pending_group.nominated or pending_group.deferred or pending_group.held is not None:
            return None
        # Of one set, there is one leaf.
        members = next(iter(pending_group.waiting.values()), None)
        may_evict_at = max(group.created_at * 1_000_000, workload.evicted_at) + group.preemption_delay_us
        if not members or self._session.cycle_input.now < may_evict_at:
            return None
        member = members[0]
        return self._session.pods.key_of(member), *alone_kind(group, member, pending_group.priority)


def _settle(pending_group: PendingGroup, reasons: Reasons, leave: Callable[[PendingGroup], None] | None) -> None:
    pending_group.reasons = reasons
    if leave is not None:
        leave(pending_group)


class GroupOrder:
    """Groups by the order of queues and, within a queue, by their own.

    Charging a queue moves it back in the order and no other queue forward, so a queue's place is looked up again when
    it comes first. Evictions also move queues forward: then all places have to be looked up again (`renew`).

    Groups that are alike are passed over once one of them was left with reasons, until the cycle decides something.
    Where there is one queue, they are passed line by line: those that came before what is decided are left with the
    reasons then, and the others are taken up again.
    """

    def __init__(
        self,
        session: Session,
        pending_groups: Iterable[PendingGroup],
        alike: AlikeGroups | None = None,
        *,
        in_lines: Sequence[AlikeLine] = (),
    ) -> None:
        """Args:
        alike: knows the reasons that were left with groups; None where each group is taken up.
        in_lines: further groups.
        """
        queues, queue_of = {line.queue for line in in_lines}, session.accounts.queue_of
        if in_lines and len(queues | {queue_of(one.group) for one in pending_groups}) > 1:
            made = (one for line in in_lines for one in session.pending_groups.make(line))
            pending_groups, in_lines, queues = [*pending_groups, *made], (), set()
        self._session, self._alike = session, alike
        #: By queue, its groups as a heap.
        self._groups: dict[str, list[Entry]] = {}
        #: The queues that have groups, as a heap of order key and name.
        self._queues: list[tuple[tuple[tuple[Any, ...], str], str]] = []
        for pending_group in pending_groups:
            if pending_group.place is None:
                queue = session.accounts.queue_of(pending_group.group)
                pending_group.place = queue, pending_group.order_key
            queue, order_key = pending_group.place
            self._groups.setdefault(queue, []).append((order_key, pending_group.key, pending_group))
        #: The first groups of all queues by their own order, with their queues; see `first_above`.
        self._heads: list[tuple[OrderKey, str]] = []
        #: Of one queue, the lines that are open as a heap by their first groups, and those that are passed.
        self._open: list[tuple[OrderKey, str, _Line]] = []
        self._passed: list[_Line] = []
        #: The last place in the queue that was reached, and how many batches there were when lines were passed.
        self.reached: tuple[Any, ...] = ()
        self._moment = session.record.batches
        for queue in queues:
            self._groups.setdefault(queue, [])
        if alike is not None and len(self._groups) == 1:
            self._line_up(alike, in_lines)
        for queue, groups in self._groups.items():
            heapq.heapify(groups)
            self._push_head(queue)
        self.renew()

    def renew(self) -> None:
        """Look up the places of all queues again."""
        self._queues = [(self._queue_key(queue), queue) for queue, groups in self._groups.items() if groups]
        heapq.heapify(self._queues)

    def next(self, leave: Callable[[PendingGroup], None] | None = None) -> PendingGroup | None:
        """Take out the first group of the first queue; None if no group is left.

        Args:
            leave: is called with each group that is left with the reasons of one that is alike.
        """
        if self._moment != self._session.record.batches:
            self.pass_lines(leave)
            self._reopen()
        while True:
            pending_group = self._next(leave)
            if pending_group is None:
                return None
            reasons = None if self._alike is None else self._alike.reasons_of(pending_group)
            if reasons is None:
                if self._session.observer is not None:
                    self._session.observer.takes_up(pending_group.key)
                return pending_group
            _settle(pending_group, reasons, leave)

    def pass_lines(self, leave: Callable[[PendingGroup], None] | None, *, whole: bool = False) -> None:
        """Leave reasons with the groups of lines that are passed, up to the place that was reached, or with all."""
        groups = self._session.pending_groups
        for line in self._passed:
            reasons, alike = line.reasons or (), line.alike
            if whole and alike is not None:
                alike.reasons, alike.blocked = reasons, alike.blocked or leave is not None
                for pending_group in alike.made:
                    if pending_group.key not in line.gone:
                        _settle(pending_group, reasons, leave)
                line.entries = []
                continue
            reached = [one for one in line.entries if whole or one[0] < self.reached]
            line.entries = [] if whole else [one for one in line.entries if one[0] >= self.reached]
            heapq.heapify(line.entries)
            for _, key in reached:
                line.gone.add(key)
                _settle(groups[key], reasons, leave)

    def _line_up(self, alike: AlikeGroups, in_lines: Iterable[AlikeLine]) -> None:
        """Have the groups of the one queue stand in lines; those that are not alike others stand in one."""
        rest: list[Entry] = []
        lines = {one.kind: _Line(one.entries[:], one.kind, one.reasons, alike=one) for one in in_lines}
        (entries,) = self._groups.values()
        for entry in entries:
            pending_group = entry[2]
            kind = pending_group.kind if pending_group.kind is not None else alike.kind_of(pending_group)
            line = lines.get(kind)
            if kind and line is None:
                lines[kind] = _Line([entry[:2]], kind, pending_group.reasons)
            elif line is not None and line.before is pending_group.reasons and line.alike is None:
                line.entries.append(entry[:2])
            else:
                rest.append(entry)
        for line in lines.values():
            if line.alike is None:
                heapq.heapify(line.entries)
        self._passed, entries[:] = list(lines.values()), rest
        self._reopen()

    def _reopen(self) -> None:
        """Take lines up again."""
        for line in self._passed:
            if line.entries:
                line.reasons = None
                heapq.heappush(self._open, (*line.entries[0], line))
        self._passed, self._moment = [], self._session.record.batches

    def _next(self, leave: Callable[[PendingGroup], None] | None) -> PendingGroup | None:
        """Take out the first group, without those of lines that are passed."""
        alike, (rest, *others) = self._alike, self._groups.values() or ([],)
        if alike is None or others:
            return self._first_of_queues()
        groups = self._session.pending_groups
        while self._open:
            order_key, key, line = self._open[0]
            if rest and rest[0][:2] < (order_key, key):
                break
            made = groups.peek(key)
            line.reasons = alike.reasons_of_kind(line.kind, line.before) if made is None else alike.reasons_of(made)
            if line.reasons is not None:
                heapq.heappop(self._open)
                self._passed.append(line)
                continue
            heapq.heappop(line.entries)
            if line.entries:
                heapq.heapreplace(self._open, (*line.entries[0], line))
            else:
                heapq.heappop(self._open)
            line.gone.add(key)
            self.reached = max(self.reached, order_key)
            return groups[key]
        if rest:
            order_key, _, pending_group = heapq.heappop(rest)
            self.reached = max(self.reached, order_key)
            return pending_group
        self.pass_lines(leave, whole=True)
        self._passed = []
        return None

    def _first_of_queues(self) -> PendingGroup | None:
        while self._queues:
            recorded, queue = self._queues[0]
            if len(self._queues) > 1:
                now = self._queue_key(queue)
                if now > recorded:
                    heapq.heapreplace(self._queues, (now, queue))
                    continue
            _, _, pending_group = heapq.heappop(self._groups[queue])
            self._push_head(queue)
            if not self._groups[queue]:
                heapq.heappop(self._queues)
            elif len(self._queues) > 1:
                heapq.heapreplace(self._queues, (self._queue_key(queue), queue))
            return pending_group
        return None

    def first_above(self, priority: int) -> PendingGroup | None:
        """Return the first group of some queue that is of higher priority than this and was not passed over."""
        while self._heads and -self._heads[0][0][0] > priority:
            order_key, queue = self._heads[0]
            groups = self._groups[queue]
            if groups and groups[0][0] == order_key:
                return groups[0][2]
            heapq.heappop(self._heads)
        return None

    def pass_over(self) -> None:
        """Have `first_above` not return the group again that it has returned; in the order it stays where it is."""
        heapq.heappop(self._heads)

    def remove(self, pending_group: PendingGroup) -> None:
        """Take out the first group of a queue."""
        queue = self._session.accounts.queue_of(pending_group.group)
        heapq.heappop(self._groups[queue])
        self._push_head(queue)
        self.renew()

    def _push_head(self, queue: str) -> None:
        if len(self._groups) > 1 and self._groups[queue]:
            heapq.heappush(self._heads, (self._groups[queue][0][0], queue))

    def is_last(self, pending_group: PendingGroup) -> bool:
        """Tell whether a group that has started something need not be put back: it has no pods left that may go on.

        Only where there is one queue: a group moves its queue in the order of queues as long as it is there.
        """
        over = not pending_group.held_back and not any(pending_group.waiting.values())
        return over and len(self._groups) == 1

    def put_back(self, pending_group: PendingGroup) -> None:
        """Put a group back that has started something and may go on."""
        queue = self._session.accounts.queue_of(pending_group.group)
        groups = self._groups[queue]
        heapq.heappush(groups, (pending_group.order_key, pending_group.key, pending_group))
        if groups[0][1] == pending_group.key:
            self._push_head(queue)
        if len(groups) > 1:
            return
        if len(self._queues) == 1:
            # As long as there was only one queue, its place was not kept up to date.
            self.renew()
        else:
            heapq.heappush(self._queues, (self._queue_key(queue), queue))

    def _queue_key(self, queue: str) -> tuple[tuple[Any, ...], str]:
        """Return a queue's place among queues, by what its first group requests next."""
        return self.key_of(self._groups[queue][0][2], queue)

    def key_of(self, pending_group: PendingGroup, queue: str = "") -> tuple[tuple[Standing, ...], str]:
        """Return the place of a group's queue among queues if the group is its first one, and the queue's name.

        What an earlier cycle reserved for the group is on the queue's account already.
        """
        session = self._session
        queue = queue or session.accounts.queue_of(pending_group.group)
        charged = pending_group.nominated and not session.reservations.is_new(pending_group.key)
        request = {} if charged else session.gangs.request_of(pending_group)
        _, _, created_at, *_ = pending_group.order_key
        key = session.accounts.order_key(queue, request, priority=pending_group.priority, created_at=created_at)
        return key, queue
