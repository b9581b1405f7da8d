"""Kubernetes' CEL extensions for device selectors: quantities, semantic versions, sets, lists and regular expressions.

URLs, addresses, formats and authorization are missing, because selectors of devices have no use for them. An expression
that names them does not compile, and a claim that needs it waits with a reason that says so.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import re2
from cel_expr_python import cel

from kaicore.rules.model.quantity import thousandths

_QUANTITY, _VERSION = "\ue000quantity:", "\ue000version:"
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?"
)
_LOOSE = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?([-+].*)?")

#: One part of a pre-release: numbers come before words.
_Part = tuple[int, int, str]
_Precedence = tuple[int, int, int, int, tuple[_Part, ...]]


def quantity_value(amount: int) -> str:
    """Return a quantity of so many thousandths, as expressions see it."""
    return f"{_QUANTITY}{amount}"


def version_value(text: str) -> str:
    """Return a semantic version, as expressions see it."""
    return _VERSION + text


def _quantity(text: str) -> str:
    amount = thousandths(text)
    if amount is None:
        raise ValueError(f"no quantity: {text!r}")
    return quantity_value(amount)


def _version(text: str) -> str:
    if not _SEMVER.fullmatch(text):
        raise ValueError(f"no semantic version: {text!r}")
    return version_value(text)


def _loose_version(text: str, normalize: bool) -> str:
    match = _LOOSE.fullmatch(text) if normalize else None
    if match is None:
        return _version(text)
    numbers = ".".join(str(int(part or 0)) for part in match.groups()[:3])
    return _version(numbers + (match[4] or ""))


def _amount(value: str) -> int:
    if not value.startswith(_QUANTITY):
        raise ValueError("no quantity")
    return int(value.removeprefix(_QUANTITY))


@lru_cache(maxsize=4096)
def _precedence(value: str) -> _Precedence:
    match = _SEMVER.fullmatch(value.removeprefix(_VERSION)) if value.startswith(_VERSION) else None
    if match is None:
        raise ValueError("no semantic version")
    parts = tuple(
        (0, int(part), "") if part.isdecimal() else (1, 0, part) for part in (match[4] or "").split(".") if part
    )
    # A release comes after its pre-releases.
    return int(match[1]), int(match[2]), int(match[3]), 0 if parts else 1, parts


def _compare(left: str, right: str) -> int:
    if left.startswith(_VERSION):
        ours, theirs = _precedence(left), _precedence(right)
        return (ours > theirs) - (ours < theirs)
    mine, other = _amount(left), _amount(right)
    return (mine > other) - (mine < other)


def _sum(left: str, right: Any) -> str:
    return quantity_value(_amount(left) + (right * 1000 if isinstance(right, int) else _amount(right)))


def _difference(left: str, right: Any) -> str:
    return quantity_value(_amount(left) - (right * 1000 if isinstance(right, int) else _amount(right)))


def _integer(value: str) -> int:
    amount = _amount(value)
    if amount % 1000:
        raise ValueError("the quantity is no integer")
    return amount // 1000


def _includes(value: Any, item: Any) -> bool:
    return item in value if isinstance(value, list) else bool(value == item)


def _found(text: str, pattern: str) -> str:
    match = re2.search(pattern, text)
    return "" if match is None else str(match.group(0))


def _all_found(text: str, pattern: str) -> list[str]:
    return [str(match.group(0)) for match in re2.finditer(pattern, text)]


def _is(parse: Callable[[str], str]) -> Callable[[str], bool]:
    def tells(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return tells


def _is_sorted(values: Sequence[Any]) -> bool:
    return all(left <= right for left, right in pairwise(values))


_T = cel.Type
_TEXT, _LIST, _DYN = _T.STRING, _T.List(_T.DYN), _T.DYN
_SCALARS = (_T.STRING, _T.INT, _T.BOOL)


def _declared(
    name: str, returns: cel.Type, parameters: list[cel.Type], implementation: Callable[..., Any], *, member: bool = True
) -> cel.FunctionDecl:
    overload = cel.Overload(f"kai_{name.replace('.', '_')}", returns, parameters, member, implementation)
    return cel.FunctionDecl(name, [overload])


def _overloaded(
    name: str, returns: cel.Type, parameters: Sequence[tuple[cel.Type, ...]], implementation: Callable[..., Any]
) -> cel.FunctionDecl:
    overloads = [
        cel.Overload(f"kai_{name}_{number}", returns, list(types), True, implementation)
        for number, types in enumerate(parameters)
    ]
    return cel.FunctionDecl(name, overloads)


#: Functions for `cel.NewEnv`.
DECLARATIONS = [
    _declared("quantity", _TEXT, [_TEXT], _quantity, member=False),
    _declared("isQuantity", _T.BOOL, [_TEXT], _is(_quantity), member=False),
    cel.FunctionDecl(
        "semver",
        [
            cel.Overload("kai_semver", _TEXT, [_TEXT], False, _version),
            cel.Overload("kai_semver_loose", _TEXT, [_TEXT, _T.BOOL], False, _loose_version),
        ],
    ),
    _declared("isSemver", _T.BOOL, [_TEXT], _is(_version), member=False),
    _declared("compareTo", _T.INT, [_TEXT, _TEXT], _compare),
    _declared("isGreaterThan", _T.BOOL, [_TEXT, _TEXT], lambda left, right: _compare(left, right) > 0),
    _declared("isLessThan", _T.BOOL, [_TEXT, _TEXT], lambda left, right: _compare(left, right) < 0),
    _overloaded("add", _TEXT, [(_TEXT, _TEXT), (_TEXT, _T.INT)], _sum),
    _overloaded("sub", _TEXT, [(_TEXT, _TEXT), (_TEXT, _T.INT)], _difference),
    _declared("sign", _T.INT, [_TEXT], lambda value: (_amount(value) > 0) - (_amount(value) < 0)),
    _declared("asInteger", _T.INT, [_TEXT], _integer),
    _declared("isInteger", _T.BOOL, [_TEXT], lambda value: _amount(value) % 1000 == 0),
    _declared("asApproximateFloat", _T.DOUBLE, [_TEXT], lambda value: _amount(value) / 1000),
    _declared("major", _T.INT, [_TEXT], lambda value: _precedence(value)[0]),
    _declared("minor", _T.INT, [_TEXT], lambda value: _precedence(value)[1]),
    _declared("patch", _T.INT, [_TEXT], lambda value: _precedence(value)[2]),
    _overloaded("includes", _T.BOOL, [pair for one in _SCALARS for pair in ((one, one), (_LIST, one))], _includes),
    _declared("find", _TEXT, [_TEXT, _TEXT], _found),
    _declared("findAll", _T.List(_TEXT), [_TEXT, _TEXT], _all_found),
    _declared("isSorted", _T.BOOL, [_LIST], _is_sorted),
    _declared("sum", _DYN, [_LIST], sum),
    _declared("min", _DYN, [_LIST], min),
    _declared("max", _DYN, [_LIST], max),
    _declared("sets.contains", _T.BOOL, [_LIST, _LIST], lambda a, b: all(one in a for one in b), member=False),
    _declared("sets.intersects", _T.BOOL, [_LIST, _LIST], lambda a, b: any(one in a for one in b), member=False),
    _declared(
        "sets.equivalent",
        _T.BOOL,
        [_LIST, _LIST],
        lambda a, b: all(one in a for one in b) and all(one in b for one in a),
        member=False,
    ),
]
