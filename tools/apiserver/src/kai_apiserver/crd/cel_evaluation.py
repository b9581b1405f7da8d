"""Evaluate CEL expressions over JSON values."""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from kai_apiserver.crd.cel_syntax import (
    Call,
    Index,
    ListOf,
    Literal,
    MapOf,
    Name,
    Node,
    Select,
    UnsupportedRule,
)
from kai_apiserver.quantity import amount

Variables = dict[str, Any]

_MACROS = ("all", "exists", "exists_one", "filter", "map")


class EvaluationError(ValueError):
    """A rule asked for something that is not there, or of the wrong type; such a rule fails."""


def evaluate(node: Node, variables: Variables) -> Any:
    """The value of an expression.

    Raises:
        EvaluationError: it has none.
        UnsupportedRule: it uses a function that is not understood here.
    """
    match node:
        case Literal(value):
            return value
        case Name(name):
            if name not in variables:
                raise EvaluationError(f"undeclared reference to '{name}'")
            return variables[name]
        case Select(operand, field):
            return _member(evaluate(operand, variables), field)
        case Index(operand, index):
            return _member(evaluate(operand, variables), evaluate(index, variables))
        case ListOf(items):
            return [evaluate(item, variables) for item in items]
        case MapOf(pairs):
            return {evaluate(key, variables): evaluate(value, variables) for key, value in pairs}
        case Call():
            return _call(node, variables)
    raise UnsupportedRule(f"cannot evaluate {node}")


def _member(container: Any, key: Any) -> Any:
    try:
        if isinstance(container, dict | list):
            return container[key]
    except (KeyError, IndexError, TypeError):
        pass
    raise EvaluationError(f"no such key: {key}")


def _call(call: Call, variables: Variables) -> Any:
    name, arguments = call.function, call.arguments
    if name in ("&&", "||"):
        return _logic(name, arguments, variables)
    if name == "?:":
        return evaluate(arguments[1 if _truth(evaluate(arguments[0], variables)) else 2], variables)
    if name == "has" and call.target is None:
        return _has(arguments[0], variables)
    if call.target is not None and name in _MACROS and len(arguments) >= 2 and isinstance(arguments[0], Name):
        return _macro(call, arguments[0].name, variables)
    values = [evaluate(argument, variables) for argument in arguments]
    try:
        if call.target is not None:
            return _method(name, evaluate(call.target, variables), values)
        return _function(name, values)
    except (TypeError, IndexError, ZeroDivisionError, ValueError) as error:
        if isinstance(error, EvaluationError | UnsupportedRule):
            raise
        raise EvaluationError(f"{name}: {error}") from error


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise EvaluationError("no such overload: expected a bool")
    return value


def _logic(name: str, arguments: tuple[Node, ...], variables: Variables) -> bool:
    """`&&` and `||` are commutative: an error on one side does not matter where the other decides."""
    decisive = name == "||"
    failure: EvaluationError | None = None
    for argument in arguments:
        try:
            if _truth(evaluate(argument, variables)) is decisive:
                return decisive
        except EvaluationError as error:
            failure = error
    if failure is not None:
        raise failure
    return not decisive


def _has(node: Node, variables: Variables) -> bool:
    if not isinstance(node, Select):
        raise UnsupportedRule("has() takes a field selection")
    operand = evaluate(node.operand, variables)
    return isinstance(operand, dict) and node.field in operand


def _macro(call: Call, variable: str, variables: Variables) -> Any:
    assert call.target is not None
    target = evaluate(call.target, variables)
    if not isinstance(target, dict | list):
        raise EvaluationError(f"{call.function}: not a list or map")

    def each(item: Any, which: int = 1) -> Any:
        return evaluate(call.arguments[which], variables | {variable: item})

    match call.function:
        case "all":
            return all(_truth(each(item)) for item in target)
        case "exists":
            return any(_truth(each(item)) for item in target)
        case "exists_one":
            return sum(_truth(each(item)) for item in target) == 1
        case "filter":
            return [item for item in target if _truth(each(item))]
        case _:
            if len(call.arguments) == 3:
                return [each(item, 2) for item in target if _truth(each(item))]
            return [each(item) for item in target]


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    return bool(left == right)


def _arithmetic(left: Any, right: Any, operator: Callable[[Any, Any], Any]) -> Any:
    if isinstance(left, bool) or isinstance(right, bool):
        raise EvaluationError("no such overload")
    return operator(left, right)


def _divide(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    return left / right


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "==": _equal,
    "!=": lambda a, b: not _equal(a, b),
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "in": lambda a, b: a in b,
    "+": lambda a, b: _arithmetic(a, b, lambda x, y: x + y),
    "-": lambda a, b: _arithmetic(a, b, lambda x, y: x - y),
    "*": lambda a, b: _arithmetic(a, b, lambda x, y: x * y),
    "/": lambda a, b: _arithmetic(a, b, _divide),
    "%": lambda a, b: _arithmetic(a, b, lambda x, y: x - y * _divide(x, y)),
    "!x": lambda a: not _truth(a),
    "-x": lambda a: -a,
    "size": len,
    "int": int,
    "double": float,
    "string": lambda a: str(a).lower() if isinstance(a, bool) else str(a),
    "type": lambda a: type(a).__name__,
    "dyn": lambda a: a,
    "quantity": amount,
    "isQuantity": lambda a: _reads(amount, a),
}


def _reads(reader: Callable[[str], object], text: str) -> bool:
    try:
        reader(text)
    except ValueError:
        return False
    return True


def _function(name: str, values: list[Any]) -> Any:
    function = _FUNCTIONS.get(name)
    if function is None:
        raise UnsupportedRule(f"function {name}()")
    return function(*values)


_METHODS: dict[str, Callable[..., Any]] = {
    "size": len,
    "startsWith": lambda s, prefix: s.startswith(prefix),
    "endsWith": lambda s, suffix: s.endswith(suffix),
    "contains": lambda s, part: part in s,
    "matches": lambda s, pattern: re.search(pattern, s) is not None,
    "lowerAscii": lambda s: s.lower(),
    "upperAscii": lambda s: s.upper(),
    "trim": lambda s: s.strip(),
    "split": lambda s, separator: s.split(separator),
    "join": lambda items, separator="": separator.join(items),
    "indexOf": lambda s, part: s.index(part) if part in s else -1,
    "substring": lambda s, start, end=None: s[start:end],
    "replace": lambda s, old, new: s.replace(old, new),
    "isSorted": lambda items: all(a <= b for a, b in pairwise(items)),
    "sum": sum,
    "min": min,
    "max": max,
    "isLessThan": lambda a, b: a < b,
    "isGreaterThan": lambda a, b: a > b,
    "compareTo": lambda a, b: (a > b) - (a < b),
}


def _method(name: str, target: Any, values: list[Any]) -> Any:
    method = _METHODS.get(name)
    if method is None:
        raise UnsupportedRule(f"method {name}()")
    return method(target, *values)
