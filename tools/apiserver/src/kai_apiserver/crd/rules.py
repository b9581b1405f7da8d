"""The `x-kubernetes-validations` of a schema: compiled once per definition, asked on every write."""

from dataclasses import dataclass, field
from typing import Any

from kai_apiserver.crd.cel_evaluation import EvaluationError, evaluate
from kai_apiserver.crd.cel_syntax import (
    Call,
    Index,
    ListOf,
    MapOf,
    Name,
    Node,
    Select,
    UnsupportedRule,
    parse,
)
from kai_apiserver.crd.structural import Schema, walk
from kai_apiserver.errors import FieldError, FieldProblem

_UNCHECKED = FieldError(
    "FieldValueInvalid",
    "<nil>",
    detail="some validation rules were not checked because the object was invalid; correct the existing errors to "
    "complete validation",
)
_REASONS: dict[str, FieldProblem] = {
    "FieldValueInvalid": "FieldValueInvalid",
    "FieldValueForbidden": "FieldValueForbidden",
    "FieldValueRequired": "FieldValueRequired",
    "FieldValueDuplicate": "FieldValueDuplicate",
}


@dataclass(frozen=True, slots=True)
class _Rule:
    condition: Node
    text: str
    message: str
    message_expression: Node | None
    problem: FieldProblem
    field_path: str
    needs_old: bool


@dataclass(slots=True)
class _Level:
    """The rules at one place of the schema, and below."""

    rules: list[_Rule] = field(default_factory=list)
    properties: "dict[str, _Level]" = field(default_factory=dict)
    additional: "_Level | None" = None
    items: "_Level | None" = None
    kind: str = ""
    list_keys: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.rules or self.properties or self.additional or self.items)


class RuleSet:
    """All rules of one schema.

    Attributes:
        unsupported: rules that are not understood here and therefore not enforced, each with why.
    """

    def __init__(self, schema: Schema) -> None:
        self.unsupported: list[str] = []
        self._any = any("x-kubernetes-validations" in below for below in walk(schema))
        self._root = self._compile(schema) if self._any else _Level()

    def _compile(self, schema: Schema) -> _Level:
        level = _Level(
            rules=[rule for given in schema.get("x-kubernetes-validations") or () if (rule := self._read(given))],
            kind=schema.get("type", "object"),
            list_keys=tuple(schema.get("x-kubernetes-list-map-keys") or ()),
        )
        for name, below in (schema.get("properties") or {}).items():
            compiled = self._compile(below)
            if not compiled.empty:
                level.properties[name] = compiled
        for key in ("additionalProperties", "items"):
            if isinstance(schema.get(key), dict):
                compiled = self._compile(schema[key])
                if not compiled.empty:
                    setattr(level, "additional" if key == "additionalProperties" else "items", compiled)
        return level

    def _read(self, given: dict[str, Any]) -> _Rule | None:
        text = given["rule"]
        try:
            condition = parse(text)
            expression = parse(given["messageExpression"]) if given.get("messageExpression") else None
        except UnsupportedRule as error:
            self.unsupported.append(f"{text}: {error}")
            return None
        return _Rule(
            condition=condition,
            text=text,
            message=(given.get("message") or f"failed rule: {text}").strip(),
            message_expression=expression,
            problem=_REASONS.get(given.get("reason", ""), "FieldValueInvalid"),
            field_path=given.get("fieldPath", ""),
            needs_old=_mentions(condition, "oldSelf") and not given.get("optionalOldSelf"),
        )

    def not_checked(self) -> list[FieldError]:
        """What is added to the errors of an object that is invalid already."""
        return [_UNCHECKED] if self._any else []

    def check(self, value: Any, old: Any) -> list[FieldError]:
        """Which rules an object breaks; `old` is what it was before, or None."""
        errors: list[FieldError] = []
        self._check(value, old, self._root, "", errors)
        return errors

    def _check(self, value: Any, old: Any, level: _Level, path: str, errors: list[FieldError]) -> None:
        for rule in level.rules:
            if rule.needs_old and old is None:
                continue
            error = self._broken(rule, value, old, path)
            if error is not None:
                errors.append(error)
        if isinstance(value, dict):
            before = old if isinstance(old, dict) else {}
            for name, item in value.items():
                below = level.properties.get(name) or level.additional
                if below is not None:
                    self._check(item, before.get(name), below, f"{path}.{name}" if path else name, errors)
        elif isinstance(value, list) and level.items is not None:
            for index, item in enumerate(value):
                self._check(item, _correlated(item, old, level.list_keys), level.items, f"{path}[{index}]", errors)

    def _broken(self, rule: _Rule, value: Any, old: Any, path: str) -> FieldError | None:
        variables = {"self": value, "oldSelf": old}
        message = rule.message
        try:
            if evaluate(rule.condition, variables) is True:
                return None
            if rule.message_expression is not None:
                message = str(evaluate(rule.message_expression, variables))
        except EvaluationError as error:
            message = f"{error} evaluating rule: {message}"
        except UnsupportedRule as error:
            self.unsupported.append(f"{rule.text}: {error}")
            return None
        shown = "object" if isinstance(value, dict) else "array" if isinstance(value, list) else value
        return FieldError(rule.problem, (path + rule.field_path).lstrip(".") or "<nil>", detail=message, value=shown)


def _correlated(item: Any, old: Any, keys: tuple[str, ...]) -> Any:
    """The element of the old list that `item` is a new version of, if its keys tell."""
    if not keys or not isinstance(old, list) or not isinstance(item, dict):
        return None
    identity = [item.get(key) for key in keys]
    return next(
        (other for other in old if isinstance(other, dict) and [other.get(key) for key in keys] == identity), None
    )


def _mentions(node: Node, name: str) -> bool:
    match node:
        case Name(found):
            return found == name
        case Select(operand, _):
            return _mentions(operand, name)
        case Index(operand, index):
            return _mentions(operand, name) or _mentions(index, name)
        case Call(_, arguments, target):
            return any(_mentions(part, name) for part in (*arguments, *((target,) if target is not None else ())))
        case ListOf(items):
            return any(_mentions(item, name) for item in items)
        case MapOf(items):
            return any(_mentions(part, name) for pair in items for part in pair)
    return False
