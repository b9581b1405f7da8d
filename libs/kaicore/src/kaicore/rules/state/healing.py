"""Pods on zones that they did not ask for: which are evicted when, and why that never becomes a loop.

A successor has a new uid, so what keeps it from being evicted in turn is folded from the log per owner and class: each
decision to evict a pod leaves a *mark*, and the next pod that the owner makes of that class takes it. A marked pod is
never evicted, whatever it gets; one that ends before it has run to its end hands its mark back, for its own successor.
So there are never more evictions than pods that an owner would have made without any.
"""

from collections.abc import Iterator

import msgspec

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.numa.pod_policy import wants_healing
from kaicore.rules.state.pod_entry import PodEntry, Stage


class Healed(msgspec.Struct):
    """What was done so far about the pods of one owner and class.

    Attributes:
        count: decisions to evict one.
        last_at: when the last one was recorded, microseconds since the epoch.
        marks: nodes from which pods were evicted whose successors have not been seen yet.
    """

    count: int = 0
    last_at: int = 0
    marks: list[str] = []


class HealingLedger:
    """The marks, by owner and class."""

    def __init__(self) -> None:
        self.healed: dict[str, Healed] = {}

    def requested(self, owner: str, class_key: str, node: str, *, at: int) -> None:
        """An eviction was decided."""
        found = self.healed.setdefault(_key(owner, class_key), Healed())
        found.count += 1
        found.last_at = at
        found.marks.append(node)

    def failed(self, owner: str, class_key: str, node: str) -> None:
        """The eviction did not come about: there will be no successor."""
        found = self.healed.get(_key(owner, class_key))
        if found is not None and node in found.marks:
            found.marks.remove(node)

    def arrives(self, entry: PodEntry) -> None:
        """A pod is new, or new in its class: it takes a mark if there is one."""
        if entry.pod.owner is None or entry.healed_from or entry.stage is not Stage.WAITING:
            return
        found = self.healed.get(_key(entry.pod.owner.uid, entry.class_key))
        if found is not None and found.marks:
            entry.healed_from = found.marks.pop(0)

    def ends(self, entry: PodEntry) -> None:
        """A pod has ended: one that stood for another hands the mark on, unless it has done what it was for."""
        if entry.healed_from and entry.pod.owner is not None and entry.pod.phase != "Succeeded":
            key = _key(entry.pod.owner.uid, entry.class_key)
            self.healed.setdefault(key, Healed()).marks.append(entry.healed_from)
        entry.healed_from = ""

    def due_at(self, entry: PodEntry, config: EngineConfig) -> int | None:
        """Return when a pod may be evicted, microseconds since the epoch; None if it never is as things stand."""
        pod = entry.pod
        if not config.heal or pod.scheduler_name != config.scheduler_name or why_not(entry):
            return None
        assert pod.owner is not None
        times = [entry.missed_at + config.heal_after_us]
        found = self.healed.get(_key(pod.owner.uid, entry.class_key))
        if found is not None:
            times.append(found.last_at + _backoff(found.count, config))
        if entry.heal_failures:
            times.append(entry.heal_failed_at + _backoff(entry.heal_failures, config))
        return max(times)

    def due(self, entries: Iterator[PodEntry], config: EngineConfig, *, now: int) -> list[PodEntry]:
        """Return the pods that may be evicted at a time, the longest missed first."""
        found = [entry for entry in entries if (at := self.due_at(entry, config)) is not None and at <= now]
        return sorted(found, key=lambda entry: (entry.missed_at, entry.pod.namespace, entry.pod.name, entry.pod.uid))


def why_not(entry: PodEntry) -> str:
    """Say why a pod that missed its zones is not placed anew; empty if it will be."""
    if not wants_healing(entry.pod):
        return "it did not ask to be placed anew"
    if entry.pod.owner is None:
        return "it has no controller that would make another"
    if entry.healed_from:
        return f"it stands for a pod that was evicted from {entry.healed_from} already"
    if entry.healing or entry.pod.deletion_at is not None or entry.stage is not Stage.BOUND:
        return "it is on its way out"
    return ""


def _key(owner: str, class_key: str) -> str:
    return f"{owner}/{class_key}"


def _backoff(count: int, config: EngineConfig) -> int:
    return min(config.heal_backoff_us << min(max(count - 1, 0), 32), config.heal_backoff_max_us)
