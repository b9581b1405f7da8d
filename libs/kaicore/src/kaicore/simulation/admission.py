"""What an API server adds to objects that a person wrote, and what it would not take.

Source: the defaults and admission plugins of Kubernetes 1.36 (`pkg/apis/core/v1/defaults.go`, `plugin/pkg/admission/
priority`). Where a manifest leaves out what only a kubelet knows, a node is taken to be well.
"""

from collections.abc import Iterable

from kaicore.errors import InvalidObject
from kaicore.k8s.objects import PriorityClassObject
from kaicore.k8s.workloads import Object
from kaicore.model.pod import Container, Pod

#: Priority classes that every cluster has.
_BUILT_IN = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}

#: Pods that a kubelet takes by default (`maxPods`).
_MAX_PODS = "110"


class Priorities:
    """The priority classes of a world, and which of those that pods named are missing."""

    def __init__(self, classes: Iterable[PriorityClassObject]) -> None:
        found = list(classes)
        self._values = {**_BUILT_IN, **{one.metadata.name: one.value for one in found}}
        self._policies = {one.metadata.name: one.preemption_policy for one in found}
        defaults = sorted((one.value, one.metadata.name) for one in found if one.global_default)
        # Of several the lowest counts.
        self._default = defaults[0][1] if defaults else ""
        self._missing: dict[str, int] = {}

    def resolve(self, spec: Object) -> None:
        """Set `priority`, and what goes with it, from the pod's priority class, where it is not set already."""
        if spec.get("priority") is not None:
            return
        name = spec.get("priorityClassName") or self._default
        if not isinstance(name, str) or not name:
            return
        if name not in self._values:
            self._missing[name] = self._missing.get(name, 0) + 1
            return
        spec["priorityClassName"], spec["priority"] = name, self._values[name]
        policy = self._policies.get(name)
        if policy is not None and spec.get("preemptionPolicy") is None:
            spec["preemptionPolicy"] = policy

    def warnings(self) -> list[str]:
        """Say which classes are missing."""
        return [
            f"PriorityClass {name}: there is none; priority 0 for pods that name it: {count}"
            for name, count in sorted(self._missing.items())
        ]


def admitted_node(node: Object) -> Object:
    """Return a node with amounts, pod slots and readiness where it does not speak of them.

    Raises:
        InvalidObject: its status is no mapping.
    """
    status = _mapping(node, "status", subject=f"Node {node['metadata']['name']}")
    allocatable, capacity = status.get("allocatable"), status.get("capacity")
    held = {"allocatable": allocatable or capacity or {}, "capacity": capacity or allocatable or {}}
    for name, amounts in held.items():
        if isinstance(amounts, dict) and "pods" not in amounts:
            held[name] = {**amounts, "pods": _MAX_PODS}
    conditions = status.get("conditions")
    if not conditions:
        conditions = [{"type": "Ready", "status": "True"}]
    return {**node, "status": {**status, **held, "conditions": conditions}}


def admitted_pod(pod: Object, *, priorities: Priorities, scheduler_name: str) -> Object:
    """Return a pod with priority and scheduler.

    Raises:
        InvalidObject: its spec is missing or no mapping.
    """
    metadata = pod["metadata"]
    subject = f"Pod {metadata['namespace']}/{metadata['name']}"
    if pod.get("spec") is None:
        raise InvalidObject(subject, "spec", None, "is missing")
    spec = dict(_mapping(pod, "spec", subject=subject))
    spec["schedulerName"] = spec.get("schedulerName") or scheduler_name
    priorities.resolve(spec)
    return {**pod, "spec": spec}


def check_pod(pod: Pod, *, subject: str) -> None:
    """Refuse what an API server would refuse and a scheduler would otherwise misunderstand.

    Raises:
        InvalidObject: no containers, two of one name, or a request above its limit.
    """
    if not any(container.kind == "app" for container in pod.containers):
        raise InvalidObject(subject, "spec.containers", [], "a pod needs a container")
    names: set[str] = set()
    for container in pod.containers:
        if not container.name or container.name in names:
            raise InvalidObject(subject, "spec.containers", container.name, "a container's name is empty or used twice")
        names.add(container.name)
        _check_limits(container, subject=subject)


def _check_limits(container: Container, *, subject: str) -> None:
    for resource, limit in container.limits.items():
        request = container.requests.get(resource, 0)
        if request > limit:
            where = f"spec.containers[{container.name}].resources.requests[{resource}]"
            raise InvalidObject(subject, where, request, f"is more than the limit of {limit}")


def _mapping(parent: Object, name: str, *, subject: str) -> Object:
    value = parent.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidObject(subject, name, value, "must be a mapping")
    return value
