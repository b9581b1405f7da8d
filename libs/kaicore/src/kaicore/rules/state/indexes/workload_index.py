"""All groups with their pods, kept up to date as pods are folded, so that a cycle need not count them.

Keys of what has changed are kept for those who look again only at these.

Waiting groups of one pod stand in lines where a cycle has nothing to find out of them, and nothing to record. A group
is in a line if it waits as it was last recorded to be left waiting, and nothing of it alone matters: no room is kept
for its pod, no bind has failed, and no claim or device is its own. Groups that an event touches are looked at again
when the lines are asked for, all others are not.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from kaicore.rules.engine.work.workload import Kind, RestingLine, Workload, kind_of
from kaicore.rules.events.payloads import WaitingPod
from kaicore.rules.model.group import Group
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage

#: Whoever does not look for so many changes looks at everything again, so that they take up no more and more memory.
_MOST = 100_000


class ChangedKeys:
    """The keys that have changed since they were taken last."""

    def __init__(self) -> None:
        #: None while all count as changed.
        self._keys: set[str] | None = None

    def add(self, *keys: str) -> None:
        """Take note of changes."""
        if self._keys is not None:
            self._keys.update(keys)
            if len(self._keys) > _MOST:
                self._keys = None

    def take(self) -> set[str] | None:
        """Return the keys; None where any may have changed: at first, and after too many changes."""
        keys, self._keys = self._keys, set()
        return keys


class WorkloadRecord(msgspec.Struct, array_like=True):
    """The part of a workload that does not follow from its pods, for snapshots."""

    key: str
    started_at: int
    below_since: int
    evicted_at: int
    reached: bool
    ending: bool


class WorkloadIndex:
    """Workloads by group key.

    Attributes:
        pending: keys of those with waiting pods.
        below: keys of those that fell below their minimum.
        leaving: pods that hold a node and are on their way out, by uid.
        needed_by: keys of those that start together with a group, by its key, whether it has pods or not.
        running: those that run and may be preempted, by `kind_of` and key.
    """

    def __init__(self) -> None:
        self.workloads: dict[str, Workload] = {}
        self.pending: set[str] = set()
        self.below: set[str] = set()
        self.leaving: dict[str, PodEntry] = {}
        self.needed_by: dict[str, set[str]] = {}
        self.running: dict[Kind, dict[str, Workload]] = {}
        self._where: dict[str, str] = {}
        self._changed = ChangedKeys()

    def take_changed(self) -> set[str] | None:
        """Return the keys of groups that have changed since the last call, and of all that start together with them.

        None where any may have (`ChangedKeys`).
        """
        changed = self._changed.take()
        left = list(changed or ())
        while changed is not None and left:
            new = self.beside(left.pop()) - changed
            changed |= new
            left += new
        return changed

    def touch(self, key: str) -> None:
        """A pod of a group is seen otherwise, and stays where it stands."""
        self._changed.add(key)

    def beside(self, key: str) -> set[str]:
        """Return the keys of the groups that a group names to start together with, and of those that name it."""
        workload = self.workloads.get(key)
        return {*(() if workload is None else workload.group.together), *self.needed_by.get(key, ())}

    def seat(self, entry: PodEntry, group: Group, *, waiting: bool, at: int) -> None:
        """Put a pod where it now stands in its group.

        Args:
            waiting: whether it may be decided on.
            at: recorded time of what changed it, microseconds since the epoch.
        """
        uid, workload = entry.pod.uid, self.workloads.get(group.key)
        if workload is not None and workload.group is group and not waiting and self._stays(entry, workload):
            self._changed.add(group.key)
            return
        if self._where.get(uid, group.key) != group.key:
            self.forget(entry, at=at)
            workload = self.workloads.get(group.key)
        self._where[uid] = group.key
        if workload is None:
            workload = self.workloads[group.key] = Workload(group)
            self._link(group)
        elif workload.group is not group:
            self._set_group(workload, group)
        self.leaving.pop(uid, None)
        if waiting:
            workload.wait(entry)
        elif entry.charged and entry.leaving:
            workload.leave(entry)
            self.leaving[uid] = entry
        elif entry.charged:
            workload.start(entry)
        elif entry.stage is Stage.FINISHED and entry.pod.phase == "Succeeded":
            workload.finish(entry)
            self._end(workload)
        else:
            workload.drop(uid)
        self._judge(workload, at)

    def _stays(self, entry: PodEntry, workload: Workload) -> bool:
        """Tell whether a pod is active in its group and counts there as before, so that nothing changes for others."""
        as_before = workload.kind is None or workload.kind[0] == entry.pod.scheduler_name
        return as_before and entry.charged and not entry.leaving and workload.counts_as_active(entry)

    def evicted(self, entry: PodEntry, *, at: int) -> None:
        """Note when a pod of a group was last decided to be evicted."""
        workload = self.workloads.get(entry.group)
        if workload is not None:
            workload.evicted_at = at

    def forget(self, entry: PodEntry, *, at: int) -> None:
        """A pod is gone."""
        self.leaving.pop(entry.pod.uid, None)
        workload = self.workloads.get(self._where.pop(entry.pod.uid, ""))
        if workload is not None:
            workload.drop(entry.pod.uid)
            self._judge(workload, at)

    def has(self, group: Group) -> bool:
        """Tell whether a group has pods that are seated in it as it is."""
        workload = self.workloads.get(group.key)
        return workload is not None and workload.group is group

    def regroup(self, group: Group, *, at: int) -> bool:
        """A group's own facts changed; tells whether it has pods that are seated."""
        workload = self.workloads.get(group.key)
        if workload is not None:
            if workload.group is not group:
                self._set_group(workload, group)
                self._judge(workload, at)
            return True
        return False

    def records(self, keys: Iterable[str] | None = None) -> list[WorkloadRecord]:
        """Return what does not follow from the pods; of all workloads, or of those of some keys."""
        there = self.workloads if keys is None else self.workloads.keys() & set(keys)
        return [
            WorkloadRecord(
                key,
                workload.started_at,
                workload.below_since,
                workload.evicted_at,
                workload.reached,
                workload.ending,
            )
            for key, workload in ((key, self.workloads[key]) for key in sorted(there))
        ]

    def restore(self, records: list[WorkloadRecord]) -> None:
        """Put back what does not follow from the pods, which are seated already."""
        for record in records:
            workload = self.workloads[record.key]
            workload.started_at, workload.below_since = record.started_at, record.below_since
            workload.evicted_at, workload.reached = record.evicted_at, record.reached
            workload.ending = record.ending
            self._index(workload)

    def _judge(self, workload: Workload, at: int) -> None:
        """Note how a group stands now, and with it those that start together with it."""
        workload.mark(at, others=self._others_are_whole(workload))
        self._index(workload)
        for key in sorted(self.needed_by.get(workload.group.key, ())):
            other = self.workloads[key]
            other.mark(at, others=self._others_are_whole(other))
            self._index(other)

    def _others_are_whole(self, workload: Workload) -> bool:
        if not workload.group.together:
            return True
        others = (self.workloads.get(key) for key in workload.group.together if key != workload.group.key)
        return all(other is not None and other.satisfied(other.counts) for other in others)

    def _end(self, workload: Workload) -> None:
        for key in (workload.group.key, *self.needed_by.get(workload.group.key, ())):
            self.workloads[key].ending = True

    def _set_group(self, workload: Workload, group: Group) -> None:
        self._unlink(workload.group)
        workload.set_group(group)
        self._link(group)

    def _link(self, group: Group) -> None:
        self._note(group)
        for key in group.together:
            if key != group.key:
                self.needed_by.setdefault(key, set()).add(group.key)

    def _note(self, group: Group) -> None:
        self._changed.add(group.key, *group.together)

    def _unlink(self, group: Group) -> None:
        self._note(group)
        for key in group.together:
            if key != group.key:
                needing = self.needed_by[key]
                needing.discard(group.key)
                if not needing:
                    del self.needed_by[key]

    def _index(self, workload: Workload) -> None:
        key = workload.group.key
        self._changed.add(key)
        if workload.waiting:
            self.pending.add(key)
        else:
            self.pending.discard(key)
        if workload.below_since:
            self.below.add(key)
        else:
            self.below.discard(key)
        kind, before = kind_of(workload), workload.kind
        if kind != before:
            if before is not None:
                del self.running[before][key]
            if kind is not None:
                self.running.setdefault(kind, {})[key] = workload
            workload.kind = kind
        if workload.empty:
            del self.workloads[key]
            self._unlink(workload.group)


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
