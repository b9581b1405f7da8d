"""Drift: the fields in which an object in the cluster differs from its desired form.

Only fields that the operator sets are compared. Fields that the API server fills in, or that others add, are left
unchanged.
"""

from collections.abc import Iterator
from typing import Any

from kaicore.errors import InvalidQuantity
from kaicore.rules.model.quantity import CPU, parse_amount

#: What tells the elements of Kubernetes' lists apart, where they are objects.
_NAMES = ("name", "mountPath", "containerPort", "port", "uid", "topologyKey")


def lacks(wanted: Any, live: Any) -> str:
    """Return the path of the first thing that is wanted and not so; empty where there is none."""
    return next(_differences(wanted, live, ""), "")


def _differences(wanted: Any, live: Any, path: str) -> Iterator[str]:
    if isinstance(wanted, dict):
        if not isinstance(live, dict):
            yield path or "."
            return
        for key, value in wanted.items():
            at = f"{path}.{key}" if path else key
            if key not in live:
                # What is empty may be left out.
                if value not in (None, {}, [], ""):
                    yield at
            else:
                yield from _differences(value, live[key], at)
    elif isinstance(wanted, list):
        yield from _of_lists(wanted, live, path)
    elif wanted != live and not _same_amount(wanted, live, path):
        yield path


def _of_lists(wanted: list[Any], live: Any, path: str) -> Iterator[str]:
    if not isinstance(live, list):
        if wanted:
            yield path
        return
    name = next((name for name in _NAMES if _tells_apart(wanted, name) and _tells_apart(live, name)), None)
    if name is None:
        if len(wanted) != len(live):
            yield path
            return
        for index, (one, other) in enumerate(zip(wanted, live, strict=True)):
            yield from _differences(one, other, f"{path}[{index}]")
        return
    by_name = {element[name]: element for element in live}
    for element in wanted:
        at = f"{path}[{name}={element[name]}]"
        if element[name] in by_name:
            yield from _differences(element, by_name[element[name]], at)
        else:
            yield at


def _tells_apart(elements: list[Any], name: str) -> bool:
    return all(isinstance(element, dict) and name in element for element in elements) and len(
        {str(element[name]) for element in elements}
    ) == len(elements)


def _same_amount(wanted: Any, live: Any, path: str) -> bool:
    """Tell whether two quantities are one: an API server writes `1000m` as `1`."""
    if ".requests." not in path and ".limits." not in path:
        return False
    resource = CPU if path.endswith(".cpu") else "memory"
    try:
        one, other = (parse_amount(text, resource=resource, subject="", field=path) for text in (wanted, live))
    except InvalidQuantity:
        return False
    return one == other
