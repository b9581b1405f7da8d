"""`kai up --ha`: the first instance of every service stands still, and the second ones do all of the work."""

import asyncio
import os
from contextlib import ExitStack
from urllib.request import urlopen

import pytest

from tests.e2e.live_stack import LiveStack, finished, pod_manifest, running
from tests.given.processes.service_process import frozen
from tests.given.servers.servers import scratch_directory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("KAI_TEST_LONG" not in os.environ, reason="takes a minute: make chaos"),
]

SERVICES = ("relay", "projector", "api", "watcher", "scheduler", "binder", "ingest")


async def test_work_comes_to_its_end_while_the_first_instance_of_every_service_stands_still() -> None:
    with scratch_directory() as root, running(LiveStack(root, flags=("--ha",))) as stack:
        with ExitStack() as still:
            for service in SERVICES:
                still.enter_context(frozen(stack.pid_of(f"kai_{service}.main")))
            await stack.create(pod_manifest("late", seconds=1, cpu="1", memory="1Gi"))
            await stack.until(finished(1))
            assert stack.ask("why", "late")["verdict"]
            answer = await asyncio.to_thread(urlopen, f"{stack.running.api_url}/readyz", timeout=10)
            assert answer.status == 200
        await stack.check()
