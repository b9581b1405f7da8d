"""Shares of a GPU from the wire into the model, as KAI-Scheduler's annotations ask for them.

What is invalid is what KAI-Scheduler's admission refuses
(`pkg/binder/plugins/gpusharing/gpu-request/gpu_request_validator.go`).
"""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

from kaicore.errors import InvalidObject
from kaicore.kube.wire.objects import PodSpec
from kaicore.rules.model.gpu_share import GPU, WHOLE, GpuShare
from kaicore.rules.model.quantity import MAX_AMOUNT

GPU_FRACTION = "gpu-fraction"
GPU_MEMORY = "gpu-memory"
NUM_DEVICES = "gpu-fraction-num-devices"
CONTAINER_NAME = "gpu-fraction-container-name"
#: Beside `gpu-memory`: no less than this fraction either. Translations of other dialects use it.
GPU_FRACTION_AT_LEAST = "kai.scheduler/gpu-fraction-at-least"
#: More GPUs than a node has.
MOST_DEVICES = 1024
#: Longer texts are not even looked at.
_MOST_TEXT = 40


def gpu_share(annotations: Mapping[str, str], spec: PodSpec, *, subject: str) -> GpuShare | None:
    """Return what a pod asks for of GPUs by its annotations; None for nothing.

    Raises:
        InvalidObject: naming the annotation that says something impossible.
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
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_TEXT else 0
    if not 0 < number <= most:
        raise InvalidObject(subject, _field(name), text[:_MOST_TEXT], f"is no whole number from 1 to {most}")
    return number


def _field(name: str) -> str:
    return f"metadata.annotations[{name}]"
