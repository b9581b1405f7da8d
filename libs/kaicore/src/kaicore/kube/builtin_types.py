"""The fields of the built-in types, read from the digest that `scripts/builtin_types.py` writes."""

from dataclasses import dataclass
from importlib.resources import files

import msgspec


@dataclass(frozen=True, slots=True)
class BuiltinType:
    """One built-in object type, or a part of one.

    Attributes:
        name: the type's name, such as `V1PodSpec`.
        fields: wire name to notation: a scalar (`string`, `integer`, `boolean`, `number`, `quantity`, `time`,
            `microtime`, `any`), another type's name, or one of these behind `[]` (list of) or `{}` (map of string to).
        required: fields that must be there.
    """

    name: str
    fields: dict[str, str]
    required: tuple[str, ...] = ()


class _Digest(msgspec.Struct):
    fields: dict[str, str]
    required: tuple[str, ...] = ()


def _load() -> dict[str, BuiltinType]:
    raw = files(__package__).joinpath("builtin_types.json").read_bytes()
    digests = msgspec.json.decode(raw, type=dict[str, _Digest])
    return {name: BuiltinType(name, digest.fields, digest.required) for name, digest in digests.items()}


#: Every built-in type by name.
TYPES = _load()

#: Notations that are no type's name.
SCALARS = frozenset({"string", "integer", "boolean", "number", "quantity", "time", "microtime", "any"})


def element(notation: str) -> str:
    """What a list or map is made of; the notation itself for anything else."""
    return notation[2:] if notation[:2] in ("[]", "{}") else notation
