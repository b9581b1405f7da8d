"""What a service tells of itself over HTTP: `/healthz`, `/readyz` and Prometheus `/metrics`."""

from collections.abc import Mapping
from types import MappingProxyType

from aiohttp import web
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest


class Health:
    """Named conditions that a service must meet to be ready.

    A service is alive while it answers at all, and ready when every condition that it declared is met.
    """

    def __init__(self, *conditions: str) -> None:
        self._conditions: dict[str, str | None] = dict.fromkeys(conditions, "not yet")

    def met(self, condition: str) -> None:
        """Mark a condition as met."""
        self._conditions[condition] = None

    def unmet(self, condition: str, why: str) -> None:
        """Mark a condition as not met, and say why."""
        self._conditions[condition] = why

    @property
    def conditions(self) -> Mapping[str, str | None]:
        """Each condition with the reason why it is not met, or None."""
        return MappingProxyType(self._conditions)

    @property
    def ready(self) -> bool:
        """Whether every condition is met."""
        return not any(self._conditions.values())

    def report(self) -> str:
        """One line per condition, in the style of `/readyz?verbose` of a Kubernetes API server."""
        lines = [f"[-]{name} failed: {why}" if why else f"[+]{name} ok" for name, why in self._conditions.items()]
        return "\n".join([*lines, "ready" if self.ready else "not ready", ""])


def health_routes(health: Health, registry: CollectorRegistry = REGISTRY) -> list[web.RouteDef]:
    """Return the three routes, for a service that has an aiohttp application."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text=health.report(), status=200 if health.ready else 503)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)]
