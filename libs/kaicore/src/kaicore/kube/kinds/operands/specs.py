"""The spec of a `SchedulingShard`: KAI-Scheduler's fields mapped to our settings, and our own settings unchanged.

The spec of a `Config`, as the operator reads it.

Every fault is reported by field and value, and the other fields still count.

Names that operands and their users share.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from kaicore.errors import ConfigurationError, InvalidObject, InvalidQuantity
from kaicore.rules.engine.config import Action, EngineConfig, PlacementStrategy, PolicyEntry, current_names
from kaicore.rules.model.quantity import parse_amount, parse_duration
from kaicore.rules.objects.mappings import Object, misfit
from kaicore.spelling import did_you_mean

API_VERSION = "kai.scheduler/v1"

#: The Config that counts; KAI-Scheduler's has the same name.
CONFIG_NAME = "kai-config"

#: The label by which operands are known, and its value.
MANAGED_BY = "app.kubernetes.io/managed-by"
OPERATOR = "kai-operator"

#: The label that tells a scheduler's shard, on its operands and pods.
SHARD = "kai.scheduler/shard"

#: The annotation with the digest of what an operand is to be.
DIGEST = "kai.scheduler/operand-digest"

#: Kind, path of its API version, and plural of everything that can be an operand, in the order of making them.
OPERAND_KINDS = {
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "ConfigMap": ("api/v1", "configmaps"),
    "Service": ("api/v1", "services"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "DaemonSet": ("apis/apps/v1", "daemonsets"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "StatefulSet": ("apis/apps/v1", "statefulsets"),
}

#: Kind and name: operands are in one namespace.
Key = tuple[str, str]


def key_of(obj: Object) -> Key:
    """Return an object's kind and name."""
    return obj["kind"], obj["metadata"]["name"]


def title_of(obj: Object) -> str:
    """Return kind and name as people write them."""
    return f"{obj['kind']} {obj['metadata']['name']}"


def owner_reference(owner: Object) -> Object:
    """Return the reference by which an operand goes when its owner goes.

    It does not block the owner's deletion: setting that needs a right on the owner's finalizers.
    """
    metadata = owner["metadata"]
    return {
        "apiVersion": API_VERSION,
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }


def controller_uid(obj: Object) -> str:
    """Return the uid of the object's controller; empty without one."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference["uid"])
    return ""


_T = TypeVar("_T")

#: Longest value that is shown of a fault.
_LONGEST = 80


class Faults:
    """One object's problems, in the order in which they were seen."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def add(self, field: str, problem: str, value: object) -> None:
        """Take note that a field's value cannot be."""
        shown = repr(value)
        self.messages.append(f"{field}: {problem}: {shown if len(shown) <= _LONGEST else shown[:_LONGEST] + '…'}")

    def of_type(self, value: object, cls: type[_T], field: str) -> _T | None:
        """Read a value as a type; None, with a fault, where it is not of that type."""
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            where, at, problem = misfit(error, value)
            self.add(field + where, problem, at)
        return None

    def duration_us(self, text: str | None, field: str, *, least_us: int = 0) -> int | None:
        """Read a duration in microseconds; None without one, and for one that cannot be."""
        if text is None:
            return None
        try:
            duration = parse_duration(text, subject="", field=field)
        except InvalidObject as error:
            self.add(field, error.problem, text)
            return None
        if duration < least_us:
            self.add(field, f"must be {least_us / 1_000_000:g}s at least", text)
            return None
        return duration

    def resources(self, resources: "Resources | None", field: str) -> Object | None:
        """Read what a container asks for; None without it, and for one that cannot be."""
        if resources is None:
            return None
        before = len(self.messages)
        for part, amounts in (("requests", resources.requests), ("limits", resources.limits)):
            for resource, amount in amounts.items():
                try:
                    parse_amount(amount, resource=resource, subject="", field=f"{field}.{part}.{resource}")
                except InvalidQuantity as error:
                    self.add(error.field, error.problem, amount)
        return msgspec.to_builtins(resources) if len(self.messages) == before else None

    def path(self, path: str | None, field: str) -> str | None:
        """Read a path of the host; None without one, and for one that cannot be."""
        if path is not None and not path.startswith("/"):
            self.add(field, "must be an absolute path", path)
            return None
        return path


class Resources(msgspec.Struct, frozen=True, omit_defaults=True):
    """A container's requests (`requests`: amounts by resource)."""

    requests: dict[str, str | int] = {}
    limits: dict[str, str | int] = {}


def section(spec: Object, *path: str) -> Any:
    """Return what is at a path of a spec; None where a part of it is missing or is no object."""
    at: Any = spec
    for part in path:
        at = at.get(part) if isinstance(at, dict) else None
    return at


class _Service(msgspec.Struct, frozen=True, rename="camel"):
    enabled: bool | None = None
    image: str | None = None
    resources: Resources | None = None


class _Exporter(msgspec.Struct, frozen=True, rename="camel"):
    service: _Service = _Service()
    node_selector: dict[str, str] | None = None
    tolerations: list[dict[str, object]] | None = None
    poll_interval: str | None = None
    drift_resync_interval: str | None = None
    pod_resources_host_path: str | None = None
    sysfs_host_path: str | None = None


class _Scheduler(msgspec.Struct, frozen=True, rename="camel"):
    image: str | None = None
    resources: Resources | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    cluster: str | None = None
    image: str | None = None
    numa_placement_exporter: _Exporter = _Exporter()
    scheduler: _Scheduler = _Scheduler()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSpec:
    """The exporter's desired settings; None keeps the template's value.

    Attributes:
        enabled: whether it is wanted; None for where any shard has NUMA enabled.
        poll_interval_us: how often a kubelet is asked.
        drift_interval_us: how often everything is reported again.
        podresources_path: the directory of the kubelet's socket.
        sysfs_path: where sysfs is mounted on the node.
    """

    enabled: bool | None = None
    image: str | None = None
    resources: Object | None = None
    node_selector: dict[str, str] | None = None
    tolerations: list[dict[str, object]] | None = None
    poll_interval_us: int | None = None
    drift_interval_us: int | None = None
    podresources_path: str | None = None
    sysfs_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSpec:
    """A Config's contents.

    Attributes:
        cluster: the cluster, as the log calls it.
        image: of all operands that have none of their own; None for the operator's own.
    """

    cluster: str = "default"
    image: str | None = None
    exporter: ExporterSpec = ExporterSpec()
    scheduler_image: str | None = None
    scheduler_resources: Object | None = None


def is_ours(config: Object) -> bool:
    """Tell whether a Config is for this operator.

    The definition that is deployed with kai-ledger gives each a `spec.cluster`. KAI-Scheduler's own definition has no
    such field, so none of its Configs has one: those are left to KAI-Scheduler's operator.
    """
    return bool(section(config, "spec", "cluster"))


def read_config(config: Object) -> tuple[ConfigSpec, list[str]]:
    """Return what a Config says, and what in it cannot be."""
    faults = Faults()
    spec = faults.of_type(config.get("spec") or {}, _Spec, "spec")
    if spec is None:
        return ConfigSpec(), faults.messages
    own, at = spec.numa_placement_exporter, "spec.numaPlacementExporter"
    exporter = ExporterSpec(
        enabled=own.service.enabled,
        image=own.service.image or None,
        resources=faults.resources(own.service.resources, f"{at}.service.resources"),
        node_selector=own.node_selector,
        tolerations=own.tolerations,
        poll_interval_us=faults.duration_us(own.poll_interval, f"{at}.pollInterval", least_us=50_000),
        drift_interval_us=faults.duration_us(
            own.drift_resync_interval, f"{at}.driftResyncInterval", least_us=1_000_000
        ),
        podresources_path=faults.path(own.pod_resources_host_path, f"{at}.podResourcesHostPath"),
        sysfs_path=faults.path(own.sysfs_host_path, f"{at}.sysfsHostPath"),
    )
    return (
        ConfigSpec(
            cluster=spec.cluster or "default",
            image=spec.image or None,
            exporter=exporter,
            scheduler_image=spec.scheduler.image or None,
            scheduler_resources=faults.resources(spec.scheduler.resources, "spec.scheduler.resources"),
        ),
        faults.messages,
    )


#: Names of shards are parts of names of pods and of labels.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")

#: KAI-Scheduler's actions, with their priorities (v0.17), and ours.
_ACTIONS = {
    "allocate": (500, Action.ALLOCATE),
    "consolidation": (400, Action.CONSOLIDATE),
    "reclaim": (300, Action.RECLAIM),
    "preempt": (200, Action.PREEMPT),
    "stalegangeviction": (100, Action.STALE_GANG),
}

#: Fields of KAI-Scheduler's that have no counterpart here: they count for nothing, and a condition says so.
_WITHOUT_COUNTERPART = (
    "args", "goMemLimit", "goMemLimitRatio", "queueDepthPerAction", "scenarioSearchBudgets",
    "scenarioSearchCheckpoints", "usageDBConfig",
)  # fmt: skip

_MOST_REPLICAS = 20


class ReplicaMode(StrEnum):
    """The mode of a shard's replicas: one decides and the others stand by, or all share the groups."""

    STANDBY = "Standby"
    SHARED = "Shared"


class _Placement(msgspec.Struct, frozen=True):
    gpu: PlacementStrategy | None = None
    cpu: PlacementStrategy | None = None


class _MinRuntime(msgspec.Struct, frozen=True, rename="camel"):
    preempt_min_runtime: str | None = None
    reclaim_min_runtime: str | None = None


class _Plugin(msgspec.Struct, frozen=True):
    enabled: bool | None = None
    priority: int | None = None
    arguments: dict[str, str] | None = None


class _ActionSpec(msgspec.Struct, frozen=True):
    enabled: bool | None = None
    priority: int | None = None


class _ShardSpec(msgspec.Struct, frozen=True, rename="camel"):
    partition_label_value: str = ""
    placement_strategy: _Placement = _Placement()
    min_runtime: _MinRuntime = _MinRuntime()
    k_value: float | None = None
    plugins: dict[str, _Plugin] = {}
    actions: dict[str, _ActionSpec] = {}
    replicas: int = 2
    replica_mode: ReplicaMode = ReplicaMode.STANDBY
    settings: dict[str, Any] = {}
    resources: Resources | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """A SchedulingShard's contents.

    Attributes:
        node_pool: the node pool's label value; empty for nodes without the label.
        settings: as `--scheduler-config` reads them.
        faults: what cannot be, by field and value.
        ignored: fields that have no counterpart here.
    """

    name: str
    node_pool: str = ""
    replicas: int = 2
    mode: ReplicaMode = ReplicaMode.STANDBY
    settings: Object = field(default_factory=dict)
    resources: Object | None = None
    faults: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def enables_numa(shard: Object) -> bool:
    """Tell whether a shard has NUMA enabled: only by an explicit `true`, also where the rest of it cannot be read."""
    in_plugins = section(shard, "spec", "plugins", "numa", "enabled")
    in_settings = section(shard, "spec", "settings", "numa")
    return (in_plugins if in_settings is None else in_settings) is True


def read_shard(shard: Object) -> ShardSpec:
    """Return what a SchedulingShard says, and what in it cannot be."""
    faults, name = Faults(), shard["metadata"]["name"]
    if _NAME.fullmatch(name) is None:
        faults.add("metadata.name", "must be a to z, 0 to 9 and - only, 40 characters at most", name)
    document = shard.get("spec") or {}
    spec = faults.of_type(document, _ShardSpec, "spec")
    if spec is None:
        return ShardSpec(name=name, faults=tuple(faults.messages))
    if _LABEL_VALUE.fullmatch(spec.partition_label_value) is None:
        faults.add("spec.partitionLabelValue", "is no value of a label", spec.partition_label_value)
    if not 1 <= spec.replicas <= _MOST_REPLICAS:
        faults.add("spec.replicas", f"must be 1 to {_MOST_REPLICAS}", spec.replicas)
    settings = _merged(_settings_of(spec, faults), spec.settings)
    _check_settings(settings, faults)
    return ShardSpec(
        name=name,
        node_pool=spec.partition_label_value,
        replicas=spec.replicas,
        mode=spec.replica_mode,
        settings=settings,
        resources=faults.resources(spec.resources, "spec.resources"),
        faults=tuple(faults.messages),
        ignored=tuple(_ignored(document, spec)),
    )


def _settings_of(spec: _ShardSpec, faults: Faults) -> Object:
    """Return the settings that KAI-Scheduler's fields come to."""
    settings: Object = {"node_pool": spec.partition_label_value, "numa": False}
    if spec.placement_strategy.gpu is not None:
        settings["placement_strategy"] = spec.placement_strategy.gpu.value
    if spec.placement_strategy.cpu is not None:
        settings["cpu_placement_strategy"] = spec.placement_strategy.cpu.value
    fair_share: Object = {}
    for key, text in (
        ("preempt_min_runtime_us", spec.min_runtime.preempt_min_runtime),
        ("reclaim_min_runtime_us", spec.min_runtime.reclaim_min_runtime),
    ):
        kai = "preemptMinRuntime" if key.startswith("preempt") else "reclaimMinRuntime"
        duration = faults.duration_us(text, f"spec.minRuntime.{kai}")
        if duration is not None:
            fair_share[key] = duration
    if spec.k_value is not None:
        if 0 <= spec.k_value <= 1000:
            fair_share["k_milli"] = round(spec.k_value * 1000)
        else:
            faults.add("spec.kValue", "must be 0 to 1000", spec.k_value)
    if fair_share:
        settings["fair_share"] = fair_share
    if spec.actions:
        settings["actions"] = _actions(spec, faults)
    settings.update(_numa_settings(spec.plugins.get("numa", _Plugin()), faults))
    return settings


def _numa_settings(plugin: _Plugin, faults: Faults) -> Iterator[tuple[str, Any]]:
    yield "numa", plugin.enabled is True
    for name, text in (plugin.arguments or {}).items():
        at = f"spec.plugins.numa.arguments.{name}"
        if name == "ignoreList":
            yield "ignore_list", [part.strip() for part in text.split(",") if part.strip()]
        elif name == "reconstructAvailable":
            if text.lower() not in ("true", "false"):
                faults.add(at, "must be true or false", text)
            yield "reconstruct_available", text.lower() != "false"
        else:
            known = ("ignoreList", "reconstructAvailable")
            faults.add(at, f"no such argument{did_you_mean(name, known)}", text)


def _actions(spec: _ShardSpec, faults: Faults) -> list[str]:
    """Return the actions that are on, those of higher priority first."""
    priorities = {name: priority for name, (priority, _) in _ACTIONS.items()}
    for name, action in spec.actions.items():
        if name not in _ACTIONS:
            faults.add("spec.actions", f"no such action{did_you_mean(name, _ACTIONS)}", name)
        elif action.enabled is False:
            del priorities[name]
        elif action.priority is not None:
            priorities[name] = action.priority
    ordered = sorted(priorities, key=lambda name: (-priorities[name], -_ACTIONS[name][0]))
    return [_ACTIONS[name][1].value for name in ordered]


def _merged(below: Object, above: Object) -> Object:
    """Return two documents as one; where both say something, the second one counts."""
    merged = dict(below)
    for key, value in above.items():
        before = merged.get(key)
        merged[key] = _merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return merged


def _check_settings(settings: Object, faults: Faults) -> None:
    try:
        settings = current_names(settings)
    except ConfigurationError as error:
        faults.messages.append(f"spec.settings: {error}")
        return
    unknown = [name for name in settings if name not in EngineConfig.__struct_fields__]
    for name in unknown:
        meant = did_you_mean(name, EngineConfig.__struct_fields__)
        faults.add(f"spec.settings.{name}", f"no such setting{meant}", settings[name])
    rest = {name: value for name, value in settings.items() if name not in (*unknown, "policies")}
    try:
        faults.of_type(rest, EngineConfig, "spec.settings")
        faults.of_type(settings.get("policies") or (), tuple[PolicyEntry, ...], "spec.settings.policies")
    except ConfigurationError as error:
        faults.messages.append(f"spec.settings: {error}")


def _ignored(document: Object, spec: _ShardSpec) -> Iterator[str]:
    yield from (f"spec.{name}" for name in _WITHOUT_COUNTERPART if document.get(name))
    yield from (f"spec.plugins.{name}" for name in sorted(spec.plugins) if name != "numa")
