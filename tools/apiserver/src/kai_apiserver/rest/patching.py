"""PATCH in all its forms, over the same path as a replacement.

A strategic merge patch is like a merge patch, but lists of named things merge by name; `resources.types` has the lists
and their keys. It can also carry directives. `$patch` replaces or deletes; `$deleteFromPrimitiveList/…` removes scalars
from a set. `$setElementOrder/…` gives the order of a merged list; `$retainKeys` clears the other members of a union.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import jsonpatch
import yaml
from kaicore.kube.wire.builtin_fields import SCALARS, TYPES, element
from kaicore.yaml_text import load_yaml

from kai_apiserver.errors import (
    FieldError,
    NamedResource,
    StatusError,
    bad_request,
    invalid,
    not_found,
    unsupported_media_type,
)
from kai_apiserver.objects import Object, decode_json
from kai_apiserver.resources.types import SETS, patch_merge_key
from kai_apiserver.rest.apply import Manager, apply_configuration
from kai_apiserver.rest.backend import Backend, Operation, Target, read_object, shown
from kai_apiserver.rest.writing import check_identity, create_read, shape_of, update
from kai_apiserver.store import Stored


def apply_json_patch(obj: Object, patch: Any) -> Object:
    """Apply an RFC 6902 patch.

    Raises StatusError: 400 if it is no patch, 422 if it does not fit the object or a `test` fails.
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

    Raises StatusError: 400 if the patch contradicts itself.
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


JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
_KNOWN = (JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH, APPLY_PATCH)
_CUSTOM = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH)
_PATCH_OPTIONS = NamedResource("patchoptions", "meta.k8s.io", "PatchOptions")
_NOT_AN_OBJECT = "json: cannot unmarshal array into Go value of type map[string]interface {}"


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch as it came: its media type, its body, and whether conflicts of server-side apply are overridden."""

    content_type: str
    body: bytes
    force: bool = False

    def read(self) -> Any:
        """The body: YAML for apply, JSON for the others. Raises StatusError: 400 if it cannot be read."""
        try:
            if self.content_type != APPLY_PATCH or self.body[:1] == b"{":
                return decode_json(self.body)
            return load_yaml(self.body)
        except (ValueError, yaml.YAMLError) as error:
            raise bad_request(f"error decoding patch: {error}") from error


def patch(backend: Backend, target: Target, *, patch: Patch, operation: Operation) -> tuple[Stored, bool]:
    """Patch an object, or its status; return it and whether server-side apply created it.

    Raises StatusError: the patch is refused.
    """
    resource, content_type = target.resource, patch.content_type
    allowed = _KNOWN if resource.custom is None else _CUSTOM
    if content_type not in allowed:
        raise unsupported_media_type(_CUSTOM if resource.custom is not None else ())
    given = patch.read()
    stored = backend.collection(resource).get(target.key)
    if content_type == APPLY_PATCH:
        return _apply(backend, target, stored=stored, given=given, operation=operation, force=patch.force)
    if stored is None:
        raise not_found(resource, target.name)
    current = shown(stored, resource)
    if content_type == JSON_PATCH:
        patched = apply_json_patch(current, given)
    elif not isinstance(given, dict):
        raise bad_request(_NOT_AN_OBJECT)
    elif content_type == MERGE_PATCH:
        patched = merge_patch(current, given)
    else:
        patched = strategic_merge(current, given, resource.type_name or "")
    new = _read_patched(target, patched, given=given, operation=operation)
    return update(backend, target, stored=stored, new=new, operation=operation), False


def _read_patched(target: Target, patched: Object, *, given: Any, operation: Operation) -> Object:
    """Read the patched object; what is wrong with it is wrong with the patch."""
    try:
        return read_object(target.resource, patched, operation=operation)
    except StatusError as error:
        if operation.field_validation != "Strict" or "strict decoding error" not in error.message:
            raise
        problem = FieldError.invalid("patch", given, error.message.partition(": ")[2])
        raise invalid(NamedResource(""), "", errors=[problem]) from error


def _apply(
    backend: Backend, target: Target, *, stored: Stored | None, given: Any, operation: Operation, force: bool
) -> tuple[Stored, bool]:
    resource = target.resource
    if not operation.field_manager:
        error = FieldError.required("fieldManager", "is required for apply patch")
        raise invalid(_PATCH_OPTIONS, "", errors=[error])
    if not isinstance(given, dict) or not given.get("kind") or not given.get("apiVersion"):
        raise bad_request("apiVersion and kind must be set in an apply patch")
    metadata = given.setdefault("metadata", {})
    if metadata.get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    check_identity(target, metadata)
    if stored is None and target.subresource:
        raise not_found(resource, target.name)
    merged = apply_configuration(
        shown(stored, resource) if stored is not None else None,
        given,
        shape=shape_of(resource),
        manager=Manager(operation.field_manager, "Apply", resource.api_version, target.subresource),
        force=force,
        now=backend.timestamp(),
        has_status=resource.has_status,
    )
    if stored is None and resource.has_status and not resource.status_on_create:
        merged.pop("status", None)
    new = read_object(resource, merged, operation=operation)
    if stored is None:
        return create_read(backend, target, obj=new, operation=operation), True
    return update(backend, target, stored=stored, new=new, operation=operation, tracked=True), False
