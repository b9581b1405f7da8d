"""The table of kinds and their rules, by collection; defaults, first statuses and validation of all kinds but pods."""

import base64
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from kai_fleet.kubelet.quantity import exact_value

from kai_apiserver.errors import FieldError
from kai_apiserver.kinds import pods
from kai_apiserver.kinds.metadata import validate_labels
from kai_apiserver.kinds.pods import TAINT_EFFECTS, default_pod_spec, validate_label_selector, validate_pod_spec
from kai_apiserver.kinds.rules import Cluster, Rules
from kai_apiserver.objects import Object, is_qualified_name
from kai_apiserver.resources import crd
from kai_apiserver.rest.selectors import selector_of

CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
JOB_NAME = "batch.kubernetes.io/job-name"
_LEGACY_CONTROLLER_UID = "controller-uid"
_LEGACY_JOB_NAME = "job-name"

_JOB_COUNTS = ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")


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
    errors = _validate_counts(spec, _JOB_COUNTS)
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


def _validate_counts(spec: Object, names: tuple[str, ...]) -> list[FieldError]:
    return [
        FieldError.invalid(f"spec.{name}", spec[name], "must be greater than or equal to 0")
        for name in names
        if isinstance(spec.get(name), int) and spec[name] < 0
    ]


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


def validate_replicated(obj: Object) -> list[FieldError]:
    """The problems of a ReplicaSet or a Deployment."""
    spec = obj["spec"]
    errors = _validate_counts(spec, _COUNTS)
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


HIGHEST_USER_PRIORITY = 1_000_000_000
_SYSTEM_PREFIX = "system-"


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


def first_status(status: Object) -> Callable[[Object, Cluster], None]:
    """The admission of a kind that begins with this status, whatever the client wrote."""

    def admit(obj: Object, cluster: Cluster) -> None:
        del cluster
        obj["status"] = deepcopy(status)

    return admit


def defaults(values: Object, *, then: Callable[[Object], None] | None = None) -> Callable[[Object], None]:
    """The defaults of a kind: values for what a client leaves out, at any depth; `then` fills in what depends on them.

    What a template of pods leaves out is filled in, too.
    """

    def default(obj: Object) -> None:
        _fill(obj, values)
        if then is not None:
            then(obj)
        template = (obj.get("spec") or {}).get("template") or {}
        if template.get("spec"):
            default_pod_spec(template["spec"])

    return default


def _fill(obj: Object, values: Object) -> None:
    for field, value in values.items():
        if isinstance(value, dict) and value:
            _fill(obj.setdefault(field, {}), value)
        else:
            obj.setdefault(field, deepcopy(value))


def _rolling(field: str, **values: Any) -> Callable[[Object], None]:

    def default(obj: Object) -> None:
        strategy = obj["spec"][field]
        if strategy["type"] == "RollingUpdate":
            _fill(strategy.setdefault("rollingUpdate", {}), values)

    return default


def _default_ports(service: Object) -> None:
    """No address is allocated: nothing listens here."""
    for port in service["spec"].get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


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


def validate_disruption_budget(budget: Object) -> list[FieldError]:
    """A budget says how many stay or how many may go, not both, and of which pods."""
    spec = budget["spec"]
    errors = validate_label_selector(spec.get("selector") or {}, "spec.selector")
    if "minAvailable" in spec and "maxUnavailable" in spec:
        detail = "minAvailable and maxUnavailable cannot be both set"
        errors.append(FieldError.invalid("spec", spec["minAvailable"], detail))
    return errors


NO_RULES = Rules()

RULES: dict[str, Rules] = {
    "customresourcedefinitions.apiextensions.k8s.io": Rules(
        default=crd.default_definition,
        admit=crd.admit_definition,
        validate=crd.validate_definition,
    ),
    "daemonsets.apps": Rules(
        # The operator's own: it is not to fight with what a server fills in.
        default=defaults(
            {"spec": {"revisionHistoryLimit": 10, "updateStrategy": {"type": "RollingUpdate"}}},
            then=_rolling("updateStrategy", maxUnavailable=1, maxSurge=0),
        )
    ),
    "deployments.apps": Rules(
        default=defaults(
            {
                "spec": {
                    "replicas": 1,
                    "revisionHistoryLimit": 10,
                    "progressDeadlineSeconds": 600,
                    "strategy": {"type": "RollingUpdate"},
                }
            },
            then=_rolling("strategy", maxUnavailable="25%", maxSurge="25%"),
        ),
        admit=first_status({}),
        validate=validate_replicated,
    ),
    "jobs.batch": Rules(
        default=defaults({}, then=default_job),
        admit=admit_job,
        validate=validate_job,
    ),
    "namespaces": Rules(
        default=default_namespace,
        admit=admit_namespace,
        keep=keep_namespace_finalizers,
    ),
    "nodes": Rules(validate=validate_node, validate_status=validate_node_status),
    "persistentvolumeclaims": Rules(
        default=defaults({"spec": {"volumeMode": "Filesystem"}}), admit=first_status({"phase": "Pending"})
    ),
    "persistentvolumes": Rules(
        default=defaults({"spec": {"volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": "Retain"}}),
        admit=first_status({"phase": "Pending"}),
    ),
    "poddisruptionbudgets.policy": Rules(
        # Nothing may be disrupted until the controller has counted.
        admit=first_status({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}),
        validate=validate_disruption_budget,
    ),
    "pods": Rules(
        default=pods.default_pod,
        admit=pods.admit_pod,
        validate=pods.validate_pod,
        keep_status=pods.keep_qos_class,
        validate_update=pods.validate_pod_update,
    ),
    "priorityclasses.scheduling.k8s.io": Rules(
        default=defaults({"preemptionPolicy": "PreemptLowerPriority"}),
        validate=validate_priority_class,
    ),
    "replicasets.apps": Rules(
        default=defaults({"spec": {"replicas": 1}}),
        admit=first_status({"replicas": 0}),
        validate=validate_replicated,
    ),
    "resourceclaims.resource.k8s.io": Rules(default=default_resource_claim),
    "resourceclaimtemplates.resource.k8s.io": Rules(default=default_resource_claim_template),
    "secrets": Rules(default=default_secret),
    "services": Rules(
        default=defaults(
            {"spec": {"type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"}},
            then=_default_ports,
        ),
        admit=first_status({"loadBalancer": {}}),
    ),
    "statefulsets.apps": Rules(
        default=defaults(
            {
                "spec": {
                    "replicas": 1,
                    "podManagementPolicy": "OrderedReady",
                    "revisionHistoryLimit": 10,
                    "updateStrategy": {"type": "RollingUpdate"},
                    "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
                }
            },
            then=_rolling("updateStrategy", partition=0),
        )
    ),
    "storageclasses.storage.k8s.io": Rules(
        default=defaults({"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"})
    ),
}
