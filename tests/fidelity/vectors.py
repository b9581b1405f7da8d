"""Recorded kubelet decisions as events of a scheduler's log (format: `shared/data/kubelet/FORMAT.md`)."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from kaicore.model.node import Node, NodeTopology, TopologyPolicy, TopologyScope, Zone, ZoneResource
from kaicore.model.placement import ContainerPlacement, Placement, Provenance, SpanAmount, ZoneAmount
from kaicore.model.pod import Container, ContainerKind, Pod, QosClass
from kaicore.numa.requests import is_memory

Record = dict[str, Any]


def read_vectors(path: Path) -> Iterator[Record]:
    """Read scenarios from a file, gzipped or not."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as lines:
        for line in lines:
            yield msgspec.json.decode(line)


def node_of(scenario: Record) -> Node:
    """The Node object."""
    return Node(
        uid="node-uid",
        name="node",
        resource_version="1",
        allocatable={**scenario["node"]["node_allocatable"], "pods": 1000},
        ready=True,
        kubelet_version="v1.36.2",
    )


def topology_of(scenario: Record, available: Record, version: int) -> NodeTopology:
    """The NodeResourceTopology as an exporter publishes it, with what it sees free."""
    node = scenario["node"]
    allocatable = node["allocatable"]
    zones = tuple(
        Zone(
            name=f"node-{index}",
            numa_id=index,
            resources={
                name: ZoneResource(
                    capacity=node["capacity"].get(name, amounts)[index],
                    allocatable=amounts[index],
                    available=available.get(name, amounts)[index],
                )
                for name, amounts in allocatable.items()
            },
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


def observed_of(event: Record) -> Placement:
    """What podresources shows of an admitted pod: regular and restartable init containers only."""
    shown = {item["name"] for item in event["containers"] if item["kind"] != "init"}
    containers = []
    for item in event["alloc"]:
        if item["name"] not in shown:
            continue
        amounts: dict[int, dict[str, int]] = {}
        spans = []
        for resource, by_zone in item.get("amounts", {}).items():
            for zone, amount in enumerate(by_zone):
                if amount:
                    amounts.setdefault(zone, {})[resource] = amount
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


def masks_of(event: Record) -> dict[str, int]:
    """The mask of each container's merged hint as stored by the Topology Manager, those with something aligned only."""
    masks = {}
    for item in event["alloc"]:
        aligned = any(any(amounts) for amounts in item.get("amounts", {}).values()) or item.get("memory")
        if item["affinity"] is not None and aligned:
            masks[item["name"]] = sum(1 << zone for zone in item["affinity"])
    return masks


def memory_of(amounts: dict[str, int]) -> dict[str, int]:
    """The memory manager's part of some amounts."""
    return {name: amount for name, amount in amounts.items() if is_memory(name)}
