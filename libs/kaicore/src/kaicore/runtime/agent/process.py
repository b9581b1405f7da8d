"""An agent as a process, as `kaicore.runtime.service.process` runs a service, with less memory.

Health and metrics are served over HTTP as services serve them: `/healthz`, `/readyz` and `/metrics`. Waits are drawn
(`kaicore.backoff.jittered`) without `random`, which takes 0.2 MB (decision 0500). Logs are the lines that services
write, one JSON object each on stderr, without structlog.
"""

import asyncio
import gc
import logging
import os
import socket
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, TypeVar

import h11
import msgspec

from kaicore.errors import ConfigurationError
from kaicore.runtime.agent.metrics import CONTENT_TYPE, Registry, process_metrics
from kaicore.runtime.agent.settings import AgentSettings, read_agent_settings
from kaicore.runtime.process_context import Health, ProcessContext, run_until_stopped, served, start
from kaicore.runtime.rate_limit import RepeatedLines, StandardError


class Log(Protocol):
    """The interface of loggers; a service's logger is one, too."""

    def info(self, event: str, **fields: Any) -> Any:
        """Write what happened."""

    def warning(self, event: str, **fields: Any) -> Any:
        """Write what somebody should look at."""

    def error(self, event: str, **fields: Any) -> Any:
        """Write what does not work."""


class AgentLog:
    """Writes lines of a process; those that say the same are limited."""

    def __init__(self, process: str, *, level: str = "info") -> None:
        """Args:
        process: put into every line as `service`.
        level: the least that is written: `debug`, `info`, `warning` or `error`.
        """
        self._process = process
        self._least = logging.getLevelNamesMapping()[level.upper()]
        self._repeats = RepeatedLines(time.monotonic)
        self._stderr = StandardError()

    def info(self, event: str, **fields: Any) -> None:
        """See `Log.info`."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """See `Log.warning`."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """See `Log.error`."""
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if logging.getLevelNamesMapping()[level.upper()] < self._least:
            return
        dropped = self._repeats.dropped_before(f"{level} {event}")
        if dropped is None:
            return
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        line = {**fields, "event": event, "service": self._process, "level": level, "timestamp": now}
        if dropped:
            line["same_lines_dropped"] = dropped
        text = msgspec.json.format(msgspec.json.encode(line, enc_hook=str), indent=0)
        self._stderr.write(text.decode() + "\n")


class LibraryLines(logging.Handler):
    """Writes what libraries log, as lines of the process."""

    def __init__(self, log: AgentLog) -> None:
        """Args: log: where they go."""
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        fields = {"logger": record.name}
        if record.exc_info:
            fields["exception"] = "".join(traceback.format_exception(*record.exc_info))
        (self._log.error if record.levelno >= logging.ERROR else self._log.warning)(record.getMessage(), **fields)


#: Connections at once, seconds that one may be idle, and bytes of a request.
_MOST, _IDLE_S, _REQUEST = 32, 30.0, 16 * 1024

_TEXT = "text/plain; charset=utf-8"


class HealthServer:
    """Answers probes and scrapes; one more than `_MOST` connections is closed at once."""

    def __init__(self, health: Health, registry: Registry) -> None:
        """Args:
        health: is answered at `/readyz`.
        registry: is answered at `/metrics`.
        """
        self._health, self._registry = health, registry
        self._connections = 0
        self._server: asyncio.Server | None = None

    async def start(self, *, host: str, port: int, fd: int | None = None) -> str:
        """Listen; return the address. Raises ConfigurationError: it cannot listen there."""
        try:
            listening = (
                socket.socket(fileno=fd) if fd is not None else socket.create_server((host, port), reuse_port=False)
            )
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"http_host, http_port: cannot listen on {host}:{port}: {error}") from error
        self._server = await asyncio.start_server(self._serve, sock=listening, limit=_REQUEST)
        address, number = listening.getsockname()[:2]
        return f"http://{f'[{address}]' if ':' in address else address}:{number}"

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= _MOST:
                with suppress(TimeoutError, OSError, h11.RemoteProtocolError):
                    await self._converse(reader, writer)
        finally:
            self._connections -= 1
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_REQUEST)
        request: h11.Request | None = None
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                async with asyncio.timeout(_IDLE_S):
                    connection.receive_data(await reader.read(_REQUEST))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                for part in self._answer(request):
                    writer.write(connection.send(part) or b"")
                await writer.drain()
                if connection.our_state is h11.MUST_CLOSE:
                    return
                connection.start_next_cycle()
            elif isinstance(event, h11.ConnectionClosed):
                return

    def _answer(self, request: h11.Request) -> tuple[h11.Response, h11.Data, h11.EndOfMessage]:
        path = request.target.decode("ascii", "replace").partition("?")[0]
        status, body, kind = self._page(path)
        if status == 200 and request.method not in (b"GET", b"HEAD"):
            status, body, kind = 405, '{"error": "only GET"}\n', "application/json"
        content = body.encode()
        headers = [("Content-Type", kind), ("Content-Length", str(len(content)))]
        shown = b"" if request.method == b"HEAD" else content
        return h11.Response(status_code=status, headers=headers), h11.Data(data=shown), h11.EndOfMessage()

    def _page(self, path: str) -> tuple[int, str, str]:
        match path:
            case "/healthz":
                return 200, "ok\n", _TEXT
            case "/readyz":
                return (200 if self._health.ready else 503), self._health.report(), _TEXT
            case "/metrics":
                return 200, self._registry.text(), CONTENT_TYPE
            case _:
                return 404, '{"error": "nothing is at this path"}\n', "application/json"


def jitter() -> float:
    """Return a random number, 0 to 1."""
    return int.from_bytes(os.urandom(4), "big") / 0xFFFF_FFFF


@dataclass(slots=True)
class AgentContext(ProcessContext[Log]):
    """The context of an agent, with the metrics that it shows."""

    registry: Registry = field(default_factory=Registry)


_SettingsT = TypeVar("_SettingsT", bound=AgentSettings)


def run_agent(
    name: str,
    settings_class: type[_SettingsT],
    body: Callable[[AgentContext, _SettingsT], Awaitable[None]],
    *,
    conditions: tuple[str, ...] = (),
) -> int:
    """Run `body` until it returns or the process is asked to stop; return the exit code of `start`.

    Args:
        settings_class: read from flags and environment before anything starts.
        conditions: what must be met before `/readyz` says so.
    """

    def run(settings: _SettingsT) -> int:
        log = AgentLog(name, level=settings.log_level)
        logging.basicConfig(handlers=[LibraryLines(log)], level=logging.WARNING, force=True)
        context = AgentContext(name, Health(*conditions), log)
        # What is there by now stays: it need not be looked at again. What comes is little, and an agent is to stay
        # small.
        gc.collect()
        gc.freeze()
        gc.set_threshold(700, 10, 10)
        return asyncio.run(served(context, _run(context, settings, partial(body, context, settings))))

    return start(name, read=lambda: read_agent_settings(settings_class), run=run)


async def _run(context: AgentContext, settings: AgentSettings, body: Callable[[], Awaitable[None]]) -> None:
    process_metrics(context.registry)
    server = HealthServer(context.health, context.registry)
    address = await server.start(host=settings.http_host, port=settings.http_port, fd=settings.http_fd)
    context.log.info("health server listening", address=address)
    try:
        await run_until_stopped(context, body())
    finally:
        await server.close()
        context.log.info("stopped")
