"""Trace and span ids of events, by the W3C's Trace Context, derived from the event alone.

So the relay, the API and every reader of the log give the same event the same ids, and none has to be stored. A span is
an event. A trace is the subject of the event: a pod, from its first observation to its end. Where an event is about no
pod, its trace is its correlation, such as a cycle.
"""

from hashlib import sha256

from kaicore.rules.events.envelope import Event

#: Streams of pods; all events of one are of one trace.
_POD = "pod/"


def trace_id(cluster: str, subject: str) -> str:
    """Return the id of the trace of a stream or a correlation: 32 hexadecimal digits."""
    return sha256(f"{cluster}\x1f{subject}".encode()).hexdigest()[:32]


def trace_of(event: Event) -> str:
    """Return the id of the trace that an event is of."""
    about = event.stream if event.stream.startswith(_POD) else event.correlation or event.stream
    return trace_id(event.cluster, about)


def span_of(event: Event) -> str:
    """Return the id of an event's span: 16 hexadecimal digits of the event's own id."""
    return event.id.hex[:16]


def traceparent(event: Event) -> str:
    """Return an event as the header `traceparent` has it: version 00, sampled."""
    return f"00-{trace_of(event)}-{span_of(event)}-01"
