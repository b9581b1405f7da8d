"""PATCH in all its forms, over the same path as a replacement."""

from dataclasses import dataclass
from typing import Any

import yaml
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
from kai_apiserver.rest.backend import Backend, Operation, Target, read_object, shown
from kai_apiserver.rest.patches.apply import Manager, apply_configuration
from kai_apiserver.rest.patches.strategic import apply_json_patch, merge_patch, strategic_merge
from kai_apiserver.rest.writing import create_read, shape_of, update
from kai_apiserver.store import Stored

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
        """The body: YAML for apply, JSON for the others.

        Raises:
            StatusError: 400 if it cannot be read.
        """
        try:
            if self.content_type != APPLY_PATCH or self.body[:1] == b"{":
                return decode_json(self.body)
            return load_yaml(self.body)
        except (ValueError, yaml.YAMLError) as error:
            raise bad_request(f"error decoding patch: {error}") from error


def patch(backend: Backend, target: Target, *, patch: Patch, operation: Operation) -> tuple[Stored, bool]:
    """Patch an object, or its status; return it and whether server-side apply created it.

    Raises:
        StatusError: the patch is refused.
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
        problem = FieldError("FieldValueInvalid", "patch", detail=error.message.partition(": ")[2], value=given)
        raise invalid(NamedResource(""), "", errors=[problem]) from error


def _apply(
    backend: Backend, target: Target, *, stored: Stored | None, given: Any, operation: Operation, force: bool
) -> tuple[Stored, bool]:
    resource = target.resource
    if not operation.field_manager:
        error = FieldError("FieldValueRequired", "fieldManager", detail="is required for apply patch")
        raise invalid(_PATCH_OPTIONS, "", errors=[error])
    if not isinstance(given, dict) or not given.get("kind") or not given.get("apiVersion"):
        raise bad_request("apiVersion and kind must be set in an apply patch")
    metadata = given.setdefault("metadata", {})
    if metadata.get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    if metadata.setdefault("name", target.name) != target.name:
        raise bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({target.name})"
        )
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
