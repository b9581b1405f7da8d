"""`kai-gpu-reservation`: holds a GPU that is opened for shares, for as long as its pod is there.

It finds out which GPU the kubelet gave to its container, writes that into an annotation of its own pod, and waits. It
needs no more rights than to read and patch pods of its namespace. A node has as many of these processes as opened
GPUs, so it is an agent, which is small.

The GPU is named by the UUID that its driver knows it by, which stays the same when devices are numbered anew. NVIDIA's
device plugin names it in the environment (`NVIDIA_VISIBLE_DEVICES`) where its strategy is `envvar` with UUIDs, which is
its default. With indexes, volume mounts or CDI the environment does not say it, and the driver's library (NVML) is
asked. It sees the container's devices alone.
"""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import msgspec
from kaicore.backoff import backoff
from kaicore.errors import ApiStatus, ClusterUnavailable, ConfigurationError
from kaicore.rules.objects.gpu_sharing import GPU_INDEX_ANNOTATION, VISIBLE_DEVICES
from kaicore.runtime.agent.api_server import ApiServer, PodApiServer
from kaicore.runtime.agent.process import AgentContext, run_agent
from kaicore.runtime.agent.settings import AgentSettings
from kaicore.runtime.process_context import ProcessContext
from msgspec import Meta

#: What NVIDIA's UUIDs of GPUs begin with.
_UUID = "GPU-"


def own_gpu(environment: Mapping[str, str], *, driver: Callable[[], list[str]]) -> str:
    """Return the one GPU of this container.

    Raises ConfigurationError: the container has no GPU, or several; or the driver does not answer.

    Args:
        driver: returns the UUIDs of the container's GPUs.
    """
    named = environment.get(VISIBLE_DEVICES, "")
    gpus = named.split(",") if named.startswith(_UUID) else driver()
    if len(gpus) != 1:
        raise ConfigurationError(f"the container is to have one GPU; it has {len(gpus)}: {', '.join(gpus)}")
    return gpus[0]


def gpus_of_driver() -> list[str]:
    """Return the UUIDs of the GPUs that NVIDIA's driver shows to this container.

    Raises ConfigurationError: there is no driver, or it fails.
    """
    try:
        import pynvml  # noqa: PLC0415  # no other program of the image needs it
    except ImportError as error:
        needed = "nvidia-ml-py is not installed: pip install 'kai-ledger[gpu-reservation]'"
        raise ConfigurationError(needed) from error
    try:
        pynvml.nvmlInit()
        try:
            count = pynvml.nvmlDeviceGetCount()
            return [str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(number))) for number in range(count)]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise ConfigurationError(f"NVIDIA's driver does not say which GPU this container has: {error}") from error


#: Seconds between two tries: at first, and at most.
_FIRST_S, _LAST_S = 0.2, 10.0


class GpuReservationSettings(AgentSettings, frozen=True, kw_only=True):
    """Settings of `kai-gpu-reservation`; a reservation pod names both."""

    pod_name: Annotated[str, Meta(min_length=1, description="name of its own pod")]
    pod_namespace: Annotated[str, Meta(min_length=1, description="namespace of its own pod")]


async def annotate(client: ApiServer, *, namespace: str, name: str, gpu: str) -> None:
    """Write into a reservation pod which GPU it holds; nothing is written twice.

    Raises:
        ConfigurationError: the pod says another GPU already, by which others may use it.
        ClusterUnavailable: the API server does not answer.
        ApiStatus: it refuses.
    """
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    metadata = msgspec.json.decode(await client.get(path))["metadata"]
    before = (metadata.get("annotations") or {}).get(GPU_INDEX_ANNOTATION)
    if before is None:
        document = {"metadata": {"uid": metadata["uid"], "annotations": {GPU_INDEX_ANNOTATION: gpu}}}
        await client.patch(path, document)
    elif before != gpu:
        raise ConfigurationError(f"pod {namespace}/{name} holds {gpu}, and its annotation says {before}")


async def hold(context: ProcessContext[Any], client: ApiServer, *, namespace: str, name: str, gpu: str) -> None:
    """Say which GPU the pod holds, as often as it takes, and wait until the service is to stop.

    Raises ConfigurationError: see `annotate`.
    """
    tries = 0
    write = partial(annotate, client, namespace=namespace, name=name, gpu=gpu)
    while not context.stopping.is_set():
        tries += 1
        try:
            await write()
        except (ApiStatus, ClusterUnavailable) as error:
            # Rights may come later than the pod.
            context.log.warning("annotation not written, trying again", error=str(error))
            await context.sleep(backoff(tries, first=_FIRST_S, most=_LAST_S))
        else:
            context.log.info("GPU reserved", gpu=gpu, pod=f"{namespace}/{name}")
            await context.stopping.wait()


async def reserve(context: AgentContext, settings: GpuReservationSettings) -> None:
    """Hold the container's GPU until the process is to stop."""
    gpu = own_gpu(os.environ, driver=gpus_of_driver)
    async with PodApiServer(user_agent="kai-gpu-reservation") as client:
        await hold(context, client, namespace=settings.pod_namespace, name=settings.pod_name, gpu=gpu)


def main() -> None:
    """Entry point of `kai-gpu-reservation`."""
    sys.exit(run_agent("gpu-reservation", GpuReservationSettings, reserve))


if __name__ == "__main__":
    main()
