"""Check of objects of built-in kinds against the fields of their types: wrong types and unknown fields."""

from typing import Any, NamedTuple

from kaicore.errors import InvalidObject
from kaicore.kube.builtin_types import SCALARS, TYPES
from kaicore.spelling import did_you_mean

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


class FieldCheck(NamedTuple):
    """What is wrong with the fields of an object.

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
        wire: the object, or the part of one that has the type.
        type_name: such as `V1Pod`.
        subject: the object, for errors.
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
