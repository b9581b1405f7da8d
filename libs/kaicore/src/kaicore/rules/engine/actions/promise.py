"""The action Promise: reserves a start for the first gang that waits for room and is owed it, one for each shard.
With conservative backfilling it does so for the first `most_promises` gangs, none before the start of one before it.
A pod that starts alone counts like a gang once it has waited for `promise_alone_after_us`, if younger ones run.

What is promised is recorded with the group's reasons (`RoomPromised`), and looked at again in each cycle: on its nodes,
and on all nodes only where it no longer holds there by its time; for room that is only held, once a minute as well. It
stays with its group until that has started or has
no right to it any more. Only a group of higher priority takes its place.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property

from msgspec.structs import replace

from kaicore.rules.engine.actions.action import CycleAction
from kaicore.rules.engine.config import Backfill
from kaicore.rules.engine.decisions import GiveUpReason
from kaicore.rules.engine.session.promises import Outlook, Promise, Promises, RunningEnds, together, unstarted
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.work.gang_planner import Steps, members_of
from kaicore.rules.engine.work.gang_planner import pending_group as as_pending
from kaicore.rules.engine.work.pending_group import PendingGroup
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.events.reasons.making_room import PromiseGivenUp, RoomPromised, WouldDelay
from kaicore.rules.queues.tree import gpus_of

#: How many groups of different kinds a cycle works out a start for, at most.
_MOST_TRIED = 8
#: For room that is only held all nodes are looked at no sooner than so long after the last time, microseconds: to look
#: at all that runs costs a second on 10,000 nodes.
_LOOKED_AT_AFTER_US = 60_000_000


class PromiseStart(CycleAction):
    """Keep, move, give up and make the promise of a shard."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        promised = session.cycle_input.promised
        standing = {key: one for key, one in promised.items() if isinstance(one, RoomPromised)}
        #: Keys of the groups to which room is promised, the first one first.
        workloads = session.cycle_input.workloads
        groups = {key: workloads[key].group for key in standing if key in workloads}
        self._standing = sorted(
            groups, key=lambda key: (standing[key].since, -groups[key].priority, groups[key].created_at, key)
        )
        self._recorded = standing
        self._given_up = {key: one for key, one in promised.items() if isinstance(one, PromiseGivenUp)}
        self._ends = RunningEnds(session)
        #: Keys of the groups for which no other nodes than those recorded were looked at.
        self._kept: set[str] = set()
        #: Why groups of this scheduler have no promise any more.
        self._causes: dict[str, PromiseGivenUp] = {}

    def renew(self) -> None:
        """Work out anew what is promised already, before anything starts."""
        for key in self._standing[self._most :]:
            self._give_up(key, GiveUpReason.ANOTHER)
        kept: list[Promise] = []
        for key in self._standing[: self._most]:
            promise = self._renewed(key, kept)
            if promise is not None:
                kept.append(promise)
        self.session.promise = together(self.session, kept)

    def run(self) -> None:
        """See `CycleAction.run`."""
        session = self.session
        promises = list(session.promise.each) if isinstance(session.promise, Promises) else []
        if all(session.cycle_input.is_own(promise.pending_group.key) for promise in promises):
            for promise in promises:
                if promise.pending_group.nominated:
                    self._give_up(promise.pending_group.key, GiveUpReason.EVICTIONS)
            promises = [promise for promise in promises if not promise.pending_group.nominated]
            if session.config.backfill is Backfill.CONSERVATIVE:
                promises = self._for_all(promises)
            elif session.config.backfill is Backfill.EASY:
                promises = self._for_the_first(promises)
            session.promise = together(session, promises)
            for promise in promises:
                self._record(promise)
        self._wait_for_ends_of_holds()
        self._leave_causes()

    @property
    def _most(self) -> int:
        config = self.session.config
        return config.most_promises if config.backfill is Backfill.CONSERVATIVE else 1

    def _renewed(self, key: str, after: Sequence[Promise]) -> Promise | None:
        """Return what can be promised now to a group that something is promised to; None if it is given up."""
        promise = self._worked_out(key, after)
        if isinstance(promise, GiveUpReason):
            self._give_up(key, promise)
            return None
        until = self._recorded[key].since + self.session.config.hold_us
        if promise.unlimited and self.session.cycle_input.now >= until:
            self._give_up(key, GiveUpReason.EXPIRED)
            return None
        return promise

    def _for_the_first(self, before: Sequence[Promise]) -> list[Promise]:
        """Return the promise to the first group of all; that of before, unless one of higher priority takes it over."""
        if not before:
            return self._further(before, 1)
        (standing,) = before
        found = self._further([], 1, above=standing.pending_group.priority)
        if found:
            self._give_up(standing.pending_group.key, GiveUpReason.HIGHER_PRIORITY)
            return found
        return self._kept_anew(before) if standing.overridden else [standing]

    def _for_all(self, before: Sequence[Promise]) -> list[Promise]:
        """Return the promises of before, and those to further groups, as many as there may be."""
        kept = self._kept_anew(before) if any(promise.overridden for promise in before) else list(before)
        return [*kept, *self._further(kept, self._most - len(kept))]

    def _kept_anew(self, before: Sequence[Promise]) -> list[Promise]:
        """Work out promises once more, after groups of higher priority started."""
        kept: list[Promise] = []
        for promise in before:
            anew = self._worked_out(promise.pending_group.key, kept)
            if isinstance(anew, Promise):
                kept.append(anew)
            else:
                self._give_up(promise.pending_group.key, anew)
        return kept

    def _worked_out(self, key: str, after: Sequence[Promise]) -> Promise | GiveUpReason:
        """Return what can be promised now to a group that something is promised to."""
        session = self.session
        if session.config.backfill is Backfill.OFF:
            return GiveUpReason.OFF
        group = session.pending_groups.get(key)
        if group is None and not session.cycle_input.is_own(key):
            # Another replica's group, which this one must not delay either.
            workload = session.cycle_input.workloads.get(key)
            if workload is not None:
                group = as_pending(workload, session.cycle_input, session.config, session.pods)
        if group is None or not unstarted(group):
            return GiveUpReason.EVICTIONS if group is not None and group.nominated else GiveUpReason.NOT_READY
        steps, _ = session.gangs.joint_steps(group)
        if not steps:
            return GiveUpReason.NOT_READY
        if session.config.backfill is Backfill.EASY and not self._is_to_be_looked_for(key):
            kept = self._kept_where_it_is(key, steps)
            if kept is not None:
                self._kept.add(key)
                return kept
        self._kept.discard(key)
        with Outlook(session, self._ends.all(), after) as outlook:
            return outlook.promise(steps)

    def _is_to_be_looked_for(self, key: str) -> bool:
        """Tell whether room is only held for a group, and was looked for on all nodes long enough ago."""
        before = self._recorded[key]
        looked_at = before.looked_at or before.since
        return bool(before.unlimited) and not 0 <= self.session.cycle_input.now - looked_at < _LOOKED_AT_AFTER_US

    def _kept_where_it_is(self, key: str, steps: Steps) -> Promise | None:
        """Return a promise on the nodes on which it was recorded; None if it holds no longer there, or only later.

        A look at the pods of these nodes costs little beside a search among all that run.
        """
        before = self._recorded[key]
        ends = self._ends.on(frozenset(before.names.split(", ")))
        with Outlook(self.session, ends) as outlook:
            kept = outlook.promise(steps)
        if not isinstance(kept, Promise) or kept.fits or kept.unlimited > before.unlimited:
            return None
        return kept if kept.starts_at <= before.starts_at else None

    def _further(self, kept: Sequence[Promise], most: int, *, above: int | None = None) -> list[Promise]:
        """Return what can be promised to the first groups that are owed it and do not fit.

        Args:
            most: to so many groups.
            above: only to groups of higher priority than this.
        """
        session, tried = self.session, set[object]()
        found: list[Promise] = []
        with ExitStack() as stack:
            outlook: Outlook | None = None
            for pending_group, steps in self._waiting(above, kept):
                if len(found) == most or len(tried) == _MOST_TRIED:
                    break
                queue = session.accounts.queue_of(pending_group.group)
                classes = sorted(session.gangs.class_counts_of([(pending_group, pending_group.step())]).items())
                kind = queue, session.step_placer.shape(steps), *classes
                if kind in tried:
                    continue
                too_soon = self._is_too_soon(pending_group)
                if too_soon and not self._ends.known:
                    continue
                outlook = outlook or stack.enter_context(Outlook(session, self._ends.all(), [*kept, *found]))
                promise = outlook.promise(steps)
                if isinstance(promise, Promise) and not promise.fits and not (too_soon and promise.unlimited):
                    found.append(promise)
                    # What comes next is after this one, on nodes and accounts of its own.
                    stack.close()
                    outlook = None
                else:
                    tried.add(kind)
        return found

    def _waiting(self, above: int | None, promised: Sequence[Promise]) -> Iterator[tuple[PendingGroup, Steps]]:
        """Yield the groups that this cycle did not start for want of room, by priority and age."""
        session = self.session
        keys = {promise.pending_group.key for promise in promised}
        alone: set[tuple[str, str]] = set()
        after, now = session.config.promise_alone_after_us, session.cycle_input.now
        for line in session.pending_groups.lines.values() if after else ():
            # Of pods that are alike the oldest one that has waited for long enough stands for all.
            session.pending_groups.make_first(line, created_by=(now - after) // 1_000_000)
        groups = [one for one in session.pending_groups.made if above is None or one.priority > above]
        for pending_group in sorted(groups, key=lambda one: one.reservation_order_key):
            if pending_group.key in keys or not unstarted(pending_group) or not pending_group.reasons:
                continue
            if not (pending_group.workload.is_gang or self._has_waited_alone(pending_group)):
                continue
            steps, _ = session.gangs.joint_steps(pending_group)
            members = members_of(steps)
            classes = {session.pods.key_of(member) for member in members}
            if not members or any(map(session.never_fits, classes)):
                continue
            if len(members) == 1:
                # Of pods that are alike the oldest one stands for all.
                kind = session.accounts.queue_of(pending_group.group), session.pods.key_of(members[0])
                if kind in alone or not self._has_waited_alone(pending_group):
                    continue
                alone.add(kind)
                if not self._is_passed_over(members[0], pending_group.priority):
                    continue
            yield pending_group, steps

    def _has_waited_alone(self, pending_group: PendingGroup) -> bool:
        """Tell whether a group's pods that start alone have waited long enough for a promise."""
        after = self.session.config.promise_alone_after_us
        members = pending_group.unplaced
        if not (after and members):
            return False
        first = min(member.pod.created_at for member in members)
        return self.session.cycle_input.now >= first * 1_000_000 + after

    def _is_passed_over(self, member: Member, priority: int) -> bool:
        """Tell whether a younger pod of no higher priority runs, with GPUs if the pod asks for some.

        Where all that run came before, a pod that waits starves behind nothing, and no start has to be worked out.
        """
        asks = bool(gpus_of(member.requests))
        return any(
            created_at > member.pod.created_at
            for (of_running, with_gpus), created_at in self._youngest.items()
            if of_running <= priority and with_gpus >= asks
        )

    @cached_property
    def _youngest(self) -> dict[tuple[int, bool], int]:
        """The creation time of the youngest running pod, by priority and by whether it has GPUs."""
        youngest: dict[tuple[int, bool], int] = {}
        with_gpus: dict[str, bool] = {}
        for workload in self.session.cycle_input.workloads.values():
            for member in workload.active.values():
                if member.class_key not in with_gpus:
                    with_gpus[member.class_key] = gpus_of(member.requests) > 0
                key = workload.group.priority, with_gpus[member.class_key]
                youngest[key] = max(youngest.get(key, 0), member.pod.created_at)
        return youngest

    def _is_too_soon(self, pending_group: PendingGroup) -> bool:
        """Tell whether room without known limits is not held for a group yet, or not again yet."""
        now, group = self.session.cycle_input.now, pending_group.group
        given_up = self._causes.get(group.key) or self._given_up.get(group.key)
        held_from = group.created_at * 1_000_000 + self.session.config.hold_after_us
        return now < max(held_from, given_up.until if given_up else 0)

    def _record(self, promise: Promise) -> None:
        """Leave what is promised with the group's reasons."""
        pending_group, names = promise.pending_group, promise.names
        now, before = self.session.cycle_input.now, self._recorded.get(pending_group.key)
        reason = RoomPromised(
            nodes=len(names),
            example=names[0],
            names=", ".join(names),
            starts_at=promise.starts_at,
            unlimited=promise.unlimited,
            expected=promise.expected,
            since=now if before is None else before.since,
            first_starts_at=(before.first_starts_at or before.starts_at if before else 0) or promise.starts_at,
        )
        if before is not None:
            easy, kept = self.session.config.backfill is Backfill.EASY, pending_group.key in self._kept
            looked_at = before.looked_at if kept else now
            if kept and promise.unlimited and before.names == reason.names:
                # The look at its own nodes counts no pods elsewhere, for which queues wait: that is no end of a pod.
                reason = replace(reason, unlimited=before.unlimited, expected=before.expected)
            reason = replace(
                reason,
                moved=self._why_moved(before, reason),
                looked_at=looked_at if easy and promise.unlimited else 0,
            )
        pending_group.reasons = (reason, *pending_group.reasons)

    def _wait_for_ends_of_holds(self) -> None:
        """Have a cycle look again when a hold ends, if groups that fit wait for that.

        Nothing else that is promised needs a cycle at its time: room becomes free by events, which cause one.
        """
        session = self.session
        pending = session.pending_groups
        reasons = (one.reasons for among in (pending.made, pending.lines.values()) for one in among)
        if not any(isinstance(reason, WouldDelay) for left in reasons for reason in left):
            return
        for promise in session.promise.each if isinstance(session.promise, Promises) else ():
            if promise.unlimited:
                before = self._recorded.get(promise.pending_group.key)
                since = before.since if before is not None else session.cycle_input.now
                session.record.wait_until(since + session.config.hold_us)

    def _why_moved(self, before: RoomPromised, now: RoomPromised) -> str:
        """Return why a promise is another one than was recorded before; what was recorded where it is the same."""
        columns = self.session.nodes.columns
        rows = [columns.rows.get(name, -1) for name in before.names.split(", ")]
        if now.is_like(before):
            return before.moved
        if any(row < 0 or not (columns.present[row] and columns.ready[row]) for row in rows):
            return "nodes are gone or not ready"
        if now.starts_at > before.starts_at:
            return "later, what it waits for has changed or runs for longer"
        if now.starts_at < before.starts_at or now.unlimited < before.unlimited:
            return "sooner, pods ended before their time"
        return "to other nodes, which are free as soon"

    def _give_up(self, key: str, why: GiveUpReason) -> None:
        """Have the group say why room is no longer promised to it, if it still waits."""
        config, now = self.session.config, self.session.cycle_input.now
        until = now + config.hold_us if why is GiveUpReason.EXPIRED else 0
        self._causes[key] = PromiseGivenUp(cause=why, until=until)

    def _leave_causes(self) -> None:
        """Leave with groups why room is no longer promised to them, also if an earlier cycle found that."""
        promised = self.session.promise.each if isinstance(self.session.promise, Promises) else ()
        groups = [promise.pending_group for promise in promised]
        for key, cause in {**self._given_up, **self._causes}.items():
            pending_group = self.session.pending_groups.get(key)
            if pending_group is None or pending_group.assignments:
                continue
            if pending_group not in groups:
                pending_group.reasons = (cause, *pending_group.reasons)
