"""Structured logs: one JSON object a line on stderr, or aligned text on a terminal.

Lines that say the same are limited: a client that can make a service say something, such as why it refuses a request,
could fill the disk with it otherwise. Lines say the same if their level and event are equal, whatever their other
fields.
"""

import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, cast

import structlog

from kaicore.runtime.service.rate_limit import RateLimits

Logger = structlog.typing.FilteringBoundLogger

#: Lines that say the same: at once, and in a second.
_SAME, _SAME_PER_S = 100, 2.0
#: Different lines that are told apart.
_DIFFERENT = 1000


class SameLines(logging.Filter):
    """Drops lines when too many say the same; the next one that passes says how many were dropped.

    A processor of structlog, and a filter of the standard library.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: clock: seconds, of a clock that does not jump."""
        super().__init__()
        self._clock = clock
        self._limits = RateLimits(per_s=_SAME_PER_S, burst=_SAME, keys=_DIFFERENT)
        self._dropped: dict[str, int] = {}

    def __call__(self, _: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Let a line of structlog pass, or drop it."""
        dropped = self._drop(f"{method} {line.get('event')}")
        if dropped is None:
            raise structlog.DropEvent
        if dropped:
            line["same_lines_dropped"] = dropped
        return line

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a line of the standard library pass, or drop it; lines are the same whatever they are filled with."""
        dropped = self._drop(f"{record.levelname} {record.name} {record.msg}")
        if dropped:
            record.msg = f"{record.msg} ({dropped} same lines dropped)"
        return dropped is not None

    def _drop(self, says: str) -> int | None:
        """Return None for a line to drop, else how many were dropped before it."""
        now = self._clock()
        if self._limits.of(says, now).take(now):
            return self._dropped.pop(says, 0)
        if len(self._dropped) < _DIFFERENT or says in self._dropped:
            self._dropped[says] = self._dropped.get(says, 0) + 1
        return None


class _StandardError:
    """Standard error as a log needs it: a full disk or a reader that has gone costs lines, never the service."""

    def write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


def configure_logging(service: str, *, level: str = "info", pretty: bool | None = None) -> None:
    """Send this process's logs, the libraries' own included, to stderr.

    Args:
        service: put into every line.
        level: `debug`, `info`, `warning` or `error`.
        pretty: aligned text instead of JSON; by default so on a terminal.
    """
    numeric = logging.getLevelNamesMapping()[level.upper()]
    human = sys.stderr.isatty() if pretty is None else pretty
    same_lines = SameLines()
    standard_error: Any = _StandardError()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=False)]
        if human
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    )
    structlog.configure(
        processors=[same_lines, *shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=structlog.PrintLoggerFactory(standard_error),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service)
    handler = logging.StreamHandler(standard_error)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    handler.addFilter(same_lines)
    logging.basicConfig(handlers=[handler], level=max(numeric, logging.WARNING), force=True)


def get_logger(**fields: Any) -> Logger:
    """Return a logger; `fields` go into every line it writes."""
    return cast("Logger", structlog.get_logger(**fields))
