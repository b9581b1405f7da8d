"""Pods on zones that their own NUMA policy forbids: the order of their evictions, and the bound that prevents a loop.

A replacement has a new uid, so the protection from its own eviction is folded from the log per owner and class. Each
decision to evict a pod adds the pod's node to a list. The next pod that the owner creates of that class takes it from
there. A pod that replaces another is never evicted, whatever zones it gets. If it ends before it has succeeded, it puts
the node back, for its own replacement. So there are never more evictions than pods that an owner would have created
without any.
"""

from collections.abc import Iterator

import msgspec

from kaicore.backoff import backoff
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.numa.own_policy import wants_repair
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage


class RepairRecord(msgspec.Struct):
    """The repairs so far of the pods of one owner and class.

    Attributes:
        count: decisions to evict one.
        last_at: when the last one was recorded, microseconds since the epoch.
        awaited: nodes of evicted pods with replacements that have not been seen yet.
    """

    count: int = 0
    last_at: int = 0
    awaited: list[str] = []


class RepairLedger(msgspec.Struct):
    """The records, by owner and class."""

    records: dict[str, RepairRecord] = {}

    def requested(self, owner: str, class_key: str, node: str, *, at: int) -> None:
        """An eviction was decided."""
        record = self.records.setdefault(_key(owner, class_key), RepairRecord())
        record.count += 1
        record.last_at = at
        record.awaited.append(node)

    def update(self, before: PodEntry, after: PodEntry) -> None:
        """Follow a pod: it may be a replacement, it may have ended, or its eviction may have failed."""
        if self.records and after.class_key != before.class_key:
            self._arrives(after)
        if after.replaces_on and (after.stage is Stage.FINISHED or after.stage is Stage.ABSENT):
            self._ends(after)
        if before.repairing and not after.repairing:
            self._failed(after)

    def _arrives(self, entry: PodEntry) -> None:
        """A pod is new, or new in its class: it replaces a pod that was evicted, if a replacement is awaited."""
        if entry.pod.owner is None or entry.replaces_on:
            return
        record = self.records.get(_key(entry.pod.owner.uid, entry.class_key))
        if record is not None and record.awaited:
            entry.replaces_on = record.awaited.pop(0)

    def _ends(self, entry: PodEntry) -> None:
        """A replacement has ended: unless it succeeded, another one is awaited."""
        if entry.pod.owner is not None and entry.pod.phase != "Succeeded":
            key = _key(entry.pod.owner.uid, entry.class_key)
            self.records.setdefault(key, RepairRecord()).awaited.append(entry.replaces_on)
        entry.replaces_on = ""

    def _failed(self, entry: PodEntry) -> None:
        """An eviction failed: no replacement will come."""
        if entry.pod.owner is None:
            return
        record = self.records.get(_key(entry.pod.owner.uid, entry.class_key))
        if record is not None and entry.node in record.awaited:
            record.awaited.remove(entry.node)

    def due_at(self, entry: PodEntry, config: EngineConfig) -> int | None:
        """Return when a pod may be evicted, microseconds since the epoch; None if it never is as things stand."""
        pod = entry.pod
        if not config.repair or pod.scheduler_name != config.scheduler_name or why_not(entry):
            return None
        assert pod.owner is not None
        times = [entry.misaligned_at + config.repair_after_us]
        record = self.records.get(_key(pod.owner.uid, entry.class_key))
        if record is not None:
            times.append(record.last_at + _backoff(record.count, config))
        if entry.repair_failures:
            times.append(entry.repair_failed_at + _backoff(entry.repair_failures, config))
        return max(times)

    def due(self, entries: Iterator[PodEntry], config: EngineConfig, *, now: int) -> list[PodEntry]:
        """Return the pods that may be evicted at a time, the longest misaligned first."""
        due = [entry for entry in entries if (at := self.due_at(entry, config)) is not None and at <= now]
        return sorted(due, key=lambda entry: (entry.misaligned_at, entry.pod.namespace, entry.pod.name, entry.pod.uid))


def why_not(entry: PodEntry) -> str:
    """Return why a misaligned pod is not evicted; empty if it will be."""
    if not wants_repair(entry.pod):
        return "it did not ask to be placed anew"
    if entry.pod.owner is None:
        return "it has no controller that would make another"
    if entry.replaces_on:
        return f"it replaces a pod that was evicted from {entry.replaces_on} already"
    if entry.repairing or entry.pod.deletion_at is not None or entry.stage is not Stage.BOUND:
        return "it is on its way out"
    return ""


def _key(owner: str, class_key: str) -> str:
    return f"{owner}/{class_key}"


def _backoff(count: int, config: EngineConfig) -> int:
    return backoff(max(count, 1), first=config.repair_backoff_us, most=config.repair_backoff_max_us)
