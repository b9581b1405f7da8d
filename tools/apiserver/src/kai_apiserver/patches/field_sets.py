"""Fields that a manager owns: the `FieldsV1` of `managedFields`, as sets of paths.

A path is a tuple of segments in the notation of the wire: `f:name` for a field, `k:{"name":"c"}` for a list element by
its keys, `v:"x"` for a member of a set.
"""

import json
from typing import Any

from kai_apiserver.objects import Object
from kai_apiserver.patches.shapes import Shape

Path = tuple[str, ...]
FieldSet = frozenset[Path]


def fields_of(value: Any, shape: Shape, path: Path = ()) -> FieldSet:
    """Every field that `value` sets: leaves, and elements of keyed lists themselves."""
    paths: set[Path] = set()
    _collect(value, shape, path, paths)
    return frozenset(paths)


def _collect(value: Any, shape: Shape, path: Path, paths: set[Path]) -> None:
    if isinstance(value, dict) and value and not shape.atomic:
        for key, item in value.items():
            _collect(item, shape.child(key), (*path, f"f:{key}"), paths)
    elif isinstance(value, list) and value and not shape.atomic and (shape.keys or shape.is_set):
        for item in value:
            segment = element_segment(item, shape)
            paths.add((*path, segment))
            if shape.keys:
                _collect(item, shape.item(), (*path, segment), paths)
    elif path:
        paths.add(path)


def element_segment(item: Any, shape: Shape) -> str:
    """The segment that identifies an element of a keyed list or a set."""
    if not shape.keys:
        return "v:" + json.dumps(item, separators=(",", ":"))
    keys = {key: item.get(key, shape.key_default(key)) for key in shape.keys if isinstance(item, dict)}
    keys = {key: value for key, value in keys.items() if value is not None}
    return "k:" + json.dumps(keys, sort_keys=True, separators=(",", ":"))


def to_wire(fields: FieldSet) -> Object:
    """A set as `fieldsV1`."""
    tree: Object = {}
    for path in sorted(fields):
        node = tree
        for segment in path:
            node = node.setdefault(segment, {})
        if path[-1].startswith("k:"):
            node["."] = {}
    return tree


def from_wire(tree: Object, path: Path = ()) -> FieldSet:
    """Read `fieldsV1`."""
    paths: set[Path] = set()
    for segment, below in tree.items():
        if segment == ".":
            if path and path[-1].startswith("k:"):
                paths.add(path)
        elif not below:
            paths.add((*path, segment))
        else:
            paths |= from_wire(below, (*path, segment))
    return frozenset(paths)


def spell(path: Path) -> str:
    """A path as conflicts name it: `.spec.containers[name="c"].image`."""
    parts = []
    for segment in path:
        kind, _, rest = segment.partition(":")
        if kind == "f":
            parts.append(f".{rest}")
        elif kind == "v":
            parts.append(f"[={rest}]")
        else:
            keys = json.loads(rest)
            parts.append("[" + ",".join(f"{key}={json.dumps(value)}" for key, value in sorted(keys.items())) + "]")
    return "".join(parts)


_ABSENT = object()


def value_at(value: Any, path: Path, shape: Shape) -> Any:
    """What stands at a path; a marker equal to nothing if nothing does."""
    for segment in path:
        kind, _, rest = segment.partition(":")
        if kind == "f":
            if not isinstance(value, dict) or rest not in value:
                return _ABSENT
            value, shape = value[rest], shape.child(rest)
        else:
            if not isinstance(value, list):
                return _ABSENT
            place = element_place(value, segment, shape)
            if place is None:
                return _ABSENT
            value, shape = value[place], shape.item()
    return value


def element_place(items: list[Any], segment: str, shape: Shape) -> int | None:
    """Where in a list the element of that segment stands."""
    for index, item in enumerate(items):
        if element_segment(item, shape) == segment:
            return index
    return None


def remove_at(value: Any, path: Path, shape: Shape) -> None:
    """Take away what stands at a path, and the containers that become empty by it."""
    kind, _, rest = path[0].partition(":")
    if kind == "f":
        if not isinstance(value, dict) or rest not in value:
            return
        if len(path) > 1:
            remove_at(value[rest], path[1:], shape.child(rest))
        if len(path) == 1 or value[rest] in ({}, []):
            del value[rest]
        return
    place = element_place(value, path[0], shape) if isinstance(value, list) else None
    if place is None:
        return
    if len(path) == 1:
        del value[place]
    else:
        remove_at(value[place], path[1:], shape.item())
