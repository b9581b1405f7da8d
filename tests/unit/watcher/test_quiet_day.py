"""A watcher over two hours in which nothing happens: ready by its own `/readyz`, with nothing to report."""

import asyncio
from collections import Counter
from typing import Any

import pytest
import structlog
from kai_watcher.metrics import WatcherMetrics
from kai_watcher.watcher import API, LISTS, LOG, Watcher
from kaicore.errors import ApiStatus
from kaicore.kube.api.client import KubeClient
from kaicore.ledger.log.memory import MemoryLog
from kaicore.runtime.service import Health, ServiceContext, get_logger
from kaicore.runtime.service.health import with_health
from prometheus_client import CollectorRegistry

from tests.given.doubles.virtual_time import run_virtually
from tests.given.servers.http_app import answered
from tests.unit.kube.test_reflector_quiet import SilentServer

#: A load balancer in front of the API server cuts what is silent for so long; None: there is none.
CUTS = (None, 60.0)


class SilentCluster(SilentServer):
    """An API server without a single object, that serves NodeResourceTopologies and no other resource of a CRD."""

    async def get(self, path: str, params: Any = None, *, accept: str = "") -> bytes:
        group = "topology.node.k8s.io"
        if path == "/apis":
            return b'{"groups": [{"name": "%b", "versions": [{"version": "v1alpha2"}]}]}' % group.encode()
        if path == f"/apis/{group}/v1alpha2":
            return b'{"resources": [{"name": "noderesourcetopologies"}]}'
        raise ApiStatus(404, "NotFound", path)

    find = KubeClient.find


async def quiet(server: SilentCluster, seconds: float) -> list[tuple[int, str]]:
    """Run a watcher for so long; what `/readyz` said each minute, from the second one on."""
    loop = asyncio.get_running_loop()
    clock = lambda: int(loop.time() * 1_000_000)  # noqa: E731
    registry = CollectorRegistry()
    context = ServiceContext(name="watcher", health=Health(LOG, API, LISTS), log=get_logger())
    app = with_health(context.health, registry=registry)
    watcher = Watcher(
        cluster="c",
        instance="one",
        log=MemoryLog(clock),
        client=server,  # type: ignore[arg-type]
        context=context,
        metrics=WatcherMetrics("c", registry=registry),
        clock=clock,
    )
    running = asyncio.create_task(watcher.run())
    answers = []
    while loop.time() < seconds:
        await asyncio.sleep(60)
        answers.append(await answered(app, "/readyz"))
    context.stopping.set()
    await running
    return answers


@pytest.mark.parametrize("cut_after_s", CUTS)
def test_quiet_hours_leave_the_watcher_ready_and_its_log_clean(cut_after_s: float | None) -> None:
    """Each idle kind was reported as a failure each 150 s, for no bookmarks come of it, and the watcher was unready."""
    server = SilentCluster(cut_after_s=cut_after_s)
    with structlog.testing.capture_logs() as lines:
        # Ends before the second hour does: a watch that ends with that may still be followed by a list.
        answers = run_virtually(quiet(server, 7_000))
    assert len(answers) >= 116
    assert set(answers) == {(200, "[+]log ok\n[+]api ok\n[+]lists ok\nready\n")}
    assert [line for line in lines if line["log_level"] != "info"] == []
    listed = Counter(line["kind"] for line in lines if line["event"] == "listed")
    assert set(listed.values()) == {2}, "at first, and after an hour to compare"
    assert listed.total() == server.lists
    assert len(lines) < 40, "a line for each list, and nothing for each watch"


def test_watches_that_are_cut_at_once_are_told_and_the_watcher_is_not_ready() -> None:
    server = SilentCluster(cut_after_s=1.0)
    with structlog.testing.capture_logs() as lines:
        answers = run_virtually(quiet(server, 3600))
    assert 503 in {status for status, _ in answers}
    assert any(line["log_level"] == "warning" for line in lines)
