"""The skeleton of a service process: settings, structured logs, health, metrics, signals."""

from kaicore.service.health import Health
from kaicore.service.logs import configure_logging, get_logger
from kaicore.service.process import ServiceContext, run_service
from kaicore.service.settings import ServiceSettings, read_settings

__all__ = [
    "Health",
    "ServiceContext",
    "ServiceSettings",
    "configure_logging",
    "get_logger",
    "read_settings",
    "run_service",
]
