"""Structured logs of an agent: the lines that services write, one JSON object each on stderr, without structlog."""

import logging
import time
import traceback
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

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
