"""Containers of reservation pods: the real program runs in this process, on the GPU that the node's kubelet gave.

Only the driver is simulated: it shows the container's devices. Whether the program has done its work is in the API, so
it runs again after a restart of the fleet or of a kubelet, as a container does that never ended.
"""

import asyncio
from collections.abc import Callable

from kai_gpu_reservation.main import hold, own_gpu
from kaicore.errors import ConfigurationError
from kaicore.kube.api.client import KubeClient
from kaicore.rules.objects.gpu_sharing import GPU, RESERVATION_COMMAND
from kaicore.runtime.service import Health, ServiceContext, get_logger

from kai_fleet.kubelet import Kubelet
from kai_fleet.node.wire import PodObject


class GpuReservations:
    """The programs of reservation pods, by uid."""

    def __init__(self, client: KubeClient) -> None:
        """Args: client: to write as the programs do."""
        self._client = client
        self._running: dict[str, asyncio.Task[None]] = {}

    def seen(self, pod: PodObject, kubelet: Callable[[], Kubelet]) -> None:
        """Run the program of a reservation pod when its container has started; end it when the pod is deleted.

        Args:
            pod: as the API has it now.
            kubelet: returns its node's.
        """
        uid = pod.metadata.uid
        if pod.metadata.deletion_timestamp is not None:
            self.forget(uid)
        elif uid not in self._running and pod.status.phase == "Running" and _is_reservation(pod):
            self._running[uid] = asyncio.create_task(self._run(pod, kubelet), name=f"program of {pod}")

    def forget(self, uid: str) -> None:
        """A pod is gone."""
        task = self._running.pop(uid, None)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        """End all programs."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _run(self, pod: PodObject, kubelet: Callable[[], Kubelet]) -> None:
        meta = pod.metadata
        context = ServiceContext("gpu-reservation", Health(), get_logger(pod=str(pod)))
        try:
            gpu = own_gpu({}, driver=lambda: devices_of(kubelet(), meta.uid))
            await hold(context, self._client, namespace=meta.namespace, name=meta.name, gpu=gpu)
        except ConfigurationError as error:
            context.log.error("service failed", error=str(error))


def devices_of(kubelet: Kubelet, uid: str) -> list[str]:
    """Return the GPUs that a pod's containers hold, as the device plugin names them."""
    devices = kubelet.managers.devices
    return [
        name
        for held in devices.assigned.get(uid, {}).values()
        for name in devices.pools[GPU].ids(held.get(GPU, 0))
        if GPU in devices.pools
    ]


def _is_reservation(pod: PodObject) -> bool:
    return any(container.command == [RESERVATION_COMMAND] for container in pod.spec.containers)
