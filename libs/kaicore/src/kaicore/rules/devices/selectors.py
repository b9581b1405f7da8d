"""CEL selectors of devices, as Kubernetes evaluates them.

The variable is `device`: `driver`, `allowMultipleAllocations`, `attributes` and `capacity`, the last two by domain and
name. A domain that a device does not have is an empty map; a name that it does not have is an error.

Of Kubernetes' extensions there are quantities, semantic versions, sets, lists and regular expressions. Quantities and
versions are values with methods of their own; here they are marked texts, which no device can have. URLs, addresses,
formats and authorization are missing, because selectors of devices have no use for them. An expression that names them
does not compile, and a claim that needs it waits with a reason that says so.

The API server that accepted the expressions has checked them and bounded their cost.

Source: `k8s.io/dynamic-resource-allocation/cel`, `k8s.io/apiserver/pkg/cel/library` (quantity, semver, lists, regex).
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import add, sub
from typing import Any

import re2
from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_math, ext_optional, ext_strings

from kaicore.errors import KaiError
from kaicore.rules.model.device import Device, DeviceAttribute
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


def _combined(combine: Callable[[int, int], int]) -> Callable[[str, Any], str]:
    def combined(left: str, right: Any) -> str:
        return quantity_value(combine(_amount(left), right * 1000 if isinstance(right, int) else _amount(right)))

    return combined


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
    name: str,
    returns: cel.Type,
    parameters: Sequence[cel.Type],
    implementation: Callable[..., Any],
    *,
    member: bool = True,
) -> cel.FunctionDecl:
    return _overloaded(name, returns, [parameters], implementation, member=member)


def _overloaded(
    name: str,
    returns: cel.Type,
    parameters: Sequence[Sequence[cel.Type]],
    implementation: Callable[..., Any],
    *,
    member: bool = True,
) -> cel.FunctionDecl:
    overloads = [
        cel.Overload(f"kai_{name.replace('.', '_')}_{number}", returns, list(types), member, implementation)
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
    _overloaded("add", _TEXT, [(_TEXT, _TEXT), (_TEXT, _T.INT)], _combined(add)),
    _overloaded("sub", _TEXT, [(_TEXT, _TEXT), (_TEXT, _T.INT)], _combined(sub)),
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

#: `.attributes["…"]` and `.capacity["…"]`, or any text in quotes, which is left as it is.
_DOMAINS = re.compile(
    r"""(\.(?:attributes|capacity))\[\s*("[^"\\]*"|'[^'\\]*')\s*\]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
)
_MOST_SAID = 200


class SelectorFailed(KaiError):
    """An expression is none that this version evaluates, or cannot be evaluated for a device."""


@lru_cache(maxsize=1)
def _environment() -> cel.Env:
    return cel.NewEnv(
        variables={"device": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)},
        extensions=[
            ext_bindings.ExtBindings(),
            ext_math.ExtMath(),
            ext_optional.ExtOptional(),
            ext_strings.ExtStrings(),
        ],
        functions=DECLARATIONS,
    )


@lru_cache(maxsize=4096)
def _compiled(expression: str) -> cel.Expression | str:
    """Return the expression, or what is wrong with it."""
    environment = _environment()
    try:
        return environment.compile(_DOMAINS.sub(_or_empty, expression))
    except RuntimeError as error:
        return str(error)


def _or_empty(match: re.Match[str]) -> str:
    """Write the look-up of a domain so that a missing one is empty."""
    return match[0] if match[1] is None else f"{match[1]}[?{match[2]}].orValue(dyn({{}}))"


def selector_problem(expression: str) -> str:
    """Return what is wrong with an expression as such; empty for nothing."""
    compiled = _compiled(expression)
    return _short(compiled) if isinstance(compiled, str) else ""


def device_data(driver: str, device: Device) -> dict[str, Any]:
    """Return what expressions see of a device."""
    attributes: dict[str, dict[str, Any]] = {}
    for name, attribute in device.attributes.items():
        domain, _, rest = name.rpartition("/")
        attributes.setdefault(domain, {})[rest] = _value(attribute)
    capacity: dict[str, dict[str, Any]] = {}
    for name, one in device.capacity.items():
        domain, slash, rest = name.rpartition("/")
        capacity.setdefault(domain if slash else driver, {})[rest] = quantity_value(one.value)
    return {
        "device": {
            "driver": driver,
            "allowMultipleAllocations": device.shared,
            "attributes": attributes,
            "capacity": capacity,
        }
    }


def matches(expression: str, data: dict[str, Any]) -> bool:
    """Tell whether a device meets an expression. Raises SelectorFailed: it cannot be decided.

    Args:
        data: see `device_data`.
    """
    compiled = _compiled(expression)
    if isinstance(compiled, str):
        raise SelectorFailed(f"CEL expression {expression!r}: {_short(compiled)}")
    try:
        result = compiled.eval(data=data)
    except RuntimeError as error:
        raise SelectorFailed(f"CEL expression {expression!r}: {_short(str(error))}") from None
    value = result.value()
    if not isinstance(value, bool):
        raise SelectorFailed(f"CEL expression {expression!r}: {_short(str(value))}")
    return value


def _value(attribute: DeviceAttribute) -> Any:
    values = attribute.values
    if attribute.kind == "version":
        values = tuple(version_value(str(value)) for value in values)
    return list(values) if attribute.listed else values[0]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SAID else f"{line[:_MOST_SAID]}…"
