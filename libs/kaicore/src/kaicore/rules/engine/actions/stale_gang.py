"""The last action: gangs that have been below their minimum for too long are ended, because they only hold resources
that others need.

Source: KAI-Scheduler v0.17.0, pkg/scheduler/actions/stalegangeviction. A gang of which a pod has succeeded is about to
end by itself and is left alone, and so is a gang that starts together with it: neither runs on without the other.
"""

from kaicore.rules.engine.actions.action import CycleAction
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.work.workload import Member, Workload
from kaicore.rules.events.payloads import EvictionDecided


class StaleGang(CycleAction):
    """Evict what is left of gangs that have been below their minimum for too long."""

    def run(self) -> None:
        """See `CycleAction.run`."""
        session = self.session
        for key in sorted(session.cycle_input.below):
            workload = session.cycle_input.workloads[key]
            if not self._is_stale(workload):
                continue
            members = self._members(workload)
            if members and not session.budgets.refuse(members):
                session.count_eviction(members)
                session.evict([(member, self._eviction(member)) for member in members])

    def _is_stale(self, workload: Workload) -> bool:
        grace = workload.group.staleness_grace_us
        grace = self.session.config.staleness_grace_us if grace is None else grace
        if not workload.below_since or workload.ending or grace < 0:
            return False
        return self.session.cycle_input.now - workload.below_since >= grace and not self._is_complete(workload)

    def _is_complete(self, workload: Workload) -> bool:
        """Tell whether a group, and all that it starts together with, have their minimums by what was decided."""
        workloads = self.session.cycle_input.workloads
        others = (workloads.get(key) for key in {workload.group.key, *workload.group.together})
        return all(other is not None and self.session.gangs.is_satisfied(other) for other in others)

    def _members(self, workload: Workload) -> list[Member]:
        """Return the pods that are left and not evicted yet, by uid."""
        return [
            member
            for uid, member in sorted(workload.active.items())
            if uid not in self.session.record.evicted
            and member.pod.scheduler_name == self.session.config.scheduler_name
        ]

    def _eviction(self, member: Member) -> EvictionDecided:
        session = self.session
        failures_left = session.failures.left(member)
        return session.record.eviction(member, EvictionReason.STALE_GANG, failures_left=failures_left)
