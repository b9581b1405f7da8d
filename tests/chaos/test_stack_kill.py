"""Everything dies while pods flow, one thing after another: nothing is lost, nothing is bound twice."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kaicore.ledger.log.port import Filter
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload

from tests.e2e.live_stack import PATIENCE_S, LiveStack, finished, ours, pod_manifest
from tests.servers import scratch_directory

pytestmark = pytest.mark.slow

SERVICES = ("kai_relay", "kai_watcher", "kai_scheduler", "kai_binder", "kai_ingest", "fleet.main", "apiserver.main")


@pytest.fixture(scope="module")
def stack() -> Iterator[LiveStack]:
    with scratch_directory() as root:
        live = LiveStack(root)
        live.start()
        yield live
        live.interrupt()


async def flow(stack: LiveStack, wave: str, count: int = 12) -> None:
    await stack.create(
        *(pod_manifest(f"{wave}-{number}", seconds=0.5, cpu="2", memory="2Gi", gpu="1") for number in range(count))
    )


async def check_bound_once(stack: LiveStack, *waves: str) -> None:
    names: Counter[str] = Counter()
    head = 0
    async with stack.log() as log, asyncio.timeout(PATIENCE_S):
        # A binder that was killed between a bind and its record records it when it is back.
        while len(names) < 12 * len(waves):
            head = await log.wait_beyond("e2e", head, timeout_s=1)
            events = await log.read("e2e", where=Filter(types=("PodBound",)), limit=100_000)
            bound = [item.name for event in events if isinstance(item := decode_payload(event), payloads.PodBound)]
            names = Counter(name for name in bound if name.startswith(waves))
    assert set(names.values()) == {1}
    assert len(names) == 12 * len(waves)
    state = await stack.check()
    assert state.counters.rejections == {}


async def test_nats_dies_and_loses_its_store_while_pods_flow(stack: LiveStack) -> None:
    await flow(stack, "wipe-before")
    await stack.until(lambda state: bool(ours(state, "wipe-before")))
    stack.kill_service("nats-server")
    shutil.rmtree(Path(stack.directory.nats) / "data", ignore_errors=True)
    await flow(stack, "wipe-after")
    await stack.until(lambda state: finished(12, "wipe-before")(state) and finished(12, "wipe-after")(state))
    await check_bound_once(stack, "wipe-before", "wipe-after")


async def test_postgres_dies_while_pods_flow(stack: LiveStack) -> None:
    await flow(stack, "database-before")
    await stack.until(lambda state: bool(ours(state, "database-before")))
    stack.kill_service("postgres")
    await flow(stack, "database-after")
    await stack.until(lambda state: finished(12, "database-before")(state) and finished(12, "database-after")(state))
    await check_bound_once(stack, "database-before", "database-after")


async def test_each_service_dies_while_pods_flow(stack: LiveStack) -> None:
    for service in SERVICES:
        wave = service.split(".")[0].replace("_", "-") + "-dies"
        await flow(stack, wave)
        await stack.until(lambda state, wave=wave: bool(ours(state, wave)))  # type: ignore[misc]
        stack.kill_service(service)
        await stack.until(finished(12, wave))
        await check_bound_once(stack, wave)
