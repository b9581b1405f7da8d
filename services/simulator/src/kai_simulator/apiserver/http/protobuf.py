"""Read Kubernetes' protobuf envelope and the few built-in kinds that arrive in it.

Only requests are read; answers are JSON, which every such client accepts as well.
"""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from kaicore.k8s.builtin_types import TYPES

from kai_simulator.apiserver.errors import StatusError, unsupported_media_type
from kai_simulator.apiserver.objects import Object, timestamp
from kai_simulator.apiserver.types.wire_numbers import BYTES, WIRE_NUMBERS

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ACCEPTED = ("application/json", "application/yaml")
#: Kinds whose type is not named `V1<Kind>`.
_TYPE_NAMES = {"TokenRequest": "AuthenticationV1TokenRequest"}


def decode_protobuf(body: bytes) -> Object:
    """Read a request's body as JSON would have had it.

    Raises:
        StatusError: 415, it is of a kind, or has a field, that is read as JSON only.
    """
    if not body.startswith(_MAGIC):
        raise unsupported_media_type(_ACCEPTED)
    try:
        envelope = dict(_fields(body[len(_MAGIC) :]))
        type_meta = dict(_fields(envelope[1]))
        api_version, kind = type_meta[1].decode(), type_meta[2].decode()
        name = _TYPE_NAMES.get(kind, f"V1{kind}")
        if name not in WIRE_NUMBERS:
            raise unsupported_media_type(_ACCEPTED)
        return {"apiVersion": api_version, "kind": kind, **_message(name, envelope.get(2, b""))}
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        raise _unread(str(error)) from error


def _unread(what: str) -> StatusError:
    return StatusError(
        415,
        "UnsupportedMediaType",
        f"the simulation cannot read this protobuf message ({what}) - accepted media types include: "
        + ", ".join(_ACCEPTED),
    )


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and raw values: integers, or bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if kind == _BYTES:
            length, position = _varint(data, position)
        else:
            length = {_FIXED64: 8, _FIXED32: 4}[kind]
        if position + length > len(data):
            raise IndexError("message is cut short")
        yield number, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _message(name: str, data: bytes) -> Object:
    numbers, notations = WIRE_NUMBERS[name], TYPES[name].fields
    obj: Object = {}
    for number, raw in _fields(data):
        field = numbers.get(number)
        if field is None:
            raise _unread(f"field {number} of {name}")
        notation, place = notations[field], f"{name}.{field}"
        if notation.startswith("[]"):
            obj.setdefault(field, []).append(_value(notation[2:], raw, place))
        elif notation.startswith("{}"):
            entry = dict(_fields(raw))
            obj.setdefault(field, {})[entry.get(1, b"").decode()] = _value(notation[2:], entry.get(2, b""), place)
        else:
            obj[field] = _value(notation, raw, place)
    return obj


def _value(notation: str, raw: Any, place: str) -> Any:
    match notation:
        case "string":
            return base64.b64encode(raw).decode() if place in BYTES else raw.decode()
        case "integer":
            return _signed(raw)
        case "boolean":
            return bool(raw)
        case "quantity":
            return dict(_fields(raw)).get(1, b"0").decode()
        case "time" | "microtime":
            parts = dict(_fields(raw))
            return timestamp(datetime.fromtimestamp(_signed(parts[1]), UTC)) if parts.get(1) else None
        case "any":
            parts = dict(_fields(raw))
            return parts.get(3, b"").decode() if parts.get(1) else _signed(parts.get(2, 0))
    return _message(notation, raw)
