"""The spec of a `Config`, as the operator reads it.

Every fault is reported by field and value, and the other fields still count.
"""

import re
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from kaicore.errors import InvalidObject, InvalidQuantity
from kaicore.kube.operands.names import Object
from kaicore.rules.model.quantity import parse_amount, parse_duration

_T = TypeVar("_T")

_WHERE = re.compile(r" - at `(?:key in )?\$(.*)`$")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+|\.\.\.)\]")

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
            problem, where = str(error), ""
            if match := _WHERE.search(problem):
                problem, where = problem[: match.start()], match[1]
            at = value
            for name, index in _STEP.findall(where):
                at = _step(at, name or index)
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
    """A container's requests.

    Attributes:
        requests: amounts by resource.
        limits: the same.
    """

    requests: dict[str, str | int] = {}
    limits: dict[str, str | int] = {}


def _step(value: Any, step: str) -> Any:
    try:
        return value[int(step)] if isinstance(value, list) else value[step]
    except (LookupError, TypeError, ValueError):
        return value


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
        image: of its container.
        resources: of its container.
        tolerations: of its pods.
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
        exporter: how the exporter is to be.
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
