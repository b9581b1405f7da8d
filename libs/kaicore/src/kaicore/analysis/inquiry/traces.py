"""A pod's way from its creation to its end as an OpenTelemetry trace, in the JSON of OTLP.

Ids follow from the events (`kaicore.rules.events.trace_context`), so a trace is the same whenever it is asked for, and
the one that `traceparent` names on the bus and in CloudEvents. A step is a span that ends with an event and has its id.
"""

from collections.abc import Sequence
from typing import Any

from kaicore.analysis.inquiry.answers import Answer
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.trace_context import span_of, trace_id, trace_of

#: Of OTLP: a span of something inside, and a status that is an error.
_INTERNAL, _ERROR = 1, 2


class TraceAnswer(Answer, frozen=True, kw_only=True):
    """A trace as OTLP/HTTP takes it (`ExportTraceServiceRequest`)."""

    resource_spans: list[dict[str, Any]]


def pod_trace(events: Sequence[Event]) -> TraceAnswer:
    """Return the trace of one pod.

    Args:
        events: of its stream, in order; at least one.
    """
    first = events[0]
    begins = _created_at(first)
    spans: list[dict[str, Any]] = []
    reached, failed, running = begins, False, False
    for event in events:
        payload = decode_payload(event)
        name, wrong = _step(payload, running=running)
        if not name:
            continue
        running = running or name == "start"
        failed = failed or wrong
        spans.append(_span(event, name, begins=reached, wrong=wrong, parent=span_of(first)))
        reached = event.recorded_at
    root = _span(events[-1], f"pod {first.subject}", begins=begins, wrong=failed, parent="")
    root |= {"spanId": span_of(first)}
    resource = {"attributes": _attributes({"service.name": "kai-ledger", "k8s.cluster.name": first.cluster})}
    scoped = {"scope": {"name": "kai-ledger"}, "spans": [root, *spans]}
    return TraceAnswer(resource_spans=[{"resource": resource, "scopeSpans": [scoped]}])


def _created_at(event: Event) -> int:
    payload = decode_payload(event)
    created = payload.pod.created_at * 1_000_000 if isinstance(payload, payloads.PodObserved) else 0
    return min(created, event.recorded_at) or event.recorded_at


def _step(payload: payloads.Payload, *, running: bool) -> tuple[str, bool]:
    """Return which step an event ends, and whether it went wrong; empty where it ends none."""
    match payload:
        case payloads.PodPlaced():
            return "decide", False
        case payloads.PodBound():
            return "bind", False
        case payloads.BindFailed():
            return "bind", True
        case payloads.PodRejected():
            return "start", True
        case payloads.EvictionDecided() | payloads.HealRequested():
            return "run until evicted", False
        case payloads.PodObserved(pod=pod) if pod.finished:
            return "run", pod.phase == "Failed"
        case payloads.PodObserved(pod=pod) if pod.phase == "Running" and not running:
            return "start", False
        case _:
            return "", False


def _span(event: Event, name: str, *, begins: int, wrong: bool, parent: str) -> dict[str, Any]:
    named = {"kai.event": event.type, "kai.position": str(event.position), "kai.correlation": event.correlation}
    node = getattr(decode_payload(event), "node", "")
    span = {
        "traceId": trace_of(event),
        "spanId": span_of(event),
        "name": name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(min(begins, event.recorded_at) * 1000),
        "endTimeUnixNano": str(event.recorded_at * 1000),
        "attributes": _attributes(named | ({"k8s.node.name": node} if isinstance(node, str) else {})),
        "status": {"code": _ERROR} if wrong else {},
    }
    if parent:
        span["parentSpanId"] = parent
    if event.correlation:
        # The cycle has a trace of its own; the event that caused this one is a span of it, where it is known.
        cycle = trace_id(event.cluster, event.correlation)
        span["links"] = [{"traceId": cycle, "spanId": (event.cause or event.id).hex[:16]}]
    return span


def _attributes(values: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": name, "value": {"stringValue": value}} for name, value in values.items() if value]
