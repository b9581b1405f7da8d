"""ProvisioningRequests made and deleted, as cycles decide it: tried until there is an outcome.

A request's name is its decision's alone, so that what is there already was made by an answer that was lost, or by
another binder. Its PodTemplates are made from pods that wait. Templates come before the request and go after it: an
autoscaler never sees one without the other.

Source: kubernetes/autoscaler, cluster-autoscaler/apis/provisioningrequest/autoscaling.x-k8s.io/v1/types.go (1.34): the
autoscaler simulates pods of the templates, so these have all that decides where the pods can go.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.kube.api.discovery import served_version
from kaicore.kube.wire.resources import PROVISIONING_REQUESTS
from kaicore.rules.events.payloads import (
    ProvisioningRequested,
    ProvisioningRequestRefused,
    ProvisioningRequestRemoved,
    ProvisioningWithdrawn,
)
from kaicore.rules.objects.provisioning import NOT_SERVED

from kai_binder.projection.open_work import Provisioning
from kai_binder.writes.attempt import Attempt, Outcome, pod_path
from kai_binder.writes.lanes import Carrier

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


_NOT_FOUND = 404


class ProvisioningWriter(Carrier[Provisioning]):
    """Carries decisions about ProvisioningRequests out; one task runs `work`."""

    async def _end(self, task: Provisioning, outcome: Outcome | None) -> None:
        """See `Carrier`; templates of a refused request are deleted, or go with the pods' owner."""
        match outcome:
            case None:
                result = "dropped"
            case ProvisioningRequestRemoved():
                result = "removed"
            case ProvisioningRequestRefused():
                result = "refused"
                if isinstance(task.decision, ProvisioningRequested):
                    with suppress(ApiStatus, ClusterUnavailable):
                        await self._delete(template_paths(task.decision))
                self.log.warning(
                    "provisioning request refused", request=task.subject, code=outcome.code, reason=outcome.reason
                )
            case _:
                result = "created"
        self.metrics.provisioning(result)

    async def _act(self, task: Provisioning, _: Attempt) -> None:
        """See `Carrier`."""
        version, decision = await served_version(self.client, PROVISIONING_REQUESTS), task.decision
        if isinstance(decision, ProvisioningWithdrawn):
            paths = template_paths(decision)
            if version:
                paths.insert(0, f"{requests_path(version, decision.namespace)}/{decision.name}")
            await self._delete(paths)
            return
        if not version:
            raise ApiStatus(_NOT_FOUND, NOT_SERVED, f"the API server does not serve {GROUP}")
        pods = [await self._pod(decision, pod_set.pod, pod_set.uid) for pod_set in decision.pod_sets]
        owners = owners_of(pods)
        for number, pod in enumerate(pods):
            document = template_document(decision, number, pod, owners)
            await self.client.ensure(templates_path(decision.namespace), document)
        try:
            document = request_document(decision, owners, version=version)
            await self.client.ensure(requests_path(version, decision.namespace), document)
        except ApiStatus as error:
            # The group has other kinds too, and the namespace is there, for the templates are.
            if error.code == _NOT_FOUND:
                raise ApiStatus(_NOT_FOUND, NOT_SERVED, error.message) from error
            raise

    async def _pod(self, decision: ProvisioningRequested, name: str, uid: str) -> Document:
        """Return a pod as the API server has it. Raises ApiStatus: it is gone, or another one has its name."""
        path = pod_path(decision.namespace, name)
        try:
            pod: Document = msgspec.json.decode(await self.client.get(path))
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"GET {path}: {error}") from error
        if pod["metadata"]["uid"] != uid:
            raise ApiStatus(_NOT_FOUND, "NotFound", f"pod {name} is another one by now")
        return pod

    async def _delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                await self.client.delete(path)
            except ApiStatus as error:
                if error.code != _NOT_FOUND:
                    raise
