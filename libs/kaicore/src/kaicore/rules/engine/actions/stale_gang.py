"""The last action: gangs that have been below their minimum for too long end, for they only hold what others need.

Source: `facts/kai-scheduler.md` 3.4. A gang of which a pod ended well is at its end anyway and is left alone.
So is one with a gang that it starts together with: neither runs on without the other.
"""

from kaicore.rules.engine.decisions import Eviction, EvictionReason
from kaicore.rules.engine.session import Session
from kaicore.rules.engine.workload import Workload


def end_stale_gangs(session: Session) -> None:
    """Evict what is left of them."""
    given, config = session.given, session.config
    for key in sorted(given.below):
        workload = given.workloads[key]
        group = workload.group
        grace = config.staleness_grace_us if group.staleness_grace_us is None else group.staleness_grace_us
        if not workload.below_since or workload.ending or grace < 0 or given.now - workload.below_since < grace:
            continue
        if _is_whole(session, workload):
            continue
        members = [
            member
            for uid, member in sorted(workload.active.items())
            if uid not in session.evicted and member.pod.scheduler_name == config.scheduler_name
        ]
        if not members or session.budgets.refuse(members):
            continue
        session.count_eviction(members)
        session.evict(
            [
                (
                    member,
                    Eviction(
                        uid=member.pod.uid,
                        namespace=member.pod.namespace,
                        name=member.pod.name,
                        node=member.node,
                        group=key,
                        reason=EvictionReason.STALE_GANG,
                        failures_left=session.failures.left(member),
                    ),
                )
                for member in members
            ]
        )


def _is_whole(session: Session, workload: Workload) -> bool:
    """Tell whether a group, and all that it starts together with, have their minimums by what this cycle decided."""
    others = (session.given.workloads.get(key) for key in {workload.group.key, *workload.group.together})
    return all(other is not None and session.is_satisfied(other) for other in others)
