"""Pods: defaults, the admission of a default kube-apiserver, the initial status, QoS classes.

Defaults of a pod's spec, wherever it stands: in a pod or in a template.
"""

from collections.abc import Iterable

import msgspec
from kai_fleet.kubelet.quantity import exact_value

from kai_apiserver.errors import NamedResource, forbidden
from kai_apiserver.kinds.rules import Cluster
from kai_apiserver.objects import Object, timestamp

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
