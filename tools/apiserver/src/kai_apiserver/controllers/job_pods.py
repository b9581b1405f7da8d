"""The pods a Job makes."""

from kai_apiserver.controllers.controlled import controlled_pod, owner_reference
from kai_apiserver.controllers.job_rules import INDEX, TRACKING
from kai_apiserver.kinds.pod_spec import containers_of
from kai_apiserver.objects import Object

_INDEX_VARIABLE = "JOB_COMPLETION_INDEX"


def pod_of(job: Object, index: int | None) -> Object:
    """A new pod of a Job; `index` is what it works on in an Indexed one."""
    name = job["metadata"]["name"]
    base = name if index is None else f"{name}-{index}"
    pod = controlled_pod(job, owner_reference(job, api_version="batch/v1", kind="Job"), name=base)
    metadata, spec = pod["metadata"], pod["spec"]
    metadata.setdefault("finalizers", []).append(TRACKING)
    if index is not None:
        metadata["labels"][INDEX] = metadata["annotations"][INDEX] = str(index)
        spec.setdefault("hostname", base)
        for container in containers_of(spec):
            _add_index_variable(container)
    return pod


def _add_index_variable(container: Object) -> None:
    variables = container.setdefault("env", [])
    if any(variable.get("name") == _INDEX_VARIABLE for variable in variables):
        return
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
    variables.append({"name": _INDEX_VARIABLE, "valueFrom": source})
