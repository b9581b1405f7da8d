"""Moving running groups so that another group fits: the groups that may be moved, and whether the move is worth it.

Gain and cost are both in ten-thousandths of the largest node (`kaicore.rules.engine.victims.eviction_cost.PodSizes`):
the started pods against the moved ones. A group of several pods that ends as a whole counts twice, because all of it
begins anew at once. A move is worth it when the gain exceeds the cost.

Where the configuration has a rate (`EngineConfig.consolidate_win_us`), a start wins so much GPU time for each of its
GPUs. A move loses work: GPU-seconds since the last checkpoints of the moved pods, or since they run. It is worth it
when it loses less than the start wins, whatever the sizes. A start without GPUs wins nothing by that, and goes by size.

A moved group stays for a while (`EngineConfig.consolidate_cooldown_us`), by the log: work that is moved again and again
makes no progress. The same holds for a group with pods that were evicted for any other reason, or could not be evicted.

A moved group's pods come again as others. Among equals of its queue they come first (`PendingGroup.moved`).
"""

from kaicore.rules.engine.cycle_input import moved_at
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.victims.eviction_cost import gpu_seconds_lost
from kaicore.rules.engine.victims.victim_set import VictimSet
from kaicore.rules.engine.work.gang_planner import Steps, is_misunderstood, members_of
from kaicore.rules.engine.work.workload import Workload
from kaicore.rules.events.reasons import making_room
from kaicore.rules.model.gpu_share import GPU, WHOLE
from kaicore.rules.queues.tree import thousandths_of_gpus, without_parts

#: Microseconds of a second.
_SECOND_US = 1_000_000


def stays_until(session: Session, workload: Workload) -> int:
    """Return until when a group is not to be moved, for it was moved lately; microseconds since the epoch, or 0."""
    at = max(workload.evicted_at, moved_at(session.cycle_input, workload))
    until = at + session.config.consolidate_cooldown_us
    return until if session.cycle_input.now < until else 0


def obstacle(session: Session, workload: Workload) -> making_room.Obstacle | None:
    """Return why a running group is not moved, whatever it would be good for; None if it may be."""
    if is_misunderstood(workload, session.cycle_input):
        return making_room.GroupsThatCannotRestart(example_pod=_example(workload))
    if not session.config.consolidate_bare_pods:
        for member in workload.active.values():
            if member.pod.owner is None:
                return making_room.PodsWithoutController(example_pod=_example(workload))
    until = stays_until(session, workload)
    return making_room.MovedLately(example_pod=_example(workload), until=until) if until else None


def _example(workload: Workload) -> str:
    return min(member.pod.subject for member in workload.active.values())


def is_scattered(session: Session, steps: Steps) -> bool:
    """Tell whether ready nodes have, all together, what steps ask for: where they have not, no move can help."""
    columns, idle = session.nodes.future.statement.columns, session.nodes.idle_in_future()
    asked = session.pods.requests_of_classes(session.gangs.class_counts_of(steps))
    requests = columns.vector(without_parts(asked))
    parts = sum(free for row in columns.gpus.rows for free, _ in columns.gpus.free(row))
    if parts >= WHOLE:
        idle = idle.copy()
        idle[columns.resources[GPU]] += parts // WHOLE
    return bool((idle >= requests).all())


def gain_of(session: Session, steps: Steps) -> int:
    """Return what it gains that steps start."""
    return sum(session.pods.size_of(member) for member in members_of(steps))


def cost_of_moving(session: Session, victim_set: VictimSet) -> int:
    """Return what it costs to move pods together."""
    total = 0
    for number, (workload, members) in enumerate(victim_set.parts):
        whole = len(workload.active) > 1 and not (victim_set.shrinks and number == 0)
        total += sum(session.pods.size_of(member) for member in members) * (2 if whole else 1)
    return total


def won_by(session: Session, steps: Steps) -> int:
    """Return what it wins that steps start, in GPU-seconds; 0 where sizes are compared."""
    gpus = thousandths_of_gpus(session.pods.requests_of(members_of(steps)))
    return gpus * session.config.consolidate_win_us // (WHOLE * _SECOND_US)


def lost_by_moving(session: Session, victim_set: VictimSet) -> int:
    """Return how much work is lost if pods are moved together, in GPU-seconds."""
    pods, now = session.pods, session.cycle_input.now
    return sum(gpu_seconds_lost(one, pods.requests_of((one,)), now=now) for one in victim_set.members)
