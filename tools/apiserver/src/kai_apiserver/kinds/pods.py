"""Pods: defaults, the admission of a default kube-apiserver, the initial status, QoS classes.

Defaults of a pod's spec, wherever it stands: in a pod or in a template.
"""

import difflib
import json
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import msgspec
from kai_fleet.kubelet.quantity import exact_value

from kai_apiserver.errors import FieldError, NamedResource, forbidden
from kai_apiserver.kinds.metadata import BAD_LABEL_NAME, validate_labels
from kai_apiserver.kinds.rules import Cluster
from kai_apiserver.objects import DNS_LABEL, Object, copy_field, is_qualified_name, timestamp

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_PROBE_DEFAULTS = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_FILE_MODE = 0o644


def containers_of(spec: Object) -> list[Object]:
    """Init containers and containers, in the order in which they start."""
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def default_pod_spec(spec: Object) -> None:
    """Fill in what a pod template's spec leaves out."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    for container in [*containers_of(spec), *(spec.get("ephemeralContainers") or ())]:
        _default_container(container, host_network=bool(spec.get("hostNetwork")))
    for volume in spec.get("volumes") or ():
        _default_volume(volume)
    for constraint in spec.get("topologySpreadConstraints") or ():
        constraint.setdefault("nodeAffinityPolicy", "Honor")
        constraint.setdefault("nodeTaintsPolicy", "Ignore")


def default_pull_policy(image: str) -> str:
    """`Always` for the tag `latest` and for no tag at all."""
    if "@" in image:
        return "IfNotPresent"
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _default_container(container: Object, *, host_network: bool) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("imagePullPolicy", default_pull_policy(container.get("image", "")))
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if host_network and "containerPort" in port:
            port.setdefault("hostPort", port["containerPort"])
    for probe in filter(None, map(container.get, _PROBES)):
        for field, value in _PROBE_DEFAULTS.items():
            probe.setdefault(field, value)
        _default_http_get(probe)
        if "grpc" in probe:
            probe["grpc"].setdefault("service", "")
    for handler in (container.get("lifecycle") or {}).values():
        if isinstance(handler, dict):
            _default_http_get(handler)
    for variable in container.get("env") or ():
        field_ref = (variable.get("valueFrom") or {}).get("fieldRef")
        if field_ref:
            field_ref.setdefault("apiVersion", "v1")


def _default_http_get(handler: Object) -> None:
    if "httpGet" in handler:
        handler["httpGet"].setdefault("path", "/")
        handler["httpGet"].setdefault("scheme", "HTTP")


def _default_volume(volume: Object) -> None:
    if len(volume) == 1:
        volume["emptyDir"] = {}
    for source in ("secret", "configMap", "downwardAPI", "projected"):
        if source in volume:
            volume[source].setdefault("defaultMode", _FILE_MODE)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    for projection in (volume.get("projected") or {}).get("sources") or ():
        if "serviceAccountToken" in projection:
            projection["serviceAccountToken"].setdefault("expirationSeconds", 3600)
    for item in (volume.get("downwardAPI") or {}).get("items") or ():
        if "fieldRef" in item:
            item["fieldRef"].setdefault("apiVersion", "v1")


_PODS = NamedResource("pods")
PRIORITY_CLASSES = "priorityclasses.scheduling.k8s.io"
RUNTIME_CLASSES = "runtimeclasses.node.k8s.io"

#: On a namespace: tolerations, as JSON, that its pods get besides their own (admission PodTolerationRestriction).
DEFAULT_TOLERATIONS = "scheduler.alpha.kubernetes.io/defaultTolerations"

_TAINTS_TOLERATED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TOLERATION_SECONDS = 300
_QOS_RESOURCES = ("cpu", "memory")


def default_pod(pod: Object) -> None:
    """Fill in what a pod leaves out: the spec's defaults, and requests from limits."""
    spec = pod["spec"]
    spec.setdefault("enableServiceLinks", True)
    default_pod_spec(spec)
    for holder in [*containers_of(spec), spec]:
        resources = holder.get("resources")
        if resources and resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}


def admit_pod(pod: Object, cluster: Cluster) -> None:
    """Resolve the priority and the runtime class, add tolerations, and set the initial status."""
    spec = pod["spec"]
    _resolve_priority(pod, cluster)
    _resolve_runtime_class(pod, cluster)
    _tolerate_as_the_namespace(pod, cluster)
    _tolerate_node_failures(spec)
    status: Object = {"phase": "Pending", "qosClass": qos_class(spec)}
    if spec.get("schedulingGates"):
        status["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "lastProbeTime": None,
                "lastTransitionTime": timestamp(cluster.now()),
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
        ]
    pod["status"] = status


def keep_qos_class(new: Object, old: Object) -> None:
    """The QoS class is fixed at creation; a status without one keeps it."""
    new["status"].setdefault("qosClass", old["status"].get("qosClass", "BestEffort"))


def _resolve_priority(pod: Object, cluster: Cluster) -> None:
    spec, name = pod["spec"], pod["metadata"]["name"]
    class_name = spec.get("priorityClassName")
    if class_name:
        priority_class = cluster.find(PRIORITY_CLASSES, class_name)
        if priority_class is None:
            raise forbidden(_PODS, name, why=f"no PriorityClass with name {class_name} was found")
    else:
        priority_class = _global_default(cluster)
        if priority_class is not None:
            spec["priorityClassName"] = priority_class["metadata"]["name"]
    value: int = priority_class["value"] if priority_class is not None else 0
    policy = priority_class["preemptionPolicy"] if priority_class is not None else "PreemptLowerPriority"
    if spec.get("priority", value) != value:
        raise forbidden(
            _PODS,
            name,
            why=f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; priority "
            f"admission controller computed {value} from the given PriorityClass name",
        )
    if spec.get("preemptionPolicy", policy) != policy:
        raise forbidden(
            _PODS,
            name,
            why=f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec; "
            f"priority admission controller computed {policy} from the given PriorityClass name",
        )
    spec["priority"] = value
    spec["preemptionPolicy"] = policy


def _global_default(cluster: Cluster) -> Object | None:
    """The priority class for pods that name none: of several, the one of least value."""
    marked = [
        decoded
        for decoded in (stored.decode() for stored in cluster.all_of(PRIORITY_CLASSES))
        if decoded.get("globalDefault")
    ]
    return min(marked, key=lambda priority_class: int(priority_class["value"]), default=None)


def _resolve_runtime_class(pod: Object, cluster: Cluster) -> None:
    spec = pod["spec"]
    class_name = spec.get("runtimeClassName")
    if not class_name:
        return
    runtime_class = cluster.find(RUNTIME_CLASSES, class_name)
    if runtime_class is None:
        raise forbidden(_PODS, pod["metadata"]["name"], why=f'pod rejected: RuntimeClass "{class_name}" not found')
    overhead = (runtime_class.get("overhead") or {}).get("podFixed")
    if overhead:
        spec["overhead"] = overhead
    scheduling = runtime_class.get("scheduling") or {}
    if scheduling.get("nodeSelector"):
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **scheduling["nodeSelector"]}
    if scheduling.get("tolerations"):
        spec["tolerations"] = [*(spec.get("tolerations") or ()), *scheduling["tolerations"]]


def _tolerate_node_failures(spec: Object) -> None:
    tolerations: list[Object] = list(spec.get("tolerations") or ())
    for taint in _TAINTS_TOLERATED:
        if not any(_tolerates(toleration, taint) for toleration in tolerations):
            tolerations.append(
                {
                    "key": taint,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": _TOLERATION_SECONDS,
                }
            )
    spec["tolerations"] = tolerations


def _tolerate_as_the_namespace(pod: Object, cluster: Cluster) -> None:
    """Add what the namespace's pods tolerate by default."""
    metadata, spec = pod["metadata"], pod["spec"]
    namespace = cluster.find("namespaces", metadata.get("namespace", "")) or {"metadata": {}}
    text = (namespace["metadata"].get("annotations") or {}).get(DEFAULT_TOLERATIONS, "")
    if not text:
        return
    try:
        defaults = msgspec.json.decode(text, type=list[dict[str, str | int]])
    except msgspec.DecodeError as error:
        why = (
            f"annotation {DEFAULT_TOLERATIONS} of namespace {metadata['namespace']} is no list of tolerations: {error}"
        )
        raise forbidden(_PODS, metadata["name"], why=why) from error
    own = list(spec.get("tolerations") or ())
    spec["tolerations"] = own + [toleration for toleration in defaults if toleration not in own]


def _tolerates(toleration: Object, taint: str) -> bool:
    return bool(toleration.get("key", taint) == taint and toleration.get("effect", "NoExecute") == "NoExecute")


def qos_class(spec: Object) -> str:
    """Guaranteed, Burstable or BestEffort, from CPU and memory alone."""
    holders: Iterable[Object] = [spec] if spec.get("resources") else containers_of(spec)
    requested = limited = False
    guaranteed = True
    for holder in holders:
        resources = holder.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for name in _QOS_RESOURCES:
            request, limit = exact_value(requests.get(name, "0")), exact_value(limits.get(name, "0"))
            requested = requested or request > 0
            limited = limited or limit > 0
            guaranteed = guaranteed and limit > 0 and request == limit
    if not requested and not limited:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_WITH_VALUES = ("In", "NotIn")
_WITHOUT_VALUES = ("Exists", "DoesNotExist")
_COMPARING = ("Gt", "Lt")
_UNSATISFIABLE = ("DoNotSchedule", "ScheduleAnyway")
_NODE_POLICIES = ("Honor", "Ignore")
_NODE_FIELD = "metadata.name"
_MOST_WEIGHT = 100


def validate_constraints(spec: Object, field: str) -> list[FieldError]:
    """The problems of the constraints in a pod's spec."""
    affinity = spec.get("affinity") or {}
    errors = _validate_node_affinity(affinity.get("nodeAffinity") or {}, f"{field}.affinity.nodeAffinity")
    for kind in ("podAffinity", "podAntiAffinity"):
        errors += _validate_pod_affinity(affinity.get(kind) or {}, f"{field}.affinity.{kind}")
    for index, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        errors += _validate_spread(constraint, f"{field}.topologySpreadConstraints[{index}]")
    return errors


def _validate_node_affinity(affinity: Object, field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    required = affinity.get(_REQUIRED)
    if required is not None:
        terms = required.get("nodeSelectorTerms") or ()
        where = f"{field}.{_REQUIRED}.nodeSelectorTerms"
        if not terms:
            errors.append(FieldError.required(where, "must have at least one node selector term"))
        for index, term in enumerate(terms):
            errors += _validate_node_term(term, f"{where}[{index}]")
    for index, preferred in enumerate(affinity.get(_PREFERRED) or ()):
        where = f"{field}.{_PREFERRED}[{index}]"
        errors += _validate_weight(preferred, where)
        errors += _validate_node_term(preferred.get("preference") or {}, f"{where}.preference")
    return errors


def _validate_node_term(term: Object, field: str) -> list[FieldError]:
    operators = (*_WITH_VALUES, *_WITHOUT_VALUES, *_COMPARING)
    errors = _validate_expressions(term.get("matchExpressions") or (), f"{field}.matchExpressions", operators)
    for index, expression in enumerate(term.get("matchFields") or ()):
        errors += _validate_node_field(expression, f"{field}.matchFields[{index}]")
    return errors


def _validate_node_field(expression: Object, field: str) -> list[FieldError]:
    errors = []
    key, operator = expression.get("key"), expression.get("operator")
    if operator not in _WITH_VALUES:
        errors.append(FieldError.invalid(f"{field}.operator", operator, "not a valid selector operator"))
    elif len(expression.get("values") or ()) != 1:
        detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        errors.append(FieldError.required(f"{field}.values", detail))
    if key != _NODE_FIELD:
        errors.append(FieldError.invalid(f"{field}.key", key, "not a valid field selector key"))
    return errors


def _validate_expressions(expressions: Iterable[Object], field: str, operators: tuple[str, ...]) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, expression in enumerate(expressions):
        where = f"{field}[{index}]"
        operator, values = expression.get("operator"), expression.get("values") or ()
        if operator not in operators:
            errors.append(FieldError.invalid(f"{where}.operator", operator, "not a valid selector operator"))
        elif operator in _WITH_VALUES and not values:
            detail = "must be specified when `operator` is 'In' or 'NotIn'"
            errors.append(FieldError.required(f"{where}.values", detail))
        elif operator in _WITHOUT_VALUES and values:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            errors.append(FieldError.forbidden(f"{where}.values", detail))
        elif operator in _COMPARING and len(values) != 1:
            detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            errors.append(FieldError.required(f"{where}.values", detail))
        errors += validate_labels({expression.get("key", ""): ""}, f"{where}.key")
    return errors


def _validate_pod_affinity(affinity: Object, field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, term in enumerate(affinity.get(_REQUIRED) or ()):
        errors += _validate_pod_term(term, f"{field}.{_REQUIRED}[{index}]")
    for index, preferred in enumerate(affinity.get(_PREFERRED) or ()):
        where = f"{field}.{_PREFERRED}[{index}]"
        errors += _validate_weight(preferred, where)
        errors += _validate_pod_term(preferred.get("podAffinityTerm") or {}, f"{where}.podAffinityTerm")
    return errors


def _validate_pod_term(term: Object, field: str) -> list[FieldError]:
    errors = _validate_topology_key(term, field)
    for name in ("labelSelector", "namespaceSelector"):
        errors += validate_label_selector(term.get(name) or {}, f"{field}.{name}")
    return errors


def validate_label_selector(selector: Object, field: str) -> list[FieldError]:
    """The problems of a label selector."""
    errors = validate_labels(selector.get("matchLabels"), f"{field}.matchLabels")
    operators = (*_WITH_VALUES, *_WITHOUT_VALUES)
    return errors + _validate_expressions(
        selector.get("matchExpressions") or (), f"{field}.matchExpressions", operators
    )


def _validate_topology_key(constraint: Object, field: str) -> list[FieldError]:
    key = constraint.get("topologyKey")
    if not key:
        return [FieldError.required(f"{field}.topologyKey", "can not be empty")]
    return validate_labels({key: ""}, f"{field}.topologyKey")


def _validate_weight(preferred: Object, field: str) -> list[FieldError]:
    weight = preferred.get("weight", 0)
    if 1 <= weight <= _MOST_WEIGHT:
        return []
    return [FieldError.invalid(f"{field}.weight", weight, "must be in the range 1-100")]


def _validate_spread(constraint: Object, field: str) -> list[FieldError]:
    errors = []
    for name in ("maxSkew", "minDomains"):
        value = constraint.get(name, 0 if name == "maxSkew" else None)
        if value is not None and value <= 0:
            errors.append(FieldError.invalid(f"{field}.{name}", value, "must be greater than zero"))
    errors += _validate_topology_key(constraint, field)
    action = constraint.get("whenUnsatisfiable", "")
    if action not in _UNSATISFIABLE:
        errors.append(FieldError.not_supported(f"{field}.whenUnsatisfiable", action, _UNSATISFIABLE))
    elif constraint.get("minDomains") is not None and action != "DoNotSchedule":
        detail = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
        value = constraint["minDomains"]
        errors.append(FieldError.invalid(f"{field}.minDomains", value, detail))
    for name in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        policy = constraint.get(name)
        if policy is not None and policy not in _NODE_POLICIES:
            errors.append(FieldError.not_supported(f"{field}.{name}", policy, _NODE_POLICIES))
    return errors + validate_label_selector(constraint.get("labelSelector") or {}, f"{field}.labelSelector")


_STANDARD_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})
_CHOICES = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "dnsPolicy": ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
    "preemptionPolicy": ("PreemptLowerPriority", "Never"),
}
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_ONLY_THESE_CHANGE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n"
)


def validate_pod(pod: Object) -> list[FieldError]:
    """The problems of a pod."""
    return validate_pod_spec(pod["spec"], "spec")


def validate_pod_spec(spec: Object, field: str) -> list[FieldError]:
    """The problems of a pod's spec, in a pod or a template."""
    errors: list[FieldError] = []
    if not spec.get("containers"):
        errors.append(FieldError.required(f"{field}.containers"))
    names: set[str] = set()
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            errors += _validate_container(container, f"{field}.{group}[{index}]", names, volumes)
    for name, choices in _CHOICES.items():
        value = spec.get(name)
        if value is not None and value not in choices:
            errors.append(FieldError.not_supported(f"{field}.{name}", value, choices))
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and deadline <= 0:
        errors.append(
            FieldError.invalid(
                f"{field}.activeDeadlineSeconds", deadline, "must be between 1 and 2147483647, inclusive"
            )
        )
    errors += validate_labels(spec.get("nodeSelector"), f"{field}.nodeSelector")
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        errors += _validate_toleration(toleration, f"{field}.tolerations[{index}]")
    return errors + validate_constraints(spec, field)


def _validate_container(container: Object, field: str, names: set[str], volumes: set[Any]) -> list[FieldError]:
    errors: list[FieldError] = []
    name = container.get("name", "")
    if not name:
        errors.append(FieldError.required(f"{field}.name"))
    elif len(name) > 63 or not DNS_LABEL.fullmatch(name):
        errors.append(FieldError.invalid(f"{field}.name", name, BAD_LABEL_NAME))
    elif name in names:
        errors.append(FieldError("FieldValueDuplicate", f"{field}.name", value=name))
    names.add(name)
    if not container.get("image"):
        errors.append(FieldError.required(f"{field}.image"))
    policy = container.get("imagePullPolicy")
    if policy is not None and policy not in _PULL_POLICIES:
        errors.append(FieldError.not_supported(f"{field}.imagePullPolicy", policy, _PULL_POLICIES))
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("name") not in volumes:
            errors.append(
                FieldError("FieldValueNotFound", f"{field}.volumeMounts[{index}].name", value=mount.get("name"))
            )
    return errors + _validate_resources(container.get("resources") or {}, f"{field}.resources")


def _validate_resources(resources: Object, field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name, value in amounts.items():
            errors += _validate_amount(name, value, f"{field}.{kind}")
    for name, request in requests.items():
        limit = limits.get(name)
        if limit is None:
            if not overcommittable(name):
                errors.append(
                    FieldError.required(f"{field}.limits", "Limit must be set for non overcommitable resources")
                )
        elif not overcommittable(name) and exact_value(request) != exact_value(limit):
            errors.append(FieldError.invalid(f"{field}.requests", request, f"must be equal to {name} limit of {limit}"))
        elif exact_value(request) > exact_value(limit):
            errors.append(
                FieldError.invalid(
                    f"{field}.requests", request, f"must be less than or equal to {name} limit of {limit}"
                )
            )
    return errors


def overcommittable(resource: str) -> bool:
    """True if limits of a resource may exceed requests: not for huge pages and extended resources."""
    return resource in _STANDARD_RESOURCES


def _validate_amount(name: str, value: str, field: str) -> list[FieldError]:
    field = f"{field}[{name}]"
    if not is_qualified_name(name) or not (
        "/" in name or name in _STANDARD_RESOURCES or name.startswith(("hugepages-", "requests."))
    ):
        return [
            FieldError.invalid(field, name, "must be a standard resource type or fully qualified"),
        ]
    if exact_value(value) < 0:
        return [FieldError.invalid(field, value, "must be greater than or equal to 0")]
    if "/" in name and exact_value(value).denominator != 1:
        return [FieldError.invalid(field, value, "must be an integer")]
    return []


def _validate_toleration(toleration: Object, field: str) -> list[FieldError]:
    errors = []
    operator = toleration.get("operator", "Equal")
    if operator not in ("Equal", "Exists"):
        errors.append(FieldError.not_supported(f"{field}.operator", operator, ("Equal", "Exists")))
    if not toleration.get("key") and operator != "Exists":
        errors.append(
            FieldError.invalid(
                f"{field}.operator",
                operator,
                'operator must be Exists when `key` is empty, which means "match all values and all keys"',
            )
        )
    effect = toleration.get("effect")
    if effect is not None and effect not in TAINT_EFFECTS:
        errors.append(FieldError.not_supported(f"{field}.effect", effect, TAINT_EFFECTS))
    return errors


def validate_pod_update(new: Object, old: Object) -> list[FieldError]:
    """The problems of a change of a pod: nearly nothing of a spec may change."""
    before, after = old["spec"], new["spec"]
    if before == after:
        return []
    errors = [
        FieldError.forbidden(f"spec.{group}", "pod updates may not add or remove containers")
        for group in ("containers", "initContainers")
        if len(after.get(group) or ()) != len(before.get(group) or ())
    ]
    if errors:
        return errors
    remaining = deepcopy(after)
    for group in ("containers", "initContainers"):
        for mine, theirs in zip(remaining.get(group) or (), before.get(group) or (), strict=True):
            mine["image"] = theirs.get("image")
    errors += _tolerations_only_added(remaining, before)
    errors += _gates_only_removed(remaining, before)
    for free in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
        copy_field(free, before, remaining)
    if before.get("schedulingGates"):
        for free in ("nodeSelector", "affinity"):  # while gated, where a pod may go can still be narrowed
            copy_field(free, before, remaining)
    if after.get("terminationGracePeriodSeconds") == 1 and before.get("terminationGracePeriodSeconds", 0) < 0:
        copy_field("terminationGracePeriodSeconds", before, remaining)
    if remaining != before:
        errors.append(FieldError.forbidden("spec", _ONLY_THESE_CHANGE + _diff(before, remaining)))
    return errors


def _tolerations_only_added(after: Object, before: Object) -> list[FieldError]:
    def without_seconds(toleration: Object) -> Object:
        return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}

    kept = [without_seconds(toleration) for toleration in after.get("tolerations") or ()]
    if all(without_seconds(toleration) in kept for toleration in before.get("tolerations") or ()):
        return []
    return [
        FieldError.forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")
    ]


def _gates_only_removed(after: Object, before: Object) -> list[FieldError]:
    return [
        FieldError.forbidden(
            "spec.schedulingGates", f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
        )
        for gate in after.get("schedulingGates") or ()
        if gate not in (before.get("schedulingGates") or ())
    ]


def _diff(before: Object, after: Object) -> str:
    """The difference as text. The real server shows its Go structs; this one shows JSON."""
    left, right = (json.dumps(side, indent=1, sort_keys=True).splitlines() for side in (before, after))
    lines = list(difflib.unified_diff(left, right, lineterm="", n=3))[2:]
    return "".join(f"{line}\n" for line in lines)
