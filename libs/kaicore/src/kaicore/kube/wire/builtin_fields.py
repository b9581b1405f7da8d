"""Check of objects of built-in kinds against the fields of their types: wrong types and unknown fields.

The fields are read from the digest that `scripts/builtin_types.py` writes.
"""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec

from kaicore.errors import InvalidObject
from kaicore.spelling import did_you_mean


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
    """The element type of a list or map; the notation itself for anything else."""
    return notation[2:] if notation[:2] in ("[]", "{}") else notation


#: API groups with known types.
_GROUPS = frozenset({"", "apps", "batch", "node.k8s.io", "policy", "scheduling.k8s.io", "storage.k8s.io"})

#: Fields that other releases of Kubernetes have: 1.35 named a pod's group like this.
_ELSEWHERE = {"V1PodSpec": frozenset({"workloadRef"})}

_WORDS: dict[str, tuple[tuple[type, ...], str]] = {
    "string": ((str,), "must be a text"),
    "time": ((str,), "must be a time"),
    "microtime": ((str,), "must be a time"),
    "integer": ((int,), "must be a whole number"),
    "boolean": ((bool,), "must be true or false"),
    "number": ((int, float), "must be a number"),
    "quantity": ((str, int, float), "must be a quantity"),
}

_Path = tuple[str | int, ...]


def type_of(group: str, kind: str) -> str | None:
    """Return the name of a built-in kind's type; None for any other kind."""
    name = f"V1{kind}"
    return name if group in _GROUPS and name in TYPES else None


class FieldCheck(NamedTuple):
    """The problems of an object's fields.

    Attributes:
        unknown: the paths of fields that its type does not have, each with a better spelling where there is one; an API
            server would drop them.
        faults: fields of the wrong type.
    """

    unknown: list[tuple[str, str]]
    faults: list[InvalidObject]


def check_fields(wire: dict[str, Any], type_name: str, *, subject: str) -> FieldCheck:
    """Check an object of a built-in type, or a part of one, against the fields of that type.

    Args:
        type_name: such as `V1Pod`.
    """
    check = _Check(subject)
    check.look(wire, type_name, ())
    return FieldCheck(check.unknown, check.faults)


class _Check:
    def __init__(self, subject: str) -> None:
        self.unknown: list[tuple[str, str]] = []
        self.faults: list[InvalidObject] = []
        self._subject = subject

    def look(self, value: Any, notation: str, path: _Path) -> None:
        # An API server takes null for absent.
        if value is None or notation == "any":
            return
        if notation in SCALARS:
            types, problem = _WORDS[notation]
            # Python takes True for a number.
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                self._fault(path, value, problem)
            return
        inside = notation[2:]
        if notation.startswith("[]"):
            if not isinstance(value, list):
                self._fault(path, value, "must be a list")
                return
            for index, item in enumerate(value):
                self._look_inside(item, inside, (*path, index))
            return
        if not isinstance(value, dict):
            self._fault(path, value, "must be a mapping")
            return
        if notation.startswith("{}"):
            for key, item in value.items():
                self._look_inside(item, inside, (*path, key))
            return
        fields, elsewhere = TYPES[notation].fields, _ELSEWHERE.get(notation, frozenset())
        for key, item in value.items():
            if key in fields:
                self.look(item, fields[key], (*path, key))
            elif key not in elsewhere:
                self.unknown.append((_spelled((*path, key)), did_you_mean(str(key), fields)))

    def _look_inside(self, value: Any, notation: str, path: _Path) -> None:
        if value is None:
            self._fault(path, None, "must not be null")
        else:
            self.look(value, notation, path)

    def _fault(self, path: _Path, value: Any, problem: str) -> None:
        self.faults.append(InvalidObject(self._subject, _spelled(path), value, problem))


def _spelled(path: _Path) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".") or "object"
