"""Server-side apply: a client says what it wants of an object, and owns what it said.

The owners stand in `metadata.managedFields`. Applying fails where another owner wants another value, unless forced;
what a client stops saying, and no other client owns, goes. Writes of other kinds move no ownership: it is only written
down who wrote last and when (`sign`). With the first apply all that is there becomes its creator's.

The shape of a value says what is merged inside, and what is owned as a whole: built-in types take it from their tables,
custom resources from their schema.

Fields that a manager owns: the `FieldsV1` of `managedFields`, as sets of paths.

A path is a tuple of segments in the notation of the wire: `f:name` for a field, `k:{"name":"c"}` for a list element by
its keys, `v:"x"` for a member of a set.
"""

import json
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from kaicore.kube.wire.builtin_fields import SCALARS, TYPES, element

from kai_apiserver.errors import StatusError
from kai_apiserver.objects import Object
from kai_apiserver.resources.types import ATOMIC, KEY_DEFAULTS, SETS, apply_keys


@dataclass(frozen=True, slots=True)
class BuiltinShape:
    """Shape of a value of a built-in type: the notation of its type, and the `Type.field` where it stands."""

    notation: str
    place: str = ""

    @property
    def atomic(self) -> bool:
        """Owned and replaced as a whole."""
        return self.notation in ATOMIC or self.place in ATOMIC

    @property
    def keys(self) -> tuple[str, ...] | None:
        """For a list: the fields that identify an element."""
        return apply_keys(self.place)

    @property
    def is_set(self) -> bool:
        """For a list: whether it is a set of scalars."""
        return self.place in SETS

    def key_default(self, key: str) -> Any:
        """The default of an identifying field that an element leaves out."""
        return KEY_DEFAULTS.get(key)

    def child(self, field: str) -> "BuiltinShape":
        """The shape of a member of a map or struct."""
        if self.notation.startswith("{}"):
            return BuiltinShape(self.notation[2:])
        described = TYPES.get(self.notation) if self.notation not in SCALARS else None
        if described is None:
            return BuiltinShape("any")
        return BuiltinShape(described.fields.get(field, "any"), f"{self.notation}.{field}")

    def item(self) -> "BuiltinShape":
        """The shape of an element of a list."""
        return BuiltinShape(element(self.notation))


@dataclass(frozen=True, slots=True)
class CustomShape:
    """Shape of a value of a custom resource: its schema, or {} where that says nothing."""

    schema: dict[str, Any]

    @property
    def atomic(self) -> bool:
        """Owned and replaced as a whole."""
        return self.schema.get("x-kubernetes-map-type") == "atomic"

    @property
    def keys(self) -> tuple[str, ...] | None:
        """For a list: the fields that identify an element."""
        if self.schema.get("x-kubernetes-list-type") == "map":
            return tuple(self.schema.get("x-kubernetes-list-map-keys") or ())
        return None

    @property
    def is_set(self) -> bool:
        """For a list: whether it is a set of scalars."""
        return self.schema.get("x-kubernetes-list-type") == "set"

    def key_default(self, key: str) -> Any:
        """The default of an identifying field that an element leaves out."""
        items = self.schema.get("items") or {}
        return ((items.get("properties") or {}).get(key) or {}).get("default")

    def child(self, field: str) -> "Shape":
        """The shape of a member of a map or struct."""
        if field == "metadata" and "properties" in self.schema and "kind" in self.schema["properties"]:
            return BuiltinShape("V1ObjectMeta")
        properties = self.schema.get("properties") or {}
        additional = self.schema.get("additionalProperties")
        return CustomShape(properties.get(field) or (additional if isinstance(additional, dict) else {}))

    def item(self) -> "Shape":
        """The shape of an element of a list."""
        return CustomShape(self.schema.get("items") or {})


#: The way in which values at one place of an object merge.
Shape = BuiltinShape | CustomShape


Path = tuple[str, ...]
FieldSet = frozenset[Path]


def fields_of(value: Any, shape: Shape) -> FieldSet:
    """Every field that `value` sets: leaves, and elements of keyed lists themselves."""
    paths: set[Path] = set()
    _collect(value, shape, (), paths)
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
    """The value at a path; a marker equal to nothing if the path is empty."""
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
    """The place in a list of the element of that segment."""
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


_SERVER_METADATA = (
    "name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "selfLink",
    "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields",
)  # fmt: skip
_NEVER_OWNED = {("f:apiVersion",), ("f:kind",), *(("f:metadata", f"f:{name}") for name in _SERVER_METADATA)}


@dataclass(frozen=True, slots=True)
class Manager:
    """The writer and the way of writing: the identity of an entry of `managedFields`."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""

    def __str__(self) -> str:
        text = f'"{self.name}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.api_version}" if self.operation == "Update" else text


def _owned(obj: Object, shape: Shape, subresource: str, *, has_status: bool) -> FieldSet:
    """The fields that a write through a subresource, or through none, can own."""
    fields = (path for path in fields_of(obj, shape) if path[:2] not in _NEVER_OWNED and path[:1] not in _NEVER_OWNED)
    if subresource:
        return frozenset(path for path in fields if path[0] == f"f:{subresource}")
    return frozenset(path for path in fields if not has_status or path[0] != "f:status")


def _read(obj: Object) -> tuple[dict[Manager, FieldSet], dict[Manager, str]]:
    owners: dict[Manager, FieldSet] = {}
    times: dict[Manager, str] = {}
    for entry in obj["metadata"].get("managedFields") or ():
        manager = Manager(
            entry.get("manager", ""),
            entry.get("operation", ""),
            entry.get("apiVersion", ""),
            entry.get("subresource", ""),
        )
        owners[manager] = from_wire(entry.get("fieldsV1") or {})
        times[manager] = entry.get("time", "")
    return owners, times


def _write(obj: Object, owners: dict[Manager, FieldSet], times: dict[Manager, str]) -> None:
    obj["metadata"]["managedFields"] = [
        _entry(manager, times[manager], fields)
        for manager, fields in owners.items()
        if fields or manager.operation != "Apply"
    ]


def _entry(manager: Manager, time: str, fields: FieldSet) -> Object:
    entry = {
        "manager": manager.name,
        "operation": manager.operation,
        "apiVersion": manager.api_version,
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": to_wire(fields),
    }
    return entry | {"subresource": manager.subresource} if manager.subresource else entry


def sign(obj: Object, manager: Manager, now: str) -> None:
    """Write down that a manager wrote an object; one that has applied it is written down already."""
    before = obj["metadata"].get("managedFields") or ()
    if any((one.get("manager"), one.get("operation")) == (manager.name, "Apply") for one in before):
        return
    entry = _entry(manager, now, frozenset())
    mine = {**entry, "time": None}
    others = [one for one in before if {**one, "time": None} != mine]
    obj["metadata"]["managedFields"] = [*others, entry]


def apply_configuration(
    live: Object | None,
    configuration: Object,
    *,
    shape: Shape,
    manager: Manager,
    force: bool,
    now: str,
    has_status: bool,
) -> Object:
    """Merge what a client wants into the live object (or make it); return the result, with its owners written down.

    Raises StatusError: 409, naming each field that another manager wants otherwise.
    """
    wanted = _owned(configuration, shape, manager.subresource, has_status=has_status)
    if live is None:
        created = deepcopy(configuration)
        _write(created, {manager: wanted}, {manager: now})
        return created
    owners, times = _read(live)
    if not any(owners.values()):
        before = next(
            (owner for owner in owners if not owner.subresource),
            Manager("before-first-apply", "Update", manager.api_version),
        )
        owners[before] = _owned(live, shape, "", has_status=has_status)
        times[before] = max(times.values(), default=now)
    conflicts = _conflicts(live, configuration, shape=shape, rivals=_rivals(owners, manager, wanted))
    if conflicts and not force:
        raise _conflict(conflicts)
    for owner, path in conflicts:
        owners[owner] -= {path}
    merged: Object = _merge(live, configuration, shape)
    given_up = owners.get(manager, frozenset()) - wanted
    kept = wanted.union(*(fields for owner, fields in owners.items() if owner != manager))
    _remove(merged, given_up, kept=kept, shape=shape)
    if owners.get(manager) != wanted:
        times[manager] = now
    owners[manager] = wanted
    _write(merged, owners, times)
    return merged


def _remove(obj: Object, given_up: FieldSet, *, kept: FieldSet, shape: Shape) -> None:
    """Take out what a manager stopped saying and no other says: list elements as a whole first, then fields."""
    elements_first = sorted(given_up, key=lambda path: (not path[-1].startswith("k:"), len(path)))
    for path in elements_first:
        needed = path in kept or any(other[: len(path)] == path for other in kept)
        if not needed and not _is_key(path):
            remove_at(obj, path, shape)


def _is_key(path: Path) -> bool:
    """True if a field identifies its list element: it goes with the element or not at all."""
    if len(path) < 2 or not path[-2].startswith("k:"):
        return False
    return path[-1].partition(":")[2] in json.loads(path[-2][2:])


def _rivals(owners: dict[Manager, FieldSet], manager: Manager, wanted: FieldSet) -> dict[Manager, FieldSet]:
    """The part of the manager's fields that others own. The same manager in another version is no other."""
    return {
        owner: fields & wanted
        for owner, fields in owners.items()
        if owner != manager and not (owner.name == manager.name and owner.operation == manager.operation == "Apply")
    }


def _conflicts(
    live: Object, configuration: Object, *, shape: Shape, rivals: dict[Manager, FieldSet]
) -> list[tuple[Manager, Path]]:
    """Fields that another manager wants otherwise. To want the same, or an element to be there, is no conflict."""
    return [
        (owner, path)
        for owner, fields in rivals.items()
        for path in sorted(fields)
        if not path[-1].startswith(("k:", "v:")) and value_at(live, path, shape) != value_at(configuration, path, shape)
    ]


def _conflict(conflicts: list[tuple[Manager, Path]]) -> StatusError:
    if len(conflicts) == 1:
        owner, path = conflicts[0]
        summary = f"1 conflict: conflict with {owner}: {spell(path)}"
    else:
        by_owner: dict[str, list[str]] = {}
        for owner, path in conflicts:
            by_owner.setdefault(str(owner), []).append(spell(path))
        listed = "\n".join(
            "\n".join([f"conflicts with {owner}:", *(f"- {path}" for path in paths)])
            for owner, paths in sorted(by_owner.items())
        )
        summary = f"{len(conflicts)} conflicts: {listed}"
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {owner}", "field": spell(path)}
        for owner, path in conflicts
    ]
    return StatusError(409, "Conflict", f"Apply failed with {summary}", details={"causes": causes})


def _merge(live: Any, wanted: Any, shape: Shape) -> Any:
    if isinstance(live, dict) and isinstance(wanted, dict) and not shape.atomic:
        merged = dict(live)
        for key, value in wanted.items():
            merged[key] = _merge(live.get(key), value, shape.child(key))
        return merged
    if isinstance(live, list) and isinstance(wanted, list) and not shape.atomic:
        if shape.keys:
            mine = {element_segment(item, shape): item for item in wanted}
            merged_items = [
                _merge(item, mine.pop(segment), shape.item())
                if (segment := element_segment(item, shape)) in mine
                else item
                for item in live
            ]
            return deepcopy([*merged_items, *mine.values()])
        if shape.is_set:
            return [*live, *(item for item in wanted if item not in live)]
    return deepcopy(wanted)
