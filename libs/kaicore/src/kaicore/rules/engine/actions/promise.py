"""The action Promise: reserves a start for the first group that waits for room and is owed it, one for each shard.

What is promised is recorded with the group's reasons (`RoomPromised`), and worked out anew in each cycle from what runs
by then. It stays with its group until that has started or has no right to it any more. Only a group of higher priority
takes its place.
"""

from collections.abc import Iterator
from contextlib import ExitStack

from msgspec.structs import replace

from kaicore.rules.engine.actions.action import CycleAction
from kaicore.rules.engine.config import Backfill
from kaicore.rules.engine.decisions import GiveUpReason
from kaicore.rules.engine.gang_planner import Steps
from kaicore.rules.engine.pending_group import PendingGroup
from kaicore.rules.engine.promises import Outlook, Promise, unstarted
from kaicore.rules.engine.readiness import pending_group as as_pending
from kaicore.rules.engine.session import PromisedStart, Session
from kaicore.rules.reasons.promise import PromiseGivenUp, RoomPromised

#: How many groups of different kinds a cycle works out a start for, at most.
_MOST_TRIED = 8


class PromiseStart(CycleAction):
    """Keep, move, give up and make the promise of a shard."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        promised = session.cycle_input.promised
        standing = {key: one for key, one in promised.items() if isinstance(one, RoomPromised)}
        #: Keys of the groups to which room is promised, the first one first; of several, only that one keeps it.
        self._standing = sorted(standing, key=lambda key: (standing[key].since, key))
        self._recorded = standing
        self._given_up = {key: one for key, one in promised.items() if isinstance(one, PromiseGivenUp)}
        #: Why groups of this scheduler have no promise any more.
        self._causes: dict[str, PromiseGivenUp] = {}

    def renew(self) -> None:
        """Work out anew what is promised already, before anything starts."""
        session = self.session
        for key in self._standing[1:]:
            self._give_up(key, GiveUpReason.ANOTHER)
        if not self._standing:
            return
        key = self._standing[0]
        promise = self._worked_out(key)
        if isinstance(promise, GiveUpReason):
            self._give_up(key, promise)
            return
        until = self._recorded[key].since + session.config.hold_us
        if promise.unlimited:
            if session.cycle_input.now >= until:
                self._give_up(key, GiveUpReason.EXPIRED)
                return
            session.record.wait_until(until)
        session.promise = promise

    def run(self) -> None:
        """See `CycleAction.run`."""
        session = self.session
        before = session.promise
        if before is not None and not session.cycle_input.is_own(before.pending_group.key):
            self._leave_causes()
            return
        if before is not None and before.pending_group.nominated:
            self._give_up(before.pending_group.key, GiveUpReason.EVICTIONS)
            before = session.promise = None
        promise = self._first_of_those_waiting(above=before)
        if promise is None and before is not None:
            promise = before
            if before.overridden:
                anew = self._worked_out(before.pending_group.key)
                promise = anew if isinstance(anew, Promise) else None
                if isinstance(anew, GiveUpReason):
                    self._give_up(before.pending_group.key, anew)
        elif before is not None:
            self._give_up(before.pending_group.key, GiveUpReason.HIGHER_PRIORITY)
        session.promise = promise
        if promise is not None:
            self._record(promise)
        self._leave_causes()

    def _worked_out(self, key: str) -> Promise | GiveUpReason:
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
        with Outlook(session) as outlook:
            return outlook.promise(steps)

    def _first_of_those_waiting(self, *, above: PromisedStart | None) -> PromisedStart | None:
        """Return what can be promised to the first group that is owed it and does not fit; None for none.

        Args:
            above: only to a group of higher priority than the one that this is promised to.
        """
        session, tried = self.session, set[object]()
        waiting = () if session.config.backfill is Backfill.OFF else self._waiting(above)
        with ExitStack() as stack:
            outlook: Outlook | None = None
            for pending_group, steps in waiting:
                queue = session.accounts.queue_of(pending_group.group)
                classes = sorted(session.gangs.class_counts_of(pending_group).items())
                kind = queue, session.step_placer.shape(steps), *classes
                if kind in tried:
                    continue
                if len(tried) == _MOST_TRIED:
                    break
                outlook = outlook or stack.enter_context(Outlook(session))
                promise = outlook.promise(steps)
                if isinstance(promise, Promise) and not promise.fits and not self._is_too_soon(promise):
                    return promise
                tried.add(kind)
        return None

    def _waiting(self, above: PromisedStart | None) -> Iterator[tuple[PendingGroup, Steps]]:
        """Yield the groups that this cycle did not start for want of room, by priority and age."""
        session = self.session
        least = None if above is None else above.pending_group.priority
        groups = [one for one in session.pending_groups.values() if least is None or one.priority > least]
        for pending_group in sorted(groups, key=lambda one: one.reservation_order_key):
            if not unstarted(pending_group) or not pending_group.reasons:
                continue
            steps, _ = session.gangs.joint_steps(pending_group)
            classes = {session.pods.key_of(member) for _, step in steps for member in step.members}
            if steps and not any(map(session.never_fits, classes)):
                yield pending_group, steps

    def _is_too_soon(self, promise: Promise) -> bool:
        """Tell whether room without known limits is not held for a group yet, or not again yet."""
        if not promise.unlimited:
            return False
        now, group = self.session.cycle_input.now, promise.pending_group.group
        given_up = self._causes.get(group.key) or self._given_up.get(group.key)
        since = max(group.created_at * 1_000_000 + self.session.config.hold_after_us, given_up.until if given_up else 0)
        if now < since:
            self.session.record.wait_until(since)
        return now < since

    def _record(self, promise: PromisedStart) -> None:
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
            reason = replace(reason, moved=self._why_moved(before, reason))
        pending_group.reasons = (reason, *pending_group.reasons)
        if promise.unlimited:
            self.session.record.wait_until(reason.since + self.session.config.hold_us)

    def _why_moved(self, before: RoomPromised, now: RoomPromised) -> str:
        """Return why a promise is another one than was recorded before; what was recorded where it is the same."""
        columns = self.session.nodes.columns
        rows = [columns.rows.get(name, -1) for name in before.names.split(", ")]
        if replace(now, moved=before.moved) == before:
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
        promise = self.session.promise
        for key, cause in {**self._given_up, **self._causes}.items():
            pending_group = self.session.pending_groups.get(key)
            if pending_group is None or pending_group.assignments:
                continue
            if promise is None or promise.pending_group is not pending_group:
                pending_group.reasons = (cause, *pending_group.reasons)
