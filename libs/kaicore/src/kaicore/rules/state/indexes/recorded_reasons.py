"""The last recorded reasons for which pods wait, and the last decisions of shadows.

A reason is recorded once per class, and once per group. A shadow decides about the pods of another scheduler; no
account depends on that.
"""

from collections.abc import Collection, Container
from typing import Any

import msgspec

from kaicore.rules.engine.placement.pod_class import base_key
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons.making_room import PromiseGivenUp, RoomPromised
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.replicas import split_shard
from kaicore.rules.state.indexes.workload_index import WorkloadIndex


class ShadowChoice(msgspec.Struct, frozen=True):
    """A shadow's choice for a pod.

    Attributes:
        placement: the zones that the pod would have got there, None where nothing is aligned.
        kept: whether room would only have been kept there, until others are gone.
    """

    node: str
    placement: Placement | None
    kept: bool
    cycle: str
    position: int


class RecordedReasons(msgspec.Struct):
    """The reasons last recorded, each by shard.

    Attributes:
        by_class: by the class's key, variants included.
        by_group: by the group's key.
    """

    by_class: dict[str, dict[str, payloads.ClassPending]] = {}
    by_group: dict[str, dict[str, payloads.GroupPending]] = {}

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

    def take(self, cycle: payloads.CycleCompleted | payloads.ShadowDecided, workloads: WorkloadIndex) -> None:
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


class ShadowBook(msgspec.Struct):
    """The last decisions of shadows.

    Attributes:
        choices: by the pod's uid.
        evicted: uids of the pods that the shadow's last record would evict, sorted, by shard.
        reasons: why pods would wait, as last recorded.
    """

    choices: dict[str, ShadowChoice] = {}
    evicted: dict[str, tuple[str, ...]] = {}
    reasons: RecordedReasons = msgspec.field(default_factory=RecordedReasons)

    def take(
        self,
        decided: payloads.ShadowDecided,
        workloads: WorkloadIndex,
        *,
        pods: Container[str],
        classes: Container[str],
        position: int,
    ) -> None:
        """Take over what a shadow recorded, of the pods that are still there."""
        chosen: list[payloads.PodPlaced | payloads.PodNominated] = [*decided.placed, *decided.nominated]
        for one in chosen:
            if one.uid in pods:
                kept = isinstance(one, payloads.PodNominated)
                self.choices[one.uid] = ShadowChoice(one.node, one.placement, kept, decided.cycle, position)
        for uid in decided.left:
            self.choices.pop(uid, None)
        self.evicted[decided.shard] = tuple(sorted(victim.uid for victim in decided.evicted))
        there = tuple(item for item in decided.pending if base_key(item.pod_class) in classes)
        self.reasons.take(msgspec.structs.replace(decided, pending=there), workloads)

    def is_news(self, decision: payloads.PodPlaced | payloads.PodNominated) -> bool:
        """Tell whether a place is another one than was recorded last."""
        choice = self.choices.get(decision.uid)
        before = None if choice is None else (choice.node, choice.placement, choice.kept)
        return before != (decision.node, decision.placement, isinstance(decision, payloads.PodNominated))
