"""Create and replace: everything between a client's object and a committed one."""

from typing import Any

from kai_apiserver.errors import (
    MODIFIED,
    FieldError,
    NamedResource,
    StatusError,
    Verbatim,
    already_exists,
    bad_request,
    conflict,
    invalid,
    not_found,
    precondition_failed,
)
from kai_apiserver.kinds.metadata import validate_generate_name, validate_metadata, validate_metadata_update
from kai_apiserver.kinds.small_kinds import NO_RULES, RULES
from kai_apiserver.objects import Object, copy_field, generated_name, new_uid
from kai_apiserver.resources.registry import ResourceType
from kai_apiserver.rest.apply import BuiltinShape, CustomShape, Shape
from kai_apiserver.rest.backend import Backend, Operation, Target, read_object
from kai_apiserver.store import Stored

NAMESPACES = "namespaces"

_GENERATED_NAME_TRIES = 8
_CREATED_BY_PUT = frozenset({"endpoints", "events", "leases.coordination.k8s.io", "limitranges", "services"})
_VERSION_REQUIRED = frozenset(
    {"customresourcedefinitions.apiextensions.k8s.io", "leases.coordination.k8s.io", "poddisruptionbudgets.policy"}
)
_KEPT_METADATA = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")
_SET_BY_SERVER = (*_KEPT_METADATA, "selfLink", "resourceVersion")
_OTHER_NAMESPACE = "the namespace of the provided object does not match the namespace sent on the request"


def shape_of(resource: ResourceType) -> Shape:
    """The merge rules of the resource's objects in server-side apply."""
    if resource.custom is not None:
        schema = resource.custom.schema
        return CustomShape({**schema, "properties": {"kind": {}, **(schema.get("properties") or {})}})
    return BuiltinShape(resource.type_name or "any")


def create(backend: Backend, target: Target, *, given: Any, operation: Operation) -> Stored:
    """Create an object from what a client sent. Raises StatusError: the object is refused."""
    resource = target.resource
    if resource.has_status and not resource.status_on_create and isinstance(given, dict):
        given = {key: value for key, value in given.items() if key != "status"}
    obj = read_object(resource, given, operation=operation)
    obj["metadata"].pop("managedFields", None)
    return create_read(backend, target, obj=obj, operation=operation)


def create_read(backend: Backend, target: Target, *, obj: Object, operation: Operation) -> Stored:
    """Create an object that was read already, in terms of the storage. Raises StatusError: the object is refused."""
    resource, metadata = target.resource, obj["metadata"]
    if metadata.get("resourceVersion"):
        raise bad_request("resourceVersion should not be set on objects to be created")
    for field in _SET_BY_SERVER:
        metadata.pop(field, None)
    _settle_namespace(backend, target, metadata=metadata)
    collection = backend.collection(resource)
    metadata["name"] = name = _settled_name(backend, target, metadata=metadata)
    metadata["uid"] = new_uid(backend.chance)
    metadata["creationTimestamp"] = backend.timestamp()
    if resource.generation:
        metadata["generation"] = 1
    rules = RULES.get(resource.storage, NO_RULES)
    rules.default(obj)
    rules.admit(obj, backend)
    errors = validate_metadata(metadata, resource.storage) + rules.validate(obj)
    if resource.api_version != "v1" or resource.plural != "events":
        # Of events by the old version, metadata are not looked at (`pkg/apis/core/validation/events.go`).
        errors += validate_generate_name(metadata.get("generateName") or "", resource.storage)
    if resource.custom is not None:
        errors += resource.custom.validate(_typed(resource, obj))
    if errors:
        raise invalid(resource, name, errors=errors)
    if collection.get(_key(target, name)) is not None:
        raise already_exists(resource, name)
    if operation.dry_run:
        return Stored(collection.resource, obj)
    backend.signature(target, operation)(obj)
    stored = backend.store.create(collection, obj)
    backend.finish_write(stored, resource=resource, operation=operation)
    return stored


def _key(target: Target, name: str) -> str:
    return f"{target.namespace}/{name}" if target.resource.namespaced else name


def _typed(resource: ResourceType, obj: Object) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **obj}


def _settle_namespace(backend: Backend, target: Target, *, metadata: Object) -> None:
    """Put the request's namespace into the object; it must exist and not be on its way out."""
    resource, namespace = target.resource, target.namespace
    if not resource.namespaced:
        metadata.pop("namespace", None)
        return
    if metadata.get("namespace", namespace) != namespace:
        raise bad_request(_OTHER_NAMESPACE)
    metadata["namespace"] = namespace
    require_lasting_namespace(backend, target, name=metadata.get("name", ""))


def require_lasting_namespace(backend: Backend, target: Target, *, name: str) -> None:
    """Refuse what would create something in the target's namespace, a binding and an eviction too.

    Raises StatusError: 404, there is no such namespace; 403, it is on its way out.
    """
    resource, namespace = target.resource, target.namespace
    stored = backend.store.collection(NAMESPACES).get(namespace)
    if stored is None:
        raise not_found(NamedResource(NAMESPACES), namespace)
    if stored.fields[0] != "Terminating":
        return
    cause = {
        "reason": "NamespaceTerminating",
        "message": f"namespace {namespace} is being terminated",
        "field": "metadata.namespace",
    }
    raise StatusError(
        403,
        "Forbidden",
        f'{resource.plural} "{name}" is forbidden: unable to create new content in namespace {namespace} because it is '
        "being terminated",
        details={"name": name, "kind": resource.plural, "causes": [cause]},
    )


def _settled_name(backend: Backend, target: Target, *, metadata: Object) -> str:
    """The object's name, or a free one from its `generateName`."""
    if metadata.get("name"):
        return str(metadata["name"])
    base = metadata.get("generateName")
    if not base:
        error = FieldError.required("metadata.name", "name or generateName is required")
        raise invalid(target.resource, "", errors=[error])
    collection = backend.collection(target.resource)
    name = ""
    for _ in range(_GENERATED_NAME_TRIES):
        name = generated_name(base, backend.chance)
        if collection.get(_key(target, name)) is None:
            return name
    raise already_exists(target.resource, name)


def replace(backend: Backend, target: Target, *, given: Any, operation: Operation) -> tuple[Stored, bool]:
    """Replace an object (PUT), or its status; return it and whether it was created by that.

    Raises StatusError: the change is refused.
    """
    resource = target.resource
    stored = backend.collection(resource).get(target.key)
    new = read_object(resource, given, operation=operation)
    if stored is None:
        if resource.storage in _CREATED_BY_PUT and not target.subresource:
            check_identity(target, new["metadata"])
            new["metadata"].pop("managedFields", None)
            return create_read(backend, target, obj=new, operation=operation), True
        raise not_found(resource, target.name)
    needs_version = resource.custom is not None or resource.storage in _VERSION_REQUIRED
    if needs_version and not new["metadata"].get("resourceVersion"):
        error = FieldError.invalid("metadata.resourceVersion", Verbatim("0x0"), "must be specified for an update")
        raise invalid(resource, target.name, errors=[error])
    return update(backend, target, stored=stored, new=new, operation=operation), False


def check_identity(target: Target, metadata: Object) -> None:
    """Give an object the name and namespace of the URL. Raises StatusError: 400, it has others."""
    if metadata.setdefault("name", target.name) != target.name:
        raise bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({target.name})"
        )
    if target.resource.namespaced and metadata.setdefault("namespace", target.namespace) != target.namespace:
        raise bad_request(_OTHER_NAMESPACE)


def update(
    backend: Backend, target: Target, *, stored: Stored, new: Object, operation: Operation, tracked: bool = False
) -> Stored:
    """Commit `new`, which was read already, in place of `stored`. Raises StatusError: the change is refused.

    Args:
        target: the object, and which part of it is written.
        new: the object; if the target is a subresource, only that part of it counts.
        tracked: whether `new` carries its `managedFields` already (server-side apply).
    """
    resource, metadata = target.resource, new["metadata"]
    check_identity(target, metadata)
    if metadata.get("resourceVersion", "") not in ("", str(stored.rv)):
        raise conflict(resource, stored.name, why=MODIFIED)
    if metadata.get("uid", stored.uid) != stored.uid:
        raise precondition_failed(resource, stored.name, wanted_uid=metadata["uid"], actual_uid=stored.uid)
    old = stored.decode()
    rules = RULES.get(resource.storage, NO_RULES)
    if target.subresource:
        new = _only_status(resource, new, old=old)
        metadata = new["metadata"]
    elif resource.has_status:
        copy_field("status", old, new)
    for field in _KEPT_METADATA:
        copy_field(field, old["metadata"], metadata)
    metadata.pop("selfLink", None)
    rules.default(new)
    (rules.keep_status if target.subresource else rules.keep)(new, old)
    errors = validate_metadata(metadata, resource.storage) + validate_metadata_update(metadata, old["metadata"])
    if target.subresource:
        errors += rules.validate_status(new)
    else:
        errors += rules.validate(new) + rules.validate_update(new, old)
    if resource.custom is not None:
        errors += resource.custom.validate(_typed(resource, new))
    if errors:
        raise invalid(resource, stored.name, errors=errors)
    if resource.generation and not target.subresource and _desired(new) != _desired(old):
        metadata["generation"] = old["metadata"].get("generation", 0) + 1
    if not tracked:
        copy_field("managedFields", old["metadata"], metadata)
    return commit(backend, target, stored=stored, new=new, operation=operation)


def _only_status(resource: ResourceType, new: Object, *, old: Object) -> Object:
    """`old` with the status of `new`; built-in types also take the metadata that any client may write."""
    result = dict(old)
    copy_field("status", new, result)
    if resource.custom is None:
        result["metadata"] = new["metadata"]
        copy_field("ownerReferences", old["metadata"], result["metadata"])
    return result


def _desired(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def commit(backend: Backend, target: Target, *, stored: Stored, new: Object, operation: Operation) -> Stored:
    """Write a new version; an object that is being deleted goes when its last finalizer does."""
    collection = backend.collection(target.resource)
    if operation.dry_run:
        new["metadata"]["resourceVersion"] = str(stored.rv)
        return Stored(collection.resource, new)
    if _released(stored, new):
        new["metadata"]["resourceVersion"] = str(stored.rv)
        answer = Stored(collection.resource, new)
        backend.store.delete(collection, stored, new)
        return answer
    updated = backend.store.update(collection, new, stored, sign=backend.signature(target, operation))
    if updated is not stored:
        backend.finish_write(updated, resource=target.resource, operation=operation)
    return updated


def _released(stored: Stored, new: Object) -> bool:
    """True if this write takes the last finalizer from an object that only waited for that."""
    metadata = new["metadata"]
    if (
        not metadata.get("deletionTimestamp")
        or metadata.get("finalizers")
        or metadata.get("deletionGracePeriodSeconds")
    ):
        return False
    if (new.get("spec") or {}).get("finalizers") and not stored.namespace:
        return False  # the contents of a namespace go first
    old = stored.decode()
    return bool(old["metadata"].get("finalizers") or (old.get("spec") or {}).get("finalizers"))
