"""Actions on a pod besides writing it: bind it, evict it."""

from kai_apiserver.errors import (
    FieldError,
    NamedResource,
    bad_request,
    conflict,
    invalid,
    precondition_failed,
)
from kai_apiserver.objects import Object, replace_condition
from kai_apiserver.rest.backend import Backend, Operation, Target
from kai_apiserver.rest.deletion import DeleteOptions, delete
from kai_apiserver.rest.disruption import disruption_verdict
from kai_apiserver.store import Stored

_BINDING = NamedResource("pods/binding")


def bind(backend: Backend, target: Target, *, binding: Object, operation: Operation) -> None:
    """Put a pod on a node: `spec.nodeName`, the PodScheduled condition, and the Binding's labels and annotations.

    Whether the node exists is not asked, as in the real server.

    Raises:
        StatusError: 404, 409 or 422: there is no such pod, it cannot be bound (any more), or the binding makes no
        sense.
    """
    metadata, node, name = binding.get("metadata") or {}, binding.get("target") or {}, target.name
    if metadata.get("name", name) != name:
        raise bad_request(f"name in URL does not match name in Binding object: {metadata['name']}")
    errors = []
    if node.get("kind") not in (None, "", "Node"):
        errors.append(FieldError.not_supported("target.kind", node["kind"], ("Node", "<empty>")))
    if not node.get("name"):
        errors.append(FieldError.required("target.name"))
    if errors:
        raise invalid(NamedResource("bindings", kind="Binding"), name, errors=errors)
    collection = backend.store.collection("pods")
    stored = backend.get(target)
    if metadata.get("uid", stored.uid) != stored.uid:
        raise precondition_failed(_BINDING, name, wanted_uid=metadata["uid"], actual_uid=stored.uid)
    pod = stored.decode()
    spec, status = pod["spec"], pod["status"]
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict(_BINDING, name, why=f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise conflict(_BINDING, name, why=f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise conflict(_BINDING, name, why=f"pod {name} has non-empty .spec.schedulingGates")
    spec["nodeName"] = node["name"]
    for field in ("labels", "annotations"):
        if metadata.get(field):
            pod["metadata"][field] = {**(pod["metadata"].get(field) or {}), **metadata[field]}
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
    replace_condition(status.setdefault("conditions", []), scheduled, backend.timestamp())
    status.pop("nominatedNodeName", None)
    if not operation.dry_run:
        backend.store.update(collection, pod, stored)


def evict(backend: Backend, target: Target, *, eviction: Object, operation: Operation) -> None:
    """Delete a pod on a client's behalf, if its disruption budget allows it.

    Raises StatusError: 404, there is no such pod; 429, the budget forbids it now.
    """
    metadata = eviction.get("metadata") or {}
    if metadata.get("name", target.name) != target.name:
        raise bad_request(f"name in URL does not match name in Eviction object: {metadata['name']}")
    stored = backend.get(target)
    options = DeleteOptions.read(eviction.get("deleteOptions"), {})
    pod = stored.decode()
    counted = pod["status"].get("phase") not in ("Pending", "Succeeded", "Failed")
    if counted and not pod["metadata"].get("deletionTimestamp"):
        disruption_verdict(backend, stored, pod=pod, dry_run=options.dry_run or operation.dry_run)
    if options.dry_run or operation.dry_run:
        return
    stored = _mark_as_target(backend, stored, pod=pod)
    delete(backend, stored, resource=target.resource, options=options, operation=operation)


def _mark_as_target(backend: Backend, stored: Stored, *, pod: Object) -> Stored:
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "lastProbeTime": None,
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    }
    if not replace_condition(pod["status"].setdefault("conditions", []), target, backend.timestamp()):
        return stored
    return backend.store.update(backend.store.collection("pods"), pod, stored)
