"""Objects as plain mappings. Names, uids and references are the same every time, where a cluster's are random.

Where an object was written by hand, the types of its fields are checked, and an error names the full path.
"""

import re
from collections.abc import Iterator
from copy import deepcopy
from hashlib import sha1, sha256
from typing import Any, TypeVar
from uuid import UUID, uuid5

import msgspec

from kaicore.errors import InvalidObject

#: An object as its JSON says it.
Object = dict[str, Any]

_UIDS = UUID("1f5c0a52-5d0f-5b7e-9d7c-0d6a6d0c6b5e")

#: What Kubernetes makes random parts of names of (`k8s.io/apimachinery/pkg/util/rand`).
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"

#: The longest part of a name before a random one of five letters (`names.maxGeneratedNameLength`).
_BASE_MOST = 58


def derived_uid(*parts: str) -> str:
    """Return a uid that is made of what identifies the object."""
    return str(uuid5(_UIDS, "\x1f".join(parts)))


def suffix(*parts: str, length: int = 5) -> str:
    """Return what stands in a name where a cluster would put random letters."""
    number = int.from_bytes(sha256("\x1f".join(parts).encode()).digest())
    letters = ""
    for _ in range(length):
        number, digit = divmod(number, len(_LETTERS))
        letters += _LETTERS[digit]
    return letters


def sha1_key(text: str) -> str:
    """Return the 40 hex digits by which JobSet and LeaderWorkerSet label what belongs together."""
    return sha1(text.encode(), usedforsecurity=False).hexdigest()


def generated_name(base: str, *parts: str) -> str:
    """Return the name that `generateName: base` gives, its letters made of `parts`."""
    return base[:_BASE_MOST] + suffix(base, *parts)


def group_of(api_version: str) -> str:
    """Return the group of an apiVersion; empty for the core group."""
    group, slash, _ = api_version.partition("/")
    return group if slash else ""


def kind_of(api_version: str, kind: str) -> str:
    """Return a kind with its API group: `Job.batch`, `Node`."""
    group = group_of(api_version)
    return f"{kind}.{group}" if group else kind


def name_of(owner: Object) -> str:
    """Return an object's name."""
    return str(owner["metadata"]["name"])


def namespace_of(owner: Object) -> str:
    """Return an object's namespace."""
    return str(owner["metadata"]["namespace"])


def controlled_by(owner: Object) -> list[Object]:
    """Return the owner references of what a controller makes for `owner`."""
    return [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": name_of(owner),
            "uid": owner["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


_LARGEST = 2**31 - 1

_DefaultT = TypeVar("_DefaultT", int, None)
_PartT = TypeVar("_PartT")

#: The most pods that one field of an owner may stand for: beyond it is a mistake, not a workload.
MOST_PODS = 100_000


class Fields:
    """A mapping inside an object that knows where it stands."""

    def __init__(self, subject: str, value: Object, path: str = "") -> None:
        """Args:
        path: of the mapping in the object.
        """
        self.value = value
        self.path = path
        self.subject = subject

    def where(self, name: str) -> str:
        """Return a field's path."""
        return f"{self.path}.{name}" if self.path else name

    def error(self, name: str, problem: str) -> InvalidObject:
        """Return the error that says what is wrong with a field."""
        return InvalidObject(self.subject, self.where(name), self.value.get(name), problem)

    def integer(self, name: str, default: _DefaultT, *, least: int = 0) -> int | _DefaultT:
        """Return a count; the default where there is none.

        Raises InvalidObject: it is no whole number, less than the least, or beyond 32 bits.
        """
        value = self.value.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
            raise self.error(name, f"must be a whole number of {least} or more")
        return value

    def pods(self, name: str, default: int, *, least: int = 0) -> int:
        """Return a count of pods, or of what has some; the default where there is none.

        Raises InvalidObject: it is no count, or more than can be meant.
        """
        count = self.integer(name, default, least=least)
        if count > MOST_PODS:
            raise self.error(name, f"is more than {MOST_PODS}, the most that is expanded")
        return count

    def text(self, name: str, default: str = "") -> str:
        """Return a text; the default where there is none.

        Raises InvalidObject: it is no text, or one that no name or value of Kubernetes can be.
        """
        value = self.value.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or not value.isprintable():
            raise self.error(name, "must be a text of printable characters")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of texts, none where there is none. Raises InvalidObject: it is no list of texts."""
        value = self.value.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(name, "must be a list of texts")
        return value

    def text_by_name(self, name: str) -> dict[str, str]:
        """Return a mapping to texts, such as labels; an empty one where there is none.

        Raises InvalidObject: it is no mapping, or not to texts.
        """
        inside = self.inside(name)
        for key, value in inside.value.items():
            if not isinstance(value, str):
                raise inside.error(key, "must be a text")
        return inside.value

    def flag(self, name: str) -> bool:
        """Return a switch, off where there is none. Raises InvalidObject: it is neither true nor false."""
        value = self.value.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return bool(value)

    def inside(self, name: str, *, required: bool = False) -> "Fields":
        """Return a mapping, an empty one where there is none.

        Raises InvalidObject: it is no mapping, or `required` and missing.
        """
        value = self.value.get(name)
        if value is None and not required:
            value = {}
        if not isinstance(value, dict):
            raise self.error(name, "is missing" if value is None else "must be a mapping")
        return Fields(self.subject, value, self.where(name))

    def items(self, name: str) -> "list[Fields]":
        """Return the mappings of a list, none where there is none. Raises InvalidObject: it is no list of mappings."""
        value = self.value.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(name, "must be a list of mappings")
        return [Fields(self.subject, item, f"{self.where(name)}[{index}]") for index, item in enumerate(value)]

    def named(self, name: str) -> "Iterator[tuple[str, Fields]]":
        """Yield the mappings of a mapping, in order of their names. Raises InvalidObject: see `inside`."""
        inside = self.inside(name)
        for key in sorted(inside.value):
            yield key, Fields(self.subject, inside.inside(key).value, f"{inside.path}[{key}]")

    def read(self, name: str, kind: type[_PartT]) -> _PartT | None:
        """Return a value of another type; None where there is none. Raises InvalidObject: it is none of the type."""
        value = self.value.get(name)
        try:
            return None if value is None else msgspec.convert(value, kind)
        except (msgspec.ValidationError, OverflowError) as error:
            path, at, problem = misfit(error, value)
            raise InvalidObject(self.subject, self.where(name) + path, at, problem) from error

    def copy(self, name: str) -> Any:
        """Return a mapping's deep copy, an empty one where there is none. Raises InvalidObject: it is no mapping."""
        return deepcopy(self.inside(name).value)


_PATH = re.compile(r" - at `(?:key in )?\$(.*)`$")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+|\.\.\.)\]")


def misfit(error: Exception, value: object) -> tuple[str, object, str]:
    """Return the path of what msgspec cannot convert in a value, what stands there, and what is wrong with it."""
    problem, path = str(error), ""
    if match := _PATH.search(problem):
        problem, path = problem[: match.start()], match[1]
    for name, index in _STEP.findall(path):
        value = _step(value, name or index)
    return path, value, problem


def _step(value: Any, step: str) -> Any:
    try:
        return value[int(step)] if isinstance(value, list) else value[step]
    except (LookupError, TypeError, ValueError):
        return value


def spec_of(owner: Object) -> Fields:
    """Return the `spec` of an object. Raises InvalidObject: it has none."""
    return _fields(owner).inside("spec", required=True)


def status_of(owner: Object) -> Fields:
    """Return the `status` of an object, an empty one where it has none."""
    return _fields(owner).inside("status")


def annotation_of(owner: Object, name: str) -> str:
    """Return an annotation of an object, empty where it has none.

    Raises InvalidObject: its annotations are no mapping, or this one is no text.
    """
    return _fields(owner).inside("metadata").inside("annotations").text(name)


def _fields(owner: Object) -> Fields:
    return Fields(f"{owner['kind']} {namespace_of(owner)}/{name_of(owner)}", owner)


def is_finished(owner: Object, *conditions: str) -> bool:
    """True if any of these conditions of an object is true."""
    return any(
        item.value.get("type") in conditions and item.value.get("status") == "True"
        for item in status_of(owner).items("conditions")
    )
