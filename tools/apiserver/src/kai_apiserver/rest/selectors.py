"""Label and field selectors: read from a query or an object, then asked of labels or fields."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kai_apiserver.errors import bad_request
from kai_apiserver.objects import is_label_value, is_qualified_name

Operator = Literal["in", "notin", "exists", "absent", "gt", "lt"]

_TERM = re.compile(
    r"\s*(?:"
    r"(?P<absent>!)\s*(?P<absent_key>[^\s,!=()<>]+)"
    r"|(?P<set_key>[^\s,!=()<>]+)\s+(?P<set_op>in|notin)\s*\((?P<values>[^)]*)\)"
    r"|(?P<key>[^\s,!=()<>]+)\s*(?:(?P<op>==|=|!=|>|<)\s*(?P<value>[^\s,=!()<>]*))?"
    r")\s*(?:,|$)"
)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term of a label selector."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True if an object with these labels meets the term."""
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value is not None and value in self.values
            case "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "absent":
                return value is None
            case _:
                return value is not None and self._compares(value)

    def _compares(self, value: str) -> bool:
        try:
            left, right = int(value), int(next(iter(self.values)))
        except ValueError:
            return False
        return left > right if self.operator == "gt" else left < right


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All of its requirements must hold; without any, everything matches."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        """True if an object with these labels is selected."""
        present = labels or {}
        return all(requirement.matches(present) for requirement in self.requirements)


EVERYTHING = LabelSelector()


def parse_label_selector(text: str) -> LabelSelector:
    """Read a `labelSelector` query parameter. Raises StatusError: 400, naming what cannot be read."""
    if not text.strip():
        return EVERYTHING
    requirements, position = [], 0
    while position < len(text):
        match = _TERM.match(text, position)
        if match is None:
            raise bad_request(f"unable to parse requirement: found '{text[position:]}', expected: identifier")
        requirements.append(_requirement(match))
        position = match.end()
    return LabelSelector(tuple(requirements))


def _requirement(match: re.Match[str]) -> Requirement:
    if match["absent"]:
        return _checked(match["absent_key"], "absent")
    if match["set_key"]:
        operator: Operator = "in" if match["set_op"] == "in" else "notin"
        return _checked(match["set_key"], operator, [value.strip() for value in match["values"].split(",")])
    key, op, value = match["key"], match["op"], match["value"]
    match op:
        case None:
            return _checked(key, "exists")
        case "!=":
            return _checked(key, "notin", [value])
        case ">" | "<":
            return _checked(key, "gt" if op == ">" else "lt", [value])
        case _:
            return _checked(key, "in", [value])


def _checked(key: str, operator: Operator, values: Sequence[str] = ()) -> Requirement:
    if not is_qualified_name(key):
        raise bad_request(
            f'unable to parse requirement: <nil>: Invalid value: "{key}": name part must consist of alphanumeric '
            "characters, '-', '_' or '.', and must start and end with an alphanumeric character"
        )
    for value in values:
        if not is_label_value(value):
            raise bad_request(
                f'unable to parse requirement: values[0][{key}]: Invalid value: "{value}": a valid label must be an '
                "empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
                "alphanumeric character"
            )
    return Requirement(key, operator, frozenset(values))


_EXPRESSION_OPERATORS: dict[str, Operator] = {
    "In": "in",
    "NotIn": "notin",
    "Exists": "exists",
    "DoesNotExist": "absent",
}


def selector_of(given: Mapping[str, Any] | None) -> LabelSelector | None:
    """Read a `metav1.LabelSelector` object; None (select nothing) if there is none.

    Objects of an earlier version may hold an operator that there is not: it selects nothing.
    """
    if given is None:
        return None
    requirements = [
        Requirement(key, "in", frozenset((value,))) for key, value in (given.get("matchLabels") or {}).items()
    ]
    requirements += [
        Requirement(term["key"], _EXPRESSION_OPERATORS[term["operator"]], frozenset(term.get("values") or ()))
        if term.get("operator") in _EXPRESSION_OPERATORS
        else Requirement(term.get("key", ""), "in", frozenset())
        for term in given.get("matchExpressions") or ()
    ]
    return LabelSelector(tuple(requirements))


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """One term of a field selector: the field equals the value, or does not."""

    field: str
    value: str
    equal: bool


def parse_field_selector(text: str) -> tuple[FieldTerm, ...]:
    """Read a `fieldSelector` query parameter; whether the fields can be selected by is the caller's to know.

    Raises StatusError: 400, naming the term that cannot be read.
    """
    terms = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        for operator in ("!=", "==", "="):
            field, separator, value = part.partition(operator)
            if separator:
                terms.append(FieldTerm(field, value, operator != "!="))
                break
        else:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
    return tuple(terms)
