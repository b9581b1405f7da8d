"""Decisions of a cycle: the payloads that the log records, in batches that are appended as a whole or not at all."""

from collections.abc import Iterator
from enum import StrEnum
from hashlib import sha256
from typing import TypeVar

import msgspec

from kaicore.rules.events.codec import first_name
from kaicore.rules.events.payloads import (
    ClassPending,
    EvictionDecided,
    GpuOpened,
    GroupPending,
    NominationCleared,
    PodNominated,
    PodPlaced,
    ProvisioningRequested,
    ProvisioningWithdrawn,
    RepairRequested,
)

#: What a cycle decides about a pod.
PodDecision = PodPlaced | PodNominated | NominationCleared | EvictionDecided | RepairRequested

#: What a cycle decides about a group.
GroupDecision = ProvisioningRequested | ProvisioningWithdrawn

Decision = PodDecision | GroupDecision | GpuOpened

_Kind = TypeVar("_Kind", PodPlaced, PodNominated, NominationCleared, EvictionDecided, RepairRequested)


class EvictionReason(StrEnum):
    """The reason for which a running pod is evicted."""

    CONSOLIDATED = "Consolidated"
    RECLAIMED = "Reclaimed"
    PREEMPTED = "Preempted"
    #: By a rule of a PreemptionConfig; the word is Kueue's.
    PREEMPTED_BY_RULE = "ConfigurablePreemption"
    STALE_GANG = "StaleGang"
    NODE_FAILED = "NodeFailed"
    NO_REPLACEMENT = "NoReplacement"
    TOO_MANY_FAILED_NODES = "TooManyFailedNodes"
    DRAINED = "Drained"


class ClearReason(StrEnum):
    """The reason for which room is no longer reserved for a pod, or for one without which its group cannot start."""

    TAKEN = "TakenByHigherPriority"
    NO_LONGER_FITS = "NoLongerFits"
    GAVE_UP = "GaveUp"
    NOTHING_LEAVES = "NothingLeaves"


class GiveUpReason(StrEnum):
    """The reason for which room is no longer promised to a group that still waits."""

    NOT_OWED = "its queue no longer has a right to so much"
    NO_LONGER_FITS = "it would not fit on the nodes that there are, whatever ends"
    NOT_READY = "not all of it can start now"
    EVICTIONS = "room is made for it by evictions"
    HIGHER_PRIORITY = "a group of higher priority waits for room"
    ANOTHER = "room was promised to another group before"
    EXPIRED = "it was held for as long as room without known limits is"
    OFF = "reserving is switched off"


class WithdrawalReason(StrEnum):
    """The reason for which a ProvisioningRequest is of no use any more."""

    STARTED = "Started"
    GONE = "Gone"
    CHANGED = "Changed"
    RETRIED = "Retried"
    SWITCHED_OFF = "SwitchedOff"


class DecisionBatch(msgspec.Struct, frozen=True):
    """Decisions that only hold together: a gang's start, or a preemptor's room and its victims.

    Attributes:
        decisions: in the order in which the log records them.
        depends_on: number of an earlier batch of the cycle without which this one does not hold; -1 if there is none.
    """

    decisions: tuple[Decision, ...]
    depends_on: int = -1


class CycleResult(msgspec.Struct, frozen=True):
    """The decisions of a cycle, and the reasons of what it left.

    Attributes:
        batches: in the order in which they were decided.
        pending: classes with pods left, by key.
        groups: groups with pods left for reasons that are not recorded with their class, by key.
        due: when the first of what the cycle held back only for a time is no longer held back, microseconds since the
            epoch: a preemption delay, or a victim's minimum runtime; 0 if there was nothing.
    """

    batches: tuple[DecisionBatch, ...]
    pending: tuple[ClassPending, ...]
    groups: tuple[GroupPending, ...] = ()
    due: int = 0

    @property
    def decisions(self) -> Iterator[Decision]:
        """All decisions, in order."""
        return (decision for batch in self.batches for decision in batch.decisions)

    @property
    def placements(self) -> tuple[PodPlaced, ...]:
        """The pods that are placed."""
        return self._of(PodPlaced)

    @property
    def evictions(self) -> tuple[EvictionDecided, ...]:
        """The pods that are evicted so that others can start, or because their gang is stale."""
        return self._of(EvictionDecided)

    @property
    def nominations(self) -> tuple[PodNominated, ...]:
        """The pods that room is reserved for."""
        return self._of(PodNominated)

    @property
    def cleared(self) -> tuple[NominationCleared, ...]:
        """The pods that room is no longer reserved for."""
        return self._of(NominationCleared)

    @property
    def repairs(self) -> tuple[RepairRequested, ...]:
        """The pods that are evicted so that their successors get the zones that they ask for."""
        return self._of(RepairRequested)

    @property
    def provisioning(self) -> tuple[GroupDecision, ...]:
        """The ProvisioningRequests that are made or withdrawn."""
        return tuple(decision for decision in self.decisions if isinstance(decision, GroupDecision))

    def digest(self) -> str:
        """Identify the result; equal results have equal digests on every machine."""
        batches = [
            [batch.depends_on, [(first_name(type(decision)), decision) for decision in batch.decisions]]
            for batch in self.batches
        ]
        return sha256(_encoder.encode([batches, self.pending, self.groups, self.due])).hexdigest()

    def _of(self, kind: type[_Kind]) -> tuple[_Kind, ...]:
        return tuple([decision for batch in self.batches for decision in batch.decisions if isinstance(decision, kind)])


_encoder = msgspec.json.Encoder(order="deterministic")
