"""The form of a vector file, as far as it is used here (format: `shared/data/kubelet/FORMAT.md`)."""

from typing import Any

import msgspec
from kaicore.rules.model.node import TopologyPolicy, TopologyScope
from kaicore.rules.model.pod import ContainerKind, QosClass

_ZoneMap = dict[str, list[int]]
_Amounts = dict[str, int]


class VectorError(Exception):
    """A vector file that is none; names file, line and field."""


class _Device(msgspec.Struct):
    id: str
    numa: list[int]


class _Node(msgspec.Struct):
    zones: int
    sockets: int
    threads_per_core: int
    topology_policy: TopologyPolicy
    topology_scope: TopologyScope
    capacity: _ZoneMap
    allocatable: _ZoneMap
    node_allocatable: _Amounts
    devices: dict[str, list[_Device]] = {}
    topology_policy_options: dict[str, str] = {}
    cpu_manager_options: dict[str, str] = {}
    distances: list[list[int]] = []
    kubelet: str = "v1.36.2"
    feature_gates: dict[str, bool] = {}


class _Container(msgspec.Struct):
    name: str
    kind: ContainerKind
    req: _Amounts = {}
    lim: _Amounts = {}


class _Block(msgspec.Struct):
    type: str
    size: int
    numa: list[int]


class _Allocation(msgspec.Struct):
    name: str
    affinity: list[int] | None
    amounts: _ZoneMap = {}
    memory: list[_Block] = []
    devices: dict[str, str] = {}


class _Admit(msgspec.Struct, tag_field="op", tag="admit"):
    pod: str
    qos: QosClass
    containers: list[_Container]
    node_fit: bool
    admit: bool
    reason: str | None = None
    message: str | None = None
    alloc: list[_Allocation] | None = None
    placement: _ZoneMap | None = None
    pod_req: _Amounts | None = None
    overhead: _Amounts = {}
    available: _ZoneMap | None = None
    tags: list[str] = []

    def __post_init__(self) -> None:
        for name in ("alloc", "placement") if self.admit else ("reason",):
            if getattr(self, name) is None:
                raise ValueError(f"missing required field `{name}`")


class _Start(msgspec.Struct, tag_field="op", tag="start"):
    pod: str
    available: _ZoneMap | None = None


class _Remove(msgspec.Struct, tag_field="op", tag="remove"):
    pod: str
    available: _ZoneMap | None = None


class _Scenario(msgspec.Struct):
    id: str
    tags: list[str]
    node: _Node
    initial_available: _ZoneMap
    events: list[_Admit | _Start | _Remove]

    def __post_init__(self) -> None:
        for field in ("capacity", "allocatable"):
            for resource, amounts in getattr(self.node, field).items():
                if len(amounts) != self.node.zones:
                    raise ValueError(f"`node.{field}.{resource}` has {len(amounts)} zones of {self.node.zones}")
        there = {(resource, device.id) for resource, devices in self.node.devices.items() for device in devices}
        for event in self.events:
            for item in (event.alloc or ()) if isinstance(event, _Admit) else ():
                for resource, ids in item.devices.items():
                    if unknown := [one for one in ids.split(",") if (resource, one) not in there]:
                        raise ValueError(f"pod {event.pod}: `alloc.devices.{resource}` has no device {unknown[0]!r}")


def decode_scenario(line: bytes, *, where: str) -> dict[str, Any]:
    """Read one scenario.

    Raises:
        VectorError: naming where it stands and the field.
    """
    try:
        scenario: dict[str, Any] = msgspec.json.decode(line)
        msgspec.convert(scenario, _Scenario)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise VectorError(f"{where}: {error}") from None
    return scenario
