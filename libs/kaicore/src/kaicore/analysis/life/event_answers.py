"""Events as answers: as plain JSON, and as CloudEvents 1.0 (https://github.com/cloudevents/spec).

docs/reference/cloudevents.md maps the parts of an event to attributes.
"""

from typing import Any

import msgspec

from kaicore.analysis.json_spelling import Answer, spelled, time_text
from kaicore.errors import UnknownEvent
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event, traceparent

#: Begins the type of every CloudEvent of ours; the event's type follows.
TYPE_PREFIX = "kai."


class EventAnswer(Answer, frozen=True, kw_only=True):
    """An event.

    Attributes:
        position: place in the cluster's log.
        version: place in its stream.
        schema: of what it says, as recorded; `body` is as the current schema has it.
        id: derived from what makes the event unique.
        cause: id of the event that it follows from.
        correlation: what ties the events of one undertaking together, such as a cycle's id.
        hash: SHA-256 over the previous event's hash and this event.
    """

    cluster: str
    position: int
    stream: str
    version: int
    type: str
    schema: int
    id: str
    subject: str
    actor: str
    cause: str | None
    correlation: str
    occurred_at: str
    recorded_at: str
    hash: str
    body: Any


class EventPage(Answer, frozen=True, kw_only=True):
    """Events in order of position.

    Attributes:
        position: where the log ended when they were read.
        next: the next page's `after`; there is nothing beyond it yet where it is `position`.
    """

    cluster: str
    position: int
    next: int
    items: list[EventAnswer]


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event as a CloudEvent in JSON format; all attributes beyond those of the specification are extensions.

    Attributes:
        source: the cluster, as a reference to the API.
        time: when it happened, by the source's clock; `recordedtime` is the log's.
        position: in decimal, for CloudEvents have integers of 32 bits only.
        sequence: the same with leading zeros, so that it sorts as text (extension Sequence).
        partitionkey: the event's stream (extension Partitioning).
        causeid: id of the event that it follows from.
    """

    specversion: str
    id: str
    source: str
    type: str
    subject: str
    time: str
    datacontenttype: str
    cluster: str
    position: str
    sequence: str
    partitionkey: str
    streamversion: int
    schemaversion: int
    actor: str
    recordedtime: str
    hash: str
    traceparent: str
    causeid: str = ""
    correlation: str = ""
    data: Any


def event_answer(event: Event) -> EventAnswer:
    """Return an event as an answer."""
    return EventAnswer(
        cluster=event.cluster,
        position=event.position,
        stream=event.stream,
        version=event.version,
        type=event.type,
        schema=event.schema,
        id=str(event.id),
        subject=event.subject,
        actor=event.actor,
        cause=None if event.cause is None else str(event.cause),
        correlation=event.correlation,
        occurred_at=time_text(event.occurred_at),
        recorded_at=time_text(event.recorded_at),
        hash=event.hash.hex(),
        body=event_body(event),
    )


def event_body(event: Event) -> object:
    """Return what an event says; of one that this program is too old for, as it was recorded."""
    try:
        return spelled(decode_payload(event))
    except UnknownEvent:
        return msgspec.json.decode(event.body)


def cloud_event(event: Event, data: object) -> CloudEvent:
    """Return an event as a CloudEvent.

    Args:
        data: what it says, as `event_body` has it.
    """
    return CloudEvent(
        specversion="1.0",
        id=str(event.id),
        source=f"/v1/clusters/{event.cluster}",
        type=TYPE_PREFIX + event.type,
        subject=event.subject or event.stream,
        time=time_text(event.occurred_at),
        datacontenttype="application/json",
        cluster=event.cluster,
        position=str(event.position),
        sequence=f"{event.position:020}",
        partitionkey=event.stream,
        streamversion=event.version,
        schemaversion=event.schema,
        actor=event.actor,
        recordedtime=time_text(event.recorded_at),
        hash=event.hash.hex(),
        traceparent=traceparent(event),
        causeid="" if event.cause is None else str(event.cause),
        correlation=event.correlation,
        data=data,
    )
