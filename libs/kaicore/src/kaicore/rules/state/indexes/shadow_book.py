"""The last decisions of shadows about the pods of other schedulers. No account depends on them."""

from collections.abc import Container

import msgspec

from kaicore.rules.engine.placement.pod_class import base_key
from kaicore.rules.events.payloads import ClassPending, GroupPending, PodNominated, PodPlaced, ShadowDecided
from kaicore.rules.model.placement import Placement
from kaicore.rules.state.indexes.recorded_reasons import RecordedReasons
from kaicore.rules.state.indexes.workload_index import WorkloadIndex


class ShadowChoice(msgspec.Struct, frozen=True):
    """A shadow's choice for a pod.

    Attributes:
        node: its name.
        placement: the zones that the pod would have got there, None where nothing is aligned.
        kept: whether room would only have been kept there, until others are gone.
        cycle: that decided so.
        position: of the record.
    """

    node: str
    placement: Placement | None
    kept: bool
    cycle: str
    position: int


class ShadowRecord(msgspec.Struct):
    """A book as plain data."""

    choices: dict[str, ShadowChoice] = {}
    evicted: dict[str, tuple[str, ...]] = {}
    by_class: dict[str, dict[str, ClassPending]] = {}
    by_group: dict[str, dict[str, GroupPending]] = {}


class ShadowBook:
    """The last decisions of shadows.

    Attributes:
        choices: by the pod's uid.
        evicted: uids of the pods that the shadow's last record would evict, sorted, by shard.
        reasons: why pods would wait, as last recorded.
    """

    def __init__(self, record: ShadowRecord | None = None) -> None:
        """Args: record: of a book."""
        record = record or ShadowRecord()
        self.choices, self.evicted, self.reasons = record.choices, record.evicted, RecordedReasons()
        self.reasons.by_class, self.reasons.by_group = record.by_class, record.by_group

    def record(self) -> ShadowRecord:
        """Return the book as plain data."""
        return ShadowRecord(self.choices, self.evicted, self.reasons.by_class, self.reasons.by_group)

    def take(
        self,
        decided: ShadowDecided,
        workloads: WorkloadIndex,
        *,
        pods: Container[str],
        classes: Container[str],
        position: int,
    ) -> None:
        """Take over what a shadow recorded, of the pods that are still there.

        Args:
            decided: the record.
            workloads: of the state.
            pods: uids of those that there are.
            classes: keys of those that there are.
            position: of the record.
        """
        chosen: list[PodPlaced | PodNominated] = [*decided.placed, *decided.nominated]
        for one in chosen:
            if one.uid in pods:
                kept = isinstance(one, PodNominated)
                self.choices[one.uid] = ShadowChoice(one.node, one.placement, kept, decided.cycle, position)
        for uid in decided.left:
            self.choices.pop(uid, None)
        self.evicted[decided.shard] = tuple(sorted(victim.uid for victim in decided.evicted))
        there = tuple(item for item in decided.pending if base_key(item.pod_class) in classes)
        self.reasons.take(msgspec.structs.replace(decided, pending=there), workloads)

    def is_news(self, decision: PodPlaced | PodNominated) -> bool:
        """Tell whether a place is another one than was recorded last."""
        choice = self.choices.get(decision.uid)
        before = None if choice is None else (choice.node, choice.placement, choice.kept)
        return before != (decision.node, decision.placement, isinstance(decision, PodNominated))
