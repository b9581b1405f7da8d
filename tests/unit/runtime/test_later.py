"""A service that has what it needs and no application yet is not ready."""

from typing import Any

from kaicore.runtime.process_context import Health
from kaicore.runtime.service.health import Later, with_health


async def status(app: Any, path: str) -> int:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "http", "method": "GET", "path": path}, None, send)
    return int(sent[0]["status"])


async def test_service_whose_application_comes_later_is_ready_only_once_it_answers() -> None:
    health = Health("log")
    later = Later(health)
    health.met("log")
    assert [await status(later, path) for path in ("/healthz", "/readyz", "/v1/clusters")] == [200, 503, 503]
    assert "[-]answers failed: not yet" in health.report()
    later.give(with_health(health))
    assert [await status(later, path) for path in ("/readyz", "/v1/clusters")] == [200, 404]
