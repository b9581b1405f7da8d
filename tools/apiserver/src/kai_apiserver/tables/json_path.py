"""The part of JSONPath that printer columns use: fields, indexes, `[-1:]`, `[*]`, and `[?(@.type=="Ready")]`."""

import re
from functools import lru_cache
from typing import Any

_STEP = re.compile(
    r"\.(?P<field>(?:[^.\[\]\\]|\\.)+)"
    r"|\[(?P<index>-?\d+)\]"
    r"|\[(?P<first>-?\d+):\]"
    r"|(?P<all>\[\*\]|\.\*)"
    r"|\[['\"](?P<quoted>[^'\"]+)['\"]\]"
    r"|\[\?\(@\.(?P<key>[^=!<>\s]+)\s*(?P<op>==|!=)\s*['\"]?(?P<value>[^'\")]*)['\"]?\)\]"
)
_Step = tuple[str, Any]


@lru_cache(maxsize=1024)
def _steps(path: str) -> tuple[_Step, ...]:
    text = path if path.startswith((".", "[")) else f".{path}"
    steps: list[_Step] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            return (("nothing", None),)
        position = match.end()
        if match["all"]:
            steps.append(("all", None))
        elif match["index"]:
            steps.append(("index", int(match["index"])))
        elif match["first"]:
            steps.append(("from", int(match["first"])))
        elif match["key"]:
            steps.append(("filter", (tuple(match["key"].split(".")), match["op"] == "==", match["value"])))
        else:
            steps.append(("field", match["quoted"] or match["field"].replace("\\", "")))
    return tuple(steps)


def find(value: Any, path: str) -> list[Any]:
    """Everything at `path`; nothing where the path cannot be read."""
    matches = [value]
    for kind, argument in _steps(path):
        matches = [below for item in matches for below in _step(item, kind, argument)]
    return matches


def _step(value: Any, kind: str, argument: Any) -> list[Any]:
    if kind == "field":
        return [value[argument]] if isinstance(value, dict) and argument in value else []
    if kind == "all":
        return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if not isinstance(value, list):
        return []
    if kind == "index":
        return value[argument : argument + 1 or None]
    if kind == "from":
        return value[argument:]
    if kind == "filter":
        keys, equal, wanted = argument
        return [item for item in value if (_text(item, keys) == wanted) is equal]
    return []


def _text(item: Any, keys: tuple[str, ...]) -> str | None:
    for key in keys:
        item = item.get(key) if isinstance(item, dict) else None
    if item is None:
        return None
    return str(item).lower() if isinstance(item, bool) else str(item)
