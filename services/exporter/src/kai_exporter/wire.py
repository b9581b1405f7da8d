"""Decodes answers of the podresources API: messages of Protocol Buffers, without the library.

The library takes 3 MB of an exporter's 30 for five small messages (decision 0500). The wire format is fixed for good:
https://protobuf.dev/programming-guides/encoding. Names and numbers of fields are those of `podresources.proto`; a test
holds this decoder to the library's. Fields that are not known are passed over.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}

_T = TypeVar("_T")


class WireError(ValueError):
    """Bytes that are no such message."""


@dataclass(slots=True)
class ContainerDevices:
    """Devices of one resource, all of the same NUMA nodes; none for devices without topology."""

    resource_name: str = ""
    device_ids: list[str] = field(default_factory=list)
    numa_nodes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ContainerMemory:
    """A block of memory: its type, bytes, and the NUMA nodes to which it is bound."""

    memory_type: str = ""
    size: int = 0
    numa_nodes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ContainerResources:
    """One container's holdings; `cpu_ids` are its exclusive CPUs only."""

    name: str = ""
    devices: list[ContainerDevices] = field(default_factory=list)
    cpu_ids: list[int] = field(default_factory=list)
    memory: list[ContainerMemory] = field(default_factory=list)


@dataclass(slots=True)
class PodResources:
    """A pod's holdings; `cpu_ids` and `memory`, since 1.37, are the pod's as a whole."""

    name: str = ""
    namespace: str = ""
    containers: list[ContainerResources] = field(default_factory=list)
    cpu_ids: list[int] = field(default_factory=list)
    memory: list[ContainerMemory] = field(default_factory=list)


@dataclass(slots=True)
class AllocatableResources:
    """Everything that could be given to a container exclusively, in use or not."""

    devices: list[ContainerDevices] = field(default_factory=list)
    cpu_ids: list[int] = field(default_factory=list)
    memory: list[ContainerMemory] = field(default_factory=list)


def messages_of(answer: bytes) -> list[bytes]:
    """Return the encoded pods of an encoded `ListPodResourcesResponse`.

    Raises:
        WireError: it is none.
    """
    return [_bytes(value) for number, value in _fields(answer) if number == 1]


def decode_pod(message: bytes) -> PodResources:
    """Decode a `PodResources`.

    Raises:
        WireError: it is none.
    """
    pod = PodResources()
    for number, value in _fields(message):
        match number:
            case 1:
                pod.name = _text(value)
            case 2:
                pod.namespace = _text(value)
            case 3:
                pod.containers.append(_container(_bytes(value)))
            case 4:
                pod.cpu_ids += _integers(value)
            case 5:
                pod.memory.append(_memory(_bytes(value)))
    return pod


def decode_allocatable(message: bytes) -> AllocatableResources:
    """Decode an `AllocatableResourcesResponse`.

    Raises:
        WireError: it is none.
    """
    allocatable = AllocatableResources()
    for number, value in _fields(message):
        match number:
            case 1:
                allocatable.devices.append(_devices(_bytes(value)))
            case 2:
                allocatable.cpu_ids += _integers(value)
            case 3:
                allocatable.memory.append(_memory(_bytes(value)))
    return allocatable


def _container(message: bytes) -> ContainerResources:
    container = ContainerResources()
    for number, value in _fields(message):
        match number:
            case 1:
                container.name = _text(value)
            case 2:
                container.devices.append(_devices(_bytes(value)))
            case 3:
                container.cpu_ids += _integers(value)
            case 4:
                container.memory.append(_memory(_bytes(value)))
    return container


def _devices(message: bytes) -> ContainerDevices:
    devices = ContainerDevices()
    for number, value in _fields(message):
        match number:
            case 1:
                devices.resource_name = _text(value)
            case 2:
                devices.device_ids.append(_text(value))
            case 3:
                devices.numa_nodes += _numa_nodes(_bytes(value))
    return devices


def _memory(message: bytes) -> ContainerMemory:
    memory = ContainerMemory()
    for number, value in _fields(message):
        match number:
            case 1:
                memory.memory_type = _text(value)
            case 2:
                memory.size = _integer(value)
            case 3:
                memory.numa_nodes += _numa_nodes(_bytes(value))
    return memory


def _numa_nodes(message: bytes) -> list[int]:
    """Decode a `TopologyInfo`: the ids of its nodes."""
    ids = []
    for number, value in _fields(message):
        if number == 1:
            last = 0
            for inner, identity in _fields(_bytes(value)):
                last = _signed(_integer(identity)) if inner == 1 else last
            ids.append(last)
    return ids


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field: a varint, or bytes."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise WireError("field 0")
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise WireError(f"field {number} is of wire type {kind}")
        if at + length > end:
            raise WireError(f"field {number} ends after the message")
        if kind == _BYTES:
            yield number, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    for place in range(at, min(at + 10, len(message))):
        byte = message[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place + 1
        shift += 7
    raise WireError("a number that does not end")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _integers(value: int | bytes) -> list[int]:
    """Decode a repeated `int64`, packed or one by one."""
    if isinstance(value, int):
        return [_signed(value)]
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(_signed(number))
    return numbers


def _integer(value: int | bytes) -> int:
    return _of(int, value)


def _bytes(value: int | bytes) -> bytes:
    return _of(bytes, value)


def _text(value: int | bytes) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError as error:
        raise WireError(f"a text that is not UTF-8: {error}") from None


def _of(kind: type[_T], value: int | bytes) -> _T:
    if not isinstance(value, kind):
        raise WireError(f"a field that is not of type {kind.__name__}")
    return value
