"""Outcomes of decisions, as the events that record them."""

from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import (
    BindFailed,
    EvictionFailed,
    PodBound,
    PodEvicted,
    ProvisioningRequestCreated,
    ProvisioningRequestRefused,
    ProvisioningRequestRemoved,
)

from kai_binder.projection import PodBinding, PodEviction, Provisioning

Outcome = (
    PodBound
    | BindFailed
    | PodEvicted
    | EvictionFailed
    | ProvisioningRequestCreated
    | ProvisioningRequestRefused
    | ProvisioningRequestRemoved
)

ACTOR = "binder"


def outcome_unit(task: PodBinding | PodEviction | Provisioning, outcome: Outcome, *, now: int) -> Unit:
    """Return the unit that records an outcome.

    There is one id for every outcome of a decision: of two binders that come to different ones, the first is right.

    Args:
        task: what was to be done.
        outcome: what became of it.
        now: microseconds since the epoch.
    """
    return Unit(
        (
            NewEvent(
                id=derived_id(str(task.event_id), "outcome"),
                stream=task.stream,
                payload=outcome,
                actor=ACTOR,
                occurred_at=now,
                subject=task.subject,
                cause=task.event_id,
                correlation=task.decision.cycle,
            ),
        )
    )
