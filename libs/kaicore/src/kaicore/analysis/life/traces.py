"""A pod's way from its creation to its end as an OpenTelemetry trace, in the JSON of OTLP.

Ids follow from the events (`kaicore.rules.events.envelope`), so a trace is the same at every request. It is also
the trace that `traceparent` names on the bus and in CloudEvents. A step is a span that ends with an event and has its
id.

Events as answers: as plain JSON, and as CloudEvents 1.0 (https://github.com/cloudevents/spec).

docs/reference/cloudevents.md maps the parts of an event to attributes.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from kaicore.analysis.json_spelling import Answer, spelled, time_text
from kaicore.errors import UnknownEvent
from kaicore.interpreter import version
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event, span_of, trace_id, trace_of, traceparent
from kaicore.rules.state.pods.pod_life import LifeEvent, life_steps

#: Begins the type of every CloudEvent of ours; the event's type follows.
TYPE_PREFIX = "kai."


class EventAnswer(Answer, frozen=True, kw_only=True):
    """An event (`kaicore.rules.events.envelope.Event`); `body` is as the current schema has it."""

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
    return EventAnswer.copied(
        event,
        id=str(event.id),
        cause=None if event.cause is None else str(event.cause),
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
    """Return an event as a CloudEvent (`data`: what it says, as `event_body` has it)."""
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


#: Of OTLP: a span of something inside, and a status that is an error.
_INTERNAL, _ERROR = 1, 2
_NAME = "kai-ledger"
#: Steps by the event that ends them, each with whether it went wrong.
_STEPS = {
    LifeEvent.PLACED: ("decide", False),
    LifeEvent.BOUND: ("bind", False),
    LifeEvent.BIND_FAILED: ("bind", True),
    LifeEvent.STARTED: ("start", False),
    LifeEvent.REJECTED: ("start", True),
    LifeEvent.EVICTION_DECIDED: ("run until evicted", False),
}


class TraceAnswer(Answer, frozen=True, kw_only=True):
    """A trace as OTLP/HTTP takes it (`ExportTraceServiceRequest`)."""

    resource_spans: list[dict[str, Any]]


def pod_trace(events: Sequence[Event]) -> TraceAnswer:
    """Return the trace of one pod, of the events of its stream in order; there is at least one."""
    return as_trace(events[0].cluster, pod_spans(events, upto=events[-1].position))


def as_trace(cluster: str, spans: list[dict[str, Any]]) -> TraceAnswer:
    """Return spans of one cluster as a trace."""
    of_service = {"service.name": _NAME, "service.version": version(), "k8s.cluster.name": cluster}
    scope = {"name": _NAME, "version": version()}
    resource = {"attributes": _attributes(of_service)}
    return TraceAnswer(resource_spans=[{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}])


def pod_spans(
    events: Sequence[Event], *, group: str = "", after: int = 0, upto: int | None = None
) -> list[dict[str, Any]]:
    """Return the spans of a pod that end after a position: its way from creation to running, and the steps.

    Args:
        events: of its stream, in order; at least one.
        group: key of the gang that it is of; empty for none.
        upto: where the way ends that goes on still; None to leave it out.
    """
    first = events[0]
    begins = reached = _created_at(first)
    steps: list[dict[str, Any]] = []
    end, failed = None, False
    for event, payload, part, life in life_steps(events):
        name, wrong = _step(part, payload)
        if end is None and (life.running_at or name == "run" or wrong or part is LifeEvent.DELETED):
            # A bind that failed is tried again.
            end, failed = (None, False) if part is LifeEvent.BIND_FAILED else (event, wrong)
        if name:
            step = _span(event, name, begins=reached, wrong=wrong) | {"parentSpanId": span_of(first)}
            steps += [step] if event.position > after else []
            reached = event.recorded_at
    if end is None and upto is not None:
        end = events[-1]
    if end is None or end.position <= after:
        return steps
    root = _span(end, f"pod {first.subject}", begins=begins, wrong=failed) | {"spanId": span_of(first)}
    if group:
        root["attributes"] += _attributes({"kai.group": group})
        root["links"] = [*root.get("links", ()), {"traceId": _gang(first, group), "spanId": _gang(first, group)[:16]}]
    return [root, *steps]


def gang_spans(
    group: str, members: Sequence[Sequence[Event]], *, minimum: int, after: int, upto: int
) -> list[dict[str, Any]]:
    """Return the spans of a gang if it came to run after a position: the gang, and below it its pods' ways.

    A pod's way has a trace of its own, which its span here leads to.

    Args:
        members: the events of each of its pods, in order.
    """
    ways = [(events, way) for events in members if events and (way := _running(events)) is not None]
    ways = sorted((one for one in ways if one[1].position <= upto), key=lambda one: one[1].position)
    if not minimum or len(ways) < minimum or ways[minimum - 1][1].position <= after:
        return []
    first, last = ways[0][0][0], ways[minimum - 1][1]
    trace = _gang(first, group)
    begins = min(_created_at(events[0]) for events, _ in ways)
    gang = _span(last, f"gang {group}", begins=begins, wrong=False)
    about = _attributes(_named(last) | {"kai.group": group})
    gang |= {"traceId": trace, "spanId": trace[:16], "attributes": about, "links": []}
    spans = [gang]
    for events, way in ways[:minimum]:
        one = _span(way, f"pod {way.subject}", begins=_created_at(events[0]), wrong=False)
        own = {"traceId": one["traceId"], "spanId": span_of(events[0])}
        place = {"traceId": trace, "spanId": own["traceId"][:16], "parentSpanId": gang["spanId"]}
        spans.append(one | place | {"links": [own]})
    return spans


def _gang(event: Event, group: str) -> str:
    return trace_id(event.cluster, f"group/{group}")


def _running(events: Sequence[Event]) -> Event | None:
    """Return the event with which a pod came to run; None where it did not."""
    return next((step.event for step in life_steps(events) if step.part is LifeEvent.STARTED), None)


def _created_at(event: Event) -> int:
    payload = decode_payload(event)
    created = payload.pod.created_at * 1_000_000 if isinstance(payload, payloads.PodObserved) else 0
    return min(created, event.recorded_at) or event.recorded_at


def _step(part: LifeEvent | None, payload: payloads.Payload) -> tuple[str, bool]:
    """Return which step an event ends, and whether it went wrong; empty where it ends none."""
    if part is LifeEvent.FINISHED and isinstance(payload, payloads.PodObserved):
        return "run", payload.pod.phase == "Failed"
    return _STEPS.get(part, ("", False)) if part is not None else ("", False)


def _span(event: Event, name: str, *, begins: int, wrong: bool) -> dict[str, Any]:
    payload = decode_payload(event)
    node = payload.pod.node_name if isinstance(payload, payloads.PodObserved) else getattr(payload, "node", "")
    namespace, _, pod = event.subject.rpartition("/")
    # OpenTelemetry's semantic conventions 1.37, Kubernetes attributes.
    named = _named(event) | {
        "k8s.namespace.name": namespace,
        "k8s.pod.name": pod,
        "k8s.pod.uid": event.stream.rpartition("/")[2],
        "k8s.node.name": node if isinstance(node, str) else "",
    }
    span: dict[str, Any] = {
        "traceId": trace_of(event),
        "spanId": span_of(event),
        "name": name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(min(begins, event.recorded_at) * 1000),
        "endTimeUnixNano": str(event.recorded_at * 1000),
        "attributes": _attributes(named),
        "status": {"code": _ERROR} if wrong else {},
    }
    if event.correlation:
        # The cycle has a trace of its own; the event that caused this one is a span of it, where it is known.
        cycle = trace_id(event.cluster, event.correlation)
        span["links"] = [{"traceId": cycle, "spanId": (event.cause or event.id).hex[:16]}]
    return span


def _named(event: Event) -> dict[str, str]:
    return {"kai.event": event.type, "kai.position": str(event.position), "kai.correlation": event.correlation}


def _attributes(values: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": name, "value": {"stringValue": value}} for name, value in values.items() if value]
