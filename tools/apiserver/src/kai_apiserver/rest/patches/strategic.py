"""Strategic merge patch: like a merge patch, but lists of named things merge by name.

`resources.types` has the lists that merge, and their keys. A patch can also carry directives. `$patch` replaces or
deletes; `$deleteFromPrimitiveList/…` removes scalars from a set. `$setElementOrder/…` gives the order of a merged
list; `$retainKeys` clears the other members of a union.

The two kinds of patch that know nothing of types.

The shape of a value as server-side apply sees it: what is merged inside, and what is owned as a whole.

Built-in types take it from their tables, custom resources from their schema; apply itself asks only this.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

import jsonpatch
from kaicore.kube.wire.builtin_fields import SCALARS, TYPES, element

from kai_apiserver.errors import StatusError, bad_request
from kai_apiserver.objects import Object
from kai_apiserver.resources.types import ATOMIC, KEY_DEFAULTS, SETS, apply_keys, patch_merge_key


class Shape(Protocol):
    """The way in which values at one place of an object merge."""

    @property
    def atomic(self) -> bool:
        """Owned and replaced as a whole."""

    @property
    def keys(self) -> tuple[str, ...] | None:
        """For a list: the fields that identify an element."""

    @property
    def is_set(self) -> bool:
        """For a list: whether it is a set of scalars."""

    def key_default(self, key: str) -> Any:
        """The default of an identifying field that an element leaves out."""

    def child(self, field: str) -> "Shape":
        """The shape of a member of a map or struct."""

    def item(self) -> "Shape":
        """The shape of an element of a list."""


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


def apply_json_patch(obj: Object, patch: Any) -> Object:
    """Apply an RFC 6902 patch.

    Raises:
        StatusError: 400 if it is no patch, 422 if it does not fit the object or a `test` fails.
    """
    if not isinstance(patch, list):
        raise bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    try:
        patched = jsonpatch.JsonPatch(patch).apply(obj)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
        raise _does_not_fit(error) from error
    if not isinstance(patched, dict):
        raise bad_request("the patch replaces the object by something else")
    return patched


def _does_not_fit(error: Exception) -> StatusError:
    return StatusError(
        422,
        "Invalid",
        "the server rejected our request due to an error in our request",
        details={"causes": [{"message": str(error)}]},
    )


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply an RFC 7386 patch; neither argument is changed."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


_PATCH = "$patch"
_RETAIN = "$retainKeys"
_DELETE_SCALARS = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"


def strategic_merge(target: Object, patch: Object, type_name: str) -> Object:
    """Apply a patch to an object of a built-in type; neither argument is changed.

    Raises:
        StatusError: 400 if the patch contradicts itself.
    """
    merged = _merge_object(target, patch, type_name)
    return merged if merged is not None else {}


def _merge_object(target: Any, patch: Object, type_name: str) -> Object | None:
    """The merged object, or None if the patch deletes it."""
    match patch.get(_PATCH):
        case "replace":
            return {key: deepcopy(value) for key, value in patch.items() if key != _PATCH}
        case "delete":
            return None
        case None | "merge":
            pass
        case unknown:
            raise bad_request(f"Unknown patch type found: {unknown}")
    merged: Object = dict(target) if isinstance(target, dict) else {}
    if _RETAIN in patch:
        merged = {key: value for key, value in merged.items() if key in patch[_RETAIN]}
    fields = TYPES[type_name].fields if type_name in TYPES else {}
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        if value is None:
            merged.pop(key, None)
            continue
        result = _merge_value(
            merged.get(key), value, fields.get(key, "any"), f"{type_name}.{key}", order=patch.get(_ORDER + key)
        )
        if result is None:
            merged.pop(key, None)
        else:
            merged[key] = result
    for key, removed in patch.items():
        if key.startswith(_DELETE_SCALARS):
            field = key.removeprefix(_DELETE_SCALARS)
            merged[field] = [item for item in merged.get(field) or () if item not in removed]
        elif key.startswith(_ORDER) and key.removeprefix(_ORDER) not in patch:
            field = key.removeprefix(_ORDER)
            if field in merged:
                merged[field] = _in_order(merged[field], [], merged[field], removed, _identity(f"{type_name}.{field}"))
    return merged


def _merge_value(target: Any, patch: Any, notation: str, path: str, *, order: Any) -> Any:
    inner = element(notation)
    if isinstance(patch, dict):
        if notation.startswith("{}"):
            return _merge_map(target, patch, inner)
        return _merge_object(target, patch, inner) if inner not in SCALARS else _merge_object(target, patch, "")
    if not isinstance(patch, list):
        return patch
    if inner in SCALARS:
        return _merge_set(target or [], patch, order) if path in SETS else patch
    key = patch_merge_key(path)
    return _merge_list(target or [], patch, inner, key, order) if key else deepcopy(patch)


def _merge_map(target: Any, patch: Object, inner: str) -> Object:
    merged: Object = dict(target) if isinstance(target, dict) else {}
    if patch.get(_PATCH) == "replace":
        merged = {}
    for key, value in patch.items():
        if key == _PATCH:
            continue
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and inner not in SCALARS:
            merged[key] = _merge_object(merged.get(key), value, inner)
        else:
            merged[key] = value
    return merged


def _merge_set(target: list[Any], patch: list[Any], order: Any) -> list[Any]:
    merged = [*target, *(item for item in dict.fromkeys(patch) if item not in target)]
    return _in_order(merged, patch, target, order, lambda item: item)


def _merge_list(target: list[Any], patch: list[Any], inner: str, key: str, order: Any) -> list[Any]:
    if any(isinstance(item, dict) and item.get(_PATCH) == "replace" and len(item) == 1 for item in patch):
        return [deepcopy(item) for item in patch if item != {_PATCH: "replace"}]
    identity = _by_key(key)
    merged = list(target)
    kept: list[Any] = []
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
        places = [index for index, present in enumerate(merged) if identity(present) == identity(item)]
        if item.get(_PATCH) == "delete":
            merged = [present for present in merged if identity(present) != identity(item)]
            continue
        kept.append(item)
        base = merged[places[0]] if places else None
        result = _merge_object(base, item, inner)
        if places:
            merged[places[0]] = result
        else:
            merged.append(result)
    return _in_order(merged, kept, target, order, identity)


def _by_key(key: str) -> Callable[[Any], Any]:
    def identity(item: Any) -> Any:
        return item.get(key) if isinstance(item, dict) else item

    return identity


def _identity(path: str) -> Callable[[Any], Any]:
    key = patch_merge_key(path)
    return _by_key(key) if key else lambda item: item


def _in_order(
    merged: list[Any], patch: Sequence[Any], target: Sequence[Any], order: Any, identity: Callable[[Any], Any]
) -> list[Any]:
    """Sort a merged list as the API server does: the patch's order wins, and what only the server has keeps its place.

    `order` is the patch's `$setElementOrder`; its members count as the patch's. Of the others, each goes before the
    first of the patch's elements that followed it on the server; elements the server did not have pull nothing in
    front of them.
    """
    wanted = [identity(item) for item in order] if order is not None else [identity(item) for item in patch]
    place = {identity(item): index for index, item in reversed(list(enumerate(target)))}
    by_identity = {identity(item): item for item in merged}
    ours = [key for key in dict.fromkeys(wanted) if key in by_identity]
    ours_set = set(ours)
    theirs = [key for key in sorted(by_identity, key=lambda k: place.get(k, len(place))) if key not in ours_set]
    ordered: list[Any] = []
    waiting = iter(theirs)
    other = next(waiting, None)
    for key in ours:
        while other is not None and key in place and place[other] < place[key]:
            ordered.append(by_identity[other])
            other = next(waiting, None)
        ordered.append(by_identity[key])
    while other is not None:
        ordered.append(by_identity[other])
        other = next(waiting, None)
    return ordered
