"""The YAML profile of a fleet, as people write it, checked before anything is started.

`docs/reference/fleet.md` describes the format. Names are those of the kubelet's own configuration where it has them.
"""

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from kaicore.errors import ConfigurationError, InvalidQuantity
from kaicore.yaml_text import fault_text, load_yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from kai_fleet.kubelet.machine import from_cpulist
from kai_fleet.kubelet.quantity import parse_amount

_DURATION = re.compile(
    r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?", re.ASCII
)


def _seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value)
    if match is None or not value:
        raise ValueError("not a duration such as 500ms, 10s or 1m30s")
    return sum(float(part or 0) * unit for part, unit in zip(match.groups(), (3600, 60, 1, 0.001), strict=True))


def _quantity(resource: str) -> BeforeValidator:
    def convert(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return value
        try:
            return parse_amount(resource, value, subject="", field="")
        except InvalidQuantity as error:
            raise ValueError(error.problem) from None

    return BeforeValidator(convert)


def _cpu_ids(value: str) -> str:
    from_cpulist(value)
    return value


#: Seconds; written as a number or as `500ms`, `10s`, `1m`.
Duration = Annotated[float, BeforeValidator(_seconds), Field(ge=0, le=7 * 24 * 3600)]
#: Bytes, as a quantity.
Memory = Annotated[int, _quantity("memory"), Field(ge=0)]
#: Millicores, as a quantity.
Cpu = Annotated[int, _quantity("cpu"), Field(ge=0)]
CpuIds = Annotated[str, AfterValidator(_cpu_ids)]
Count = Annotated[int, Field(ge=0, le=4096)]
ResourceName = Annotated[
    str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
]
PageSize = Annotated[str, Field(pattern=r"^[1-9]\d*[KMG]i$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)


#: The hints of n zones are 2^n sets; a kubelet stalls over them too (k/k#135541).
MOST_ZONES = 12


class DeviceProfile(_Model):
    """One device, where its id or health matters; in a zone's list it is of that zone, in the node's of `zones`."""

    id: str = Field(min_length=1)
    zones: tuple[Count, ...] = ()
    healthy: bool = True


class ZoneProfile(_Model):
    """One NUMA node: CPUs by number or by id, bytes, devices by number or one by one."""

    cpus: int | None = Field(default=None, ge=1, le=1024)
    cpu_ids: CpuIds | None = Field(default=None, alias="cpuIDs")
    memory: Memory
    hugepages: Mapping[PageSize, Memory] = {}
    devices: Mapping[ResourceName, Count | tuple[DeviceProfile, ...]] = {}

    @model_validator(mode="after")
    def _cpus_once(self) -> "ZoneProfile":
        if (self.cpus is None) == (self.cpu_ids is None):
            raise ValueError("give either cpus or cpuIDs")
        if sum(self.hugepages.values()) > self.memory:
            raise ValueError("hugepages exceed memory")
        return self


class Reserved(_Model):
    """kubeReserved or systemReserved."""

    cpu: Cpu = 0
    memory: Memory = 0


class ReservedMemory(_Model):
    """The memory of one zone that the memory manager keeps from pods."""

    numa_node: Count
    limits: Mapping[Annotated[str, Field(pattern=r"^(memory|hugepages-[1-9]\d*[KMG]i)$")], Memory]


def _on(value: object) -> object:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


Switch = Annotated[bool, BeforeValidator(_on)]


class CpuManagerOptions(BaseModel):
    """cpuManagerPolicyOptions that the model follows, by their kubelet names."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-"))

    full_pcpus_only: Switch = False
    distribute_cpus_across_numa: Switch = False
    align_by_socket: Switch = False
    strict_cpu_reservation: Switch = False
    prefer_align_cpus_by_uncorecache: Switch = False


class TopologyManagerOptions(BaseModel):
    """topologyManagerPolicyOptions, by their kubelet names."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-"))

    prefer_closest_numa_nodes: Switch = False
    max_allowable_numa_nodes: int = Field(default=8, ge=8, le=1024)


class KubeletProfile(_Model):
    """The part of a KubeletConfiguration that the model follows, and the version the node shows."""

    version: str = Field(default="v1.36.2", pattern=r"^v\d+\.\d+\.\d+\S*$")
    topology_manager_policy: Literal["none", "best-effort", "restricted", "single-numa-node"] = "none"
    topology_manager_scope: Literal["container", "pod"] = "container"
    topology_manager_policy_options: TopologyManagerOptions = TopologyManagerOptions()
    cpu_manager_policy: Literal["none", "static"] = "none"
    cpu_manager_policy_options: CpuManagerOptions = CpuManagerOptions()
    memory_manager_policy: Literal["None", "Static"] = "None"
    kube_reserved: Reserved = Reserved()
    system_reserved: Reserved = Reserved()
    eviction_hard: Memory = Field(default=100 * 1024**2, description="memory.available")
    reserved_system_cpus: CpuIds | None = Field(default=None, alias="reservedSystemCPUs")
    reserved_memory: tuple[ReservedMemory, ...] = ()
    max_pods: int = Field(default=110, ge=1, le=100_000)
    preferred_allocation: frozenset[ResourceName] = Field(
        default=frozenset(), description="resources with a plugin that implements GetPreferredAllocation"
    )


class PublisherProfile(_Model):
    """The publishing of the node's NodeResourceTopology."""

    publisher: Literal["rte", "nfd", "none"] = "rte"
    delay: Duration = 1.0
    jitter: Duration = 0.5
    period: Duration = Field(default=60.0, description="0: only when something changed")
    fingerprint: bool = True
    exclude: frozenset[str] = Field(default=frozenset(), description="resources left out")


class TimingProfile(_Model):
    """The durations on the node."""

    admission_latency: Duration = 0.0
    startup_delay: Duration = 0.0
    startup_jitter: Duration = 0.0
    init_seconds: Duration = Field(default=0.0, description="how long each init container runs")
    run_seconds: Duration | None = Field(
        default=None, description="of pods that say nothing and do not restart; None: forever"
    )
    termination_seconds: Duration = Field(default=1.0, description="from deletion until all containers have stopped")
    lease_period: Annotated[Duration, Field(gt=0)] = 10.0
    status_period: Annotated[Duration, Field(gt=0)] = 300.0


class LagProfile(_Model):
    """The lag of the API and podresources behind the kubelet's managers: a little by default, as on real nodes."""

    status: Duration = Field(
        default=0.5, description="up to; from an end, with which everything is free, to its status"
    )
    podresources: Duration = Field(default=0.1, description="up to; so long podresources shows half of an admission")
    sync: Duration = Field(default=0.05, description="pods that come within so long are admitted oldest first")


class Taint(_Model):
    """A taint of the node."""

    key: str
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class NodeGroup(_Model):
    """Nodes that are alike; their names are `name` and a number."""

    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=50)
    count: int = Field(default=1, ge=1, le=10_000)
    first: int = Field(default=0, ge=0, description="number of the first node")
    reserve: int = Field(default=0, ge=0, le=10_000, description="nodes that the simulated autoscaler may add")
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    zones: int | tuple[ZoneProfile, ...]
    per_zone: ZoneProfile | None = None
    sockets: int | None = Field(default=None, ge=1, le=64)
    threads_per_core: int = Field(default=2, ge=1, le=8)
    distances: tuple[tuple[int, ...], ...] | None = None
    devices: Mapping[ResourceName, Count | tuple[DeviceProfile, ...]] = Field(
        default={}, description="devices of several zones, or of none"
    )
    extended_resources: Mapping[ResourceName, int] = Field(
        default={}, description="whole-node resources without devices"
    )
    ephemeral_storage: Memory = 1024**4
    kubelet: KubeletProfile = KubeletProfile()
    nrt: PublisherProfile = PublisherProfile()
    timing: TimingProfile = TimingProfile()
    lag: LagProfile = LagProfile()

    @model_validator(mode="after")
    def _zones_once(self) -> "NodeGroup":
        if isinstance(self.zones, int) != (self.per_zone is not None):
            raise ValueError("give zones as a number together with perZone, or as a list without it")
        count = self.zones if isinstance(self.zones, int) else len(self.zones)
        if not 1 <= count <= MOST_ZONES:
            raise ValueError(f"{count} zones: from 1 to {MOST_ZONES} are modelled")
        return self

    @property
    def zone_list(self) -> tuple[ZoneProfile, ...]:
        """The zones one by one, whichever form was written."""
        return (self.per_zone,) * self.zones if isinstance(self.zones, int) and self.per_zone else self.zones  # type: ignore[return-value]


class AutoscalerProfile(_Model):
    """The simulated autoscaler's answers to ProvisioningRequests; it runs where any group has a reserve."""

    delay: Duration = Field(default=2.0, description="from its first look at a request to the new nodes")
    booking: Duration = Field(default=600.0, description="how long it keeps the nodes for the request's pods")


class Profile(_Model):
    """A fleet."""

    description: str = ""
    topology_labels: Mapping[str, Annotated[int, Field(ge=1)]] = Field(
        default={}, description="label → nodes per domain; consecutive nodes of the whole fleet share a domain"
    )
    seed: int = Field(default=0, description="of everything that is up to chance on the nodes")
    autoscaler: AutoscalerProfile = AutoscalerProfile()
    groups: tuple[NodeGroup, ...]

    @model_validator(mode="after")
    def _names_once(self) -> "Profile":
        if not self.groups:
            raise ValueError("no groups")
        names = [
            f"{group.name}-{group.first + number}"
            for group in self.groups
            for number in range(group.count + group.reserve)
        ]
        if len(set(names)) < len(names):
            raise ValueError(f"two nodes are named {next(name for name in names if names.count(name) > 1)}")
        return self


def bundled_profiles() -> list[str]:
    """Return the names of the profiles that come with the fleet."""
    folder = resources.files("kai_fleet") / "profiles"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_profile(name_or_path: str) -> Profile:
    """Load a bundled profile by name, or one from a file.

    Raises ConfigurationError: naming the file, the field and the value that is wrong.
    """
    if name_or_path in bundled_profiles():
        text = (resources.files("kai_fleet") / "profiles" / f"{name_or_path}.yaml").read_text("utf-8")
    else:
        try:
            text = Path(name_or_path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            problem = error.strerror if isinstance(error, OSError) else error
            bundled = ", ".join(bundled_profiles())
            raise ConfigurationError(
                f"profile {name_or_path}: neither one of {bundled} nor a file: {problem}"
            ) from error
    return parse_profile(text, source=name_or_path)


def parse_profile(text: str, *, source: str) -> Profile:
    """Read a profile from YAML; `source` is what errors call it.

    Raises ConfigurationError: naming the source, the field and the value that is wrong.
    """
    try:
        document: Any = load_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"profile {source}: {fault_text(error)}") from error
    try:
        return Profile.model_validate(document)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in item['loc']) or 'profile'}: "
            f"{item['msg'].removeprefix('Value error, ')} (got {_short(item.get('input'))})"
            for item in error.errors(include_url=False)
        ]
        raise ConfigurationError(f"profile {source}: " + "; ".join(problems)) from error


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
