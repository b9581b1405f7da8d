"""What is left to do, from the log: decisions without an outcome, and placements to be shown on pods.

Pure: events in, work out. A binder that starts knows all of it from the log, whatever became of the one before it.
"""

from typing import Any
from uuid import UUID

import msgspec
from kaicore.events import payloads
from kaicore.events.codec import decode_payload
from kaicore.events.envelope import Event
from kaicore.model.placement import Placement, ZoneAmount

#: Types of the events that matter here.
EVENT_TYPES = ("BindFailed", "PlacementObserved", "PodBound", "PodDeleted", "PodPlaced")

SNAPSHOT_NAME = "binder"
#: Raised with every change of what a snapshot consists of.
SNAPSHOT_SCHEMA = "binder-1"


class Decision(msgspec.Struct, frozen=True):
    """A pod that is to be bound.

    Attributes:
        event_id: of the `PodPlaced`.
        position: of the `PodPlaced`: the order in which pods of one node are bound.
        decided_at: when it was recorded, microseconds since the epoch.
    """

    event_id: UUID
    position: int
    uid: str
    namespace: str
    name: str
    node: str
    cycle: str
    decided_at: int
    placement: Placement | None


class Observation(msgspec.Struct, frozen=True):
    """A pod on which its observed placement is to be shown."""

    uid: str
    namespace: str
    name: str
    zones: tuple[ZoneAmount, ...]


class _Record(msgspec.Struct):
    decisions: list[Decision]
    observations: list[Observation]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Record)


class Work:
    """Decisions and observations by pod."""

    def __init__(self) -> None:
        self.decisions: dict[str, Decision] = {}
        self.observations: dict[str, Observation] = {}

    def take(self, event: Event) -> Decision | Observation | None:
        """Take in an event; return the new work that it brings, if any."""
        if event.type not in EVENT_TYPES:
            return None
        payload = decode_payload(event)
        match payload:
            case payloads.PodPlaced():
                decision = Decision(
                    event_id=event.id,
                    position=event.position,
                    uid=payload.uid,
                    namespace=payload.namespace,
                    name=payload.name,
                    node=payload.node,
                    cycle=payload.cycle,
                    decided_at=event.recorded_at,
                    placement=payload.placement,
                )
                self.decisions[payload.uid] = decision
                return decision
            case payloads.PodBound() | payloads.BindFailed():
                decided = self.decisions.get(payload.uid)
                if decided is not None and decided.event_id == event.cause:
                    del self.decisions[payload.uid]
            case payloads.PodDeleted():
                self.decisions.pop(payload.uid, None)
                self.observations.pop(payload.uid, None)
            case payloads.PlacementObserved() if payload.source == "exporter":
                zones = payload.placement.zone_amounts()
                observation = Observation(payload.uid, payload.namespace, payload.name, zones)
                self.observations[payload.uid] = observation
                return observation
            case _:
                pass
        return None

    def is_due(self, decision: Decision) -> bool:
        """Whether a decision still stands and has no outcome."""
        return self.decisions.get(decision.uid) is decision

    def shown(self, observation: Observation) -> None:
        """Cross an observation off, unless a newer one has come."""
        if self.observations.get(observation.uid) is observation:
            del self.observations[observation.uid]

    def encode(self) -> bytes:
        """Encode what is left, for a snapshot."""
        return _encoder.encode(_Record(list(self.decisions.values()), list(self.observations.values())))

    @classmethod
    def decode(cls, body: bytes) -> "Work":
        """Restore what was left.

        Raises:
            msgspec.DecodeError: the bytes are no snapshot of `SNAPSHOT_SCHEMA`.
        """
        record = _decoder.decode(body)
        work = cls()
        work.decisions = {item.uid: item for item in record.decisions}
        work.observations = {item.uid: item for item in record.observations}
        return work


def binding_of(decision: Decision, annotations: dict[str, str]) -> dict[str, Any]:
    """Return the Binding that makes a decision so; the API server merges its annotations into the pod.

    The uid is a precondition: another pod of the same name is not bound.
    """
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": decision.name,
            "namespace": decision.namespace,
            "uid": decision.uid,
            "annotations": annotations,
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": decision.node},
    }
