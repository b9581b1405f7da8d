"""What a cycle decides, as data."""

from enum import StrEnum
from hashlib import sha256

import msgspec

from kaicore.rules.events.payloads import ClassPending, GroupPending
from kaicore.rules.model.placement import Placement
from kaicore.rules.numa.columns import ZoneCharge


class EvictionReason(StrEnum):
    """Why a running pod is to go."""

    CONSOLIDATED = "Consolidated"
    RECLAIMED = "Reclaimed"
    PREEMPTED = "Preempted"
    STALE_GANG = "StaleGang"


class ClearReason(StrEnum):
    """Why room is no longer kept for a pod."""

    TAKEN = "TakenByHigherPriority"
    NO_LONGER_FITS = "NoLongerFits"
    GAVE_UP = "GaveUp"
    NOTHING_LEAVES = "NothingLeaves"


class Decision(msgspec.Struct, frozen=True):
    """A pod, the node it is to run on, the zones it is predicted to get, and the volumes that it gets.

    Attributes:
        volumes: a volume's name for each that its class's demand wants, empty where one is provisioned.
    """

    uid: str
    namespace: str
    name: str
    node: str
    pod_class: str
    placement: Placement | None
    group: str = ""
    volumes: tuple[str, ...] = ()


class Eviction(msgspec.Struct, frozen=True):
    """A running pod that is to go.

    Attributes:
        group: the victim's own.
        preemptor: key of the group that it makes way for; empty if for none.
        shrinks: whether its group goes on without it; otherwise the group ends as a whole.
        fits_on: a node that could take its successor at once; empty when none could.
        failures_left: how many more failures its Job bears when all that were decided are over; -1 if it fails by that,
            None where evictions do not count as failures.
    """

    uid: str
    namespace: str
    name: str
    node: str
    group: str
    reason: str
    preemptor: str = ""
    shrinks: bool = False
    fits_on: str = ""
    failures_left: int | None = None


class Nominated(msgspec.Struct, frozen=True):
    """A waiting pod, and the node where room is kept for it until those who hold it are gone."""

    uid: str
    namespace: str
    name: str
    node: str
    pod_class: str
    placement: Placement | None
    charge: ZoneCharge
    group: str = ""


class Cleared(msgspec.Struct, frozen=True):
    """A waiting pod for which room is no longer kept."""

    uid: str
    namespace: str
    name: str
    node: str
    reason: str


class Healing(msgspec.Struct, frozen=True):
    """A pod that is to be evicted, so that its successor gets the zones that it asks for."""

    uid: str
    namespace: str
    name: str
    node: str
    pod_class: str
    owner: str
    missed: str


class DecisionUnit(msgspec.Struct, frozen=True):
    """What only holds together: a gang's start, or a preemptor's room and its victims.

    Attributes:
        stands_on: number of an earlier unit of the cycle without which it does not hold either; -1 if there is none.
    """

    placed: tuple[Decision, ...] = ()
    evicted: tuple[Eviction, ...] = ()
    nominated: tuple[Nominated, ...] = ()
    cleared: tuple[Cleared, ...] = ()
    stands_on: int = -1


class CycleResult(msgspec.Struct, frozen=True):
    """What a cycle decided.

    Attributes:
        units: in the order in which they were decided.
        pending: classes with pods left, by key.
        groups: groups with pods left for reasons that are not told with their class, by key.
        healings: evictions for the sake of the evicted, in the order in which they were decided.
        due: when the first of what the cycle held back only for a time is no longer, microseconds since the epoch: a
            preemption delay, or a victim's minimum runtime; 0 if there was nothing.
    """

    units: tuple[DecisionUnit, ...]
    pending: tuple[ClassPending, ...]
    groups: tuple[GroupPending, ...] = ()
    healings: tuple[Healing, ...] = ()
    due: int = 0

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """All placements."""
        return tuple(decision for unit in self.units for decision in unit.placed)

    @property
    def evictions(self) -> tuple[Eviction, ...]:
        """All evictions."""
        return tuple(eviction for unit in self.units for eviction in unit.evicted)

    @property
    def nominations(self) -> tuple[Nominated, ...]:
        """All nominations."""
        return tuple(nominated for unit in self.units for nominated in unit.nominated)

    def digest(self) -> str:
        """Identify the result; equal results have equal digests on every machine."""
        return sha256(_encoder.encode(self)).hexdigest()


_encoder = msgspec.json.Encoder(order="deterministic")
