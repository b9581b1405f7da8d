"""GPUs that pods share although no reservation pod holds them: the reservation pod is made anew.

It was deleted, evicted, or has failed. KAI-Scheduler deletes the pods that share such a GPU; here they run on. The
kubelet chooses the new pod's GPU. Where that is the shared one, all is as before. Where it is another, the group takes
no more pods until its last one is over, and pods that ask for repair are evicted (`kaicore.rules.state.shared_gpus`).
"""

import asyncio
from collections.abc import Callable

from kaicore.backoff import backoff
from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.kube.api.client import KubeClient
from kaicore.kube.gpu_shares import ReservationSettings, reservation_pod
from kaicore.runtime.service.logs import Logger

from kai_binder.attempt import pod_path
from kai_binder.gpu_groups import GpuGroups, OpenedGpu

#: Seconds between two tries: at first, and at most.
_FIRST_S, _LAST_S = 0.2, 60.0
_NOT_FOUND, _CONFLICT = 404, 409


class GpuKeeper:
    """Makes lost reservation pods anew, as often as it takes."""

    def __init__(
        self,
        client: KubeClient,
        *,
        settings: ReservationSettings | None,
        groups: Callable[[], GpuGroups],
        has: Callable[[str], bool],
        logger: Logger,
    ) -> None:
        """Args:
        client: to write with.
        settings: of reservation pods; None where sharing is not enabled, and nothing is made.
        groups: returns the opened GPUs as the log has them.
        has: whether work is this binder's, by what it is shared by.
        logger: to say it in.
        """
        self._client = client
        self._settings = settings
        self._groups = groups
        self._has = has
        self._logger = logger
        self._due = asyncio.Event()
        #: By group, what was said of it last.
        self._said: dict[str, str] = {}

    def look(self) -> None:
        """Take note that the log has moved on."""
        exposed = [gpu for gpu in self._groups().exposed() if self._has(f"node/{gpu.node}")]
        said = {gpu.group: gpu.lost for gpu in exposed if gpu.lost}
        for gpu in exposed:
            if gpu.lost and self._said.get(gpu.group) != gpu.lost:
                self._logger.error(
                    "pods share a GPU that nothing holds: its kubelet may give it to others",
                    node=gpu.node,
                    group=gpu.group,
                    gpu=gpu.shared,
                    why=gpu.lost,
                    pods=len(gpu.holders),
                )
        self._said = said
        if self._lost():
            self._due.set()

    def _lost(self) -> list[OpenedGpu]:
        exposed = self._groups().exposed() if self._settings is not None else []
        return [gpu for gpu in exposed if (gpu.gone or gpu.over) and self._has(f"node/{gpu.node}")]

    async def run(self) -> None:
        """Make reservation pods anew, until cancelled."""
        tries = 0
        while True:
            await self._due.wait()
            self._due.clear()
            lost = self._lost()
            for gpu in lost:
                await (self._make(gpu) if gpu.gone else self._delete(gpu))
            tries = tries + 1 if lost else 0
            await asyncio.sleep(backoff(tries, first=_FIRST_S, most=_LAST_S) if tries else 0)
            if self._lost():
                self._due.set()

    async def _make(self, gpu: OpenedGpu) -> None:
        assert self._settings is not None
        path, pod = f"/api/v1/namespaces/{gpu.opened.namespace}/pods", reservation_pod(self._settings, gpu.opened)
        try:
            await self._client.post(path, pod)
        except ApiStatus as error:
            # It is there already, and the watcher has not seen it.
            if error.code != _CONFLICT:
                self._logger.warning("reservation pod not made anew", pod=gpu.opened.name, error=str(error))
        except ClusterUnavailable:
            pass
        else:
            self._logger.info("reservation pod made anew", pod=gpu.opened.name, node=gpu.node, group=gpu.group)

    async def _delete(self, gpu: OpenedGpu) -> None:
        """Delete a reservation pod that has ended: its successor has its name."""
        path = pod_path(gpu.opened.namespace, gpu.opened.name)
        try:
            await self._client.delete(path, {"preconditions": {"uid": gpu.uid}})
        except ApiStatus as error:
            if error.code not in (_NOT_FOUND, _CONFLICT):
                self._logger.warning("reservation pod not deleted", pod=gpu.opened.name, error=str(error))
        except ClusterUnavailable:
            pass
