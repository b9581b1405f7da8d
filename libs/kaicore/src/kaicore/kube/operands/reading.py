"""Reading of specs: every fault is reported by field and value, and the other fields still count."""

import re
from typing import Any, TypeVar

import msgspec

from kaicore.errors import InvalidObject, InvalidQuantity
from kaicore.kube.operands.names import Object
from kaicore.rules.model.duration import parse_duration
from kaicore.rules.model.quantity import parse_amount

_T = TypeVar("_T")

_WHERE = re.compile(r" - at `(?:key in )?\$(.*)`$")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+|\.\.\.)\]")

#: Longest value that is told of a fault.
_LONGEST = 80


class Faults:
    """What is wrong with one object, in the order in which it was seen."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def add(self, field: str, problem: str, value: object) -> None:
        """Take note that a field's value cannot be."""
        shown = repr(value)
        self.messages.append(f"{field}: {problem}: {shown if len(shown) <= _LONGEST else shown[:_LONGEST] + '…'}")

    def of_type(self, value: object, cls: type[_T], field: str) -> _T | None:
        """Read a value as a type; None, with a fault, where it is not of that type."""
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            problem, where = str(error), ""
            if match := _WHERE.search(problem):
                problem, where = problem[: match.start()], match[1]
            at = value
            for name, index in _STEP.findall(where):
                at = _step(at, name or index)
            self.add(field + where, problem, at)
        return None

    def duration_us(self, text: str | None, field: str, *, least_us: int = 0) -> int | None:
        """Read a duration in microseconds; None without one, and for one that cannot be."""
        if text is None:
            return None
        try:
            duration = parse_duration(text, subject="", field=field)
        except InvalidObject as error:
            self.add(field, error.problem, text)
            return None
        if duration < least_us:
            self.add(field, f"must be {least_us / 1_000_000:g}s at least", text)
            return None
        return duration

    def resources(self, resources: "Resources | None", field: str) -> Object | None:
        """Read what a container asks for; None without it, and for one that cannot be."""
        if resources is None:
            return None
        before = len(self.messages)
        for part, amounts in (("requests", resources.requests), ("limits", resources.limits)):
            for resource, amount in amounts.items():
                try:
                    parse_amount(amount, resource=resource, subject="", field=f"{field}.{part}.{resource}")
                except InvalidQuantity as error:
                    self.add(error.field, error.problem, amount)
        return msgspec.to_builtins(resources) if len(self.messages) == before else None

    def path(self, path: str | None, field: str) -> str | None:
        """Read a path of the host; None without one, and for one that cannot be."""
        if path is not None and not path.startswith("/"):
            self.add(field, "must be an absolute path", path)
            return None
        return path


class Resources(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a container asks for.

    Attributes:
        requests: amounts by resource.
        limits: the same.
    """

    requests: dict[str, str | int] = {}
    limits: dict[str, str | int] = {}


def _step(value: Any, step: str) -> Any:
    try:
        return value[int(step)] if isinstance(value, list) else value[step]
    except (LookupError, TypeError, ValueError):
        return value


def section(spec: Object, *path: str) -> Any:
    """Return what is at a path of a spec; None where a part of it is missing or is no object."""
    at: Any = spec
    for part in path:
        at = at.get(part) if isinstance(at, dict) else None
    return at
