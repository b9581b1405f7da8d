"""A storm without servers: pods, Jobs and gangs on simulated kubelets that are ahead of the API, in virtual time.

One list of what is due when, one log in memory. Everything takes the time that it was measured to take in the storm on
real processes (`tests/chaos/test_storm.py`), drawn from one source of chance, so a run is always the same.
"""

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from kai_fleet.kubelet import Kubelet, Pod
from kai_fleet.kubelet.machine import members
from kai_fleet.node.agent import Agent, Decided, DeletePod, Instruction, PatchStatus, WakeAt
from kai_fleet.node.nrt import NrtBuilder
from kai_fleet.node.pod_conversion import PodObject
from kai_fleet.profiles.nodes import NodeSpec, expand
from kai_fleet.profiles.profile import parse_profile
from kaicore.kube.normalize.node import normalize_topology
from kaicore.kube.normalize.pod import normalize_pod
from kaicore.kube.wire.objects import PodObject as WatchedPod
from kaicore.kube.wire.objects import TopologyObject
from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, SpanAmount, ZoneAmount
from kaicore.rules.state.pods.agreement import contradiction

from tests.chaos.profile import PROFILE
from tests.given.cluster.factory import Cluster, node

_fleet_pod = msgspec.json.Decoder(PodObject).decode
_watched_pod = msgspec.json.Decoder(WatchedPod).decode
_topology = msgspec.json.Decoder(TopologyObject).decode

SECOND = 1_000_000


@dataclass
class Sent:
    """A pod as the API server has it."""

    wire: dict[str, Any]
    gone: bool = False
    #: It was deleted.
    deleted: bool = False


@dataclass
class VirtualStorm:
    """A cluster of simulated kubelets and the log of it."""

    profile: str
    seed: int
    config: EngineConfig = field(default_factory=EngineConfig)
    observing: bool = True
    #: Seconds from a change at a kubelet until its exporter has read it, at least and at most.
    reads_s: tuple[float, float] = (0.2, 0.8)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.cluster = Cluster()
        self.now = 0.0
        self.pods: dict[str, Sent] = {}
        self.rejected: list[tuple[int, str, str]] = []
        self.admitted = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._told: dict[str, Placement] = {}
        self._lanes: dict[str, list[payloads.PodPlaced]] = {}
        self._read_at = 0
        self._decided_at = -1
        self._reading: set[str] = set()
        self.agents = {spec.name: Agent(spec) for spec in expand(parse_profile(self.profile, source="storm"))}
        for agent in self.agents.values():
            self._join(agent.spec, agent.kubelet)
        self._epoch = self.cluster.now
        self.later(0, self._schedule)

    # --- time -----------------------------------------------------------------------------------------------------

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._due, (self.now + seconds, self._number, do))

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, do = heapq.heappop(self._due)
            self.cluster.now = max(self.cluster.now, self._epoch + int(self.now * SECOND))
            do()
        self.now = until

    # --- what comes -----------------------------------------------------------------------------------------------

    def create(self, manifest: dict[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        stamp = f"2027-01-15T{8 + int(self.now) // 3600:02}:{int(self.now) // 60 % 60:02}:{int(self.now) % 60:02}Z"
        metadata = {**manifest["metadata"], "namespace": "default", "uid": f"uid-{name}", "creationTimestamp": stamp}
        wire = {**manifest, "metadata": metadata, "status": {"phase": "Pending"}}
        self.pods[name] = Sent(wire)
        self._tell(name)

    def delete(self, name: str) -> None:
        sent = self.pods.get(name)
        if sent is None or sent.gone or "deletionTimestamp" in sent.wire["metadata"]:
            return
        sent.deleted = True
        if "nodeName" not in sent.wire["spec"]:
            sent.gone = True
            self._tell(name)
            return
        sent.wire["metadata"] |= {"deletionTimestamp": "2027-01-15T09:00:00Z", "deletionGracePeriodSeconds": 0}
        self._tell(name)
        self._show(name)

    def _tell(self, name: str) -> None:
        """The watcher appends what became of a pod."""
        sent = self.pods[name]
        raw = None if sent.gone else msgspec.json.encode(sent.wire)

        def record() -> None:
            uid = sent.wire["metadata"]["uid"]
            if raw is None:
                if uid in self.cluster.state.pods:
                    self.cluster.record(f"pod/{uid}", payloads.PodDeleted(uid, "default", name))
                return
            pod = normalize_pod(_watched_pod(raw))
            self.cluster.record(f"pod/{uid}", payloads.PodObserved(pod))
            if pod.reason in ("TopologyAffinityError", "UnexpectedAdmissionError", "OutOfcpu"):
                ids = pod.uid, "default", name, pod.node_name
                self.cluster.record(f"pod/{uid}", payloads.PodRejected(*ids, pod.reason, pod.message))

        self._in_order("watch", 0.03, record)

    def _in_order(self, lane: str, seconds: float, do: Callable[[], None]) -> None:
        last = getattr(self, f"_last_{lane}", 0.0)
        when = max(last, self.now + seconds * self.chance.uniform(0.5, 2))
        setattr(self, f"_last_{lane}", when)
        self.later(when - self.now, do)

    # --- nodes ----------------------------------------------------------------------------------------------------

    def _join(self, spec: NodeSpec, kubelet: Kubelet) -> None:
        allocatable = dict(spec.config.allocatable)
        self.cluster.record(
            f"node/{spec.name}", payloads.NodeObserved(node(spec.name, allocatable=allocatable, capacity=allocatable))
        )
        body = NrtBuilder(spec, kubelet).build(kubelet)
        body["metadata"] = {**body.get("metadata", {}), "name": spec.name, "resourceVersion": "1", "uid": spec.name}
        topology = normalize_topology(_topology(msgspec.json.encode(body)))
        self.cluster.record(f"nrt/{spec.name}", payloads.TopologyObserved(topology))

    def _show(self, name: str) -> None:
        """The kubelet's watch."""
        sent = self.pods[name]
        agent = self.agents[sent.wire["spec"]["nodeName"]]
        raw = msgspec.json.encode(sent.wire)
        self._in_order("kubelet", 0.02, lambda: self._do(agent, agent.pod_seen(_fleet_pod(raw), self.now)))

    def _do(self, agent: Agent, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case WakeAt(when):
                    self.later(max(when - self.now, 0), lambda: self._do(agent, agent.due(self.now)))
                case PatchStatus(pod, body):
                    name = pod.metadata.name
                    if not self.pods[name].gone:
                        self.pods[name].wire["status"] |= msgspec.json.decode(body)["status"]
                        self._tell(name)
                case DeletePod(pod):
                    name = pod.metadata.name
                    self.pods[name].gone = True
                    self._tell(name)
                    self.later(0.01, partial(agent.pod_gone, f"uid-{name}"))
                case Decided(pod, rejection):
                    self.admitted += rejection is None
                    if rejection is not None:
                        at = len(self.cluster.events)
                        self.rejected.append((at, pod.metadata.name, rejection.reason))
        if agent.allocations_changed and self.observing:
            agent.allocations_changed = False
            self._read_soon(agent)

    # --- exporter and ingest --------------------------------------------------------------------------------------

    def _read_soon(self, agent: Agent) -> None:
        if agent.spec.name in self._reading:
            return
        self._reading.add(agent.spec.name)
        self.later(self.chance.uniform(*self.reads_s), lambda: self._read(agent))

    def _read(self, agent: Agent) -> None:
        self._reading.discard(agent.spec.name)
        kubelet = agent.kubelet
        read = [(pod, placement_of(kubelet, pod)) for pod in kubelet.pods.values() if pod.uid not in agent.half_way]
        if agent.half_way:
            self._read_soon(agent)
        self.later(self.chance.uniform(0.02, 0.1), lambda: self._ingest(agent.spec.name, read))

    def _ingest(self, node_name: str, read: list[tuple[Pod, Placement]]) -> None:
        for pod, placement in read:
            entry = self.cluster.state.pods.get(pod.uid)
            if entry is None or entry.node != node_name or self._told.get(pod.uid) == placement:
                continue
            self._told[pod.uid] = placement
            ids = pod.uid, "default", pod.name, node_name
            predicted = entry.predicted
            self.cluster.record(f"pod/{pod.uid}", payloads.PlacementObserved(*ids, placement, "exporter"))
            cause = contradiction(predicted, placement) if predicted is not None else None
            if cause is not None:
                missed = payloads.PredictionMissed(*ids, "", cause, predicted, placement)
                self.cluster.record(f"pod/{pod.uid}", missed)

    # --- scheduler and binder -------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        self.later(0.1, self._schedule)
        state = self.cluster.state
        if not state.waiting or state.revision == self._decided_at:
            return
        stirred = state.revision
        proposal = decide(state, self.config, shard="default", now=self.cluster.now, actor="scheduler")
        self._decided_at = stirred
        before = len(self.cluster.events)
        self.cluster.append(proposal.units)
        for event in self.cluster.events[before:]:
            payload = self.cluster.decoded(event)
            if isinstance(payload, payloads.PodPlaced):
                lane = self._lanes.setdefault(payload.node, [])
                lane.append(payload)
                if len(lane) == 1:
                    self._bind_next(payload.node)

    def _bind_next(self, node_name: str) -> None:
        slow = 3.0 if self.chance.random() < 0.01 else 0.0
        self.later(slow + self.chance.uniform(0.01, 0.05), lambda: self._bind(node_name))

    def _bind(self, node_name: str) -> None:
        lane = self._lanes[node_name]
        placed = lane.pop(0)
        sent = self.pods[placed.name]
        if sent.gone:
            self.cluster.record(
                f"pod/{placed.uid}",
                payloads.BindFailed(placed.uid, "default", placed.name, node_name, 404, "NotFound", gone=True),
            )
        else:
            sent.wire["spec"] = {**sent.wire["spec"], "nodeName": node_name}
            self.cluster.record(f"pod/{placed.uid}", payloads.PodBound(placed.uid, "default", placed.name, node_name))
            self._tell(placed.name)
            self._show(placed.name)
        if lane:
            self._bind_next(node_name)


def placement_of(kubelet: Kubelet, pod: Pod) -> Placement:
    """A pod's holdings, in the form of the kubelet's state files."""
    seen, containers, inits = 0, [], []
    zone_cpus = kubelet.machine.zone_cpus
    devices_seen: dict[str, int] = {}
    order = sorted(pod.containers, key=lambda container: container.kind == "init")
    for container in order:
        name = container.name
        amounts: list[dict[str, int]] = [{} for _ in zone_cpus]
        cpus = kubelet.managers.cpus.assigned.get(pod.uid, {}).get(name, 0) & ~seen
        seen |= cpus
        for zone, mask in enumerate(zone_cpus):
            if count := (cpus & mask).bit_count():
                amounts[zone]["cpu"] = 1000 * count
        for resource, every in kubelet.managers.devices.assigned.get(pod.uid, {}).get(name, {}).items():
            taken = every & ~devices_seen.get(resource, 0)
            devices_seen[resource] = devices_seen.get(resource, 0) | taken
            for zone in range(len(zone_cpus)):
                if count := (taken & kubelet.managers.devices.pools[resource].of_zone.get(zone, 0)).bit_count():
                    amounts[zone][resource] = count
        spans = []
        for block in kubelet.managers.memory.assigned.get(pod.uid, {}).get(name, []):
            at = list(members(block.zones))
            if len(at) == 1:
                amounts[at[0]][block.type] = amounts[at[0]].get(block.type, 0) + block.size
            elif block.size:
                spans.append(SpanAmount(tuple(f"node-{zone}" for zone in at), {block.type: block.size}))
        zones = tuple(ZoneAmount(f"node-{zone}", held) for zone, held in enumerate(amounts) if held)
        containers.append(ContainerPlacement(name, zones=zones, spans=tuple(spans)))
        inits += [name] if container.kind == "init" else []
    return Placement(Provenance.OBSERVED, tuple(containers), tuple(inits))


def mixed_pods(chance: random.Random, number: int) -> Iterator[dict[str, Any]]:
    """The work that comes at once: a pod, one with init container and sidecar, pods of a Job, or a gang."""
    name = f"s{number}"
    cpus, memory = str(chance.choice([1, 2, 3, 4, 7, 12])), f"{chance.choice([1, 8, 40])}Gi"
    held = {"cpu": cpus, "memory": memory}
    if chance.random() < 0.5:
        held["nvidia.com/gpu"] = str(chance.choice([1, 1, 2, 4]))
    kind = chance.choice(["pod", "pod", "staged", "job", "gang"])
    count = {"job": chance.randint(2, 5), "gang": chance.randint(2, 4)}.get(kind, 1)
    for member in range(count):
        seconds = chance.uniform(0.5, 4)
        metadata: dict[str, Any] = {
            "name": f"{name}-{member}",
            "annotations": {"simulator.kai.scheduler/run-seconds": str(seconds)},
        }
        if kind == "gang":
            gang = "gang.scheduling.koordinator.sh"
            metadata["annotations"] |= {f"{gang}/name": name, f"{gang}/min-available": str(count)}
        spec: dict[str, Any] = {
            "schedulerName": "kai-ledger",
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "x", "resources": {"requests": held, "limits": held}}],
        }
        if kind == "staged":
            spec["initContainers"] = []
            for step, restart in (("init", {}), ("side", {"restartPolicy": "Always"})):
                some = {"cpu": str(chance.choice([1, 2, 3])), "memory": "1Gi"}
                spec["initContainers"].append(
                    {"name": step, "image": "x", "resources": {"requests": some, "limits": some}, **restart}
                )
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def blow(storm: VirtualStorm, seconds: float) -> None:
    """Have mixed pods come and go for so long, and wait until all is over."""
    number = 0

    def come() -> None:
        nonlocal number
        number += 1
        for manifest in mixed_pods(storm.chance, number):
            storm.create(manifest)
        if storm.chance.random() < 0.2:
            storm.delete(storm.chance.choice(sorted(storm.pods)))
        if storm.now < seconds:
            storm.later(storm.chance.uniform(0.1, 0.5), come)

    come()
    storm.run(seconds + 120)


def lenient(policy: str, scope: str = "container", count: int = 6) -> str:
    """A group of nodes of a fleet's profile, with statuses up to two seconds late."""
    return f"""
  - name: {policy}-{scope}
    count: {count}
    zones: 2
    perZone: {{cpus: 16, memory: 64Gi, devices: {{nvidia.com/gpu: 4}}}}
    kubelet:
      topologyManagerPolicy: {policy}
      topologyManagerScope: {scope}
      cpuManagerPolicy: static
      memoryManagerPolicy: Static
      kubeReserved: {{cpu: "2", memory: 2Gi}}
    timing: {{startupDelay: 100ms, startupJitter: 200ms, terminationSeconds: 300ms}}
    lag: {{status: 2s, podresources: 400ms, sync: 100ms}}
"""


#: Profiles of storms: strict kubelets as in the storm on real processes, lenient ones, and all policies side by side.
PROFILES = {
    "strict": PROFILE,
    "best-effort": "groups:" + lenient("best-effort"),
    "best-effort-pod": "groups:" + lenient("best-effort", "pod"),
    "none": "groups:" + lenient("none"),
    "mixed": "groups:"
    + lenient("single-numa-node", count=2)
    + lenient("restricted", "pod", count=2)
    + lenient("best-effort", count=2),
}
