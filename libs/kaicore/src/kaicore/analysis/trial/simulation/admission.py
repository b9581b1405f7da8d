"""Defaults and admission plugins: the fields that an API server adds to objects that a person wrote.

Source: the defaults and admission plugins of Kubernetes 1.36 (`pkg/apis/core/v1/defaults.go`,
`plugin/pkg/admission/{podtolerationrestriction,priority,runtimeclass}`). A manifest may leave out fields that only a
kubelet knows; the node then counts as healthy.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from kaicore.errors import InvalidObject
from kaicore.kube.normalize.share_dialects import translated
from kaicore.kube.wire.objects import PriorityClassObject
from kaicore.rules.model.pod import Namespace
from kaicore.rules.objects.mappings import Object

#: Priority classes that every cluster has.
_BUILT_IN = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}

#: Pods that a kubelet takes by default (`maxPods`).
_MAX_PODS = "110"


class Priorities:
    """The priority classes of a world, and which of those that pods named are missing."""

    def __init__(self, classes: Iterable[PriorityClassObject]) -> None:
        priority_classes = list(classes)
        self._values = {**_BUILT_IN, **{one.metadata.name: one.value for one in priority_classes}}
        self._policies = {one.metadata.name: one.preemption_policy for one in priority_classes}
        defaults = sorted((one.value, one.metadata.name) for one in priority_classes if one.global_default)
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


class RuntimeClasses:
    """The runtime classes of a world, and which of those that pods named are missing."""

    def __init__(self, classes: Iterable[Object]) -> None:
        self._classes = {one["metadata"]["name"]: one for one in classes}
        self._missing: Counter[str] = Counter()

    def resolve(self, spec: Object, *, subject: str) -> None:
        """Set overhead, and the nodes that a pod may go to, from the pod's runtime class.

        Raises:
            InvalidObject: the pod's node selector contradicts that of its class.
        """
        name = spec.get("runtimeClassName")
        if not name:
            return
        runtime_class = self._classes.get(name)
        if runtime_class is None:
            self._missing[name] += 1
            return
        overhead = (runtime_class.get("overhead") or {}).get("podFixed")
        if overhead and not spec.get("overhead"):
            spec["overhead"] = overhead
        if spec.get("nodeName"):
            return
        scheduling = runtime_class.get("scheduling") or {}
        own, asked = spec.get("nodeSelector") or {}, scheduling.get("nodeSelector") or {}
        for key, value in asked.items():
            if own.get(key, value) != value:
                field = f"spec.nodeSelector[{key}]"
                raise InvalidObject(subject, field, own[key], f"RuntimeClass {name} wants {value} there")
        if asked:
            spec["nodeSelector"] = {**own, **asked}
        tolerations = spec.get("tolerations") or []
        if added := [one for one in scheduling.get("tolerations") or () if one not in tolerations]:
            spec["tolerations"] = [*tolerations, *added]

    def warnings(self) -> list[str]:
        """Say which classes are missing."""
        return [
            f"RuntimeClass {name}: there is none; no overhead and any nodes for pods that name it: {count}"
            for name, count in sorted(self._missing.items())
        ]


class Admission:
    """Admits pods as an API server with these priority and runtime classes would."""

    def __init__(
        self,
        scheduler_name: str,
        priority_classes: Iterable[PriorityClassObject],
        runtime_classes: Iterable[Object],
        namespaces: Iterable[Namespace] = (),
        *,
        gpu_sharing: bool = False,
    ) -> None:
        """Args:
        scheduler_name: of pods that name none.
        gpu_sharing: virtual GPUs become shares, as by the admission webhook.
        """
        self._gpu_sharing = gpu_sharing
        self._defaults = {one.name: one.default_tolerations for one in namespaces if one.default_tolerations}
        self._scheduler_name = scheduler_name
        self._priorities = Priorities(priority_classes)
        self._runtime_classes = RuntimeClasses(runtime_classes)

    def pod(self, pod: Object) -> Object:
        """Return a valid pod with priority, scheduler, and what its runtime class and its namespace add.

        Raises:
            InvalidObject: it contradicts its runtime class, or its virtual GPUs cannot be a share.
        """
        if self._gpu_sharing and not pod["spec"].get("nodeName"):
            pod = dict(translated(pod))
        metadata, spec = pod["metadata"], dict(pod["spec"])
        subject = f"Pod {metadata['namespace']}/{metadata['name']}"
        spec["schedulerName"] = spec.get("schedulerName") or self._scheduler_name
        self._priorities.resolve(spec)
        self._runtime_classes.resolve(spec, subject=subject)
        if not spec.get("nodeName"):
            own = spec.get("tolerations") or []
            defaults = map(msgspec.to_builtins, self._defaults.get(metadata["namespace"], ()))
            if added := [one for one in defaults if one not in own]:
                spec["tolerations"] = [*own, *added]
        return {**pod, "spec": spec}

    def warnings(self) -> list[str]:
        """Say which classes are missing."""
        return self._priorities.warnings() + self._runtime_classes.warnings()


def admitted_node(node: Object) -> Object:
    """Return a valid node with amounts, pod slots and readiness where it does not speak of them."""
    status = node.get("status") or {}
    allocatable, capacity = status.get("allocatable"), status.get("capacity")
    held = {"allocatable": allocatable or capacity or {}, "capacity": capacity or allocatable or {}}
    for name, amounts in held.items():
        if "pods" not in amounts:
            held[name] = {**amounts, "pods": _MAX_PODS}
    conditions = status.get("conditions")
    if not conditions:
        conditions = [{"type": "Ready", "status": "True"}]
    return {**node, "status": {**status, **held, "conditions": conditions}}
