"""Pods that share GPUs: decisions as a cycle makes them, and a kubelet that gives GPUs to reservation pods."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from kai_gpu_reservation.main import annotate
from kaicore.errors import ApiStatus
from kaicore.kube.normalize.gpu_shares import sharing_patch
from kaicore.kube.normalize.pod import normalize_pod
from kaicore.kube.wire.resources import PODS as POD_KIND
from kaicore.ledger.log.port import Filter
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Unit
from kaicore.rules.events.payloads import GpuOpened, Payload, PodDeleted, PodObserved, PodPlaced
from kaicore.rules.model.gpu_share import GpuPart, reservation_name
from kaicore.rules.objects.gpu_sharing import RESERVATION_NAMESPACE

from tests.given.logs.new_events import new_event
from tests.given.processes.waiting import eventually
from tests.given.servers.kube import PODS, Json
from tests.integration.binder.conftest import RunningBinder, Scene

RESERVATIONS = f"/api/v1/namespaces/{RESERVATION_NAMESPACE}/pods"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
OPTIONS: dict[str, Any] = {
    "gpu_sharing": True,
    "gpu_reservation_image": "kai-ledger",
    "scheduled_events": False,
    "failed_scheduling_events": False,
    "pod_conditions": False,
}


class SharedNode:
    """A node's kubelet and the watcher, as far as reservation pods are concerned.

    Attributes:
        given: the GPU of each reservation pod that there ever was, by uid.
        admits: whether the kubelet admits such pods.
        gives: the GPU that the kubelet gives; by default another one each time.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.given: dict[str, str] = {}
        self.admits = True
        self.gives = ""
        self._seen: dict[str, Json] = {}
        self._observed = 0

    async def run(self) -> None:
        """Act on reservation pods until cancelled."""
        while True:
            await self.turn()
            await asyncio.sleep(0.03)

    async def turn(self) -> None:
        pods = {pod["metadata"]["uid"]: pod for pod in await self.scene.api.items(RESERVATIONS)}
        for uid, pod in pods.items():
            if pod["metadata"].get("deletionTimestamp"):
                with suppress(ApiStatus):
                    path = f"{RESERVATIONS}/{pod['metadata']['name']}"
                    await self.scene.api.client.delete(path, {"gracePeriodSeconds": 0})
            elif uid not in self.given:
                await self._admit(pod)
            if self._seen.get(uid) != pod:
                self._seen[uid] = pod
                decoded = POD_KIND.decode(json.dumps(pod).encode())
                await self.record(uid, PodObserved(normalize_pod(decoded)))
        for uid in self._seen.keys() - pods.keys():
            meta = self._seen.pop(uid)["metadata"]
            await self.record(uid, PodDeleted(uid, meta["namespace"], meta["name"]))

    async def _admit(self, pod: Json) -> None:
        meta = pod["metadata"]
        path = f"{RESERVATIONS}/{meta['name']}"
        self.given[meta["uid"]] = gpu = self.gives or f"GPU-{len(self.given)}"
        if self.admits:
            await self.scene.api.merge(f"{path}/status", {"status": {"phase": "Running"}})
            await annotate(self.scene.api.client, namespace=meta["namespace"], name=meta["name"], gpu=gpu)
        else:
            status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no GPU is free"}
            await self.scene.api.merge(f"{path}/status", {"status": status})

    async def record(self, uid: str, payload: Payload) -> None:
        """Record what the watcher saw of a pod."""
        self._observed += 1
        event = new_event(f"pod/{uid}", payload=payload, subject=uid)
        await self.scene.log.append(self.scene.cluster, [Unit((event,))])

    async def place(self, *pods: Json, groups: tuple[str, ...] = ("aaaaaaaa",), opens: bool = True) -> None:
        """Decide for pods, each with a half of each of the GPUs; these are opened for the first time or not."""
        cycle = f"default/{self.scene.cycles + 1}"
        parts = tuple(GpuPart(group, 500) for group in groups)
        decided: list[tuple[str, Payload]] = [
            ("node/n1", GpuOpened("n1", group, RESERVATION_NAMESPACE, reservation_name("n1", group), cycle))
            for group in groups
            if opens
        ]
        decided += [
            (f"pod/{uid}", PodPlaced(uid, "default", pod["metadata"]["name"], "n1", cycle, "class", gpus=parts))
            for pod in pods
            for uid in (pod["metadata"]["uid"],)
        ]
        await self.scene.record(*decided)

    async def shared_pod(self, name: str, **annotations: str) -> Json:
        """A pod that asks for a half of a GPU, as the webhook leaves it."""
        container = {"name": "main", "image": "x"}
        pod: Json = {
            "metadata": {"name": name, "namespace": "default", "annotations": {"gpu-fraction": "0.5", **annotations}},
            "spec": {"schedulerName": "kai-ledger", "containers": [container]},
        }
        for operation in sharing_patch(pod, "1234567"):
            _, first, *rest = operation["path"].split("/")
            target: Any = pod[first]
            for key in rest[:-1]:
                target = target[int(key) if key.isdigit() else key]
            target[rest[-1]] = operation["value"]
        return await self.scene.api.post(PODS, pod)

    async def end(self, name: str) -> None:
        """A pod is over, and the watcher saw it go."""
        pod = await self.scene.api.get(f"{PODS}/{name}")
        await self.scene.api.delete_pod(name)
        await self.record(pod["metadata"]["uid"], PodDeleted(pod["metadata"]["uid"], "default", name))

    async def recorded(self, *types: str) -> list[Any]:
        """The payloads of these types that the log has."""
        log, cluster = self.scene.log, self.scene.cluster
        return [decode_payload(one) for one in await log.read(cluster, limit=10_000, where=Filter(types=types))]

    async def until_empty(self) -> None:
        """Wait until no reservation pod is left, and its end is recorded."""

        async def left() -> list[Any]:
            self.scene.check_binders()
            return [*self._seen, *await self.scene.api.items(RESERVATIONS)]

        await eventually(left, lambda pods: not pods)

    def start(self, **options: Any) -> RunningBinder:
        """Start a binder that carries out shares."""
        return self.scene.start(**{**OPTIONS, **options})


@asynccontextmanager
async def shared_node(scene: Scene) -> AsyncIterator[SharedNode]:
    """A node with a kubelet that acts."""
    await scene.api.post("/api/v1/namespaces", {"metadata": {"name": RESERVATION_NAMESPACE}})
    node = SharedNode(scene)
    acting = asyncio.create_task(node.run())
    try:
        yield node
    finally:
        acting.cancel()
        await asyncio.gather(acting, return_exceptions=True)
