"""Writes that need no decision: statuses of groups, queues and topologies, and reasons on waiting pods."""

from collections.abc import Callable
from functools import partial

from kai_binder.projection import BinderProjection
from kai_binder.settings import BinderOptions
from kai_binder.side_writes import (
    SideWrites,
    failed_scheduling_event,
    group_status,
    pod_condition,
    queue_status,
    topology_status,
)
from kai_binder.work_share import WorkShare


def write_statuses(
    projection: BinderProjection,
    side_writes: SideWrites,
    options: BinderOptions,
    share: WorkShare,
    *,
    clock: Callable[[], int],
) -> None:
    """Have written what has changed and is this binder's.

    Args:
        projection: tells what has changed.
        side_writes: writes it.
        options: whether it is to be written.
        share: this binder's part of the work.
        clock: microseconds since the epoch.
    """
    groups, queues = projection.groups, projection.queues
    has = share.has
    for status in groups.news():
        if options.group_statuses and has(f"group/{status.key}"):
            side_writes.add(group_status(status, then=partial(groups.mark_written, status)))
    for figures in queues.news():
        if not has(f"queue/{figures.uid}"):
            continue
        if options.queue_statuses:
            side_writes.add(queue_status(figures, then=partial(queues.mark_written, figures)))
        else:
            queues.mark_written(figures)
    topologies, mode = projection.topologies, options.topology_statuses
    for definition in topologies.news():
        if not has(f"topology/{definition.uid}"):
            continue
        if mode == "off":
            topologies.mark_written(definition)
        else:
            then = partial(topologies.mark_written, definition)
            side_writes.add(topology_status(definition, ours_only=mode == "auto", then=then))
    waiting = projection.waiting
    for pod in waiting.news():
        if not has(f"pod/{pod.uid}"):
            continue
        if options.pod_conditions:
            side_writes.add(pod_condition(pod, waiting))
        if options.failed_scheduling_events:
            side_writes.add(failed_scheduling_event(pod, waiting, now=clock))
