"""CEL selectors of devices, as Kubernetes evaluates them.

The variable is `device`: `driver`, `allowMultipleAllocations`, `attributes` and `capacity`, the last two by domain and
name. A domain that a device does not have is an empty map; a name that it does not have is an error. Quantities and
semantic versions are values with methods of their own. Here they are marked texts, which no device can have, and
`cel_functions` has their functions.

The API server that accepted the expressions has checked them and bounded their cost.

Source: `k8s.io/dynamic-resource-allocation/cel`, `k8s.io/apiserver/pkg/cel/library` (quantity, semver, lists, regex).
"""

import re
from functools import lru_cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_math, ext_optional, ext_strings

from kaicore.errors import KaiError
from kaicore.rules.devices.cel_functions import DECLARATIONS, quantity_value, version_value
from kaicore.rules.model.device import Device, DeviceAttribute

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
    """Tell whether a device meets an expression.

    Args:
        expression: in CEL.
        data: see `device_data`.

    Raises:
        SelectorFailed: it cannot be told.
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
