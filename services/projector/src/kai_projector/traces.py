"""Spans that the events of a batch end: of pods that reached a stage, and of gangs that started to run.

They are made from the log, from the first event of each pod on. So nothing has to be kept from batch to batch. A
projector that was started again may send a span twice; then both have the same id.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from google.protobuf.json_format import ParseDict
from kaicore.analysis.inquiry.log_states import events_of
from kaicore.analysis.inquiry.traces import as_trace, gang_spans, pod_spans
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events.envelope import Event
from kaicore.rules.groups.tree import is_gang, min_pods
from kaicore.rules.state.cluster_state import ClusterState
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

#: Spans that ended longer ago are not sent: read models that are made anew, and a projector that was away for a day,
#: would send what is known.
MOST_AGE_US = 3600 * 1_000_000

_STREAMS = "pod/"


async def ended_spans(log: EventLog, state: ClusterState, events: Sequence[Event], *, now: int) -> list[dict[str, Any]]:
    """Return the spans that a batch of events ends.

    Args:
        log: the cluster's.
        state: of the cluster, as of the last of the events.
        events: the batch, in order.
        now: microseconds since the epoch.
    """
    fresh = [event for event in events if event.recorded_at >= now - MOST_AGE_US and event.stream.startswith(_STREAMS)]
    if not fresh:
        return []
    after, upto = fresh[0].position - 1, events[-1].position
    groups = {event.stream: _gang(state, event.stream) for event in fresh}
    members = {
        group: [f"{_STREAMS}{uid}" for uid in sorted(state.group_table.pods_of(group))]
        for group in set(groups.values())
        if group
    }
    wanted = tuple({*groups, *(stream for streams in members.values() for stream in streams)})
    stories: dict[str, list[Event]] = {stream: [] for stream in wanted}
    async for event in events_of(log, state.cluster, upto=upto, where=Filter(streams=wanted)):
        stories[event.stream].append(event)
    spans = [
        span
        for stream, group in groups.items()
        if stories[stream]
        for span in pod_spans(stories[stream], group=group, after=after)
    ]
    for group, streams in sorted(members.items()):
        pods = [stories[stream] for stream in streams]
        spans += gang_spans(group, pods, minimum=min_pods(state.groups[group].sets), after=after, upto=upto)
    return spans


def _gang(state: ClusterState, stream: str) -> str:
    """Return the key of the gang that a pod is of; empty where it starts for itself."""
    entry = state.pods.get(stream.removeprefix(_STREAMS))
    group = None if entry is None else state.groups.get(entry.group)
    return group.key if group is not None and is_gang(group) else ""


def encoded(cluster: str, spans: list[dict[str, Any]]) -> bytes:
    """Return spans as OTLP's protobuf."""
    resource_spans = [_as_proto(one) for one in as_trace(cluster, spans).resource_spans]
    request: bytes = ParseDict({"resourceSpans": resource_spans}, ExportTraceServiceRequest()).SerializeToString()
    return request


def _as_proto(value: Any, name: str = "") -> Any:
    """Return an object of OTLP's JSON as protobuf's JSON has it: ids are base64 there, not hexadecimal."""
    if isinstance(value, dict):
        return {key: _as_proto(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_proto(item) for item in value]
    if name in ("traceId", "spanId", "parentSpanId"):
        return b64encode(bytes.fromhex(value)).decode()
    return value
