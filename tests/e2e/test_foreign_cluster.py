"""`kai up --kubeconfig` schedules on any API server that it is pointed at, with `kai fleet` as its nodes."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kai_simulator.apiserver.process import ApiServerProcess

from tests.e2e.live_stack import LiveStack, finished, pod_manifest
from tests.servers import scratch_directory

pytestmark = pytest.mark.slow


@contextmanager
def fleet(kubeconfig: Path, directory: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "kai_cli.main", "fleet", "--kubeconfig", str(kubeconfig), "--profile", "mini"]
    process = subprocess.Popen([*command, "--data-dir", str(directory), "--install-crds", "true"])
    yield
    process.terminate()
    assert process.wait(30) == 0


async def test_schedules_where_the_kubeconfig_says() -> None:
    with scratch_directory() as root:
        (root / "apiserver").mkdir()
        server = ApiServerProcess(root / "apiserver")
        await server.start()
        stack = LiveStack(root / "kai", kubeconfig=server.kubeconfig)
        try:
            with fleet(server.kubeconfig, root / "fleet"):
                # In a thread, for the server's log is read by this one.
                await asyncio.to_thread(stack.start)
                assert not stack.cluster.simulated
                await stack.until(lambda state: len(state.columns.zones.resources) > 0)
                await stack.create(
                    *(pod_manifest(f"p-{n}", seconds=1, cpu="2", memory="1Gi", gpu="1") for n in range(6))
                )
                state = await stack.until(finished(6))
                assert state.tally.rejections == {}
                assert await asyncio.to_thread(stack.interrupt) == 0
        finally:
            await server.stop()
