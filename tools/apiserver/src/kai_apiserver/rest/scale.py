"""The scale subresource: one replica count, wherever a kind keeps it."""

from kai_apiserver.errors import path_not_found
from kai_apiserver.objects import Object, at
from kai_apiserver.resources import ResourceType
from kai_apiserver.rest.backend import Backend, Operation, Target, shown
from kai_apiserver.rest.writing import update
from kai_apiserver.selectors import selector_of
from kai_apiserver.store import Stored

_BUILTIN = (("spec", "replicas"), ("status", "replicas"))


def _paths(resource: ResourceType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if resource.custom is None:
        return _BUILTIN
    if resource.custom.scale is None:
        raise path_not_found()
    return resource.custom.scale.spec_replicas, resource.custom.scale.status_replicas


def scale_of(resource: ResourceType, stored: Stored) -> Object:
    """The Scale of an object."""
    wanted, present = _paths(resource)
    obj = stored.decode()
    metadata = obj["metadata"]
    scale: Object = {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            key: metadata[key]
            for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
            if key in metadata
        },
        "spec": {"replicas": at(obj, wanted) or 0},
        "status": {"replicas": at(obj, present) or 0},
    }
    selector = _selector_text(resource, obj)
    if selector:
        scale["status"]["selector"] = selector
    return scale


def _selector_text(resource: ResourceType, obj: Object) -> str:
    if resource.custom is not None:
        return str(at(obj, resource.custom.scale.label_selector) or "") if resource.custom.scale.label_selector else ""
    selector = selector_of((obj.get("spec") or {}).get("selector"))
    if selector is None:
        return ""
    return ",".join(
        f"{term.key}={min(term.values)}" for term in selector.requirements if term.operator == "in" and term.values
    )


def set_scale(backend: Backend, target: Target, *, stored: Stored, scale: Object, operation: Operation) -> Stored:
    """Write a Scale's replica count into the object.

    Raises:
        StatusError: 409, the Scale is of another version of the object.
    """
    resource = target.resource
    wanted, _ = _paths(resource)
    obj = shown(stored, resource)
    obj.pop("kind")
    obj.pop("apiVersion")
    version = (scale.get("metadata") or {}).get("resourceVersion")
    if version:
        obj["metadata"]["resourceVersion"] = version
    holder = obj
    for part in wanted[:-1]:
        holder = holder.setdefault(part, {})
    holder[wanted[-1]] = int((scale.get("spec") or {}).get("replicas") or 0)
    whole = Target(resource, target.namespace, target.name)
    return update(backend, whole, stored=stored, new=obj, operation=operation)
