"""The waiting groups of one pod of which a cycle has nothing to find out and nothing to record, in lines.

A group is in a line if it waits as it was last recorded to be left waiting, and nothing of it alone matters: no room is
kept for its pod, no bind has failed, and no claim or device is its own. Groups that an event touches are looked at
again when the lines are asked for, all others are not.
"""

from collections.abc import Collection, Mapping

from kaicore.rules.engine.work.workload import RestingLine, Workload
from kaicore.rules.events.payloads import WaitingPod
from kaicore.rules.state.indexes.workload_index import ChangedKeys
from kaicore.rules.state.pods.pod_entry import PodEntry


class RestingGroups:
    """The lines, as of the last `lines`."""

    def __init__(self) -> None:
        self._lines: dict[tuple[object, ...], RestingLine] = {}
        #: By key of a group, the kind of its line.
        self._kinds: dict[str, tuple[object, ...]] = {}
        self._touched = ChangedKeys()

    def touch(self, key: str) -> None:
        """A group, or a pod of it, may have changed."""
        self._touched.add(key)

    def lines(
        self, workloads: Mapping[str, Workload], pending: Collection[str], pods: Mapping[str, PodEntry]
    ) -> Collection[RestingLine]:
        """Return the lines, brought up to date; not to be changed.

        Args:
            pending: keys of the groups with waiting pods.
        """
        touched: Collection[str] | None = self._touched.take()
        if touched is None:
            self._lines, self._kinds, touched = {}, {}, pending
        for key in touched:
            kind = self._kinds.pop(key, None)
            if kind is not None:
                self._lines[kind].drop(key)
                if not self._lines[kind].lones:
                    del self._lines[kind]
            workload = workloads.get(key)
            if workload is not None and len(workload.waiting) == 1 and workload.lone is not None:
                self._enter(workload, pods)
        return self._lines.values()

    def _enter(self, workload: Workload, pods: Mapping[str, PodEntry]) -> None:
        """Put a group of a pod that waits alone into its line, if nothing of it is new."""
        lone, group = workload.lone, workload.group
        assert lone is not None, "only such groups have a line"
        entry = pods[lone.member.pod.uid]
        if _is_special(entry) or entry.reported != as_left(entry, workload, entry.class_key):
            return
        kind = self._kinds[group.key] = (entry.pod.scheduler_name, entry.class_key, *lone.kind)
        line = self._lines.get(kind)
        if line is None:
            line = self._lines[kind] = RestingLine(entry.pod.scheduler_name, entry.class_key)
        evicts_us = max(lone.created_us, workload.evicted_at) + group.preemption_delay_us
        line.add(group.key, lone, evicts_us=evicts_us)


def _is_special(entry: PodEntry) -> bool:
    """Tell whether a cycle has to look at a pod for itself."""
    pod = entry.pod
    return bool(entry.nomination or entry.bind_failures or entry.replaces_on or pod.claims or pod.resource_claims)


def as_left(entry: PodEntry, workload: Workload | None, class_key: str) -> WaitingPod:
    """Return what is recorded of a pod that a cycle leaves waiting as one of a class."""
    alone = None if workload is None or workload.is_gang else workload.group
    return WaitingPod(
        uid=entry.pod.uid,
        namespace=entry.pod.namespace,
        name=entry.pod.name,
        pod_class=class_key,
        group=entry.group,
        alone=alone is not None,
        queue="" if alone is None else alone.queue,
        priority=0 if alone is None else alone.priority,
        problem=entry.group_problem,
    )
