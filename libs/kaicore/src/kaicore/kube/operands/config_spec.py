"""The spec of a `Config`, as the operator reads it."""

from dataclasses import dataclass

import msgspec

from kaicore.kube.operands.names import Object
from kaicore.kube.operands.reading import Faults, Resources, section


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
    """How the exporter is to be; None is as the template has it.

    Attributes:
        enabled: whether it is wanted; None for where any shard has NUMA enabled.
        image: of its container.
        resources: of its container.
        node_selector: which nodes it is on.
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
    """What a Config says.

    Attributes:
        cluster: the cluster, as the log calls it.
        image: of all operands that have none of their own; None for the operator's own.
        exporter: how the exporter is to be.
        scheduler_image: of schedulers.
        scheduler_resources: of schedulers.
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
