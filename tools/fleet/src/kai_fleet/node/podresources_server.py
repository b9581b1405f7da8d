"""A podresources socket for every node: `<directory>/<node>/kubelet.sock`; beside it its `sys` and state files.

Served by grpc.aio, as the exporter asks. 1,000 sockets cost 17 MB before the first call and 41 MB with a client each,
and a call 0.3 ms of CPU.

The part of `/sys/devices/system` that shows the place of each CPU, as files.

An exporter maps the CPU ids of the podresources API to NUMA nodes with it. Nodes that are alike share one tree: a
thousand machines of 128 CPUs would be half a million files.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from kaicore.errors import ConfigurationError
from kaicore.kube.wire import podresources as api

from kai_fleet.kubelet import Kubelet, Machine, Pod
from kai_fleet.kubelet.devices import DevicePool
from kai_fleet.kubelet.kubelet import Held, allocatable_cpus, held_by
from kai_fleet.kubelet.machine import members, to_cpulist
from kai_fleet.node.agent import Agent
from kai_fleet.node.runtime import NodeRuntime
from kai_fleet.node.state_files import StateFiles


class SysfsTrees:
    """Trees below one directory, one for each kind of machine, written when first needed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / ".machines"
        self._trees: dict[int, Path] = {}
        self._kept: list[Machine] = []

    def link(self, machine: Machine, link: Path) -> None:
        """Make `link` the `sys` of a node with this machine."""
        tree = self._trees.get(id(machine))
        if tree is None:
            tree = self._trees[id(machine)] = self._directory / f"machine-{len(self._trees)}" / "sys"
            # Its id stands for it only as long as it lives.
            self._kept.append(machine)
            write_tree(machine, tree)
        link.unlink(missing_ok=True)
        link.symlink_to(tree.absolute(), target_is_directory=True)


def write_tree(machine: Machine, root: Path) -> None:
    """Write the files of one machine below `root`, its `/sys`."""
    system = root / "devices" / "system"
    zones = range(machine.zones)
    _write(system / "node" / "online", f"0-{machine.zones - 1}" if machine.zones > 1 else "0")
    for zone in zones:
        node = system / "node" / f"node{zone}"
        _write(node / "cpulist", to_cpulist(machine.zone_cpus[zone]))
        _write(node / "distance", " ".join(str(distance) for distance in machine.distances[zone]))
        total = machine.zone_memory[zone].get("memory", 0)
        _write(node / "meminfo", f"Node {zone} MemTotal:       {total // 1024} kB")
    cpus = machine.cpus
    _write(system / "cpu" / "online", to_cpulist(cpus.all))
    _write(system / "cpu" / "present", to_cpulist(cpus.all))
    for socket, cores in enumerate(cpus.cores_of_socket):
        for core in cores:
            for cpu in members(core):
                topology = system / "cpu" / f"cpu{cpu}" / "topology"
                _write(topology / "thread_siblings_list", to_cpulist(core))
                _write(topology / "core_id", str((core & -core).bit_length() - 1))
                _write(topology / "physical_package_id", str(socket))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", "ascii")


#: A unix socket's path may have 107 bytes.
_LONGEST_PATH = 107

#: So many calls are answered in one round of the event loop. An exporter asks a kubelet again only when it has its
#: answer, so one that asks a thousand of them all the time is slowed down, and pods, which share the loop, are not.
_ANSWERS_A_ROUND = 4


def list_pods(kubelet: Kubelet, half_way: Collection[str] = ()) -> api.ListPodResourcesResponse:
    """Answer `List`: active pods, with what their regular containers and sidecars hold.

    Of those with a uid in `half_way` half is shown: the containers after the middle one have nothing yet, and that one
    no memory, which comes last.
    """
    return api.ListPodResourcesResponse(
        pod_resources=[_pod(kubelet, pod, half_way=pod.uid in half_way) for pod in kubelet.pods.values()]
    )


def allocatable_resources(kubelet: Kubelet) -> api.AllocatableResourcesResponse:
    """Answer `GetAllocatableResources`."""
    memory = []
    if kubelet.config.static_memory:
        memory = [
            api.ContainerMemory(memory_type=kind, size=size, topology=_topology([zone]))
            for zone, state in enumerate(kubelet.managers.memory.zones)
            for kind, size in state.allocatable.items()
            if size
        ]
    return api.AllocatableResourcesResponse(
        devices=[
            device
            for resource, pool in kubelet.managers.devices.pools.items()
            for device in _devices(resource, pool, pool.healthy)
        ],
        cpu_ids=list(members(allocatable_cpus(kubelet))),
        memory=memory,
    )


def _pod(kubelet: Kubelet, pod: Pod, *, half_way: bool) -> api.PodResources:
    containers = list(held_by(kubelet, pod))
    if half_way:
        middle = len(containers) // 2
        containers = [*containers[:middle], *(_half(held, first=not n) for n, held in enumerate(containers[middle:]))]
    return api.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        containers=[_container(kubelet, held) for held in containers],
    )


def _half(held: Held, *, first: bool) -> Held:
    return replace(held, blocks=[]) if first else Held(held.container, 0, {}, [])


def _container(kubelet: Kubelet, held: Held) -> api.ContainerResources:
    pools = kubelet.managers.devices.pools
    return api.ContainerResources(
        name=held.container.name,
        cpu_ids=list(members(held.cpus)),
        devices=[
            device
            for resource, devices in held.devices.items()
            for device in _devices(resource, pools[resource], devices)
        ],
        memory=[
            api.ContainerMemory(memory_type=block.type, size=block.size, topology=_topology(members(block.zones)))
            for block in held.blocks
        ],
    )


def _devices(resource: str, pool: DevicePool, devices: int) -> Iterable[api.ContainerDevices]:
    """One entry per device and NUMA node, one without topology for a device that has none."""
    for number in members(devices):
        device = pool.devices[number]
        if not device.zones:
            yield api.ContainerDevices(resource_name=resource, device_ids=[device.id])
        for zone in members(device.zones):
            yield api.ContainerDevices(resource_name=resource, device_ids=[device.id], topology=_topology([zone]))


def _topology(zones: Iterable[int]) -> api.TopologyInfo:
    return api.TopologyInfo(nodes=[api.NUMANode(ID=zone) for zone in zones])


class _NotFoundError(Exception):
    """The call names a pod that is not there."""


def _service(node: NodeRuntime, turns: asyncio.Semaphore) -> grpc.GenericRpcHandler:
    """Return the three calls of one node."""

    def unary(answer: Callable[[Agent, Any], Any], request: type[Any], response: type[Any]) -> grpc.RpcMethodHandler:
        async def call(message: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            async with turns:
                if node.down:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the kubelet is not running")
                try:
                    answered = answer(node.agent, message)
                except _NotFoundError as error:
                    return await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
                # The turn lasts until the loop has come round, and with it whatever pods wait for.
                await asyncio.sleep(0)
                return answered

        return grpc.unary_unary_rpc_method_handler(
            call, request_deserializer=request.FromString, response_serializer=response.SerializeToString
        )

    methods = {
        api.LIST: unary(
            lambda agent, _: list_pods(agent.kubelet, agent.half_way),
            api.ListPodResourcesRequest,
            api.ListPodResourcesResponse,
        ),
        api.GET_ALLOCATABLE_RESOURCES: unary(
            lambda agent, _: allocatable_resources(agent.kubelet),
            api.AllocatableResourcesRequest,
            api.AllocatableResourcesResponse,
        ),
        api.GET: unary(_get, api.GetPodResourcesRequest, api.GetPodResourcesResponse),
    }
    service = api.LIST.split("/")[1]
    by_name = {path.rpartition("/")[2]: handler for path, handler in methods.items()}
    return grpc.method_handlers_generic_handler(service, by_name)


def _get(agent: Agent, request: api.GetPodResourcesRequest) -> api.GetPodResourcesResponse:
    for pod in agent.kubelet.pods.values():
        if pod.name == request.pod_name and pod.namespace == request.pod_namespace:
            resources = _pod(agent.kubelet, pod, half_way=pod.uid in agent.half_way)
            return api.GetPodResourcesResponse(pod_resources=resources)
    raise _NotFoundError(f"pod {request.pod_namespace}/{request.pod_name} not found")


@asynccontextmanager
async def serve_podresources(nodes: Iterable[NodeRuntime], directory: Path) -> AsyncIterator[None]:
    """Serve the podresources API of every node below `directory` for as long as the context lasts.

    Raises ConfigurationError: the directory's path is too long for sockets, or cannot be written.
    """
    trees = SysfsTrees(directory)
    turns = asyncio.Semaphore(_ANSWERS_A_ROUND)
    servers: list[grpc.aio.Server] = []
    try:
        try:
            for node in nodes:
                server = grpc.aio.server()
                servers.append(server)
                server.add_generic_rpc_handlers((_service(node, turns),))
                server.add_insecure_port(f"unix:{_prepare(node, directory, trees)}")
                await server.start()
        # grpcio says with a RuntimeError that it cannot bind.
        except (OSError, RuntimeError) as error:
            raise ConfigurationError(f"--podresources-dir: {error}") from error
        yield
    finally:
        await asyncio.gather(*(server.stop(None) for server in servers))
        for node in nodes:
            node.state_files = None
            shutil.rmtree(directory / node.spec.name, ignore_errors=True)


def _prepare(node: NodeRuntime, directory: Path, trees: SysfsTrees) -> Path:
    """Write what is beside a node's socket, and return where that goes."""
    socket = directory / node.spec.name / "kubelet.sock"
    if len(str(socket).encode()) > _LONGEST_PATH:
        raise ConfigurationError(f"--podresources-dir: {socket}: too long for a unix socket")
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
    trees.link(node.spec.machine, socket.parent / "sys")
    node.state_files = StateFiles(socket.parent, node.agent.kubelet)
    return socket
