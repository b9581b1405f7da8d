"""Defaults, first statuses and validation of the kinds that have little of each.

Validation of nodes.

Validation of Deployments and ReplicaSets.

The table of kinds and their rules, by collection.
"""

import base64
import re
from typing import Any

from kai_fleet.kubelet.quantity import exact_value

from kai_apiserver.errors import FieldError
from kai_apiserver.kinds import pod_validation, pods
from kai_apiserver.kinds.metadata import validate_labels
from kai_apiserver.kinds.pod_validation import TAINT_EFFECTS, validate_label_selector, validate_pod_spec
from kai_apiserver.kinds.pods import default_pod_spec
from kai_apiserver.kinds.rules import Cluster, Rules
from kai_apiserver.objects import Object, is_qualified_name
from kai_apiserver.resources import crd
from kai_apiserver.rest.selectors import selector_of

CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
JOB_NAME = "batch.kubernetes.io/job-name"
_LEGACY_CONTROLLER_UID = "controller-uid"
_LEGACY_JOB_NAME = "job-name"

_JOB_COUNTS = ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
#: What may change in the template of a suspended Job that has not started.
_SCHEDULING_FIELDS = ("nodeSelector", "affinity", "tolerations", "schedulingGates")


def default_job(job: Object) -> None:
    """Fill in what a Job leaves out."""
    spec = job["spec"]
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = spec["parallelism"] = 1
    spec.setdefault("parallelism", 1)
    if "backoffLimitPerIndex" in spec:
        spec.setdefault("backoffLimit", 2**31 - 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        for pattern in rule.get("onPodConditions") or ():
            pattern.setdefault("status", "True")
    template = spec.get("template") or {}
    if template.get("spec"):
        default_pod_spec(template["spec"])


def admit_job(job: Object, cluster: Cluster) -> None:
    """Reset the status, and tie the Job to its pods by its uid."""
    del cluster
    job["status"] = {}
    spec, metadata = job["spec"], job["metadata"]
    if spec.get("manualSelector"):
        return
    labels = {
        CONTROLLER_UID: metadata["uid"],
        JOB_NAME: metadata["name"],
        _LEGACY_CONTROLLER_UID: metadata["uid"],
        _LEGACY_JOB_NAME: metadata["name"],
    }
    template = spec.setdefault("template", {})
    template_metadata = template.setdefault("metadata", {})
    template_metadata["labels"] = {**(template_metadata.get("labels") or {}), **labels}
    spec["selector"] = {"matchLabels": {CONTROLLER_UID: metadata["uid"]}}


def validate_job(job: Object) -> list[FieldError]:
    """The problems of a Job."""
    spec = job["spec"]
    errors = [
        FieldError.invalid(f"spec.{name}", spec[name], "must be greater than or equal to 0")
        for name in _JOB_COUNTS
        if isinstance(spec.get(name), int) and spec[name] < 0
    ]
    indexed = spec.get("completionMode") == "Indexed"
    if indexed and spec.get("completions") is None:
        errors.append(FieldError.required("spec.completions", "when completion mode is Indexed"))
    if spec.get("backoffLimitPerIndex") is not None and not indexed:
        errors.append(
            FieldError.invalid(
                "spec.backoffLimitPerIndex", spec["backoffLimitPerIndex"], "requires indexed completion mode"
            )
        )
    pod_spec = (spec.get("template") or {}).get("spec") or {}
    errors += validate_pod_spec(pod_spec, "spec.template.spec")
    if pod_spec.get("restartPolicy") == "Always":
        errors.append(FieldError.required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"'))
    if spec.get("podFailurePolicy") and pod_spec.get("restartPolicy") != "Never":
        errors.append(
            FieldError.invalid(
                "spec.template.spec.restartPolicy",
                pod_spec.get("restartPolicy"),
                'only "Never" is supported when podFailurePolicy is specified',
            )
        )
    return errors


def validate_job_update(new: Object, old: Object) -> list[FieldError]:
    """The problems of a change of a Job: its pod template is fixed once pods may exist."""
    before, after = old["spec"], new["spec"]
    errors = [
        _immutable(f"spec.{name}", after.get(name))
        for name in ("selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex")
        if before.get(name) != after.get(name)
    ]
    elastic = after.get("completionMode") == "Indexed" and after.get("completions") == after.get("parallelism")
    if before.get("completions") != after.get("completions") and not elastic:
        errors.append(_immutable("spec.completions", after.get("completions")))
    started = bool((old.get("status") or {}).get("startTime"))
    may_move = bool(before.get("suspend")) and not started
    if _fixed_part(before["template"], may_move=may_move) != _fixed_part(after["template"], may_move=may_move):
        errors.append(_immutable("spec.template", after["template"]))
    return errors


def _fixed_part(template: Object, *, may_move: bool) -> Object:
    if not may_move:
        return template
    spec = {key: value for key, value in template["spec"].items() if key not in _SCHEDULING_FIELDS}
    metadata = template.get("metadata") or {}
    return {"metadata": {key: metadata[key] for key in metadata if key not in ("labels", "annotations")}, "spec": spec}


def _immutable(field: str, value: Any) -> FieldError:
    return FieldError.invalid(field, value, "field is immutable")


def validate_node(node: Object) -> list[FieldError]:
    """The problems of a node: its amounts and taints."""
    return validate_node_status(node) + _validate_taints((node.get("spec") or {}).get("taints") or ())


def validate_node_status(node: Object) -> list[FieldError]:
    """The problems of a node's status by its kubelet."""
    errors = []
    status = node.get("status") or {}
    for kind in ("capacity", "allocatable"):
        for name, value in (status.get(kind) or {}).items():
            field = f"status.{kind}[{name}]"
            if not is_qualified_name(name):
                errors.append(FieldError.invalid(field, name, "must be a standard resource type or fully qualified"))
            elif exact_value(value) < 0:
                errors.append(FieldError.invalid(field, value, "must be greater than or equal to 0"))
            elif "/" in name and exact_value(value).denominator != 1:
                errors.append(FieldError.invalid(field, value, "must be an integer"))
    return errors


def _validate_taints(taints: list[Object] | tuple[()]) -> list[FieldError]:
    errors: list[FieldError] = []
    seen = set()
    for index, taint in enumerate(taints):
        field = f"spec.taints[{index}]"
        key, effect = taint.get("key", ""), taint.get("effect", "")
        errors += validate_labels({key: ""}, f"{field}.key")
        errors += validate_labels({"value": taint.get("value", "")}, f"{field}.value")
        if not effect:
            errors.append(FieldError.required(f"{field}.effect"))
        elif effect not in TAINT_EFFECTS:
            errors.append(FieldError.not_supported(f"{field}.effect", effect, TAINT_EFFECTS))
        if (key, effect) in seen:
            errors.append(FieldError("FieldValueDuplicate", field, value=taint))
        seen.add((key, effect))
    return errors


_COUNTS = ("replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds")
_STRATEGIES = ("Recreate", "RollingUpdate")
_PERCENTAGE = re.compile(r"[0-9]+%")


def validate_replicated(obj: Object) -> list[FieldError]:
    """The problems of a ReplicaSet, and of a Deployment besides its strategy."""
    spec = obj["spec"]
    errors = [
        FieldError.invalid(f"spec.{name}", spec[name], "must be greater than or equal to 0")
        for name in _COUNTS
        if isinstance(spec.get(name), int) and spec[name] < 0
    ]
    template = spec.get("template") or {}
    selector = spec.get("selector") or {}
    wrong = validate_label_selector(selector, "spec.selector")
    labels = (template.get("metadata") or {}).get("labels") or {}
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        wrong.append(FieldError.invalid("spec.selector", selector, "empty selector is invalid for deployment"))
    elif not wrong:
        read = selector_of(selector)
        if read is not None and not read.matches(labels):
            detail = "`selector` does not match template `labels`"
            wrong.append(FieldError.invalid("spec.template.metadata.labels", labels, detail))
    pod_spec = template.get("spec") or {}
    errors += wrong + validate_pod_spec(pod_spec, "spec.template.spec")
    policy = pod_spec.get("restartPolicy", "Always")
    if policy != "Always":
        errors.append(FieldError.not_supported("spec.template.spec.restartPolicy", policy, ("Always",)))
    return errors


def validate_deployment(deployment: Object) -> list[FieldError]:
    """The problems of a Deployment."""
    errors = validate_replicated(deployment)
    strategy = deployment["spec"]["strategy"]
    kind, rolling = strategy["type"], strategy.get("rollingUpdate")
    if kind not in _STRATEGIES:
        return [*errors, FieldError.not_supported("spec.strategy.type", kind, _STRATEGIES)]
    if kind == "Recreate":
        if rolling is not None:
            detail = "may not be specified when strategy `type` is 'Recreate'"
            errors.append(FieldError.forbidden("spec.strategy.rollingUpdate", detail))
        return errors
    rolling = rolling or {}
    for name in ("maxUnavailable", "maxSurge"):
        if not _is_count(value := rolling.get(name)):
            detail = "must be a non-negative number or a percentage (e.g. '1' or '25%')"
            errors.append(FieldError.invalid(f"spec.strategy.rollingUpdate.{name}", value, detail))
    if {rolling.get(name) for name in ("maxUnavailable", "maxSurge")} <= {0, "0%"}:
        detail = "may not be 0 when `maxSurge` is 0"
        field = "spec.strategy.rollingUpdate.maxUnavailable"
        errors.append(FieldError.invalid(field, rolling.get("maxUnavailable"), detail))
    return errors


def _is_count(value: Any) -> bool:
    return value >= 0 if isinstance(value, int) else bool(isinstance(value, str) and _PERCENTAGE.fullmatch(value))


def validate_replicated_update(new: Object, old: Object) -> list[FieldError]:
    """The problems of a change: the selected pods stay the same."""
    if new["spec"].get("selector") == old["spec"].get("selector"):
        return []
    selector = new["spec"].get("selector")
    return [FieldError.invalid("spec.selector", selector, "field is immutable")]


HIGHEST_USER_PRIORITY = 1_000_000_000
_SYSTEM_PREFIX = "system-"


def reset_status(obj: Object, cluster: Cluster) -> None:
    """No status yet, whatever the client wrote."""
    del cluster
    obj["status"] = {}


def default_namespace(namespace: Object) -> None:
    """Every namespace carries its name as a label."""
    metadata = namespace["metadata"]
    metadata["labels"] = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata["name"]}


def admit_namespace(namespace: Object, cluster: Cluster) -> None:
    """A new namespace is active, and its contents go before it does."""
    del cluster
    namespace["spec"] = {"finalizers": ["kubernetes"]}
    namespace["status"] = {"phase": "Active"}


def keep_namespace_finalizers(new: Object, old: Object) -> None:
    """Only the finalize subresource changes `spec.finalizers`."""
    new["spec"] = old["spec"]


def default_secret(secret: Object) -> None:
    """`stringData` becomes `data`."""
    secret.setdefault("type", "Opaque")
    given = secret.pop("stringData", None)
    if given:
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in given.items()}
        secret["data"] = {**(secret.get("data") or {}), **encoded}


def default_service(service: Object) -> None:
    """Fill in what a Service leaves out. No address is allocated: nothing listens here."""
    spec = service["spec"]
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def admit_service(service: Object, cluster: Cluster) -> None:
    """No load balancer yet."""
    del cluster
    service["status"] = {"loadBalancer": {}}


def default_claim(claim: Object) -> None:
    """Volumes are file systems unless the spec says block."""
    claim["spec"].setdefault("volumeMode", "Filesystem")


def admit_claim(claim: Object, cluster: Cluster) -> None:
    """A new claim is pending."""
    del cluster
    claim["status"] = {"phase": "Pending"}


def default_resource_claim(claim: Object) -> None:
    """One device for each request, unless it says otherwise."""
    for request in (claim["spec"].get("devices") or {}).get("requests") or ():
        for exact in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if exact is not None:
                exact.setdefault("allocationMode", "ExactCount")
                if exact["allocationMode"] == "ExactCount":
                    exact.setdefault("count", 1)
                for toleration in exact.get("tolerations") or ():
                    toleration.setdefault("operator", "Equal")


def default_resource_claim_template(template: Object) -> None:
    """As the claims that are made of it."""
    default_resource_claim(template["spec"])


def default_volume(volume: Object) -> None:
    """Fill in what a PersistentVolume leaves out."""
    volume["spec"].setdefault("volumeMode", "Filesystem")
    volume["spec"].setdefault("persistentVolumeReclaimPolicy", "Retain")


def admit_volume(volume: Object, cluster: Cluster) -> None:
    """A new volume is pending."""
    del cluster
    volume["status"] = {"phase": "Pending"}


def default_storage_class(storage_class: Object) -> None:
    """Fill in what a StorageClass leaves out."""
    storage_class.setdefault("reclaimPolicy", "Delete")
    storage_class.setdefault("volumeBindingMode", "Immediate")


def default_deployment(deployment: Object) -> None:
    """Fill in what a Deployment leaves out."""
    spec = deployment["spec"]
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    _default_template(spec)


def default_replica_set(replica_set: Object) -> None:
    """Fill in what a ReplicaSet or ReplicationController leaves out."""
    replica_set["spec"].setdefault("replicas", 1)
    _default_template(replica_set["spec"])


def admit_replica_set(replica_set: Object, cluster: Cluster) -> None:
    """No replicas yet, whatever the client wrote."""
    del cluster
    replica_set["status"] = {"replicas": 0}


def default_daemon_set(daemon_set: Object) -> None:
    """Fill in what a DaemonSet leaves out."""
    spec = daemon_set["spec"]
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    _default_template(spec)


def default_stateful_set(stateful_set: Object) -> None:
    """Fill in what a StatefulSet leaves out."""
    spec = stateful_set["spec"]
    spec.setdefault("replicas", 1)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)
    spec.setdefault("persistentVolumeClaimRetentionPolicy", {"whenDeleted": "Retain", "whenScaled": "Retain"})
    _default_template(spec)


def default_cron_job(cron_job: Object) -> None:
    """Fill in what a CronJob leaves out."""
    spec = cron_job["spec"]
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    template = spec.get("jobTemplate") or {}
    if "spec" in template:
        default_job(template)


def _default_template(spec: Object) -> None:
    template = spec.get("template") or {}
    if template.get("spec"):
        default_pod_spec(template["spec"])


def default_priority_class(priority_class: Object) -> None:
    """Priority classes preempt unless they say otherwise."""
    priority_class.setdefault("preemptionPolicy", "PreemptLowerPriority")


def validate_priority_class(priority_class: Object) -> list[FieldError]:
    """The upper billion belongs to the system's own classes."""
    name = priority_class["metadata"]["name"]
    if priority_class["value"] > HIGHEST_USER_PRIORITY and not name.startswith(_SYSTEM_PREFIX):
        return [
            FieldError.forbidden(
                "value", f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
            )
        ]
    return []


def validate_priority_class_update(new: Object, old: Object) -> list[FieldError]:
    """Value and policy of a class never change: pods have copied them."""
    errors = []
    if new["value"] != old["value"]:
        errors.append(FieldError.forbidden("Value", "may not be changed in an update."))
    if new["preemptionPolicy"] != old["preemptionPolicy"]:
        errors.append(FieldError.invalid("preemptionPolicy", new["preemptionPolicy"], "field is immutable"))
    return errors


def admit_disruption_budget(budget: Object, cluster: Cluster) -> None:
    """Nothing may be disrupted until the controller has counted."""
    del cluster
    budget["status"] = {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}


def validate_disruption_budget(budget: Object) -> list[FieldError]:
    """A budget says how many stay or how many may go, not both, and of which pods."""
    spec = budget["spec"]
    errors = validate_label_selector(spec.get("selector") or {}, "spec.selector")
    if "minAvailable" in spec and "maxUnavailable" in spec:
        detail = "minAvailable and maxUnavailable cannot be both set"
        errors.append(FieldError.invalid("spec", spec["minAvailable"], detail))
    return errors


def validate_config_update(new: Object, old: Object) -> list[FieldError]:
    """An immutable ConfigMap or Secret keeps its data."""
    if not old.get("immutable"):
        return []
    return [
        FieldError.forbidden(field, "field is immutable when `immutable` is set")
        for field in ("data", "binaryData", "immutable")
        if new.get(field) != old.get(field)
    ]


NO_RULES = Rules()

RULES: dict[str, Rules] = {
    "configmaps": Rules(validate_update=validate_config_update),
    "cronjobs.batch": Rules(default=default_cron_job, admit=reset_status),
    "customresourcedefinitions.apiextensions.k8s.io": Rules(
        default=crd.default_definition,
        admit=crd.admit_definition,
        validate=crd.validate_definition,
    ),
    "daemonsets.apps": Rules(default=default_daemon_set),
    "deployments.apps": Rules(
        default=default_deployment,
        admit=reset_status,
        validate=validate_deployment,
        validate_update=validate_replicated_update,
    ),
    "jobs.batch": Rules(
        default=default_job,
        admit=admit_job,
        validate=validate_job,
        validate_update=validate_job_update,
    ),
    "namespaces": Rules(
        default=default_namespace,
        admit=admit_namespace,
        keep=keep_namespace_finalizers,
    ),
    "nodes": Rules(validate=validate_node, validate_status=validate_node_status),
    "persistentvolumeclaims": Rules(default=default_claim, admit=admit_claim),
    "persistentvolumes": Rules(default=default_volume, admit=admit_volume),
    "poddisruptionbudgets.policy": Rules(admit=admit_disruption_budget, validate=validate_disruption_budget),
    "pods": Rules(
        default=pods.default_pod,
        admit=pods.admit_pod,
        validate=pod_validation.validate_pod,
        keep_status=pods.keep_qos_class,
        validate_update=pod_validation.validate_pod_update,
    ),
    "priorityclasses.scheduling.k8s.io": Rules(
        default=default_priority_class,
        validate=validate_priority_class,
        validate_update=validate_priority_class_update,
    ),
    "replicasets.apps": Rules(
        default=default_replica_set,
        admit=admit_replica_set,
        validate=validate_replicated,
        validate_update=validate_replicated_update,
    ),
    "replicationcontrollers": Rules(default=default_replica_set),
    "resourceclaims.resource.k8s.io": Rules(default=default_resource_claim),
    "resourceclaimtemplates.resource.k8s.io": Rules(default=default_resource_claim_template),
    "secrets": Rules(default=default_secret, validate_update=validate_config_update),
    "services": Rules(default=default_service, admit=admit_service),
    "statefulsets.apps": Rules(default=default_stateful_set),
    "storageclasses.storage.k8s.io": Rules(default=default_storage_class),
}
