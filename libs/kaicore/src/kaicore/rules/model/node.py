"""Nodes and their NUMA topology, reduced to the fields that scheduling needs."""

from enum import StrEnum

import msgspec

from kaicore.rules.model.pod import Amounts


class Taint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node taint."""

    key: str
    effect: str
    value: str = ""


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node as the scheduler knows it; `allocatable` and `capacity` are whole-node totals.

    Attributes:
        kubelet_version: as its kubelet reports it, such as `v1.36.2`; empty where it reports none.
        declared_features: names of features that its kubelet declares to have switched on, sorted (since 1.35).
        gpus_repeated: its device plugin offers each GPU several times (HAMi), so what it offers are no whole GPUs.
    """

    uid: str
    name: str
    resource_version: str
    allocatable: Amounts = {}
    capacity: Amounts = {}
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = False
    kubelet_version: str = ""
    declared_features: tuple[str, ...] = ()
    gpus_repeated: bool = False


class TopologyPolicy(StrEnum):
    """The kubelet's Topology Manager policies."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class TopologyScope(StrEnum):
    """The kubelet's Topology Manager scopes."""

    CONTAINER = "container"
    POD = "pod"


class ZoneResource(msgspec.Struct, frozen=True):
    """One resource of one zone: hardware capacity, what pods may have, and what the exporter saw free."""

    capacity: int
    allocatable: int
    available: int


class Zone(msgspec.Struct, frozen=True, omit_defaults=True):
    """A NUMA node as a NodeResourceTopology names it.

    Attributes:
        name: as published, usually `node-<id>`.
        numa_id: the kubelet's NUMA node id, from the name.
        costs: distance to each zone by name, this one included (SLIT: 10 is local).
    """

    name: str
    numa_id: int
    resources: dict[str, ZoneResource] = {}
    costs: dict[str, int] = {}


class NodeTopology(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node's NUMA zones, ordered by `numa_id`, and what its Topology Manager is set to.

    Attributes:
        options: Topology Manager options by name, as far as an attribute publishes them.
        cpu_options: CPU manager options, likewise.
        feature_gates: the kubelet's feature gates that are set on or off, likewise.
        fingerprint: the pods fingerprint at the time of publication, empty when there is none.
        fingerprint_method: `all` or `with-exclusive-resources`.
    """

    node: str
    resource_version: str
    zones: tuple[Zone, ...]
    policy: TopologyPolicy = TopologyPolicy.NONE
    scope: TopologyScope = TopologyScope.CONTAINER
    options: dict[str, str] = {}
    fingerprint: str = ""
    fingerprint_method: str = "all"
    uid: str = ""
    cpu_options: dict[str, str] = {}
    feature_gates: dict[str, bool] = {}

    def lasting(self) -> "NodeTopology":
        """Return what of it lasts from one publication to the next: all but what the exporter saw free."""
        zones = tuple(
            msgspec.structs.replace(
                zone,
                resources={
                    name: msgspec.structs.replace(resource, available=0) for name, resource in zone.resources.items()
                },
            )
            for zone in self.zones
        )
        return msgspec.structs.replace(
            self, zones=zones, resource_version="", uid="", fingerprint="", fingerprint_method=""
        )
