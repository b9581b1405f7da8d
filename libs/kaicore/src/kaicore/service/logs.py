"""Structured logs: one JSON object a line on stderr, or aligned text on a terminal."""

import logging
import sys
from typing import Any, cast

import structlog

Logger = structlog.typing.FilteringBoundLogger


def configure_logging(service: str, *, level: str = "info", pretty: bool | None = None) -> None:
    """Send this process's logs, the libraries' own included, to stderr.

    Args:
        service: put into every line.
        level: `debug`, `info`, `warning` or `error`.
        pretty: aligned text instead of JSON; by default so on a terminal.
    """
    numeric = logging.getLevelNamesMapping()[level.upper()]
    human = sys.stderr.isatty() if pretty is None else pretty
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
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(numeric, logging.WARNING), force=True)


def get_logger(**fields: Any) -> Logger:
    """Return a logger; `fields` go into every line it writes."""
    return cast("Logger", structlog.get_logger(**fields))
