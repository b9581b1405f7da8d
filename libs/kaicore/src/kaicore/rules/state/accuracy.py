"""Predictions against observations: the one counting rule of counters, read models, audits and pages.

A prediction is a decision with zones for at least one container. It counts for the node and the time of the decision,
whenever the pod is observed. The last accepted observation counts, and replaces the one before it.
"""

from dataclasses import dataclass, field

from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import Payload, PlacementObserved, PodPlaced
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.counters import agreement_changes
from kaicore.rules.state.pods.agreement import Agreement


@dataclass(frozen=True, slots=True)
class AccuracyChange:
    """A change of the tally by one event.

    Attributes:
        decided_at: the decision's clock, microseconds since the epoch.
        predicted: 1 for a new prediction, else 0.
        observed: 1 for the first observation of a prediction, else 0.
        agreement: by how much each kind of agreement changes.
    """

    uid: str
    node: str
    decided_at: int
    predicted: int = 0
    observed: int = 0
    agreement: dict[Agreement, int] = field(default_factory=dict)


def fold_counting(state: ClusterState, event: Event, payload: Payload | None = None) -> AccuracyChange | None:
    """Fold an event, and return what it changes in the tally; None for nothing.

    Args: payload: as in `ClusterState.fold`.

    Raises: see `ClusterState.fold`.
    """
    payload = payload or decode_payload(event)
    if not isinstance(payload, PodPlaced | PlacementObserved):
        state.fold(event, payload)
        return None
    entry = state.pods.get(payload.uid)
    before = None if entry is None else entry.agreement
    state.fold(event, payload)
    entry = state.pods.get(payload.uid)
    if entry is None or not entry.predicts_zones:
        return None
    if isinstance(payload, PodPlaced):
        placed = entry.predicted is payload.placement or entry.predicted == payload.placement
        return AccuracyChange(payload.uid, entry.node, entry.placed_at, predicted=1) if placed else None
    changes = agreement_changes(before, entry.agreement)
    if not changes:
        return None
    return AccuracyChange(payload.uid, entry.node, entry.placed_at, observed=sum(changes.values()), agreement=changes)
