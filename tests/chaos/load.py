"""Work that comes and goes while things fail: pods, with sidecars or not, Jobs, gangs, pods of a queue with a limit.

Pods and gangs share GPUs as well; reservation pods are deleted now and then.
"""

import asyncio
import json
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kai_apiserver.rest.patching import apply_json_patch
from kaicore.errors import ClusterError
from kaicore.kube.api.client import KubeClient
from kaicore.kube.normalize.gpu_shares import sharing_patch
from kaicore.rules.groups.labels import KUEUE_LIMIT_LABEL
from kaicore.rules.objects.gpu_sharing import RESERVATION_NAMESPACE

from tests.chaos.world import World
from tests.e2e.live_stack import pod_manifest

GANG = "gang.scheduling.koordinator.sh"
QUEUE = "chaos"
RESERVATIONS = f"/api/v1/namespaces/{RESERVATION_NAMESPACE}/pods"
PATHS = {"Pod": "/api/v1/namespaces/default/pods", "Job": "/apis/batch/v1/namespaces/default/jobs"}


def queue_manifest(name: str, *, cpu: int = -1, gpu: int = -1) -> dict[str, Any]:
    limits = {"cpu": cpu, "memory": -1, "gpu": gpu}
    shares = {resource: {"quota": -1, "limit": limit, "overQuotaWeight": 1} for resource, limit in limits.items()}
    return {
        "apiVersion": "scheduling.run.ai/v2",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"resources": shares},
    }


class Load:
    """Makes and deletes work, drawn from one source of chance.

    Attributes:
        created: names of the pods and Jobs that were made.
    """

    def __init__(self, world: World, chance: random.Random, *, queues: bool = True) -> None:
        self._world = world
        self._chance = chance
        self._number = 0
        self._kinds = [self._pod, self._pod, self._with_sidecar, self._job, self._gang]
        self._queues = queues
        self._gangs: dict[str, list[dict[str, Any]]] = {}
        self.created: set[str] = set()

    async def prepare(self) -> None:
        """Make the queues: the one of all work, and one of about a tenth of the fleet."""
        if self._queues:
            async with self._world.client() as client:
                for queue in (queue_manifest("default"), queue_manifest(QUEUE, cpu=16000, gpu=4)):
                    await client.post("/apis/scheduling.run.ai/v2/queues", queue)
            self._kinds.append(self._of_queue)
        if self._world.options.shares:
            async with self._world.client() as client:
                await client.post("/api/v1/namespaces", {"metadata": {"name": RESERVATION_NAMESPACE}})
            self._kinds += [self._sharing, self._sharing, self._sharing_gang]

    async def run(self, seconds: float, *, pause: tuple[float, float] = (0.1, 0.5)) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            await self._come()
            if self._chance.random() < 0.2:
                await self._go()
            if self._world.options.shares and self._chance.random() < 0.03:
                await self._lose()
            await asyncio.sleep(self._chance.uniform(*pause))

    async def _come(self) -> None:
        self._number += 1
        manifests = self._chance.choice(self._kinds)(f"s{self._number}")
        self.created |= {manifest["metadata"]["name"] for manifest in manifests}
        for item in manifests:
            # An API server that is being killed takes nothing; what it took and did not answer is there all the same.
            with suppress(ClusterError, TimeoutError):
                async with asyncio.timeout(10), self._world.client() as client:
                    await client.post(PATHS[item["kind"]], item)

    def _amounts(self) -> dict[str, str]:
        chance = self._chance
        amounts = {"cpu": str(chance.choice([1, 2, 3, 4, 7, 12])), "memory": f"{chance.choice([1, 8, 40])}Gi"}
        return amounts | ({"gpu": str(chance.choice([1, 1, 2, 4]))} if chance.random() < 0.5 else {})

    def _pod(self, name: str) -> list[dict[str, Any]]:
        pod = pod_manifest(name, seconds=self._chance.uniform(0.5, 4), **self._amounts())
        if self._chance.random() < 0.3:
            # A limit that only schedulers heed.
            pod["metadata"]["labels"] = {KUEUE_LIMIT_LABEL: "5"}
        return [pod]

    def _share(self) -> dict[str, str]:
        share = {"gpu-fraction": self._chance.choice(["0.1", "0.3", "0.5", "0.7"])}
        return share | ({"gpu-fraction-num-devices": "2"} if self._chance.random() < 0.1 else {})

    def _sharing(self, name: str) -> list[dict[str, Any]]:
        return [sharing_pod(name, self._share(), seconds=self._chance.uniform(0.5, 4))]

    def _sharing_gang(self, name: str) -> list[dict[str, Any]]:
        count, share = self._chance.randint(2, 4), self._share()
        gang = {f"{GANG}/name": name, f"{GANG}/min-available": str(count)}
        pods = [sharing_pod(f"{name}-{member}", share | gang, seconds=2) for member in range(count)]
        self._gangs |= {pod["metadata"]["name"]: pods for pod in pods}
        return pods

    def _of_queue(self, name: str) -> list[dict[str, Any]]:
        (pod,) = self._pod(name)
        pod["metadata"].setdefault("labels", {})["kai.scheduler/queue"] = QUEUE
        return [pod]

    def _with_sidecar(self, name: str) -> list[dict[str, Any]]:
        (pod,) = self._pod(name)
        for kind, restart in (("init", {}), ("side", {"restartPolicy": "Always"})):
            cpus = {"cpu": str(self._chance.choice([1, 2, 3])), "memory": "1Gi"}
            container = {"name": kind, "image": "x", "resources": {"requests": cpus, "limits": cpus}, **restart}
            pod["spec"].setdefault("initContainers", []).append(container)
        return [pod]

    def _job(self, name: str) -> list[dict[str, Any]]:
        (pod,) = self._pod(name)
        count = self._chance.randint(2, 5)
        template = {"metadata": {"annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]}
        spec = {"parallelism": count, "completions": count, "backoffLimit": 20, "template": template}
        return [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}]

    def _gang(self, name: str) -> list[dict[str, Any]]:
        count, amounts = self._chance.randint(2, 4), self._amounts()
        pods = [pod_manifest(f"{name}-{member}", seconds=2, **amounts) for member in range(count)]
        for pod in pods:
            pod["metadata"]["annotations"] |= {f"{GANG}/name": name, f"{GANG}/min-available": str(count)}
        self._gangs |= {pod["metadata"]["name"]: pods for pod in pods}
        return pods

    async def complete(self, client: KubeClient) -> None:
        """Make the pods of gangs that the API server did not take when it was asked: the others wait for them."""
        waiting = {name for name in await unfinished(client) if name in self._gangs}
        whole = {pod["metadata"]["name"]: pod for name in waiting for pod in self._gangs[name]}
        there = {pod["metadata"]["name"] for pod in json.loads(await client.get(PATHS["Pod"]))["items"]}
        for name in sorted(whole.keys() - there):
            await client.post(PATHS["Pod"], whole[name])

    async def cordon(self, client: KubeClient, nodes: Sequence[str], *, cordoned: bool) -> None:
        """Cordon nodes, or uncordon them and make a pod for each, which runs nowhere else."""
        for node in nodes:
            await client.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": cordoned or None}})
            if not cordoned:
                pod = pod_manifest(f"proof-{node}", seconds=0.2, cpu="1", memory="1Gi")
                pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
                await client.post(PATHS["Pod"], pod)
                self.created.add(pod["metadata"]["name"])

    async def _go(self) -> None:
        """Delete a pod of its own that is no gang's: the rest of a gang would wait for it for good."""
        alone = sorted(name for name in self.created if "-" not in name)
        if not alone:
            return
        path = f"{PATHS['Pod']}/{self._chance.choice(alone)}"
        with suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(10), self._world.client() as client:
                await client.delete(path, {"gracePeriodSeconds": 1})

    async def _lose(self) -> None:
        """Delete a reservation pod, as somebody may by hand."""
        with suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(10), self._world.client() as client:
                names = sorted(pod["metadata"]["name"] for pod in json.loads(await client.get(RESERVATIONS))["items"])
                if names:
                    await client.delete(f"{RESERVATIONS}/{self._chance.choice(names)}", {})


def sharing_pod(name: str, annotations: dict[str, str], *, seconds: float) -> dict[str, Any]:
    """Return a pod with a share of a GPU, as the webhook leaves it."""
    pod = pod_manifest(name, seconds=seconds, cpu="1", memory="1Gi")
    pod["metadata"]["annotations"] |= annotations
    return dict(apply_json_patch(pod, sharing_patch(pod, name)))


async def unfinished(client: KubeClient) -> list[str]:
    """The unfinished work, as the API server says: pods that are not over, Jobs, and GPUs that are held."""
    pods = json.loads(await client.get(PATHS["Pod"]))["items"]
    jobs = json.loads(await client.get("/apis/batch/v1/jobs"))["items"]
    names = [
        pod["metadata"]["name"] for pod in pods if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ]
    names += [pod["metadata"]["name"] for pod in json.loads(await client.get(RESERVATIONS))["items"]]
    names += [
        f"Job {job['metadata']['name']}"
        for job in jobs
        if not any(item["status"] == "True" for item in job.get("status", {}).get("conditions", ()))
    ]
    return names
