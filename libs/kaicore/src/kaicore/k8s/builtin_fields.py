"""Objects of built-in kinds against the fields that their types have: what is of the wrong type, what nobody knows."""

from typing import Any

from kaicore.errors import InvalidObject
from kaicore.k8s.builtin_types import SCALARS, TYPES

#: API groups of which the types are known.
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


def unknown_fields(found: dict[str, Any], type_name: str, *, subject: str) -> list[str]:
    """Return the paths of fields that an object of a built-in type does not have; an API server would drop them.

    Args:
        found: the object, or the part of one that has the type.
        type_name: such as `V1Pod`.
        subject: the object, for errors.

    Raises:
        InvalidObject: a field is of the wrong type.
    """
    unknown: list[_Path] = []
    _look(found, type_name, (), unknown, subject)
    return [_spelled(path) for path in unknown]


def _look(value: Any, notation: str, path: _Path, unknown: list[_Path], subject: str) -> None:
    # An API server takes null for absent.
    if value is None or notation == "any":
        return
    if notation in SCALARS:
        types, problem = _WORDS[notation]
        # Python takes True for a number.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise InvalidObject(subject, _spelled(path), value, problem)
        return
    inside = notation[2:]
    if notation.startswith("[]"):
        if not isinstance(value, list):
            raise InvalidObject(subject, _spelled(path), value, "must be a list")
        for index, item in enumerate(value):
            _look_inside(item, inside, (*path, index), unknown, subject)
        return
    if not isinstance(value, dict):
        raise InvalidObject(subject, _spelled(path), value, "must be a mapping")
    if notation.startswith("{}"):
        for key, item in value.items():
            _look_inside(item, inside, (*path, key), unknown, subject)
        return
    fields, elsewhere = TYPES[notation].fields, _ELSEWHERE.get(notation, frozenset())
    for key, item in value.items():
        if key in fields:
            _look(item, fields[key], (*path, key), unknown, subject)
        elif key not in elsewhere:
            unknown.append((*path, key))


def _look_inside(value: Any, notation: str, path: _Path, unknown: list[_Path], subject: str) -> None:
    if value is None:
        raise InvalidObject(subject, _spelled(path), None, "must not be null")
    _look(value, notation, path, unknown, subject)


def _spelled(path: _Path) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".") or "object"
