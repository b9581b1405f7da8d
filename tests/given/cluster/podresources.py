"""Podresources for tests: messages in few words, and a kubelet that serves them on a unix socket."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from kai_exporter import wire
from kai_exporter.kubelet import decode_pod
from kaicore.kube.wire.podresources import (
    AllocatableResourcesResponse,
    ContainerDevices,
    ContainerMemory,
    ContainerResources,
    ListPodResourcesResponse,
    NUMANode,
    PodResources,
    TopologyInfo,
)

GPU = "nvidia.com/gpu"


def numa(*nodes: int) -> TopologyInfo:
    return TopologyInfo(nodes=[NUMANode(ID=node) for node in nodes])


def devices(resource: str, zones: Mapping[str, Iterable[int]]) -> list[ContainerDevices]:
    """Devices by id with their NUMA nodes, one entry for each pair, as the kubelet lists them."""
    entries = []
    for device, nodes in zones.items():
        entries += [
            ContainerDevices(resource_name=resource, device_ids=[device], topology=numa(node)) for node in nodes
        ]
        if not nodes:
            entries.append(ContainerDevices(resource_name=resource, device_ids=[device]))
    return entries


def container(
    name: str = "main",
    *,
    cpus: Iterable[int] = (),
    gpus: Mapping[str, Iterable[int]] | None = None,
    memory: Iterable[tuple[str, int, tuple[int, ...]]] = (),
) -> ContainerResources:
    return ContainerResources(
        name=name,
        cpu_ids=list(cpus),
        devices=devices(GPU, gpus or {}),
        memory=[ContainerMemory(memory_type=kind, size=size, topology=numa(*nodes)) for kind, size, nodes in memory],
    )


def pod(name: str, *containers: ContainerResources, namespace: str = "default", **kwargs: Any) -> PodResources:
    return PodResources(name=name, namespace=namespace, containers=containers or [container(**kwargs)])


def answer(*pods: PodResources) -> bytes:
    return ListPodResourcesResponse(pod_resources=pods).SerializeToString()


def decoded(one: PodResources) -> wire.PodResources:
    """The pod as the exporter reads it off the wire."""
    return decode_pod(one.SerializeToString(), subject="n1")


def shuffled(one: PodResources, random_: random.Random) -> PodResources:
    """The same pod as another walk over the kubelet's maps would list it."""
    copy = PodResources.FromString(one.SerializeToString())
    for container_ in copy.containers:
        fields: tuple[Any, ...] = (container_.devices, container_.memory, container_.cpu_ids)
        for entries in fields:
            values = list(entries)
            random_.shuffle(values)
            del entries[:]
            entries.extend(values)
    return copy


def write_sysfs(root: Path, cpulists: Mapping[int, str]) -> None:
    for node, cpulist in cpulists.items():
        path = root / f"devices/system/node/node{node}"
        path.mkdir(parents=True, exist_ok=True)
        (path / "cpulist").write_text(f"{cpulist}\n")


class Kubelet:
    """A kubelet's podresources API; what it answers is `pods` and `allocatable`, or `error` if that is set."""

    def __init__(self) -> None:
        self.pods: list[PodResources] = []
        self.allocatable = AllocatableResourcesResponse()
        self.error: grpc.StatusCode | None = None
        self._asked = 0
        self._news = asyncio.Condition()

    async def asked(self, times: int = 1) -> None:
        async with self._news:
            target = self._asked + times
            await self._news.wait_for(lambda: self._asked >= target)

    async def list(self, _: bytes, context: Any) -> bytes:
        async with self._news:
            self._asked += 1
            self._news.notify_all()
        if self.error is not None:
            await context.abort(self.error, "as the test wants it")
        return answer(*self.pods)

    async def what_is_allocatable(self, _: bytes, context: Any) -> bytes:
        return self.allocatable.SerializeToString()


@asynccontextmanager
async def serving(kubelet: Kubelet, socket: Path) -> AsyncIterator[Kubelet]:
    socket.parent.mkdir(parents=True, exist_ok=True)
    handlers = {
        "List": grpc.unary_unary_rpc_method_handler(kubelet.list),
        "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(kubelet.what_is_allocatable),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield kubelet
    finally:
        await server.stop(None)
