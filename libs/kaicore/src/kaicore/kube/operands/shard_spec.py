"""The spec of a `SchedulingShard`: KAI-Scheduler's fields mapped to our settings, and our own settings unchanged."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from kaicore.errors import ConfigurationError
from kaicore.kube.operands.config_spec import Faults, Resources, section
from kaicore.kube.operands.names import Object
from kaicore.rules.engine.config import Action, EngineConfig, PlacementStrategy, current_names
from kaicore.rules.engine.policies.setting import PolicyEntry
from kaicore.spelling import did_you_mean

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


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
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
        replicas: how many schedulers.
        mode: what they do.
        settings: as `--scheduler-config` reads them.
        resources: of its container.
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
    spec = faults.of_type(document, _Spec, "spec")
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


def _settings_of(spec: _Spec, faults: Faults) -> Object:
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


def _actions(spec: _Spec, faults: Faults) -> list[str]:
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


def _ignored(document: Object, spec: _Spec) -> Iterator[str]:
    yield from (f"spec.{name}" for name in _WITHOUT_COUNTERPART if document.get(name))
    yield from (f"spec.plugins.{name}" for name in sorted(spec.plugins) if name != "numa")
