"""The GPU that a container was given, by the UUID that its driver knows it by.

A UUID stays the same when devices are numbered anew, so it is preferred to an index. NVIDIA's device plugin names it
in the environment (`NVIDIA_VISIBLE_DEVICES`) where its strategy is `envvar` with UUIDs, which is its default. With
indexes, volume mounts or CDI the environment does not say it, and the driver's library (NVML) is asked. It sees the
container's devices alone.
"""

from collections.abc import Callable, Mapping

from kaicore.errors import ConfigurationError
from kaicore.rules.objects.gpu_sharing import VISIBLE_DEVICES

#: What NVIDIA's UUIDs of GPUs begin with.
_UUID = "GPU-"


def own_gpu(environment: Mapping[str, str], *, driver: Callable[[], list[str]]) -> str:
    """Return the one GPU of this container.

    Args:
        environment: of the process.
        driver: returns the UUIDs of the container's GPUs.

    Raises:
        ConfigurationError: the container has no GPU, or several; or the driver does not answer.
    """
    named = environment.get(VISIBLE_DEVICES, "")
    gpus = named.split(",") if named.startswith(_UUID) else driver()
    if len(gpus) != 1:
        raise ConfigurationError(f"the container is to have one GPU; it has {len(gpus)}: {', '.join(gpus)}")
    return gpus[0]


def gpus_of_driver() -> list[str]:
    """Return the UUIDs of the GPUs that NVIDIA's driver shows to this container.

    Raises:
        ConfigurationError: there is no driver, or it fails.
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
