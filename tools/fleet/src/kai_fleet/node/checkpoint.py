"""The checkpoint of a fleet: who holds which CPUs, devices and memory, and since when. It survives `kill -9`.

A real kubelet keeps `cpu_manager_state`, `memory_manager_state` and `kubelet_internal_checkpoint`; a thousand
simulated kubelets share one journal here. Each line records the state of one pod of one node, with the node's memory
zones beside, because those depend on the order of everything before. A line is written before any client gets the
news, so what the API knows is never ahead of it. It is not synced to disk: a process that is killed loses nothing that
it has written.

A journal that cannot be written, on a full disk, stops no pod. It is behind then, has the cause in `problem`, and is
written anew when the cause is gone. Torn lines are left out when the journal is read.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from kaicore.errors import ConfigurationError
from kaicore.runtime.service import get_logger

from kai_fleet.kubelet import Container, Pod, Rejection
from kai_fleet.kubelet.hints import Affinity
from kai_fleet.kubelet.machine import bits, from_cpulist, members, to_cpulist
from kai_fleet.kubelet.memory import Block
from kai_fleet.node.agent import Agent
from kai_fleet.node.pod_conversion import ContainerSpec, PodMeta, PodObject, PodSpec
from kai_fleet.node.tracked_pod import ACTIVE, OVER, Fate, Stage, TrackedPod

#: The journal is written anew when it is this many bytes longer than it was after it last was.
COMPACT_BYTES = 64 * 1024**2


class ContainerState(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A container and what it holds: CPU list, device ids, (type, zones, bytes) blocks, merged hint."""

    name: str
    kind: str
    requests: dict[str, int]
    limits: dict[str, int]
    cpus: str = ""
    devices: dict[str, list[str]] = {}
    blocks: list[tuple[str, list[int], int]] = []
    zones: list[int] | None = None
    preferred: bool = False


class PodState(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A pod that was decided on; one that has ended or was rejected (reason, message) holds nothing."""

    uid: str
    namespace: str
    name: str
    stage: str
    admitted_at: float
    started_at: float
    next_at: float | None
    run_seconds: float | None
    exit_code: int
    ip: str
    containers: list[ContainerState] = []
    init_left: list[str] = []
    rejection: tuple[str, str] | None = None
    overhead: dict[str, int] = {}
    pod_requests: dict[str, int] = {}
    pod_limits: dict[str, int] = {}
    host_ports: list[tuple[str, str, int]] = []
    entered_at: float = 0.0


class ZoneState(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One zone of the memory manager."""

    free: dict[str, int]
    assignments: int = 0
    cells: list[int] = []


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One line of the journal."""

    node: str
    put: PodState | None = None
    drop: str = ""
    memory: list[ZoneState] | None = None
    #: Resource → ids of unhealthy devices, where it changed.
    unhealthy: dict[str, list[str]] | None = None


class NodeState:
    """The journal's record of one node."""

    def __init__(self) -> None:
        self.pods: dict[str, PodState] = {}
        self.memory: list[ZoneState] | None = None
        self.unhealthy: dict[str, list[str]] | None = None

    def fold(self, entry: Entry) -> None:
        """Take in one more line."""
        if entry.put is not None:
            self.pods[entry.put.uid] = entry.put
        self.pods.pop(entry.drop, None)
        self.memory = entry.memory if entry.memory is not None else self.memory
        self.unhealthy = entry.unhealthy if entry.unhealthy is not None else self.unhealthy


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode


class Journal:
    """The file of one fleet."""

    def __init__(self, directory: Path) -> None:
        """Read what there is. Raises ConfigurationError: the directory or the file in it cannot be read or made."""
        self._path = directory / "kubelets.jsonl"
        #: Why what the agents hold is not in the file; empty when it is.
        self.problem = ""
        self._lines: list[bytes] = []
        self._states: dict[str, NodeState] = {}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            content = self._path.read_bytes() if self._path.exists() else b""
        except OSError as error:
            raise ConfigurationError(f"checkpoints: {error}") from error
        self._read(content.split(b"\n"))
        self._file = -1
        self._written = 0

    def _read(self, lines: list[bytes]) -> None:
        torn: list[str] = []
        for number, line in enumerate(lines):
            if not line:
                continue
            try:
                entry = _decode(line)
            except msgspec.MsgspecError as error:
                # The last line is the write that the end of the process cut off; no client heard of it.
                if number < len(lines) - 1:
                    torn.append(f"line {number + 1}: {error}")
                continue
            self._states.setdefault(entry.node, NodeState()).fold(entry)
        if torn:
            get_logger().warning(
                "torn lines of the checkpoint are left out; pods of theirs are decided on anew",
                file=str(self._path),
                lines=len(torn),
                first=torn[0],
            )

    def state_of(self, node: str) -> NodeState:
        """The record of a node from before this process."""
        return self._states.get(node) or NodeState()

    def start(self, agents: Iterable[Agent]) -> None:
        """Write the file anew with what the agents hold, and append from then on; see `problem`."""
        self._states.clear()
        self._lines.clear()
        temporary = self._path.with_suffix(".new")
        content = b"".join(line for agent in agents for line in _lines_of(agent))
        try:
            temporary.write_bytes(content)
            temporary.replace(self._path)
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            self._fail(error)
            return
        self._close()
        self._file, self._written, self.problem = file, 0, ""

    def _fail(self, error: OSError) -> None:
        """Append nothing any more: a part of a line may be in the file."""
        self.problem = f"{self._path}: {error.strerror or error}"
        self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def note(self, agent: Agent) -> None:
        """Take down what changed on a node; `flush` writes it."""
        changed = agent.take_changes()
        if not changed:
            return
        agent.kubelet.sweep()
        memory = _memory(agent)
        for uid in changed:
            tracked = agent.pods.get(uid)
            if tracked is None or not _is_kept(tracked):
                entry = Entry(agent.spec.name, drop=uid, memory=memory)
            else:
                entry = Entry(agent.spec.name, put=_pod_state(agent, tracked), memory=memory)
            self._lines.append(_encode(entry) + b"\n")

    def note_unhealthy(self, agent: Agent) -> None:
        """Take down which devices are unhealthy."""
        self._lines.append(_encode(Entry(agent.spec.name, unhealthy=_unhealthy(agent))) + b"\n")

    def flush(self) -> None:
        """Write what was taken down."""
        content = b"".join(self._lines)
        self._lines.clear()
        if not content or self._file < 0:
            return
        view = memoryview(content)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            self._fail(error)
            return
        self._written += len(content)

    @property
    def wants_compaction(self) -> bool:
        """True if the file has grown enough to be written anew."""
        return self._file >= 0 and self._written > COMPACT_BYTES

    def close(self) -> None:
        """Write what was taken down, and close the file."""
        self.flush()
        self._close()


def snapshot(agent: Agent) -> NodeState:
    """Return what a checkpoint of the node holds now."""
    state = NodeState()
    for line in _lines_of(agent):
        state.fold(_decode(line))
    return state


def restore(agent: Agent, state: NodeState) -> None:
    """Give a new agent what a checkpoint holds; what its machine does not have (any more), or is torn, is left out."""
    kubelet = agent.kubelet
    for resource, ids in (state.unhealthy or {}).items():
        for device in ids:
            if resource in kubelet.managers.devices.pools:
                kubelet.set_device_health(resource, device, healthy=False)
    zones = kubelet.managers.memory.zones
    if state.memory is not None and len(state.memory) == len(zones) and agent.spec.config.static_memory:
        for zone, saved in zip(zones, state.memory, strict=True):
            zone.free.update({kind: size for kind, size in saved.free.items() if kind in zone.allocatable})
            zone.assignments, zone.cells = saved.assignments, bits(saved.cells)
    for saved_pod in state.pods.values():
        try:
            tracked = _tracked(saved_pod)
            if tracked.stage in ACTIVE:
                _restore_pod(agent, saved_pod)
        except ValueError as error:
            kubelet.managers.release(saved_pod.uid)
            get_logger(node=agent.spec.name).warning(
                "a pod's checkpoint makes no sense; it is decided on anew",
                pod=f"{saved_pod.namespace}/{saved_pod.name}",
                error=str(error),
            )
            continue
        agent.remember(tracked)


def _tracked(saved: PodState) -> TrackedPod:
    return TrackedPod(
        pod=PodObject(
            PodMeta(name=saved.name, namespace=saved.namespace, uid=saved.uid),
            PodSpec([ContainerSpec(c.name) for c in saved.containers if c.kind == "app"]),
        ),
        stage=Stage(saved.stage),
        fate=Fate(saved.run_seconds, saved.exit_code),
        admitted_at=saved.admitted_at,
        started_at=saved.started_at,
        entered_at=saved.entered_at,
        next_at=float("inf") if saved.next_at is None else saved.next_at,
        ip=saved.ip,
        init_left=list(saved.init_left),
        rejection=None if saved.rejection is None else Rejection(*saved.rejection),
    )


def _lines_of(agent: Agent) -> Iterable[bytes]:
    agent.kubelet.sweep()
    kept = [tracked for tracked in agent.pods.values() if _is_kept(tracked)]
    # The order of admission is the order in which the kubelet would look at them again.
    rank = {uid: number for number, uid in enumerate(agent.kubelet.pods)}
    kept.sort(key=lambda tracked: rank.get(tracked.pod.metadata.uid, -1))
    for tracked in kept:
        yield _encode(Entry(agent.spec.name, put=_pod_state(agent, tracked))) + b"\n"
    yield _encode(Entry(agent.spec.name, memory=_memory(agent), unhealthy=_unhealthy(agent))) + b"\n"


def _is_kept(tracked: TrackedPod) -> bool:
    """Active pods, and those that are over until the API says so: they must not be decided on again."""
    if tracked.stage in OVER:
        return tracked.pod.status.phase != tracked.phase
    return tracked.stage in ACTIVE or tracked.is_unreported


def _pod_state(agent: Agent, tracked: TrackedPod) -> PodState:
    uid = tracked.pod.metadata.uid
    pod = agent.kubelet.pods.get(uid)
    more: dict[str, Any] = {}
    if pod is not None:
        more = {
            "containers": [_container_state(agent, pod, container) for container in pod.containers],
            "overhead": dict(pod.overhead),
            "pod_requests": dict(pod.pod_requests),
            "pod_limits": dict(pod.pod_limits),
            "host_ports": sorted(pod.host_ports),
        }
    return PodState(
        uid=uid,
        namespace=tracked.pod.metadata.namespace,
        name=tracked.pod.metadata.name,
        stage=tracked.stage.value,
        admitted_at=tracked.admitted_at,
        started_at=tracked.started_at,
        entered_at=tracked.entered_at,
        next_at=tracked.next_at if tracked.next_at < float("inf") else None,
        run_seconds=tracked.fate.run_seconds,
        exit_code=tracked.fate.exit_code,
        ip=tracked.ip,
        init_left=tracked.init_left,
        rejection=None if tracked.rejection is None else (tracked.rejection.reason, tracked.rejection.message),
        **more,
    )


def _container_state(agent: Agent, pod: Pod, container: Container) -> ContainerState:
    managers = agent.kubelet.managers
    affinity = agent.kubelet.affinities[pod.uid][container.name]
    devices = managers.devices.assigned.get(pod.uid, {}).get(container.name, {})
    blocks = managers.memory.assigned.get(pod.uid, {}).get(container.name, [])
    return ContainerState(
        name=container.name,
        kind=container.kind,
        requests=dict(container.requests),
        limits=dict(container.limits),
        cpus=to_cpulist(managers.cpus.assigned.get(pod.uid, {}).get(container.name, 0)),
        devices={resource: managers.devices.pools[resource].ids(held) for resource, held in devices.items()},
        blocks=[(block.type, list(members(block.zones)), block.size) for block in blocks],
        zones=None if affinity.mask is None else list(members(affinity.mask)),
        preferred=affinity.preferred,
    )


def _restore_pod(agent: Agent, saved: PodState) -> None:
    managers = agent.kubelet.managers
    affinities: dict[str, Affinity] = {}
    for container in saved.containers:
        mask = None if container.zones is None else bits(container.zones)
        affinities[container.name] = Affinity(mask, container.preferred)
        if container.cpus:
            managers.cpus.restore(saved.uid, container.name, from_cpulist(container.cpus))
        for resource, ids in container.devices.items():
            managers.devices.restore(saved.uid, container.name, resource, ids)
        if container.blocks:
            blocks = [Block(kind, bits(zones), size) for kind, zones, size in container.blocks]
            managers.memory.assigned.setdefault(saved.uid, {})[container.name] = blocks
    pod = Pod(
        uid=saved.uid,
        namespace=saved.namespace,
        name=saved.name,
        containers=tuple(Container(c.name, c.kind, c.requests, c.limits) for c in saved.containers),  # type: ignore[arg-type]
        overhead=saved.overhead,
        pod_requests=saved.pod_requests,
        pod_limits=saved.pod_limits,
        host_ports=frozenset(saved.host_ports),
    )
    agent.kubelet.restore(pod, affinities)


def _memory(agent: Agent) -> list[ZoneState] | None:
    if not agent.spec.config.static_memory:
        return None
    return [
        ZoneState(zone.free, zone.assignments, list(members(zone.cells)))
        for zone in agent.kubelet.managers.memory.zones
    ]


def _unhealthy(agent: Agent) -> dict[str, list[str]]:
    return {
        resource: [device.id for device in pool.devices if not device.healthy]
        for resource, pool in agent.kubelet.managers.devices.pools.items()
    }
