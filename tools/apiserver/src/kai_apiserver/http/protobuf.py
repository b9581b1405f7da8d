"""Read Kubernetes' protobuf envelope and the built-in kinds that arrive in it.

Only requests are read; answers are JSON, which every such client accepts as well.

Protobuf encoding of the built-in types, read from the table that `scripts/wire_types.py` writes.
"""

import base64
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from kai_apiserver.errors import StatusError, unsupported_media_type
from kai_apiserver.objects import Object, decode_json, micro_timestamp, timestamp


@dataclass(frozen=True, slots=True)
class WireField:
    """One field of a message.

    Attributes:
        name: in JSON; empty if the field's own fields stand in its place there.
        notation: a message's name, or `string`, `bytes`, `integer`, `boolean`, `double`, `quantity`, `time`,
            `microtime`, `duration`, `int-or-string`, `json` (JSON as bytes), `strings` (a list that is a message), or
            one of these behind `[]` (repeated) or `{}` (map of string to).
        omitted: whether its zero means that it was not set, so that JSON would not have it.
    """

    name: str
    notation: str
    omitted: bool


class _Table(msgspec.Struct):
    kinds: dict[str, str]
    messages: dict[str, dict[str, str]]


@cache
def _table() -> _Table:
    return msgspec.json.decode(files(__package__).joinpath("wire_types.json").read_bytes(), type=_Table)


def message_of(api_version: str, kind: str) -> str | None:
    """The name of a kind's message; None if it is no built-in kind that is read here."""
    if kind == "DeleteOptions":
        return "meta.DeleteOptions"  # every API group has it
    return _table().kinds.get(f"{api_version} {kind}")


@cache
def fields_of(message: str) -> dict[int, WireField]:
    """A message's fields by number."""
    return {int(number): _field(text) for number, text in _table().messages[message].items()}


def _field(text: str) -> WireField:
    name, notation, *omitted = text.split(" ")
    return WireField(name, notation, bool(omitted))


MEDIA_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ACCEPTED = ("application/json", "application/yaml")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZEROS: dict[str, Any] = {"string": "", "bytes": "", "integer": 0, "boolean": False, "double": 0.0}
#: Messages that stand for one of several things in JSON: its fields, the preferred first.
_EITHER = {
    "apiextensions.JSONSchemaPropsOrArray": ("schema", "jSONSchemas"),
    "apiextensions.JSONSchemaPropsOrBool": ("schema", "allows"),
    "apiextensions.JSONSchemaPropsOrStringArray": ("schema", "property"),
}


def decode_protobuf(body: bytes) -> Object:
    """Read a request's body as JSON would have had it.

    Raises StatusError: 415, it is of a kind that is read as JSON only, or is no protobuf.
    """
    if not body.startswith(_MAGIC):
        raise unsupported_media_type(_ACCEPTED)
    try:
        envelope = dict(_fields(body[len(_MAGIC) :]))
        type_meta = dict(_fields(envelope[1]))
        api_version, kind = type_meta[1].decode(), type_meta[2].decode()
        name = message_of(api_version, kind)
        if name is None:
            raise unsupported_media_type(_ACCEPTED)
        return {"apiVersion": api_version, "kind": kind, **_message(name, envelope.get(2, b""))}
    except (KeyError, IndexError, ValueError, AttributeError, TypeError, OverflowError, struct.error) as error:
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


def _message(name: str, data: bytes) -> Any:
    """A message as JSON would have it. Fields with numbers of later versions are dropped, as the real server does."""
    fields = fields_of(name)
    obj: Object = {}
    for number, raw in _fields(data):
        field = fields.get(number)
        if field is None:
            continue
        notation = field.notation
        if not field.name:
            obj |= _message(notation, raw)
        elif notation.startswith("[]"):
            obj.setdefault(field.name, []).extend(_repeated(notation[2:], raw))
        elif notation.startswith("{}"):
            key, value = _entry(notation[2:], raw)
            obj.setdefault(field.name, {})[key] = value
        else:
            value = _value(notation, raw)
            if value is not None and not (field.omitted and value == _ZEROS.get(notation)):
                obj[field.name] = value
    if name in _EITHER:
        first, second = _EITHER[name]
        return obj.get(first, obj.get(second))
    return obj


def _repeated(notation: str, raw: Any) -> Iterator[Any]:
    """The elements that one occurrence of a repeated field brings: one, or packed numbers."""
    if notation == "integer" and isinstance(raw, bytes):
        position = 0
        while position < len(raw):
            value, position = _varint(raw, position)
            yield _signed(value)
    else:
        yield _value(notation, raw)


def _entry(notation: str, raw: bytes) -> tuple[str, Any]:
    """Key and value of a map's entry; a zero may be left out."""
    entry = dict(_fields(raw))
    value = _value(notation, entry[2]) if 2 in entry else _ZEROS.get(notation, {})
    return entry.get(1, b"").decode(), value


def _value(notation: str, raw: Any) -> Any:
    match notation:
        case "string":
            return raw.decode()
        case "bytes":
            return base64.b64encode(raw).decode()
        case "integer":
            return _signed(raw)
        case "boolean":
            return bool(raw)
        case "double":
            return struct.unpack("<d", raw)[0]
        case "strings":
            return [item.decode() for _, item in _fields(raw)]
    read = _PARTS_READ.get(notation)
    return _message(notation, raw) if read is None else read(dict(_fields(raw)))


def _moment(parts: dict[int, Any]) -> datetime | None:
    """A time of seconds and nanoseconds; None for the zero that stands for no time."""
    if not parts.get(1):
        return None
    return _EPOCH + timedelta(seconds=_signed(parts[1]), microseconds=parts.get(2, 0) // 1000)


def _time(parts: dict[int, Any]) -> str | None:
    moment = _moment(parts)
    return timestamp(moment) if moment is not None else None


def _micro_time(parts: dict[int, Any]) -> str | None:
    moment = _moment(parts)
    return micro_timestamp(moment) if moment is not None else None


def _int_or_string(parts: dict[int, Any]) -> int | str:
    return str(parts.get(3, b"").decode()) if parts.get(1) else _signed(parts.get(2, 0))


def _json(parts: dict[int, Any]) -> Any:
    return decode_json(parts[1]) if parts.get(1) else None


#: How values are read from the parts of their messages.
_PARTS_READ: dict[str, Callable[[dict[int, Any]], Any]] = {
    "quantity": lambda parts: parts.get(1, b"0").decode(),
    "time": _time,
    "microtime": _micro_time,
    "duration": lambda parts: f"{_signed(parts.get(1, 0))}ns",
    "int-or-string": _int_or_string,
    "json": _json,
}
