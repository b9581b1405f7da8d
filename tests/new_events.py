"""Events to append, for tests of the log: small, and alike but for what a test says."""

import uuid

from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event, NewEvent, Unit
from kaicore.rules.events.payloads import NodeDeleted, Payload

OCCURRED_AT = 1_700_000_000_000_000


def new_event(
    stream: str = "node/n1",
    *,
    id: uuid.UUID | None = None,  # noqa: A002
    payload: Payload | None = None,
    subject: str = "n1",
    cause: uuid.UUID | None = None,
    correlation: str = "",
) -> NewEvent:
    """Make an event of its own id."""
    return NewEvent(
        id=id or uuid.uuid4(),
        stream=stream,
        payload=payload or NodeDeleted(uid="u1", name="n1"),
        actor="test",
        occurred_at=OCCURRED_AT,
        subject=subject,
        cause=cause,
        correlation=correlation,
    )


def unit(*events: NewEvent, **expect: int) -> Unit:
    """Make a unit; `n1=3` expects version 3 of `node/n1`."""
    return Unit(events or (new_event(),), {f"node/{name}": version for name, version in expect.items()})


def as_new(event: Event) -> NewEvent:
    """Return an event as it was before it was appended."""
    return NewEvent(
        id=event.id,
        stream=event.stream,
        payload=decode_payload(event),
        actor=event.actor,
        occurred_at=event.occurred_at,
        subject=event.subject,
        cause=event.cause,
        correlation=event.correlation,
    )
