"""A receiver of OpenTelemetry traces: OTLP over HTTP, decoded by OpenTelemetry's own messages."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.given.servers.http_app import served_routes


class TraceReceiver:
    """Keeps the spans that it took, by name."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: dict[str, Any] = {}
        self.headers: list[Mapping[str, str]] = []
        #: Statuses of the next answers; nothing is taken with them.
        self.refusals: list[int] = []

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.refusals:
            return web.Response(status=self.refusals.pop(0))
        self.headers.append(request.headers)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.spans |= {span.name: span for span in scope.spans}
        content = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=content, content_type="application/x-protobuf")


@asynccontextmanager
async def trace_receiver() -> AsyncIterator[TraceReceiver]:
    """A receiver at a port of this machine."""
    receiver = TraceReceiver()
    async with served_routes(web.post("/v1/traces", receiver.take)) as receiver.url:
        yield receiver
