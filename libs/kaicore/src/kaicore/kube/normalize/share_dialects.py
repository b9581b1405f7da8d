"""Shares of a GPU from the wire into the model: KAI-Scheduler's annotations, and virtual GPUs of other projects.

What is invalid is what KAI-Scheduler's admission refuses
(`pkg/binder/plugins/gpusharing/gpu-request/gpu_request_validator.go`).

Other projects have one record per dialect, and a translation into KAI-Scheduler's annotations. A pod asks for virtual
GPUs by extended resources, and the project's own scheduler and device plugin serve it. Here a reservation pod holds the
GPU, so the resources would only stand in the kubelet's way. Admission therefore takes them off a new pod and says the
same by annotations. From then on it is a pod with a share like any other.

Sources: HAMi `pkg/device/nvidia/device.go` (GenerateResourceRequests); Volcano `pkg/scheduler/api/devices`
(ExtractResourceRequest); Koordinator `pkg/scheduler/plugins/deviceshare/utils.go` (ValidateDeviceRequest).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NamedTuple

from kaicore.errors import InvalidObject
from kaicore.kube.wire.objects import PodSpec
from kaicore.rules.model.gpu_share import GPU, WHOLE, GpuShare, gpus_text
from kaicore.rules.model.quantity import MAX_AMOUNT, parse_amount
from kaicore.rules.objects.wire import number_in

GPU_FRACTION = "gpu-fraction"
GPU_MEMORY = "gpu-memory"
NUM_DEVICES = "gpu-fraction-num-devices"
CONTAINER_NAME = "gpu-fraction-container-name"
#: Beside `gpu-memory`: no less than this fraction either. Translations of other dialects use it.
GPU_FRACTION_AT_LEAST = "kai.scheduler/gpu-fraction-at-least"
#: More GPUs than a node has.
MOST_DEVICES = 1024
#: Begins the resources of MIG devices.
_MIG = "nvidia.com/mig-"
#: Longer texts are not even looked at.
_MOST_TEXT = 40


def gpu_share(annotations: Mapping[str, str], spec: PodSpec, *, subject: str) -> GpuShare | None:
    """Return what a pod asks for of GPUs by its annotations; None for nothing.

    Raises InvalidObject: naming the annotation that says something impossible.
    """
    fraction, memory = annotations.get(GPU_FRACTION), annotations.get(GPU_MEMORY)
    if fraction is None and memory is None:
        if NUM_DEVICES in annotations:
            problem = f"needs {GPU_FRACTION} or {GPU_MEMORY} beside it"
            raise InvalidObject(subject, _field(NUM_DEVICES), annotations[NUM_DEVICES], problem)
        return None
    if fraction is not None and memory is not None:
        raise InvalidObject(subject, _field(GPU_MEMORY), memory, f"stands beside {GPU_FRACTION}")
    for field, group in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for index, one in enumerate(group or ()):
            amounts = (
                {} if one.resources is None else {**(one.resources.requests or {}), **(one.resources.limits or {})}
            )
            if GPU in amounts:
                where = f"spec.{field}[{index}].resources"
                raise InvalidObject(subject, where, f"{GPU}: {amounts[GPU]}", "stands beside a share of a GPU")
    devices = _positive(annotations, NUM_DEVICES, subject, MOST_DEVICES) if NUM_DEVICES in annotations else 1
    container = annotations.get(CONTAINER_NAME, "")
    names = {one.name for group in (spec.init_containers, spec.containers) for one in group or ()}
    if CONTAINER_NAME in annotations and container not in names:
        raise InvalidObject(subject, _field(CONTAINER_NAME), container, "names no container of the pod")
    if fraction is not None:
        return GpuShare(_milli(GPU_FRACTION, fraction, subject), devices=devices, container=container)
    mib = _positive(annotations, GPU_MEMORY, subject, MAX_AMOUNT)
    least = annotations.get(GPU_FRACTION_AT_LEAST)
    milli = 0 if least is None else _milli(GPU_FRACTION_AT_LEAST, least, subject)
    return GpuShare(milli, mib, devices, container)


def _milli(name: str, text: str, subject: str) -> int:
    """Return a fraction in thousandths, cut to whole ones: so three of 0.3333 are on one GPU."""
    try:
        number = Decimal(text if len(text) <= _MOST_TEXT else "x")
    except InvalidOperation:
        number = Decimal(0)
    if not number.is_finite() or not 0 < number < 1:
        raise InvalidObject(subject, _field(name), text[:_MOST_TEXT], "is no number between 0 and 1")
    return max(int(number * WHOLE), 1)


def _positive(annotations: Mapping[str, str], name: str, subject: str, most: int) -> int:
    text = annotations[name]
    number = number_in(text, digits=_MOST_TEXT) or 0
    if not 0 < number <= most:
        raise InvalidObject(subject, _field(name), text[:_MOST_TEXT], f"is no whole number from 1 to {most}")
    return number


def _field(name: str) -> str:
    return f"metadata.annotations[{name}]"


Document = dict[str, Any]

_PERCENT = 100
_MILLI = WHOLE // _PERCENT
_MIB = 1 << 20
_FIELDS = ("containers", "initContainers")

#: By which HAMi's library in the container limits it (`libvgpu.so`), wherever that is mounted.
MEMORY_LIMIT, COMPUTE_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"


class VirtualGpus(NamedTuple):
    """Parts of `devices` GPUs of one node: of each the larger one of `milli` and `mib`.

    Attributes:
        milli: thousandths of each; `WHOLE` for whole GPUs.
        mib: memory of each, in MiB.
        compute: per cent of each GPU's compute units, where the pod says how many; 0 where not.
    """

    devices: int
    milli: int = 0
    mib: int = 0
    compute: int = 0


class AskedResources:
    """The resources of one container, as it asks for them."""

    def __init__(self, amounts: Mapping[str, str | int], *, subject: str, field: str) -> None:
        self._amounts = amounts
        self._subject = subject
        self._field = field

    def __contains__(self, name: str) -> bool:
        return name in self._amounts

    def amount(self, name: str, most: int = MAX_AMOUNT) -> int:
        """Return an amount; 0 where it is not asked for. Raises InvalidObject: it is none, or more than the most."""
        text = self._amounts.get(name, 0)
        amount = parse_amount(text, resource=name, subject=self._subject, field=self._field)
        if amount > most:
            raise self.refused(name, f"is more than {most}")
        return amount

    def devices(self, name: str) -> int:
        """Return how many GPUs are asked for by a resource; 1 where it is not there.

        Raises InvalidObject: as `amount`; none are asked for.
        """
        count = self.amount(name, MOST_DEVICES) if name in self else 1
        if not count:
            raise self.refused(name, "asks for no GPU")
        return count

    def refused(self, name: str, problem: str) -> InvalidObject:
        """Return the error that names a resource with its amount."""
        return InvalidObject(self._subject, f"{self._field}[{name}]", self._amounts.get(name), problem)


class ShareDialect(NamedTuple):
    """One project's way to ask for virtual GPUs.

    Attributes:
        prefixes: by which its resources begin; whole GPUs are not among them.
        read: returns what a container asks for.
        choices: annotations by which a pod chooses devices or modes that kai-ledger does not have.
    """

    name: str
    prefixes: tuple[str, ...]
    resources: tuple[str, ...]
    read: Callable[[AskedResources], VirtualGpus]
    choices: tuple[str, ...] = ()

    def owns(self, resource: str) -> bool:
        """Tell whether a resource is one of this dialect."""
        return resource.startswith(self.prefixes)


def _by_device(number: str, memory: str, percentage: str, cores: str) -> Callable[[AskedResources], VirtualGpus]:
    """Return the reader of a dialect that says per GPU: MiB or per cent of memory, and per cent of compute units."""

    def read(asked: AskedResources) -> VirtualGpus:
        devices, mib = asked.devices(number), asked.amount(memory)
        compute = asked.amount(cores, _PERCENT)
        # Without a part of its memory a GPU is asked for as a whole.
        percent = 0 if mib else asked.amount(percentage, _PERCENT) or _PERCENT
        return VirtualGpus(devices, max(percent, compute) * _MILLI, mib, compute)

    return read


def _in_all(asked: AskedResources) -> VirtualGpus:
    """Read a dialect that says per cent and bytes for all GPUs together, and maybe how many they are."""
    gpu, core, memory, ratio, shared = KOORDINATOR_RESOURCES
    compute = asked.amount(gpu) or asked.amount(core)
    percent = asked.amount(gpu) or asked.amount(ratio)
    mib = -(-asked.amount(memory) // _MIB)
    if not percent and not mib:
        raise asked.refused(core, f"stands without {ratio} or {memory}")
    most = max(percent, compute)
    devices = asked.devices(shared) if shared in asked else max(most // _PERCENT, 1)
    for name, amount in ((core, compute), (ratio, percent)):
        if amount % devices or amount > devices * _PERCENT:
            raise asked.refused(name if name in asked else gpu, f"is no equal part of each of {devices} GPUs")
    return VirtualGpus(devices, most // devices * _MILLI, -(-mib // devices), compute // devices)


HAMI_RESOURCES = (GPU, "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores")
VOLCANO_RESOURCES = (
    "volcano.sh/vgpu-number",
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-memory-percentage",
    "volcano.sh/vgpu-cores",
)
KOORDINATOR_RESOURCES = (
    "koordinator.sh/gpu",
    "koordinator.sh/gpu-core",
    "koordinator.sh/gpu-memory",
    "koordinator.sh/gpu-memory-ratio",
    "koordinator.sh/gpu.shared",
)

#: All dialects; a new one is one more record.
SHARE_DIALECTS = (
    ShareDialect(
        "HAMi",
        ("nvidia.com/gpumem", "nvidia.com/gpucores"),
        HAMI_RESOURCES,
        _by_device(*HAMI_RESOURCES),
        (
            "nvidia.com/use-gputype",
            "nvidia.com/nouse-gputype",
            "nvidia.com/use-gpuuuid",
            "nvidia.com/nouse-gpuuuid",
            "nvidia.com/vgpu-mode",
        ),
    ),
    ShareDialect(
        "Volcano",
        ("volcano.sh/vgpu-",),
        VOLCANO_RESOURCES,
        _by_device(*VOLCANO_RESOURCES),
        ("volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid", "volcano.sh/vgpu-mode"),
    ),
    ShareDialect(
        "Koordinator",
        ("koordinator.sh/gpu",),
        KOORDINATOR_RESOURCES,
        _in_all,
        ("scheduling.koordinator.sh/device-allocate-hint", "scheduling.koordinator.sh/gpu-partition-spec"),
    ),
)


def annotated_mig(annotations: Mapping[str, str]) -> Iterator[str]:
    """Yield the MIG devices that a pod asks for by annotation, as schedulers before KAI-Scheduler did.

    KAI-Scheduler lets such pods wait, too (`pkg/scheduler/api/node_info/node_info.go`, PredicateByNodeResourcesType).
    """
    for name in sorted(annotations):
        if name.startswith(_MIG) and annotations[name].isdecimal():
            yield f"MIG devices by annotation ({name}): no kubelet gives them; use a container's limit of that name"


def virtual_gpus(spec: PodSpec) -> Iterator[str]:
    """Yield the resources of virtual GPUs that a pod still asks for, and what makes them a share."""
    names = {
        name
        for group in (spec.containers, spec.init_containers)
        for one in group or ()
        if one.resources is not None
        for name in (*(one.resources.requests or ()), *(one.resources.limits or ()))
    }
    for name in sorted(names):
        dialect = _dialect_of(name)
        if dialect is not None:
            yield (
                f"virtual GPUs of {dialect.name} ({name}): kai-webhook makes them a share of new pods where sharing is "
                f"enabled; else use the annotation {GPU_FRACTION} or {GPU_MEMORY}"
            )


@lru_cache(maxsize=4096)
def _dialect_of(resource: str) -> ShareDialect | None:
    return next((one for one in SHARE_DIALECTS if one.owns(resource)), None)


class _Asking(NamedTuple):
    """A container with resources of a dialect."""

    field: str
    number: int
    container: Document
    dialect: ShareDialect


def new_pod_subject(pod: Mapping[str, Any]) -> str:
    """Name a pod in an error that maybe has no name yet."""
    metadata = pod.get("metadata") or {}
    return f"Pod {metadata.get('namespace', '')}/{metadata.get('name') or metadata.get('generateName', '')}"


def translated(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a new pod with its virtual GPUs as a share in KAI's words, or as whole GPUs where they are whole.

    Raises InvalidObject: an amount is none, or it asks for what kai-ledger cannot carry out; with what to do.

    Args:
        pod: as its author wrote it; it comes back itself where it asks for no virtual GPUs.
    """
    spec = pod.get("spec") or {}
    asking = list(_asking(spec))
    if not asking:
        return pod
    metadata = pod.get("metadata") or {}
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    one = asking[0]
    subject = new_pod_subject(pod)
    where = f"spec.{one.field}[{one.number}].resources"
    amounts = _amounts(one.container)
    _refuse_others(asking, annotations, amounts, subject=subject, where=where)
    gpus = one.dialect.read(AskedResources(amounts, subject=subject, field=where))
    whole = gpus.milli >= WHOLE
    added = {} if whole else _annotations(gpus, one)
    container = _container(one, gpus, whole=whole)
    group = [container if number == one.number else each for number, each in enumerate(spec[one.field])]
    return {
        **pod,
        "metadata": {**metadata, "annotations": {**annotations, **added}},
        "spec": {**spec, one.field: group},
    }


def _asking(spec: Mapping[str, Any]) -> Iterator[_Asking]:
    for field in _FIELDS:
        for number, container in enumerate(spec.get(field) or ()):
            names = _amounts(container)
            for dialect in SHARE_DIALECTS:
                if any(map(dialect.owns, names)):
                    yield _Asking(field, number, container, dialect)


def _refuse_others(
    asking: list[_Asking], annotations: Mapping[str, str], amounts: Mapping[str, Any], *, subject: str, where: str
) -> None:
    """Raise for what stands beside virtual GPUs and is not carried out."""
    dialect = asking[0].dialect
    for name in (GPU_FRACTION, GPU_MEMORY, NUM_DEVICES, CONTAINER_NAME, GPU_FRACTION_AT_LEAST):
        if name in annotations:
            problem = f"stands beside virtual GPUs of {dialect.name}; use one of both"
            raise InvalidObject(subject, _field(name), annotations[name], problem)
    for name in dialect.choices:
        if name in annotations:
            problem = "is not carried out; choose nodes by their labels, such as nvidia.com/gpu.product"
            raise InvalidObject(subject, _field(name), annotations[name], problem)
    unread = sorted(name for name in amounts if dialect.owns(name) and name not in dialect.resources)
    if unread:
        raise InvalidObject(subject, f"{where}[{unread[0]}]", amounts[unread[0]], "is not carried out; leave it out")
    if len(asking) > 1:
        names = [str(one.container.get("name")) for one in asking]
        problem = "ask for virtual GPUs twice; only one container of a pod gets a share, in one project's words"
        raise InvalidObject(subject, "spec.containers", names, problem)


def _amounts(container: Mapping[str, Any]) -> dict[str, Any]:
    resources = container.get("resources") or {}
    return {**(resources.get("requests") or {}), **(resources.get("limits") or {})}


def _annotations(gpus: VirtualGpus, one: _Asking) -> dict[str, str]:
    fraction = gpus_text(gpus.milli)
    words = {GPU_MEMORY: str(gpus.mib)} if gpus.mib else {GPU_FRACTION: fraction}
    if gpus.mib and gpus.milli:
        words[GPU_FRACTION_AT_LEAST] = fraction
    if gpus.devices > 1:
        words[NUM_DEVICES] = str(gpus.devices)
    if (one.field, one.number) != (_FIELDS[0], 0):
        words[CONTAINER_NAME] = one.container["name"]
    return words


def _container(one: _Asking, gpus: VirtualGpus, *, whole: bool) -> Document:
    """Return a container without the dialect's resources, with whole GPUs or the limits of its library instead."""
    resources = dict(one.container.get("resources") or {})
    for kind in ("requests", "limits"):
        if kind in resources:
            asked, own = resources[kind] or {}, one.dialect.resources
            kept = {name: amount for name, amount in asked.items() if name not in own}
            resources[kind] = kept | {GPU: str(gpus.devices)} if whole else kept
    container = {**one.container, "resources": resources}
    limits = {MEMORY_LIMIT: f"{gpus.mib}m" if gpus.mib else "", COMPUTE_LIMIT: str(gpus.compute or "")}
    added = [{"name": name, "value": value} for name, value in limits.items() if value]
    if not whole and added:
        container["env"] = _with(one.container.get("env") or (), added)
    return container


def _with(before: Iterable[Document], added: list[Document]) -> list[Document]:
    """Return variables with others; those of the same name stay as the author has them."""
    names = {one.get("name") for one in before}
    return [*before, *(one for one in added if one["name"] not in names)]
