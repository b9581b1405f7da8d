"""Objects that controllers make: each carries a reference to the object that it was made for."""

from copy import deepcopy

from kai_apiserver.objects import Object
from kai_apiserver.store import Collection, Stored

_NAME_MOST = 57  # leaves room for a generated suffix within a DNS label


def owner_reference(owner: Object, *, api_version: str, kind: str) -> Object:
    """How an object refers to the one that it was made for."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controlled_pod(owner: Object, reference: Object, *, name: str = "") -> Object:
    """A new pod of `owner`'s template; its name begins with `name`, by default the owner's."""
    template = deepcopy(owner["spec"]["template"])
    given = template.get("metadata") or {}
    base = (name or owner["metadata"]["name"])[:_NAME_MOST]
    metadata: Object = {
        "generateName": f"{base}-",
        "namespace": owner["metadata"]["namespace"],
        "labels": dict(given.get("labels") or {}),
        "annotations": dict(given.get("annotations") or {}),
        "ownerReferences": [reference],
    }
    if given.get("finalizers"):
        metadata["finalizers"] = list(given["finalizers"])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def has_failed(pod: Stored | None, collection: Collection) -> bool:
    """Whether a pod of the pods' collection has failed; one that is not there has not."""
    if pod is None:
        return False
    labels = [field.label for field in collection.resource.selectable]
    return pod.fields[labels.index("status.phase")] == "Failed"
