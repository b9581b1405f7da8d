"""Declared limits of how long pods run."""

from kaicore.rules.engine.workload import Member
from kaicore.rules.groups.labels import JOB
from kaicore.rules.groups.membership import owner_kind
from kaicore.rules.model.group_source import source_key
from kaicore.rules.state.cluster_state import ClusterState


def limit_us(state: ClusterState, member: Member) -> int:
    """Return how long a pod may run by its own deadline and its Job's, microseconds; -1 without one."""
    pod = member.pod
    limits = [pod.active_deadline_s]
    if pod.owner is not None and owner_kind(pod.owner) == JOB:
        source = state.group_table.sources.get(source_key(JOB, pod.namespace, pod.owner.name))
        limits += [source.active_deadline_s] if source is not None else []
    return min((limit * 1_000_000 for limit in limits if limit > 0), default=-1)
