"""The length of a pod's run: by its declared limits, and by the runs of pods like it."""

from collections.abc import Callable
from functools import cache

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.groups import labels
from kaicore.rules.groups.membership import POD, owner_kind
from kaicore.rules.model.group import source_key
from kaicore.rules.state.indexes.past_runs import run_keys
from kaicore.rules.state.views import CycleView, WorkView


def limit_us(state: WorkView, member: Member) -> int:
    """Return how long a pod may run, microseconds; -1 without a limit.

    The least counts of what the pod says, its Job, and each object above it that says how its pods belong together.
    What a Workload of Kueue says that stands for one of these, for the pod or for its pod group counts, too.
    """
    pod, table = member.pod, state.group_table
    place = table.place_of(pod.uid)
    keys = set(place.looked_at) if place is not None else set[str]()
    if pod.owner is not None and owner_kind(pod.owner) == labels.JOB:
        keys.add(source_key(labels.JOB, pod.namespace, pod.owner.name))
    sources = [table.sources[key].active_deadline_s for key in keys if key in table.sources]
    if place is not None:
        keys |= {place.group, source_key(POD, pod.namespace, pod.name)}
        sources += [one.active_deadline_s for key in keys for one in table.workloads_of(key)]
    limit = labels.least_limit_s(pod.active_deadline_s, labels.declared_limit_s(pod.labels, pod.annotations), *sources)
    return limit * 1_000_000 if limit else -1


def limits_of(state: WorkView) -> Callable[[Member], int]:
    """Return `limit_us` for a state that stays as it is; it costs little where no object above pods has a limit."""

    @cache
    def above() -> bool:
        return any(source.active_deadline_s for source in state.group_table.sources.values())

    def limit_of(member: Member) -> int:
        pod = member.pod
        if labels.KUEUE_LIMIT_LABEL in pod.labels or labels.VOLCANO_LIMIT_ANNOTATION in pod.annotations or above():
            return limit_us(state, member)
        return pod.active_deadline_s * 1_000_000 if pod.active_deadline_s > 0 else -1

    return limit_of


def expected_us(state: CycleView, config: EngineConfig, member: Member, *, age_us: int) -> int:
    """Return how much longer a pod of some age runs, microseconds; -1 where runs like its own do not say.

    See `EngineConfig.run_time_per_cent`.
    """
    if not config.run_time_per_cent:
        return -1
    return state.run_times.remaining_us(run_keys(member.pod), age_us=age_us, per_cent=config.run_time_per_cent)
