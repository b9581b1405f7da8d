"""The annotations that a binding writes on its pod."""

import json

from kaicore.rules.events.payloads import PodPlaced
from kaicore.rules.model import placement
from kaicore.rules.objects.provisioning import CONSUMED_CLASS_KEY, CONSUMED_REQUEST_ANNOTATION


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
