"""Controllers of a simulated cluster: claims from templates, and the status of PodDisruptionBudgets.

A pod uses the claim of its PodGroup if that has the same reference (name and template)
(`k8s.io/dynamic-resource-allocation/resourceclaim`, `BindTo`, Kubernetes 1.37).

Every pod that a controller created counts towards its scale. A pod on a node is healthy unless its `Ready` condition
says otherwise. Source: `pkg/controller/disruption` of Kubernetes 1.36.

Defaults and admission plugins: the fields that an API server adds to objects that a person wrote.

Source: the defaults and admission plugins of Kubernetes 1.36 (`pkg/apis/core/v1/defaults.go`,
`plugin/pkg/admission/{podtolerationrestriction,priority,runtimeclass}`). A manifest may leave out fields that only a
kubelet knows; the node then counts as healthy.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from kaicore.errors import InvalidObject
from kaicore.kube.normalize.share_dialects import translated
from kaicore.kube.normalize.storage import CURRENT_HEALTHY, DESIRED_HEALTHY, DISRUPTIONS_ALLOWED
from kaicore.kube.wire.objects import PriorityClassObject
from kaicore.kube.wire.resources import named_fields
from kaicore.rules.model.pod import Namespace
from kaicore.rules.objects.mappings import Object, derived_uid
from kaicore.rules.objects.wire import PlainObject
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
from kaicore.rules.state.views import FleetView

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
        # The lowest of several counts.
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

        Raises InvalidObject: the pod's node selector contradicts that of its class.
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
        gpu_sharing: virtual GPUs become shares, as by the admission webhook.
        """
        self._gpu_sharing = gpu_sharing
        self._defaults = {one.name: one.default_tolerations for one in namespaces if one.default_tolerations}
        self._scheduler_name = scheduler_name
        self._priorities = Priorities(priority_classes)
        self._runtime_classes = RuntimeClasses(runtime_classes)

    def pod(self, pod: Object) -> Object:
        """Return a valid pod with priority, scheduler, and what its runtime class and its namespace add.

        Raises InvalidObject: it contradicts its runtime class, or its virtual GPUs cannot be a share.
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


class DisruptionController:
    """The budgets of a simulated world.

    What a budget's status says in the input stands until something changes; a budget without one is counted at once.
    """

    def __init__(self, budgets: Iterable[PlainObject], object_of: Callable[[str], Object | None]) -> None:
        """Args:
        budgets: as the input has them; their fields are valid.
        object_of: returns a pod as its JSON says it, by its uid.
        """
        self._budgets = {f"{one.metadata.namespace}/{one.metadata.name}": one for one in budgets}
        self._object_of = object_of
        self._version = 0

    def new(self, state: FleetView) -> list[PlainObject]:
        """Return the budgets without allowed disruptions in the input, with counted ones."""
        unknown = {key for key, one in self._budgets.items() if (one.status or {}).get(DISRUPTIONS_ALLOWED) is None}
        return self._recounted(state, unknown) if unknown else []

    def changed(self, state: FleetView) -> list[PlainObject]:
        """Pods have changed: return all budgets, counted again."""
        return self._recounted(state, set(self._budgets)) if self._budgets else []

    def _recounted(self, state: FleetView, keys: set[str]) -> list[PlainObject]:
        self._version += 1
        expected, healthy = dict.fromkeys(keys, 0), dict.fromkeys(keys, 0)
        for entry in state.pods.values():
            if entry.stage is Stage.FINISHED:
                continue
            for key in keys.intersection(state.constraints.budgets_of(entry.pod)):
                expected[key] += 1
                healthy[key] += self._is_healthy(entry)
        return [self._count(key, expected[key], healthy[key]) for key in sorted(keys)]

    def _count(self, key: str, expected: int, healthy: int) -> PlainObject:
        budget = self._budgets[key]
        spec = budget.spec or {}
        if (most := spec.get("maxUnavailable")) is not None:
            desired = max(expected - _scaled(most, expected), 0)
        else:
            least = spec.get("minAvailable")
            desired = _scaled(1 if least is None else least, expected)
        allowed = max(healthy - desired, 0) if expected else 0
        meta = msgspec.structs.replace(budget.metadata, resource_version=f"counted-{self._version}")
        status = {DISRUPTIONS_ALLOWED: allowed, CURRENT_HEALTHY: healthy, DESIRED_HEALTHY: desired}
        return msgspec.structs.replace(budget, metadata=meta, status=status)

    def _is_healthy(self, entry: PodEntry) -> bool:
        if entry.stage is not Stage.BOUND or entry.pod.deletion_at is not None:
            return False
        pod = self._object_of(entry.pod.uid)
        conditions: list[Any] = [] if pod is None else (pod.get("status") or {}).get("conditions") or []
        return not any(one.get("type") == "Ready" and one.get("status") != "True" for one in conditions)


def check_budget(wire: PlainObject) -> None:
    """Refuse a budget that an API server would not take.

    Raises InvalidObject: its limit is neither a count nor a percentage, or it has two.
    """
    spec = named_fields("PodDisruptionBudget", wire).inside("spec")
    limits = {name: spec.value.get(name) for name in ("minAvailable", "maxUnavailable")}
    if None not in limits.values():
        raise spec.error("maxUnavailable", "goes not with minAvailable")
    for name, limit in limits.items():
        number = limit.removesuffix("%") if isinstance(limit, str) and limit.endswith("%") else limit
        if isinstance(number, str) and not (number.isascii() and number.isdigit()):
            raise spec.error(name, "must be a count or a percentage such as 50%")
        if isinstance(number, int) and number < 0:
            raise spec.error(name, "must not be negative")


def _scaled(amount: int | str, total: int) -> int:
    """Return a count, or a percentage of a total, rounded up."""
    return amount if isinstance(amount, int) else -(-int(amount.removesuffix("%")) * total // 100)


RESOURCE_CLAIM_KIND = ("resource.k8s.io", "ResourceClaim")
TEMPLATE_KIND = ("resource.k8s.io", "ResourceClaimTemplate")
POD_GROUP_KIND = ("scheduling.k8s.io", "PodGroup")


class ClaimTemplates:
    """The templates of a world."""

    def __init__(self) -> None:
        #: By namespace and name.
        self._specs: dict[tuple[str, str], Object] = {}
        #: PodGroups, likewise, with the claims in their statuses.
        self._groups: dict[tuple[str, str], Object] = {}

    def add(self, template: Object) -> None:
        """Know a template."""
        meta = template["metadata"]
        self._specs[meta["namespace"], meta["name"]] = template["spec"]

    def add_group(self, group: Object) -> list[Object]:
        """Know a PodGroup, after the templates; return the claims that are made for it."""
        meta = group["metadata"]
        known, claims = self.make(group)
        self._groups[meta["namespace"], meta["name"]] = known
        return claims

    def make(self, owner: Object) -> tuple[Object, list[Object]]:
        """Make the claims of a pod or a PodGroup.

        Args:
            owner: not changed.

        Returns:
            it with the claims in its status, and those that are made for it; claims that it names already stay. What
            a pod's PodGroup has for it is in its status, and is not made again.
        """
        before, claims = _statuses(owner), []
        named = list(before)
        for reference in _without_claim(owner):
            shared = self._of_group(owner, reference)
            claim = self._claim(owner, reference) if shared is None else None
            if claim is not None:
                claims.append(claim)
            name = shared if claim is None else claim["metadata"]["name"]
            if name:
                named.append({"name": reference["name"], "resourceClaimName": name})
        if named == before:
            return owner, claims
        status = owner.get("status")
        others = status if isinstance(status, dict) else {}
        return {**owner, "status": {**others, "resourceClaimStatuses": named}}, claims

    def missing(self, pod: Object) -> list[tuple[str, str]]:
        """Return the templates that a pod waits for and that the world does not have, by namespace and name."""
        keys = (_template_of(pod, one) for one in _without_claim(pod) if one.get("resourceClaimTemplateName"))
        return [key for key in keys if key not in self._specs]

    def _of_group(self, pod: Object, reference: Object) -> str | None:
        """Return the claim that a pod's PodGroup has for a reference, empty for none yet; None where it has no such."""
        name = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
        group = self._groups.get((pod["metadata"]["namespace"], str(name)))
        if group is None or reference not in _references(group):
            return None
        of_name = (one for one in _statuses(group) if one["name"] == reference["name"])
        return next((str(one.get("resourceClaimName", "")) for one in of_name), "")

    def _claim(self, owner: Object, reference: Object) -> Object | None:
        meta = owner["metadata"]
        spec = self._specs.get(_template_of(owner, reference))
        if spec is None:
            return None
        name = f"{meta['name']}-{reference['name']}"
        kind = {"apiVersion": owner.get("apiVersion", "v1"), "kind": owner.get("kind", "Pod")}
        owner_reference = {**kind, "name": meta["name"], "uid": meta["uid"], "controller": True}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "uid": derived_uid("resource.k8s.io", "ResourceClaim", meta["namespace"], f"{name}/{meta['uid']}"),
                "ownerReferences": [owner_reference],
            },
            "spec": spec.get("spec") or {},
        }


def _without_claim(owner: Object) -> list[Object]:
    """Return the references of a pod or a PodGroup for which its status names no claim yet."""
    named = [one["name"] for one in _statuses(owner)]
    return [one for one in _references(owner) if one["name"] not in named]


def _references(owner: Object) -> list[Object]:
    """Return the references of a pod or a PodGroup to claims."""
    return _entries(owner, "spec", "resourceClaims")


def _statuses(owner: Object) -> list[Object]:
    """Return which claims the status of a pod or a PodGroup names."""
    return _entries(owner, "status", "resourceClaimStatuses")


def _entries(owner: Object, part: str, field: str) -> list[Object]:
    """Return the entries of a list with names that make sense: the kinds of PodGroups say nothing of these fields."""
    within = owner.get(part)
    listed = within.get(field) if isinstance(within, dict) else None
    return [one for one in listed if isinstance(one, dict) and "name" in one] if isinstance(listed, list) else []


def _template_of(owner: Object, reference: Object) -> tuple[str, str]:
    return owner["metadata"]["namespace"], str(reference.get("resourceClaimTemplateName"))
