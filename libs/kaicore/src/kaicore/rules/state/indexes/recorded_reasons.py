"""The last recorded reasons for which pods wait: once per class, and once per group."""

from collections.abc import Collection
from typing import Any

from kaicore.rules.engine.placement.pod_class import base_key
from kaicore.rules.events.payloads import ClassPending, CycleCompleted, GroupPending, ShadowDecided
from kaicore.rules.events.reasons.promise import PromiseGivenUp, RoomPromised
from kaicore.rules.model.replicas import split_shard
from kaicore.rules.state.indexes.workload_index import WorkloadIndex


class RecordedReasons:
    """The reasons last recorded, each by shard.

    Attributes:
        by_class: by the class's key, variants included.
        by_group: by the group's key.
    """

    def __init__(self) -> None:
        self.by_class: dict[str, dict[str, ClassPending]] = {}
        self.by_group: dict[str, dict[str, GroupPending]] = {}

    @property
    def promised(self) -> dict[str, dict[str, RoomPromised | PromiseGivenUp]]:
        """The records of room that is or was promised to groups, by the group's key and by shard."""
        promised: dict[str, dict[str, RoomPromised | PromiseGivenUp]] = {}
        for key, by_shard in self.by_group.items():
            for shard, pending in by_shard.items():
                for reason in pending.reasons:
                    if isinstance(reason, RoomPromised | PromiseGivenUp):
                        promised.setdefault(key, {})[shard] = reason
        return promised

    def promise_of(self, key: str) -> RoomPromised | None:
        """Return what is promised to a group, by its key; None for nothing."""
        recorded = (reason for pending in self.by_group.get(key, {}).values() for reason in pending.reasons)
        return next((reason for reason in recorded if isinstance(reason, RoomPromised)), None)

    def take(self, cycle: CycleCompleted | ShadowDecided, workloads: WorkloadIndex) -> None:
        """Take over what a cycle recorded."""
        for group in cycle.groups:
            if not group.pods:
                by_shard = self.by_group.get(group.group, {})
                by_shard.pop(cycle.shard, None)
                if not by_shard:
                    self.by_group.pop(group.group, None)
            elif group.group in workloads.workloads:
                self.by_group.setdefault(group.group, {})[cycle.shard] = group
        for pending in cycle.pending:
            self.by_class.setdefault(pending.pod_class, {})[cycle.shard] = pending

    def keep(self, shard: str, reporters: Collection[str]) -> None:
        """Forget what was recorded for a shard under other names than these: who did so does not go on."""
        for table in (self.by_class, self.by_group):
            for key in list(table):
                by_shard: dict[str, Any] = table[key]
                for name in [name for name in by_shard if split_shard(name)[0] == shard and name not in reporters]:
                    del by_shard[name]
                if not by_shard:
                    del table[key]

    def forget_class(self, class_key: str) -> None:
        """Forget the reasons of a class that has no pods any more, and those of its variants."""
        for key in [key for key in self.by_class if base_key(key) == class_key]:
            del self.by_class[key]

    def forget_group(self, key: str) -> None:
        """Forget the reasons of a group that has no pods any more."""
        self.by_group.pop(key, None)
