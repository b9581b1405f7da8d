"""Actions on a pod besides writing it: bind it, evict it."""

from kai_apiserver.errors import (
    FieldError,
    NamedResource,
    StatusError,
    bad_request,
    conflict,
    precondition_failed,
)
from kai_apiserver.objects import Object, replace_condition
from kai_apiserver.rest.backend import Backend, Operation, Target
from kai_apiserver.rest.deletion import DeleteOptions, delete
from kai_apiserver.rest.disruption import disruption_verdict
from kai_apiserver.rest.writing import require_lasting_namespace
from kai_apiserver.store import Stored

_BINDING = NamedResource("pods/binding")
#: Labels of a node that its pods get as they are bound (`PodTopologyLabels`, on since Kubernetes 1.35).
_TOPOLOGY_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")


def bind(backend: Backend, target: Target, *, binding: Object, operation: Operation) -> None:
    """Put a pod on a node: `spec.nodeName`, the PodScheduled condition, and the Binding's labels and annotations.

    Whether the node exists is not asked, as in the real server; one that does gives its topology labels.

    Raises StatusError: 400 or 500, the binding makes no sense; 403, its namespace is on its way out; 404 or 409, there
    is no such pod, or it cannot be bound (any more).
    """
    metadata, node, name = binding.get("metadata") or {}, binding.get("target") or {}, target.name
    if metadata.get("name") != name:
        raise bad_request("name in URL does not match name in Binding object")
    errors = []
    if node.get("kind") not in (None, "", "Node"):
        errors.append(FieldError.not_supported("target.kind", node["kind"], ("Node", "<empty>")))
    if not node.get("name"):
        errors.append(FieldError.required("target.name"))
    if errors:
        texts = [f"{error.field}: {error.message}" for error in errors]
        raise StatusError(500, "", texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]")
    require_lasting_namespace(backend, target, name=name)
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
    added = {"labels": (metadata.get("labels") or {}) | _topology_labels(backend, node["name"])}
    for field, values in (added | {"annotations": metadata.get("annotations")}).items():
        if values:
            pod["metadata"][field] = {**(pod["metadata"].get(field) or {}), **values}
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
    replace_condition(status.setdefault("conditions", []), scheduled, backend.timestamp())
    status.pop("nominatedNodeName", None)
    if not operation.dry_run:
        backend.store.update(collection, pod, stored)


def _topology_labels(backend: Backend, node: str) -> Object:
    stored = backend.store.collection("nodes").get(node)
    labels = (stored.labels if stored is not None else None) or {}
    return {name: labels[name] for name in _TOPOLOGY_LABELS if name in labels}


def evict(backend: Backend, target: Target, *, eviction: Object, operation: Operation) -> None:
    """Delete a pod on a client's behalf, if its disruption budget allows it.

    Raises StatusError: 403, its namespace is on its way out; 404, there is no such pod; 429, the budget forbids it now;
    500, it has several.
    """
    metadata = eviction.get("metadata") or {}
    if metadata.get("name", target.name) != target.name:
        raise bad_request(f"name in URL does not match name in Eviction object: {metadata['name']}")
    require_lasting_namespace(backend, target, name=target.name)
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
