"""Decodes answers of the podresources API: messages of Protocol Buffers, without the library.

The library takes 3 MB of an exporter's 30 for five small messages (decision 0500). The wire format is fixed for good:
https://protobuf.dev/programming-guides/encoding. Names and numbers of fields are those of `podresources.proto`; a test
holds this decoder to the library's. Fields that are not known are passed over.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

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
    """Return the encoded pods of an encoded `ListPodResourcesResponse`. Raises WireError: it is none."""
    return [_bytes(value) for number, value in _fields(answer) if number == 1]


def decode_pod(message: bytes) -> PodResources:
    """Decode a `PodResources`. Raises WireError: it is none."""
    return _decoded(PodResources, message)


def decode_allocatable(message: bytes) -> AllocatableResources:
    """Decode an `AllocatableResourcesResponse`. Raises WireError: it is none."""
    return _decoded(AllocatableResources, message)


def _decoded(kind: type[_T], message: bytes) -> _T:
    made, fields = kind(), _FIELDS[kind]
    for number, value in _fields(message):
        if number in fields:
            name, read = fields[number]
            content = read(value)
            if isinstance(content, list):
                getattr(made, name).extend(content)
            else:
                setattr(made, name, content)
    return made


def _one(kind: type[_T]) -> Callable[[int | bytes], list[_T]]:
    """Read one message of a repeated field."""
    return lambda value: [_decoded(kind, _bytes(value))]


def _numa_nodes(message: int | bytes) -> list[int]:
    """Decode a `TopologyInfo`: the ids of its nodes."""
    ids = []
    for number, value in _fields(_bytes(message)):
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


#: The fields of each message by number: their names, and how they are read. A list grows by what is read.
_FIELDS: dict[type, dict[int, tuple[str, Callable[[int | bytes], Any]]]] = {
    ContainerDevices: {
        1: ("resource_name", _text),
        2: ("device_ids", lambda value: [_text(value)]),
        3: ("numa_nodes", _numa_nodes),
    },
    ContainerMemory: {1: ("memory_type", _text), 2: ("size", _integer), 3: ("numa_nodes", _numa_nodes)},
    ContainerResources: {
        1: ("name", _text),
        2: ("devices", _one(ContainerDevices)),
        3: ("cpu_ids", _integers),
        4: ("memory", _one(ContainerMemory)),
    },
    PodResources: {
        1: ("name", _text),
        2: ("namespace", _text),
        3: ("containers", _one(ContainerResources)),
        4: ("cpu_ids", _integers),
        5: ("memory", _one(ContainerMemory)),
    },
    AllocatableResources: {
        1: ("devices", _one(ContainerDevices)),
        2: ("cpu_ids", _integers),
        3: ("memory", _one(ContainerMemory)),
    },
}
