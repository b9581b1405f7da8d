"""Groups that were moved lately to make room for others, and the pods that come in place of the moved ones.

The pods that were moved within a day are counted by hour of the log's time (`CycleInput.moved_pods`), for a bound.
"""

from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.workload import Workload
from kaicore.rules.groups.membership import POD
from kaicore.rules.model.pod import Pod

#: Creation times are in whole seconds.
_SECOND_US = 1_000_000
HOUR_US = 3_600_000_000
HOURS_OF_DAY = 24


def moved_within_a_day(cycle_input: CycleInput) -> int:
    """Return how many pods were moved in the last 24 hours that have begun."""
    first = cycle_input.now // HOUR_US - HOURS_OF_DAY
    return sum(pods for hour, pods in cycle_input.moved_pods.items() if hour > first)


def move_key(group: str, pod: Pod) -> str:
    """Return under what it is remembered when pods of a group were moved: the group, or the owner of a lone pod."""
    if group.startswith(f"{POD}/") and pod.owner is not None:
        return f"{pod.owner.kind}/{pod.namespace}/{pod.owner.name}/{pod.owner.uid}"
    return group


def moved_at(cycle_input: CycleInput, workload: Workload) -> int:
    """Return when pods of a group, or those before them, were moved; microseconds since the epoch, or 0.

    A pod that is a group of its own is identified by its owner, and only pods created since then count: they are the
    moved ones.
    """
    if not cycle_input.moved_at:
        return 0
    member = next(iter((workload.active or workload.waiting).values()), None)
    if member is None:
        return 0
    group = workload.group.key
    key = move_key(group, member.pod)
    at = cycle_input.moved_at.get(key, 0)
    return at if key == group or (member.pod.created_at + 1) * _SECOND_US > at else 0
