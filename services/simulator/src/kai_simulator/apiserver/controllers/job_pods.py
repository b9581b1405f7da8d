"""The pods a Job makes."""

from copy import deepcopy

from kai_simulator.apiserver.controllers.job_rules import INDEX, TRACKING
from kai_simulator.apiserver.kinds.pod_spec import containers_of
from kai_simulator.apiserver.objects import Object

_INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
_NAME_MOST = 57  # leaves room for a generated suffix within a DNS label


def owner_reference(job: Object) -> Object:
    """How a Job's pods refer to it."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def pod_of(job: Object, index: int | None) -> Object:
    """A new pod of a Job; `index` is what it works on in an Indexed one."""
    template = deepcopy(job["spec"]["template"])
    given = template.get("metadata") or {}
    name = job["metadata"]["name"]
    base = name if index is None else f"{name}-{index}"
    metadata: Object = {
        "generateName": f"{base[:_NAME_MOST]}-",
        "namespace": job["metadata"]["namespace"],
        "labels": dict(given.get("labels") or {}),
        "annotations": dict(given.get("annotations") or {}),
        "finalizers": [*(given.get("finalizers") or ()), TRACKING],
        "ownerReferences": [owner_reference(job)],
    }
    spec: Object = template["spec"]
    if index is not None:
        metadata["labels"][INDEX] = metadata["annotations"][INDEX] = str(index)
        spec.setdefault("hostname", base)
        for container in containers_of(spec):
            _add_index_variable(container)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _add_index_variable(container: Object) -> None:
    variables = container.setdefault("env", [])
    if any(variable.get("name") == _INDEX_VARIABLE for variable in variables):
        return
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
    variables.append({"name": _INDEX_VARIABLE, "valueFrom": source})
