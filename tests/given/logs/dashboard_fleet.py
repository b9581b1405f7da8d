"""A small cluster with a history, for the dashboard: racks, queues, work that came, ran, failed, waits."""

from typing import Any
from urllib.parse import quote

import msgspec
from kaicore.ledger.log.memory import MemoryLog
from kaicore.rules.deciding.shadow import decide_in_shadow, shadow_config
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import Unit
from kaicore.rules.model.node import HOSTNAME, KAI_TOPOLOGY, TopologyDefinition, TopologyLevel
from kaicore.rules.model.placement import Provenance
from kaicore.rules.model.pod import Pod
from kaicore.rules.state.pods.pod_entry import Stage

from tests.given.cluster import devices as dra
from tests.given.cluster.factory import amounts, pod
from tests.given.cluster.hierarchy import queue
from tests.given.cluster.sharing_cluster import ON, ZONE, SharingCluster
from tests.given.logs.new_events import as_new
from tests.given.work.workloads import OWNER, Workloads

MINUTE = 60_000_000
_QUEUE_LABEL = "kai.scheduler/queue"


class Fleet(Workloads):
    """Nodes `n000`, `n001`, … in racks and blocks, with two zones of four GPUs each."""

    def __init__(self, cluster: str = "fleet", *, nodes: int = 16, per_rack: int = 4, per_block: int = 8) -> None:
        super().__init__(cluster)
        levels = (TopologyLevel("block", ("block",)), TopologyLevel("rack", ("rack",)), TopologyLevel(HOSTNAME))
        definition = TopologyDefinition(KAI_TOPOLOGY, "dc", "uid-dc", "1", levels)
        self.record("topology/dc", payloads.TopologyDefinitionObserved(definition))
        for one in (
            queue("research", quota=64),
            queue("vision", "research", quota=32),
            queue("language", "research", quota=32),
            queue("production", quota=32),
        ):
            self.record(f"queue/{one.name}", payloads.QueueObserved(one))
        zone = amounts(cpu=32, memory=256, gpu=4)
        for number in range(nodes):
            name = f"n{number:03}"
            rack, block = f"r{number // per_rack:02}", f"b{number // per_block}"
            self.add_node(name, zone, zone, labels={"block": block, "rack": rack, HOSTNAME: name})

    def job(self, name: str, count: int, queue_name: str, **spec: int) -> list[Pod]:
        labels = {_QUEUE_LABEL: queue_name}
        created = self.now // 1_000_000
        return self.gang(name, count, group={"queue": queue_name}, labels=labels, created_at=created, **spec)

    def single(self, name: str, queue_name: str, **spec: int) -> Pod:
        labels = {_QUEUE_LABEL: queue_name}
        return self.add_pod(pod(name, labels=labels, owner=OWNER, created_at=self.now // 1_000_000, **spec))

    def later(self, minutes: float) -> None:
        """Let time pass."""
        self.now += int(minutes * MINUTE)

    def turn(self) -> None:
        """A cycle, after which what was placed runs, as predicted."""
        self.later(0.1)
        result = self.cycle()
        for decision in result.placements:
            one = self.state.pods[decision.uid].pod
            self.later(0.02)
            self.record(
                f"pod/{one.uid}",
                payloads.PodBound(one.uid, one.namespace, one.name, decision.node),
                subject=one.subject,
            )
            self.see(one, node_name=decision.node, phase="Running", start_time=self.now // 1_000_000)
            if decision.placement is not None:
                placement = msgspec.structs.replace(decision.placement, provenance=Provenance.OBSERVED)
                seen = payloads.PlacementObserved(one.uid, one.namespace, one.name, decision.node, placement)
                self.record(f"pod/{one.uid}", seen, subject=one.subject)
        for eviction in result.evictions:
            self.see(self.state.pods[eviction.uid].pod, deletion_at=self.now // 1_000_000)

    def end(self, *pods: Pod) -> None:
        """Pods end well and go."""
        for one in pods:
            if self.state.pods[one.uid].stage is Stage.BOUND:
                self.see(one, phase="Succeeded")
            self.delete_pod(self.state.pods[one.uid].pod)


class FleetLog:
    """A log in memory that has what a fleet has recorded."""

    def __init__(self, *fleets: Fleet) -> None:
        self.log = MemoryLog(lambda: self._now)
        self._now = 0
        self._fleets = fleets
        self._stored = dict.fromkeys((fleet.cluster for fleet in fleets), 0)

    async def store(self) -> None:
        """Append what has been recorded since the last call."""
        for fleet in self._fleets:
            for event in fleet.events[self._stored[fleet.cluster] :]:
                self._now = event.recorded_at
                await self.log.append(fleet.cluster, [Unit((as_new(event),))])
            self._stored[fleet.cluster] = len(fleet.events)


def example_fleet() -> Fleet:
    """Four hours of a cluster of 16 nodes: gangs, single pods, an end, an eviction, a rejection, some that wait."""
    fleet = Fleet()
    language = fleet.job("llm-70b", 6, "language", cpu=32, memory=256, gpu=4)
    fleet.turn()
    fleet.later(25)
    for number in range(6):
        fleet.single(f"notebook-{number}", "vision", cpu=4, memory=32, gpu=1)
    fleet.turn()
    fleet.later(40)
    detector = fleet.job("detector", 4, "vision", cpu=16, memory=128, gpu=2)
    fleet.single("batch-cpu", "production", cpu=30, memory=8)
    fleet.turn()
    fleet.later(50)
    fleet.end(*detector)
    fleet.job("ranker", 8, "production", cpu=16, memory=128, gpu=4)
    fleet.turn()
    fleet.later(35)
    fleet.job("pretrain", 16, "language", cpu=28, memory=200, gpu=4)
    fleet.turn()
    fleet.later(20)
    fleet.job("sweep", 12, "vision", cpu=8, memory=64, gpu=2)
    fleet.single("too-large", "vision", cpu=4, memory=16, gpu=9)
    fleet.turn()
    fleet.later(15)
    fleet.see(language[0], deletion_at=fleet.now // 1_000_000)
    fleet.turn()
    fleet.later(6)
    fleet.turn()
    return fleet


def device_fleet() -> Fleet:
    """Two nodes with GPUs as devices of claims, one of them tainted; a pod asks for more than a node has."""
    fleet = Fleet("devices", nodes=0)
    zone = amounts(cpu=16, memory=128)
    for name in ("d0", "d1"):
        fleet.add_node(name, zone, zone)
        gpus = [dra.gpu(f"gpu-{number}", numa=number // 2) for number in range(3)]
        gpus.append(dra.gpu("gpu-3", numa=1, taints=[{"key": "gpu.example.com/unhealthy", "effect": "NoSchedule"}]))
        dra.add_slice(fleet, dra.slice_document(name, *gpus))
    dra.devices(fleet)
    ours: dict[str, Any] = {"labels": {_QUEUE_LABEL: "vision"}, "owner": OWNER}
    dra.from_template(fleet, dra.exactly(count=2), name="trainer", cpu=8, **ours)
    dra.add_claim(fleet, "shared", dra.exactly())
    dra.using(fleet, "shared", name="reader-0", **ours)
    dra.using(fleet, "shared", name="reader-1", **ours)
    fleet.turn()
    fleet.later(5)
    dra.from_template(fleet, dra.exactly(count=4), name="too-many", cpu=8, **ours)
    fleet.turn()
    return fleet


class SharingFleet(SharingCluster, Fleet):
    """A node with six GPUs: one that is shared, one with a part that is being given back, whole and free ones."""

    def __init__(self) -> None:
        Workloads.__init__(self, "sharing")
        self.add_node("s0", ZONE, ZONE, ZONE)
        for number, milli in enumerate((300, 250, 200)):
            self.share(f"notebook-{number}", milli, created_at=number)
        self.turn()
        self.share("inference", 600)
        self.add_pod(pod("trainer", cpu=2, gpu=2))
        self.turn()
        leaving = self.share("leaving", 200, created_at=9)
        self.turn()
        self.see(leaving, deletion_at=self.now // 1_000_000)
        self.share("starting", 900)
        self.cycle(ON)


def shadowed_fleet() -> Fleet:
    """A cluster of another scheduler with a shadow: one pod on the shadow's node, one on another, one that waits."""
    fleet = Fleet("shadowed", nodes=2)
    config = shadow_config(EngineConfig(), "default-scheduler")

    def look() -> None:
        decided = decide_in_shadow(fleet.state, config, now=fleet.now)
        if decided is not None:
            fleet.record(decided.shard, decided)

    more: dict[str, Any] = {"labels": {_QUEUE_LABEL: "vision"}, "owner": OWNER, "scheduler_name": "default-scheduler"}
    theirs = [
        fleet.add_pod(pod(name, **more, cpu=4, memory=8, gpu=gpus))
        for name, gpus in (("web-0", 1), ("web-1", 1), ("huge", 9))
    ]
    look()
    for one in theirs[:2]:
        fleet.later(1)
        choice = fleet.state.shadows.choices[one.uid].node
        other = next(name for name in ("n000", "n001") if name != choice)
        node_name = choice if one.name == "web-0" else other
        fleet.see(one, node_name=node_name, phase="Running", start_time=fleet.now // 1_000_000)
        look()
    return fleet


#: What a browser would run, were it not shown as text.
MARKUP = '<img src=x onerror="document.title=1">&"\''
_SAID = f"{MARKUP}</script></pre></a><script>document.title=1</script>"


def hostile_fleet() -> Fleet:
    """A cluster of which every text that a user or a component may write has markup: names, labels, messages.

    An API server refuses such names, and takes such labels' values in part; a log takes whatever it is given.
    """
    fleet = Fleet("hostile", nodes=2)
    fleet.record("queue/hostile", payloads.QueueObserved(queue(MARKUP, quota=4)))
    zone = amounts(cpu=32, memory=256, gpu=4)
    fleet.add_node(MARKUP, zone, zone, labels={"block": MARKUP, "rack": MARKUP, HOSTNAME: MARKUP, "note": _SAID})
    more: dict[str, Any] = {"namespace": MARKUP, "labels": {_QUEUE_LABEL: MARKUP, MARKUP: MARKUP}, "owner": OWNER}
    for number in range(3):
        fleet.add_pod(pod(f"{MARKUP}{number}", node_selector={"rack": MARKUP}, **more, cpu=4, memory=8, gpu=1))
    fleet.gang(f"gang{MARKUP}", 2, group={"queue": MARKUP}, labels={_QUEUE_LABEL: MARKUP}, cpu=1, memory=1, gpu=1)
    waits = fleet.add_pod(pod(f"waits{MARKUP}", node_selector={MARKUP: _SAID}, **more, cpu=4, memory=8, gpu=1))
    result = fleet.cycle()
    assert len(result.placements) >= 3
    for number, decision in enumerate(result.placements):
        one = fleet.state.pods[decision.uid].pod
        said = (one.uid, one.namespace, one.name, decision.node)
        if number == 0:
            fleet.record(f"pod/{one.uid}", payloads.BindFailed(*said, 400, _SAID, _SAID), subject=one.subject)
            continue
        fleet.record(f"pod/{one.uid}", payloads.PodBound(*said), subject=one.subject)
        failed = {"phase": "Failed", "reason": "TopologyAffinityError", "message": _SAID}
        fleet.see(one, node_name=decision.node, **({"phase": "Running"} if number == 1 else failed))
    # Devices, and a pod of another scheduler that a shadow decided on.
    dra.add_slice(
        fleet,
        dra.slice_document("n000", dra.gpu("gpu-0", taints=[{"key": MARKUP, "value": _SAID, "effect": "NoSchedule"}])),
    )
    theirs = fleet.add_pod(pod(f"theirs{MARKUP}", **more, scheduler_name=MARKUP, cpu=1, memory=1))
    decided = decide_in_shadow(fleet.state, shadow_config(EngineConfig(), MARKUP), now=fleet.now)
    assert decided is not None
    fleet.record(decided.shard, decided)
    fleet.see(theirs, node_name=MARKUP, phase="Running")
    fleet.later(1)
    fleet.cycle()
    assert fleet.state.pods[waits.uid].stage is Stage.WAITING
    return fleet


def hostile_pages(fleet: Fleet) -> list[str]:
    """The addresses of every page about the fleet with markup, also of what has it in its name."""
    cycles = [event.position for event in fleet.events if event.type == "CycleCompleted"]
    assert cycles
    here, name = "/clusters/hostile", quote(MARKUP, safe="")
    pods = [
        f"{here}/stories/Pod/{name}/{quote(one, safe='')}" for one in (f"{MARKUP}0", f"{MARKUP}1", f"waits{MARKUP}")
    ]
    every = (
        "",
        "/map",
        "/queues",
        "/who?queue=default",
        "/waiting",
        "/cycles",
        "/predictions",
        "/segments",
        "/jobs",
        "/pods",
        "/nodes",
        "/charts",
        "/map?colour=job",
        "/nodes/n000",
        "/shadow",
    )
    return [
        "/",
        *(here + path for path in every),
        f"{here}/nodes/{name}",
        f"{here}/search?q={name}",
        f"{here}/domain?topology={quote('Topology dc')}&path={name}",
        f"{here}/nodes/{name}none",
        *pods,
        *(f"{here}/cycles/{position}{part}" for position in cycles for part in ("", "/order")),
        f"{here}/stories/PodGroup/default/{quote('gang' + MARKUP, safe='')}",
    ]
