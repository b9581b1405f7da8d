"""Structured logs: one JSON object a line on stderr, or aligned text on a terminal.

Equal lines are limited. Otherwise a client that makes a service log something, such as the refusal of a request, could
fill the disk. Lines are equal if their level and event are equal, whatever their other fields.
"""

import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any, cast

from kaicore.interpreter import without

# structlog draws tracebacks with rich where it is there. Lines of a service need no drawing.
with without("rich"):
    import structlog

from kaicore.runtime.rate_limit import RepeatedLines, StandardError

Logger = structlog.typing.FilteringBoundLogger


class SameLines(logging.Filter):
    """Drops lines when too many say the same; the next one that passes says how many were dropped.

    A processor of structlog, and a filter of the standard library.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: clock: seconds, of a clock that does not jump."""
        super().__init__()
        self._repeats = RepeatedLines(clock)

    def __call__(self, _: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Let a line of structlog pass, or drop it."""
        dropped = self._repeats.dropped_before(f"{method} {line.get('event')}")
        if dropped is None:
            raise structlog.DropEvent
        if dropped:
            line["same_lines_dropped"] = dropped
        return line

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a line of the standard library pass, or drop it; lines are the same whatever they are filled with."""
        dropped = self._repeats.dropped_before(f"{record.levelname} {record.name} {record.msg}")
        if dropped:
            record.msg = f"{record.msg} ({dropped} same lines dropped)"
        return dropped is not None


def configure_logging(service: str, *, level: str = "info") -> None:
    """Send this process's logs, the libraries' own included, to stderr: as JSON, on a terminal as aligned text.

    Args:
        level: `debug`, `info`, `warning` or `error`.
    """
    numeric = logging.getLevelNamesMapping()[level.upper()]
    same_lines = SameLines()
    standard_error: Any = StandardError()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=False)]
        if sys.stderr.isatty()
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
    logging.getLogger("kaicore").setLevel(numeric)
    # Each attempt to connect would be a line beside ours, which says that the log does not answer, and that it does.
    logging.getLogger("psycopg.pool").setLevel(logging.WARNING if numeric < logging.INFO else logging.ERROR)


def get_logger(**fields: Any) -> Logger:
    """Return a logger; `fields` go into every line it writes."""
    return cast("Logger", structlog.get_logger(**fields))
