"""Objects that ask for nodes: PodTemplates, made from pods that wait, and a ProvisioningRequest. No I/O.

Source: kubernetes/autoscaler, cluster-autoscaler/apis/provisioningrequest/autoscaling.x-k8s.io/v1/types.go (1.34): the
autoscaler simulates pods of the templates, so these have all that decides where the pods can go.
"""

from collections.abc import Iterable
from typing import Any

from kaicore.kube.provisioning_objects import PROVISIONING_REQUESTS
from kaicore.rules.events.payloads import ProvisioningRequested, ProvisioningWithdrawn

Document = dict[str, Any]

GROUP = PROVISIONING_REQUESTS.group

#: What a pod's spec says of that pod alone, or of what it is to wait for; templates may not have ephemeral containers.
_OF_ONE_POD = frozenset(
    {"ephemeralContainers", "hostname", "nodeName", "schedulingGates", "schedulingGroup", "workloadRef"}
)

_LABELS = {"app.kubernetes.io/managed-by": "kai-ledger"}
_GROUP_ANNOTATION = "kai.scheduler/group"


def template_name(request: str, number: int) -> str:
    """Return what the PodTemplate of a request's pod set is called."""
    return f"{request}-{number}"


def templates_path(namespace: str) -> str:
    """Return where PodTemplates are."""
    return f"/api/v1/namespaces/{namespace}/podtemplates"


def requests_path(version: str, namespace: str) -> str:
    """Return where ProvisioningRequests are, in a served version."""
    return f"/apis/{GROUP}/{version}/namespaces/{namespace}/{PROVISIONING_REQUESTS.plural}"


def owners_of(pods: Iterable[Document]) -> list[Document]:
    """Return references to whom the pods belong, so that what is made for them goes with these.

    Their controllers; pods without one are their own.
    """
    owners_by_uid: dict[str, Document] = {}
    for pod in pods:
        metadata = pod["metadata"]
        owner = next((one for one in metadata.get("ownerReferences") or () if one.get("controller")), None)
        if owner is None:
            owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        owners_by_uid[owner["uid"]] = {name: owner[name] for name in ("apiVersion", "kind", "name", "uid")}
    return list(owners_by_uid.values())


def template_document(request: ProvisioningRequested, number: int, pod: Document, owners: list[Document]) -> Document:
    """Return the PodTemplate of a pod set, made from one of its pods."""
    spec = {name: value for name, value in pod["spec"].items() if name not in _OF_ONE_POD}
    metadata: Document = {"labels": pod["metadata"]["labels"]} if pod["metadata"].get("labels") else {}
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": _metadata(request, template_name(request.name, number), owners),
        "template": {"metadata": metadata, "spec": spec},
    }


def request_document(request: ProvisioningRequested, owners: list[Document], *, version: str) -> Document:
    """Return the ProvisioningRequest, in a served version."""
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "ProvisioningRequest",
        "metadata": _metadata(request, request.name, owners),
        "spec": {
            "provisioningClassName": request.provisioning_class,
            "parameters": request.parameters,
            "podSets": [
                {"podTemplateRef": {"name": template_name(request.name, number)}, "count": pod_set.count}
                for number, pod_set in enumerate(request.pod_sets)
            ],
        },
    }


def template_paths(decision: ProvisioningRequested | ProvisioningWithdrawn) -> list[str]:
    """Return where a request's PodTemplates are."""
    count = decision.pod_sets if isinstance(decision, ProvisioningWithdrawn) else len(decision.pod_sets)
    collection = templates_path(decision.namespace)
    return [f"{collection}/{template_name(decision.name, number)}" for number in range(count)]


def _metadata(request: ProvisioningRequested, name: str, owners: list[Document]) -> Document:
    return {
        "name": name,
        "namespace": request.namespace,
        "labels": _LABELS,
        "annotations": {_GROUP_ANNOTATION: request.group},
        "ownerReferences": owners,
    }
