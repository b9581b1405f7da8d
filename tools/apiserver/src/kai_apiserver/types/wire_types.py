"""Protobuf encoding of the built-in types, read from the table that `scripts/wire_types.py` writes."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec


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
