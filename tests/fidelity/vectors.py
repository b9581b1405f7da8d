"""Recorded kubelet decisions as events of a scheduler's log (format: `shared/data/kubelet/FORMAT.md`)."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kaicore.rules.engine.config import KubeletOverride
from kaicore.rules.model.node import Node, NodeTopology, TopologyPolicy, TopologyScope, Zone, ZoneResource
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, SpanAmount, ZoneAmount
from kaicore.rules.model.pod import Container, ContainerKind, Pod, QosClass
from kaicore.rules.numa.kubelet.settings import MULTITHREADING_LABEL

from tests.fidelity.format import VectorError, decode_scenario

Record = dict[str, Any]


def read_vectors(path: Path) -> Iterator[Record]:
    """Read scenarios from a file, gzipped or not, whatever it is called.

    Raises:
        VectorError: naming the line and the field that is wrong; or there is nothing to judge in it.
    """
    admissions = 0
    with path.open("rb") as start:
        zipped = start.read(2) == b"\x1f\x8b"
    opener = gzip.open if zipped else open
    with opener(path, "rb") as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    scenario = decode_scenario(line, where=f"{path}, line {number}")
                    admissions += sum(event["op"] == "admit" and event["node_fit"] for event in scenario["events"])
                    yield scenario
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise VectorError(f"{path}: {error}") from None
    if not admissions:
        raise VectorError(f"{path}: no admission in it that could be judged")


def node_of(scenario: Record) -> Node:
    """The Node object; Node Feature Discovery labels those with two threads per core."""
    labels = {"scenario": scenario["id"]}
    if scenario["node"]["threads_per_core"] > 1:
        labels[MULTITHREADING_LABEL] = "true"
    return Node(
        uid="node-uid",
        name="node",
        resource_version="1",
        allocatable={**scenario["node"]["node_allocatable"], "pods": 1000},
        labels=labels,
        ready=True,
        kubelet_version=scenario["node"].get("kubelet", "v1.36.2"),
    )


def override_of(scenario: Record) -> KubeletOverride:
    """An operator's configuration of unpublished facts: options of the CPU and the Topology Manager."""
    node = scenario["node"]
    cpu, topology = node.get("cpu_manager_options", {}), node.get("topology_policy_options", {})
    return KubeletOverride(
        match_labels={"scenario": scenario["id"]},
        feature_gates=node.get("feature_gates", {}),
        cpu_options=tuple(sorted(name for name, value in cpu.items() if value == "true")),
        topology_options=tuple(sorted(name for name, value in topology.items() if value == "true")),
        zones_per_socket=max(node["zones"] // node["sockets"], 1),
    )


def topology_of(scenario: Record, available: Record, version: int) -> NodeTopology:
    """The NodeResourceTopology as an exporter publishes it, with what it sees free.

    Of devices both publishers know no more than the healthy ones: capacity is what is allocatable.
    """
    node = scenario["node"]
    allocatable, capacity = node["allocatable"], node["capacity"]
    distances = node.get("distances") or [[]] * node["zones"]
    zones = tuple(
        Zone(
            name=f"node-{index}",
            numa_id=index,
            resources={
                name: ZoneResource(
                    capacity=(capacity[name] if name in ("cpu", "memory") else amounts)[index],
                    allocatable=amounts[index],
                    available=available.get(name, amounts)[index],
                )
                for name, amounts in allocatable.items()
            },
            costs={f"node-{other}": cost for other, cost in enumerate(distances[index])},
        )
        for index in range(node["zones"])
    )
    return NodeTopology(
        node="node",
        resource_version=str(version),
        zones=zones,
        policy=TopologyPolicy(node["topology_policy"]),
        scope=TopologyScope(node["topology_scope"]),
    )


def pod_of(event: Record, **status: Any) -> Pod:
    """The Pod object of an `admit` event."""
    containers = tuple(
        Container(
            name=item["name"],
            kind=ContainerKind(item["kind"]),
            requests=item.get("req", {}),
            limits=item.get("lim", item.get("req", {})),
        )
        for item in event["containers"]
    )
    return Pod(
        uid=event["pod"],
        namespace="default",
        name=event["pod"],
        resource_version="1",
        created_at=0,
        scheduler_name="kai-ledger",
        qos=QosClass(event["qos"]),
        containers=containers,
        overhead=event.get("overhead", {}),
        pod_resources=event.get("pod_req"),
        **status,
    )


def observed_of(scenario: Record, event: Record) -> Placement:
    """The view of podresources on an admitted pod: regular and restartable init containers, and the pod as a whole."""
    shown = {item["name"] for item in event["containers"] if item["kind"] != "init"}
    containers = []
    for item in event["alloc"]:
        if item["name"] and item["name"] not in shown:
            continue
        amounts: dict[int, dict[str, int]] = {}
        spans = []
        for zone, amount in enumerate(item.get("amounts", {}).get("cpu", ())):
            if amount:
                amounts.setdefault(zone, {})["cpu"] = amount
        for resource, ids in item.get("devices", {}).items():
            zones_of = {device["id"]: device["numa"] for device in scenario["node"]["devices"][resource]}
            for device in ids.split(","):
                zones = zones_of[device]
                if len(zones) == 1:
                    held = amounts.setdefault(zones[0], {})
                    held[resource] = held.get(resource, 0) + 1
                elif zones:
                    spans.append(SpanAmount(tuple(f"node-{zone}" for zone in zones), {resource: 1}))
        for block in item.get("memory", []):
            if len(block["numa"]) == 1:
                held = amounts.setdefault(block["numa"][0], {})
                held[block["type"]] = held.get(block["type"], 0) + block["size"]
            else:
                names = tuple(f"node-{zone}" for zone in block["numa"])
                spans.append(SpanAmount(names, {block["type"]: block["size"]}))
        containers.append(
            ContainerPlacement(
                container=item["name"],
                zones=tuple(ZoneAmount(f"node-{zone}", amounts[zone]) for zone in sorted(amounts)),
                spans=tuple(spans),
            )
        )
    return Placement(Provenance.OBSERVED, tuple(containers))
