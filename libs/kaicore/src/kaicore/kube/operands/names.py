"""Names that operands and their users share."""

from typing import Any

#: A Kubernetes object as JSON has it.
Object = dict[str, Any]

API_VERSION = "kai.scheduler/v1"

#: The Config that counts; KAI-Scheduler's has the same name.
CONFIG_NAME = "kai-config"

#: The label by which operands are known, and its value.
MANAGED_BY = "app.kubernetes.io/managed-by"
OPERATOR = "kai-operator"

#: The label that tells a scheduler's shard, on its operands and pods.
SHARD = "kai.scheduler/shard"

#: The annotation with the digest of what an operand is to be.
DIGEST = "kai.scheduler/operand-digest"

#: Kind, path of its API version, and plural of everything that can be an operand, in the order of making them.
OPERAND_KINDS = {
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "ConfigMap": ("api/v1", "configmaps"),
    "Service": ("api/v1", "services"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "DaemonSet": ("apis/apps/v1", "daemonsets"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "StatefulSet": ("apis/apps/v1", "statefulsets"),
}

#: Kind and name: operands are in one namespace.
Key = tuple[str, str]


def key_of(obj: Object) -> Key:
    """Return an object's kind and name."""
    return obj["kind"], obj["metadata"]["name"]


def title_of(obj: Object) -> str:
    """Return kind and name as people write them."""
    return f"{obj['kind']} {obj['metadata']['name']}"


def owner_reference(owner: Object) -> Object:
    """Return the reference by which an operand goes when its owner goes.

    It does not block the owner's deletion: setting that needs a right on the owner's finalizers.
    """
    metadata = owner["metadata"]
    return {
        "apiVersion": API_VERSION,
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }


def controller_uid(obj: Object) -> str:
    """Return the uid of the object's controller; empty without one."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference["uid"])
    return ""
