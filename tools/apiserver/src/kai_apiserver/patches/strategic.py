"""Strategic merge patch: like a merge patch, but lists of named things merge by name.

`types.merging` has the lists that merge, and their keys. A patch can also carry directives. `$patch` replaces or
deletes; `$deleteFromPrimitiveList/…` removes scalars from a set. `$setElementOrder/…` gives the order of a merged
list; `$retainKeys` clears the other members of a union.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from kaicore.kube.wire.builtin_fields import SCALARS, TYPES, element

from kai_apiserver.errors import bad_request
from kai_apiserver.objects import Object
from kai_apiserver.types.merging import SETS, patch_merge_key

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

    `order` is the patch's `$setElementOrder`, whose members count as the patch's. Of the others, each goes before the
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
