"""Nodes, zones and pods for tests, in few words."""

from typing import Any, Self

from kaicore.rules.deciding.cycle_run import NOTHING_LEFT_OUT
from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.engine.policies.book import NO_POLICIES
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.node import Node, NodeTopology, TopologyPolicy, TopologyScope, Zone, ZoneResource
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount
from kaicore.rules.model.pod import Amounts, Container, ContainerKind, Pod, QosClass
from kaicore.rules.model.quantity import is_memory

from tests.given.logs.ledger import Ledger

GI = 2**30
GPU = "nvidia.com/gpu"
NIC = "rdma/hca"


def amounts(
    *, cpu: float = 0, memory: int = 0, gpu: int | None = None, nic: int | None = None, **others: int
) -> Amounts:
    """CPUs in cores, memory in GiB, the rest as counts."""
    every = {"cpu": int(cpu * 1000), "memory": memory * GI, GPU: gpu, NIC: nic, **others}
    return {name: amount for name, amount in every.items() if amount or (amount == 0 and name in (GPU, NIC))}


def container(name: str = "main", kind: ContainerKind = ContainerKind.APP, **kwargs: Any) -> Container:
    held = amounts(**kwargs)
    return Container(name=name, kind=kind, requests=held, limits=held)


def pod(name: str, *containers: Container, qos: QosClass = QosClass.GUARANTEED, **kwargs: Any) -> Pod:
    """A pod of ours, its uid made of its name; amounts without a container go to one called main."""
    fields = set(Pod.__struct_fields__)
    given = {key: kwargs.pop(key) for key in list(kwargs) if key in fields}
    values: dict[str, Any] = {
        "uid": f"uid-{name}",
        "namespace": "default",
        "name": name,
        "resource_version": "1",
        "created_at": 0,
        "scheduler_name": "kai-ledger",
        "qos": qos,
        "containers": containers or (container(**kwargs),),
    }
    return Pod(**(values | given))


def on_zone(zone: str, amount: Amounts, name: str = "main") -> ContainerPlacement:
    """What a container holds on one zone."""
    return ContainerPlacement(name, zones=(ZoneAmount(zone, amount),))


def node(name: str, *, ready: bool = True, pods: int = 110, **kwargs: Any) -> Node:
    """A node; amounts are whole-node totals."""
    fields = set(Node.__struct_fields__)
    given = {key: kwargs.pop(key) for key in list(kwargs) if key in fields}
    held = {**amounts(**kwargs), "pods": pods}
    values: dict[str, Any] = {
        "uid": f"uid-{name}",
        "name": name,
        "resource_version": "1",
        "allocatable": held,
        "capacity": held,
        "ready": ready,
    }
    return Node(**(values | given))


def topology(
    name: str,
    *zones: Amounts,
    policy: str = "single-numa-node",
    scope: str = "container",
    capacity: Amounts | None = None,
    available: tuple[Amounts, ...] | None = None,
    costs: tuple[tuple[int, ...], ...] = (),
) -> NodeTopology:
    """A NodeResourceTopology; `capacity` is each zone's where it is more than allocatable."""
    return NodeTopology(
        node=name,
        resource_version="1",
        policy=TopologyPolicy(policy),
        scope=TopologyScope(scope),
        zones=tuple(
            Zone(
                name=f"node-{index}",
                numa_id=index,
                costs={f"node-{other}": cost for other, cost in enumerate(costs[index] if costs else ())},
                resources={
                    resource: ZoneResource(
                        capacity=(capacity or {}).get(resource, amount),
                        allocatable=amount,
                        available=available[index].get(resource, 0) if available else amount,
                    )
                    for resource, amount in held.items()
                },
            )
            for index, held in enumerate(zones)
        ),
    )


class Cluster(Ledger):
    """A ledger with words for what happens in a cluster.

    Attributes:
        may_raise: whether cycles are to raise, and to go on without what they raise with.
        policies: the code of those that a configuration names.
    """

    may_raise = False
    policies = NO_POLICIES

    def add_node(self, name: str, *zones: Amounts, policy: str = "single-numa-node", **kwargs: Any) -> Self:
        """Add a node with the sums of its zones as totals, or `kwargs` where there are none."""
        topology_kwargs = {key: kwargs.pop(key) for key in ("scope", "capacity", "available", "costs") if key in kwargs}
        totals: Amounts = {}
        for zone in zones:
            for resource, amount in zone.items():
                totals[resource] = totals.get(resource, 0) + amount
        facts = {**kwargs}
        if totals:
            facts.setdefault("allocatable", {**totals, "pods": 110})
        self.record(f"node/{name}", payloads.NodeObserved(node(name, **facts)))
        if zones:
            nrt = topology(name, *zones, policy=policy, **topology_kwargs)
            self.record(f"nrt/{name}", payloads.TopologyObserved(nrt))
        return self

    def add_nodes(self, count: int, *zones: Amounts, **kwargs: Any) -> Self:
        """Add nodes n0, n1, … that are alike."""
        for number in range(count):
            self.add_node(f"n{number}", *zones, **kwargs)
        return self

    def add_pod(self, one: Pod) -> Pod:
        """The watcher sees a pod, or sees it changed."""
        self.record(f"pod/{one.uid}", payloads.PodObserved(one), subject=one.subject)
        return one

    def delete_pod(self, one: Pod) -> None:
        """The watcher sees a pod go."""
        self.record(f"pod/{one.uid}", payloads.PodDeleted(one.uid, one.namespace, one.name), subject=one.subject)

    def report(
        self, one: Pod, *held: ContainerPlacement, node: str = "n1", init: tuple[str, ...] | None = None
    ) -> Event:
        """An exporter reports what a pod holds on a node."""
        placement = Placement(Provenance.OBSERVED, held, init)
        seen = payloads.PlacementObserved(one.uid, one.namespace, one.name, node, placement)
        return self.record(f"pod/{one.uid}", seen, subject=one.subject)

    def cycle(self, config: EngineConfig | None = None) -> CycleResult:
        """Run a cycle on the present state and record it, as the scheduler does."""
        used = config or EngineConfig()
        proposal = decide(self.state, used, shard="default", now=self.now, actor="scheduler", policies=self.policies)
        self.append(proposal.units)
        assert self.may_raise or proposal.left_out == NOTHING_LEFT_OUT, "a cycle with them raises"
        return proposal.result


def amounts_of(zone: Zone) -> dict[str, tuple[float, float, float]]:
    """Of each resource of a zone its capacity, what is allocatable, and what is available; in cores and GiB."""
    units = {name: 1000 if name == "cpu" else GI if is_memory(name) else 1 for name in zone.resources}
    return {
        name: (one.capacity / units[name], one.allocatable / units[name], one.available / units[name])
        for name, one in zone.resources.items()
    }
