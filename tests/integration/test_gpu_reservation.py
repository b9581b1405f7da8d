"""The program of reservation pods, at an API server over HTTPS by its pod's account."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kai_apiserver.server import ApiServer, ApiServerOptions
from kai_gpu_reservation.main import GpuReservationSettings, reserve
from kaicore.errors import ConfigurationError
from kaicore.rules.objects.gpu_sharing import GPU_INDEX_ANNOTATION
from kaicore.runtime.agent.process import AgentContext, AgentLog
from kaicore.runtime.process_context import Health

from tests.given.servers.kube import PODS, Api, Json, as_pod_of

SETTINGS = GpuReservationSettings(pod_name="reservation", pod_namespace="default")


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """An API server, and this process as a pod of its cluster that was given a GPU."""
    async with ApiServer(ApiServerOptions(controllers=False, https=True)) as server:
        as_pod_of(server, tmp_path, monkeypatch)
        monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "GPU-1")
        api = Api(server)
        await api.pod("reservation", node="n1")
        yield api
        await api.client.close()


def context() -> AgentContext:
    return AgentContext("gpu-reservation", Health(), AgentLog("gpu-reservation", level="error"))


def named(pod: Json) -> bool:
    return bool((pod["metadata"].get("annotations") or {}).get(GPU_INDEX_ANNOTATION) == "GPU-1")


async def held(api: Api) -> None:
    """The program says its GPU, goes on, and ends when it is asked to."""
    ours = context()
    holding = asyncio.create_task(reserve(ours, SETTINGS))
    await api.until(f"{PODS}/reservation", named)
    assert not holding.done()
    ours.stopping.set()
    await holding


@pytest.mark.parametrize("fault", ["", "unauthorized", "internal-error", "lost-answer"])
async def test_pod_says_which_gpu_it_holds_whatever_the_first_answer_is(api: Api, fault: str) -> None:
    if fault:
        api.faults(verb="patch", resource="pods", kind=fault, times=1)
    await held(api)
    # A container that is started again says the same.
    await held(api)


async def test_pod_that_says_another_gpu_than_it_holds_ends(api: Api) -> None:
    await api.merge(f"{PODS}/reservation", {"metadata": {"annotations": {GPU_INDEX_ANNOTATION: "GPU-2"}}})
    with pytest.raises(ConfigurationError, match="holds GPU-1, and its annotation says GPU-2"):
        await reserve(context(), SETTINGS)
