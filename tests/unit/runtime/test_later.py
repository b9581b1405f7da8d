"""A service that has what it needs and no application yet is not ready."""

from kaicore.runtime.process_context import Health
from kaicore.runtime.service.health import Later, with_health

from tests.given.servers.http_app import answered


async def test_service_whose_application_comes_later_is_ready_only_once_it_answers() -> None:
    health = Health("log")
    later = Later(health)
    health.met("log")
    assert [(await answered(later, path))[0] for path in ("/healthz", "/readyz", "/v1/clusters")] == [200, 503, 503]
    assert "[-]answers failed: not yet" in health.report()
    later.give(with_health(health))
    assert [(await answered(later, path))[0] for path in ("/readyz", "/v1/clusters")] == [200, 404]
