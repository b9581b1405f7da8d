"""Spans that the events of a batch end: of pods that reached a stage, and of gangs that started to run.

They are made from the log, from the first event of each pod on. So nothing has to be kept from batch to batch. A
projector that was started again may send a span twice; then both have the same id.

Sends spans to a receiver by OTLP over HTTP (opentelemetry.io/docs/specs/otlp, 1.7: protobuf to `/v1/traces`).

Spans wait here while the receiver is away, up to a limit; beyond it the oldest are dropped and counted. The log has
what they were made from, so nothing is lost for good: `/v1/clusters/C/pods/NAMESPACE/NAME/trace` makes them again.
"""

import asyncio
from base64 import b64encode
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from kaicore.analysis.life.traces import as_trace, gang_spans, pod_spans
from kaicore.analysis.replay.log_states import events_of
from kaicore.errors import ConfigurationError
from kaicore.ledger.feed import Retry
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.group import is_gang, min_pods
from kaicore.rules.state.views import WorkView
from kaicore.runtime.service.logs import Logger
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from prometheus_client import Counter

#: Requests that wait for the receiver at most; each has the spans of one batch of events.
_MOST_WAITING = 200
#: Seconds that the receiver may take, and until it is asked again, doubled each time up to the second.
_ANSWER_S, _RETRY_S, _RETRY_MAX_S = 10.0, 1.0, 60.0
#: Statuses after which the same is sent again; after any other error it is dropped.
_AGAIN = frozenset({429, 502, 503, 504})


def traces_url(endpoint: str) -> str:
    """Return where traces are sent: the endpoint of a receiver with `/v1/traces` behind it.

    Raises:
        ConfigurationError: it is no address.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigurationError(f"otlp_endpoint {endpoint!r}: is no address: http://HOST:4318")
    return endpoint if endpoint.endswith("/v1/traces") else f"{endpoint.rstrip('/')}/v1/traces"


def read_headers(text: str) -> dict[str, str]:
    """Read headers as OTEL_EXPORTER_OTLP_HEADERS has them: `name=value,name=value`.

    Raises:
        ConfigurationError: it is none of that form; the value is not shown, for it may be a secret.
    """
    headers = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise ConfigurationError("otlp_headers: is not of the form name=value,name=value")
        headers[name.strip()] = value.strip()
    return headers


class OtlpSender:
    """Sends requests to one receiver, in order."""

    def __init__(
        self, url: str, headers: Mapping[str, str], *, sent: Counter, dropped: Counter, logger: Logger
    ) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/x-protobuf", **headers}
        self._sent, self._dropped = sent, dropped
        self._logger = logger.bind(receiver=url)
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._grown = asyncio.Event()
        self._retry = Retry(first_s=_RETRY_S, most_s=_RETRY_MAX_S)

    def take(self, request: bytes, spans: int) -> None:
        """Have a request with so many spans sent; returns at once."""
        if len(self._waiting) == _MOST_WAITING:
            self._dropped.inc(self._waiting.popleft()[1])
        self._waiting.append((request, spans))
        self._grown.set()

    async def run(self) -> None:
        """Send until cancelled."""
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session:
            while True:
                await self._grown.wait()
                self._grown.clear()
                while self._waiting:
                    await asyncio.sleep(self._retry.remaining_s)
                    # Taken out: while it is sent, others may be dropped.
                    request, spans = self._waiting.popleft()
                    if not await self._send(session, request, spans):
                        self._waiting.appendleft((request, spans))

    async def _send(self, session: aiohttp.ClientSession, request: bytes, spans: int) -> bool:
        """Send; return whether it is done with, taken or not."""
        try:
            async with session.post(self._url, data=request, allow_redirects=False) as response:
                status, body = response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._wait(f"{type(error).__name__}: {error}")
            return False
        if status in _AGAIN:
            self._wait(f"status {status}")
            return False
        self._retry.succeeded()
        refused = spans if status >= 300 else _refused(body)
        self._sent.inc(spans - refused)
        if refused:
            self._dropped.inc(refused)
            self._logger.error("a receiver of traces refuses spans", status=status, spans=refused)
        return True

    def _wait(self, error: str) -> None:
        self._retry.failed()
        self._logger.warning("a receiver of traces does not answer", waiting=len(self._waiting) + 1, error=error)


def _refused(body: bytes) -> int:
    try:
        return ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans
    except DecodeError:
        return 0


#: Spans that ended longer ago are not sent: read models that are made anew, and a projector that was away for a day,
#: would send what is known.
MOST_AGE_US = 3600 * 1_000_000

_STREAMS = "pod/"


async def ended_spans(log: EventLog, state: WorkView, events: Sequence[Event], *, now: int) -> list[dict[str, Any]]:
    """Return the spans that a batch of events ends.

    Args:
        state: of the cluster, as of the last of the events.
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


def _gang(state: WorkView, stream: str) -> str:
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
