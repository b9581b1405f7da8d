"""Defaults, first statuses and validation of the kinds that have little of each."""

import base64

from kai_apiserver.errors import FieldError
from kai_apiserver.kinds.constraint_validation import validate_label_selector
from kai_apiserver.kinds.jobs import default_job
from kai_apiserver.kinds.pod_spec import default_pod_spec
from kai_apiserver.kinds.rules import Cluster
from kai_apiserver.objects import Object

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
            FieldError(
                "FieldValueForbidden",
                "value",
                detail=f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}",
            )
        ]
    return []


def validate_priority_class_update(new: Object, old: Object) -> list[FieldError]:
    """Value and policy of a class never change: pods have copied them."""
    errors = []
    if new["value"] != old["value"]:
        errors.append(FieldError("FieldValueForbidden", "Value", detail="may not be changed in an update."))
    if new["preemptionPolicy"] != old["preemptionPolicy"]:
        errors.append(
            FieldError(
                "FieldValueInvalid", "preemptionPolicy", detail="field is immutable", value=new["preemptionPolicy"]
            )
        )
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
        errors.append(FieldError("FieldValueInvalid", "spec", detail=detail, value=spec["minAvailable"]))
    return errors


def validate_config_update(new: Object, old: Object) -> list[FieldError]:
    """An immutable ConfigMap or Secret keeps its data."""
    if not old.get("immutable"):
        return []
    return [
        FieldError("FieldValueForbidden", field, detail="field is immutable when `immutable` is set")
        for field in ("data", "binaryData", "immutable")
        if new.get(field) != old.get(field)
    ]
