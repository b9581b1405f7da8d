"""The skeleton of a service process: settings, structured logs, health, metrics, signals."""

from kaicore.runtime.process_context import Health
from kaicore.runtime.service.logs import configure_logging, get_logger
from kaicore.runtime.service.process import Service, ServiceContext
from kaicore.runtime.service.settings import ServiceSettings, read_settings

__all__ = [
    "Health",
    "Service",
    "ServiceContext",
    "ServiceSettings",
    "configure_logging",
    "get_logger",
    "read_settings",
]
