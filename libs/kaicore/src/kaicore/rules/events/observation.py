"""Observations and facts as records, each with its id and the change of a node's account; and annotations of bindings.

The id is derived from the pod, the observed placement and the observation before it. So the same report, sent again, is
recorded once, and a placement that changes and changes back is recorded each time.

Every decision about a node is conditional on `node/<name>`. A fact has a stream of its own (`pod/<uid>`, `nrt/<name>`).
Where it changes the account of a node, a `NodeCharged` goes with it in the same unit. No decision that was taken
without it is appended after it. Facts that only free a node go without: a decision taken without them is cautious, not
wrong.
"""

import json
from collections.abc import Iterable
from hashlib import blake2b
from uuid import UUID

import msgspec

from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import NodeCharged, PlacementObserved, PodPlaced, PredictionMissed
from kaicore.rules.model import placement
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount
from kaicore.rules.model.pod import Amounts
from kaicore.rules.objects.provisioning import CONSUMED_CLASS_KEY, CONSUMED_REQUEST_ANNOTATION


def charging(unit: Unit, node: str, *, pods: Iterable[str] = ()) -> Unit:
    """Return a unit of facts as one that also moves a node's stream.

    The facts get other ids: whether a fact charges a node may be seen otherwise when it comes again, and a unit is in
    the log as a whole or not at all.

    Args:
        node: the node that they are charged to.
        pods: uids of the pods that the node is accounted to hold otherwise.
    """
    ids = {event.id: derived_id(str(event.id), "charging", node) for event in unit.events}
    facts = tuple(
        msgspec.structs.replace(
            event, id=ids[event.id], cause=None if event.cause is None else ids.get(event.cause, event.cause)
        )
        for event in unit.events
    )
    first = facts[0]
    charged = NewEvent(
        id=derived_id(str(first.id), "NodeCharged"),
        stream=f"node/{node}",
        payload=NodeCharged(node=node, cycle="", pods=tuple(pods)),
        actor=first.actor,
        occurred_at=first.occurred_at,
        subject=node,
        cause=first.id,
    )
    return Unit((*facts, charged), expect=unit.expect)


#: Who appends observations.
ACTOR = "ingest"

_encoder = msgspec.json.Encoder(order="deterministic")


def annotated_placement(record: ContainerPlacement) -> Placement:
    """Return what an annotation says of a pod: nothing of single containers."""
    zones = tuple(ZoneAmount(zone=zone.zone, amount=held(zone.amount)) for zone in record.zones)
    container = msgspec.structs.replace(record, zones=tuple(zone for zone in zones if zone.amount))
    return Placement(provenance=Provenance.OBSERVED, containers=(container,))


def zones_of(placement: Placement) -> set[str]:
    """Return the names of all zones that a placement speaks of."""
    containers = placement.containers
    single = {zone.zone for container in containers for zone in container.zones}
    return single.union(*(span.zones for container in containers for span in (*container.spans, *container.blocks)))


def content_digest(placement: Placement) -> bytes:
    """Return a digest by which placements are distinguished."""
    return blake2b(_encoder.encode(placement), digest_size=16).digest()


def observation(
    cluster: str, payload: PlacementObserved, *, previous: UUID | None, occurred_at: int, cause: UUID | None = None
) -> NewEvent:
    """Return the event of an observation.

    Args:
        previous: id of the pod's last recorded observation.
        occurred_at: when it was made, microseconds since the epoch.
        cause: the event that it follows from.
    """
    digest = content_digest(payload.placement).hex()
    return NewEvent(
        id=derived_id(cluster, "PlacementObserved", payload.uid, payload.node, digest, str(previous or "")),
        stream=f"pod/{payload.uid}",
        payload=payload,
        actor=ACTOR,
        occurred_at=occurred_at,
        subject=f"{payload.namespace}/{payload.name}",
        cause=cause,
    )


def held(amount: Amounts) -> Amounts:
    """Return amounts in order of resource, empty ones left out."""
    return {resource: amount[resource] for resource in sorted(amount) if amount[resource]}


def prediction_missed(missed: PredictionMissed, *, follows: UUID, occurred_at: int) -> NewEvent:
    """Return the event of a missed prediction.

    Args:
        missed: what was predicted, and what became of it.
        follows: id of the event that tells what the kubelet did.
        occurred_at: when it did, microseconds since the epoch.
    """
    return NewEvent(
        id=derived_id(str(follows), "PredictionMissed"),
        stream=f"pod/{missed.uid}",
        payload=missed,
        actor=ACTOR,
        occurred_at=occurred_at,
        subject=f"{missed.namespace}/{missed.name}",
        cause=follows,
    )


def binding_annotations(placed: PodPlaced) -> dict[str, str]:
    """Return the annotations of a pod's binding: its zones, its place in the topology, and its request for nodes."""
    annotations = {}
    if placed.placement is not None:
        for annotation, encode in (
            (placement.PREDICTED_ANNOTATION, placement.encode_annotation),
            (placement.MEMORY_GROUPS_PREDICTED, placement.encode_memory_groups),
        ):
            if text := encode(placed.placement):
                annotations[annotation] = text
    if placed.rank >= 0:
        annotations[placement.RANK_ANNOTATION] = str(placed.rank)
    if placed.domains:
        annotations[placement.DOMAINS_ANNOTATION] = json.dumps(placed.domains, separators=(",", ":"))
    if placed.provisioning_request:
        annotations[CONSUMED_REQUEST_ANNOTATION] = placed.provisioning_request
        annotations[CONSUMED_CLASS_KEY] = placed.provisioning_class
    return annotations
