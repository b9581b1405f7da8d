"""The built-in resources, as a table in the style of discovery.

Those without a controller here (DaemonSets, CronJobs, …) are stored and served, and nothing acts on them.

Events have two faces: `v1` and `events.k8s.io/v1` are the same stored objects under different field names.
"""

from kai_apiserver.objects import Object
from kai_apiserver.resources.registry import READ_WRITE, ResourceType, SelectableField, Subresource

_CORE_TO_NEW = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_NEW_TO_CORE = {new: core for core, new in _CORE_TO_NEW.items()}


def to_core_event(event: Object) -> Object:
    """An `events.k8s.io/v1` event as it is stored: a core one."""
    core = {_NEW_TO_CORE.get(field, field): value for field, value in event.items()}
    for field, zero in (("involvedObject", {}), ("source", {}), ("reportingComponent", ""), ("reportingInstance", "")):
        core.setdefault(field, zero)
    for field in ("firstTimestamp", "lastTimestamp", "eventTime"):
        core.setdefault(field, None)
    return core


def from_core_event(event: Object) -> Object:
    """A stored event as `events.k8s.io/v1` shows it; what is empty there is left out."""
    shown = {_CORE_TO_NEW.get(field, field): value for field, value in event.items()}
    for field in ("regarding", "note", "reportingController", "reportingInstance"):
        if not shown.get(field):
            shown.pop(field, None)
    return shown


_CREATE = ("create",)
_STATUS_VERBS = ("get", "patch", "update")


def _status(kind: str) -> Subresource:
    return Subresource("status", kind, _STATUS_VERBS)


_SCALE = Subresource("scale", "Scale", _STATUS_VERBS, "autoscaling", "v1")


def _fields(*fields: tuple[str, str] | str) -> tuple[SelectableField, ...]:
    """Each a path, or a path with what its absence means."""
    pairs = [(item, "") if isinstance(item, str) else item for item in fields]
    return tuple(SelectableField(label, tuple(label.split(".")), default) for label, default in pairs)


def _core(plural: str, kind: str, *, namespaced: bool = True, **rest: object) -> ResourceType:
    return _resource("", "v1", plural, kind, namespaced=namespaced, **rest)


def _resource(group: str, version: str, plural: str, kind: str, *, namespaced: bool, **rest: object) -> ResourceType:
    rest.setdefault("type_name", f"V1{kind}")
    rest.setdefault("singular", kind.lower())
    return ResourceType(group=group, version=version, plural=plural, kind=kind, namespaced=namespaced, **rest)  # type: ignore[arg-type]


def _review(group: str, plural: str, kind: str, *, namespaced: bool = False) -> ResourceType:
    return _resource(group, "v1", plural, kind, namespaced=namespaced, verbs=_CREATE, stored=False)


_EVENT_FIELDS = (
    *_fields("reason", "type", "source"),
    *(
        SelectableField(f"involvedObject.{part}", ("involvedObject", part))
        for part in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    ),
    SelectableField("reportingComponent", ("reportingComponent",)),
)

CORE = (
    _core("bindings", "Binding", verbs=_CREATE, stored=False),
    _core("configmaps", "ConfigMap", short_names=("cm",)),
    _core("endpoints", "Endpoints", singular="endpoints", short_names=("ep",)),
    _core("events", "Event", type_name="CoreV1Event", short_names=("ev",), selectable=_EVENT_FIELDS),
    _core("limitranges", "LimitRange", short_names=("limits",)),
    _core(
        "namespaces",
        "Namespace",
        namespaced=False,
        short_names=("ns",),
        verbs=tuple(verb for verb in READ_WRITE if verb != "deletecollection"),
        subresources=(Subresource("finalize", "Namespace", ("update",)), _status("Namespace")),
        selectable=_fields("status.phase"),
        returned_when_deleted=True,
    ),
    _core(
        "nodes",
        "Node",
        namespaced=False,
        short_names=("no",),
        subresources=(_status("Node"),),
        selectable=_fields(("spec.unschedulable", "false")),
        status_on_create=True,
    ),
    _core(
        "persistentvolumeclaims",
        "PersistentVolumeClaim",
        short_names=("pvc",),
        subresources=(_status("PersistentVolumeClaim"),),
        returned_when_deleted=True,
    ),
    _core(
        "persistentvolumes",
        "PersistentVolume",
        namespaced=False,
        short_names=("pv",),
        subresources=(_status("PersistentVolume"),),
        returned_when_deleted=True,
    ),
    _core(
        "pods",
        "Pod",
        short_names=("po",),
        categories=("all",),
        subresources=(
            Subresource("binding", "Binding", _CREATE),
            Subresource("ephemeralcontainers", "Pod", _STATUS_VERBS),
            Subresource("eviction", "Eviction", _CREATE, "policy", "v1"),
            Subresource("log", "Pod", ("get",)),
            Subresource("resize", "Pod", _STATUS_VERBS),
            _status("Pod"),
        ),
        generation=True,
        selectable=_fields(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            ("spec.hostNetwork", "false"),
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
        returned_when_deleted=True,
    ),
    _core("podtemplates", "PodTemplate", returned_when_deleted=True),
    _core(
        "replicationcontrollers",
        "ReplicationController",
        short_names=("rc",),
        categories=("all",),
        subresources=(_SCALE, _status("ReplicationController")),
        generation=True,
        selectable=_fields(("status.replicas", "0")),
    ),
    _core(
        "resourcequotas",
        "ResourceQuota",
        short_names=("quota",),
        subresources=(_status("ResourceQuota"),),
        returned_when_deleted=True,
    ),
    _core("secrets", "Secret", selectable=_fields("type")),
    _core(
        "serviceaccounts",
        "ServiceAccount",
        short_names=("sa",),
        subresources=(Subresource("token", "TokenRequest", _CREATE, "authentication.k8s.io", "v1"),),
        returned_when_deleted=True,
    ),
    _core(
        "services",
        "Service",
        short_names=("svc",),
        categories=("all",),
        subresources=(_status("Service"),),
        selectable=_fields("spec.clusterIP", "spec.type"),
        returned_when_deleted=True,
    ),
)

APPS = (
    _resource("apps", "v1", "controllerrevisions", "ControllerRevision", namespaced=True),
    _resource(
        "apps",
        "v1",
        "daemonsets",
        "DaemonSet",
        namespaced=True,
        short_names=("ds",),
        categories=("all",),
        subresources=(_status("DaemonSet"),),
        generation=True,
    ),
    *(
        _resource(
            "apps",
            "v1",
            plural,
            kind,
            namespaced=True,
            short_names=(short,),
            categories=("all",),
            subresources=(_SCALE, _status(kind)),
            generation=True,
        )
        for plural, kind, short in (
            ("deployments", "Deployment", "deploy"),
            ("replicasets", "ReplicaSet", "rs"),
            ("statefulsets", "StatefulSet", "sts"),
        )
    ),
)

EVENTS = (
    _resource(
        "events.k8s.io",
        "v1",
        "events",
        "Event",
        namespaced=True,
        type_name="EventsV1Event",
        short_names=("ev",),
        selectable=_EVENT_FIELDS,
        storage_name="events",
        to_storage=to_core_event,
        from_storage=from_core_event,
    ),
)

REVIEWS = (
    _review("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview"),
    _review("authentication.k8s.io", "tokenreviews", "TokenReview"),
    _review("authorization.k8s.io", "localsubjectaccessreviews", "LocalSubjectAccessReview", namespaced=True),
    _review("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
    _review("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview"),
    _review("authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview"),
)

BATCH = (
    _resource(
        "batch",
        "v1",
        "cronjobs",
        "CronJob",
        namespaced=True,
        short_names=("cj",),
        categories=("all",),
        subresources=(_status("CronJob"),),
        generation=True,
    ),
    _resource(
        "batch",
        "v1",
        "jobs",
        "Job",
        namespaced=True,
        categories=("all",),
        subresources=(_status("Job"),),
        generation=True,
        selectable=_fields(("status.successful", "0")),
    ),
)

POLICY = (
    _resource(
        "policy",
        "v1",
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        namespaced=True,
        short_names=("pdb",),
        subresources=(_status("PodDisruptionBudget"),),
        generation=True,
    ),
)

NETWORKING = (
    # Kept and nothing more: no network is simulated.
    _resource(
        "networking.k8s.io",
        "v1",
        "networkpolicies",
        "NetworkPolicy",
        namespaced=True,
        short_names=("netpol",),
        generation=True,
    ),
)

RBAC = tuple(
    _resource("rbac.authorization.k8s.io", "v1", plural, kind, namespaced=namespaced)
    for plural, kind, namespaced in (
        ("clusterrolebindings", "ClusterRoleBinding", False),
        ("clusterroles", "ClusterRole", False),
        ("rolebindings", "RoleBinding", True),
        ("roles", "Role", True),
    )
)

STORAGE = (
    _resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver", namespaced=False),
    _resource("storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False),
    _resource("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity", namespaced=True),
    _resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False, short_names=("sc",)),
    _resource(
        "storage.k8s.io",
        "v1",
        "volumeattachments",
        "VolumeAttachment",
        namespaced=False,
        subresources=(_status("VolumeAttachment"),),
    ),
)

OTHERS = (
    _resource(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        namespaced=False,
        categories=("api-extensions",),
        generation=True,
    ),
    _resource(
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        namespaced=False,
        categories=("api-extensions",),
        generation=True,
    ),
    _resource(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        namespaced=False,
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        subresources=(_status("CustomResourceDefinition"),),
        generation=True,
    ),
    _resource(
        "scheduling.k8s.io",
        "v1",
        "priorityclasses",
        "PriorityClass",
        namespaced=False,
        short_names=("pc",),
        generation=True,
    ),
    _resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True),
    _resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False),
    _resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", namespaced=True, generation=True),
    _resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False, generation=True),
    _resource(
        "resource.k8s.io",
        "v1",
        "devicetaintrules",
        "DeviceTaintRule",
        namespaced=False,
        type_name="V1beta2DeviceTaintRule",
        generation=True,
        subresources=(_status("DeviceTaintRule"),),
    ),
    _resource(
        "resource.k8s.io",
        "v1",
        "resourceclaims",
        "ResourceClaim",
        namespaced=True,
        type_name="ResourceV1ResourceClaim",
        subresources=(_status("ResourceClaim"),),
    ),
    _resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True),
    _resource(
        "resource.k8s.io",
        "v1",
        "resourceslices",
        "ResourceSlice",
        namespaced=False,
        generation=True,
        selectable=_fields("spec.nodeName", "spec.driver"),
    ),
)

#: Every built-in resource, in the order in which discovery names the groups.
BUILTIN_RESOURCES: tuple[ResourceType, ...] = (
    *CORE,
    *APPS,
    *EVENTS,
    *NETWORKING,
    *REVIEWS,
    *BATCH,
    *POLICY,
    *RBAC,
    *STORAGE,
    *OTHERS,
)
