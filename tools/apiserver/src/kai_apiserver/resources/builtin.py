"""The built-in resources, as a table in the style of `kubectl api-resources`.

Those without a controller here (DaemonSets, CronJobs, …) are stored and served, and nothing acts on them.

Events have two faces: `v1` and `events.k8s.io/v1` are the same stored objects under different field names.
"""

from typing import Any

from kai_apiserver.objects import Object
from kai_apiserver.resources.registry import READ_WRITE, STATUS_VERBS, ResourceType, SelectableField, Subresource

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


#: Kind, short names (`-` for none) and apiVersion, in the order in which discovery names the groups; then words:
#: `cluster` is not namespaced; `all` and `api-extensions` are categories; `status` is a subresource;
#: `generation` counts changes of the spec; `returned` comes back when it is deleted; `asked` is created, never stored.
_TABLE = """
Binding                        -         v1                               asked
ConfigMap                      cm        v1
Endpoints                      ep        v1
Event                          ev        v1
LimitRange                     limits    v1
Namespace                      ns        v1                               cluster returned
Node                           no        v1                               cluster status
PersistentVolumeClaim          pvc       v1                               status returned
PersistentVolume               pv        v1                               cluster status returned
Pod                            po        v1                               all generation returned
PodTemplate                    -         v1                               returned
ReplicationController          rc        v1                               all status generation
ResourceQuota                  quota     v1                               status returned
Secret                         -         v1
ServiceAccount                 sa        v1                               returned
Service                        svc       v1                               all status returned
ControllerRevision             -         apps/v1
DaemonSet                      ds        apps/v1                          all status generation
Deployment                     deploy    apps/v1                          all status generation
ReplicaSet                     rs        apps/v1                          all status generation
StatefulSet                    sts       apps/v1                          all status generation
Event                          ev        events.k8s.io/v1
NetworkPolicy                  netpol    networking.k8s.io/v1             generation
SelfSubjectReview              -         authentication.k8s.io/v1         cluster asked
TokenReview                    -         authentication.k8s.io/v1         cluster asked
LocalSubjectAccessReview       -         authorization.k8s.io/v1          asked
SelfSubjectAccessReview        -         authorization.k8s.io/v1          cluster asked
SelfSubjectRulesReview         -         authorization.k8s.io/v1          cluster asked
SubjectAccessReview            -         authorization.k8s.io/v1          cluster asked
CronJob                        cj        batch/v1                         all status generation
Job                            -         batch/v1                         all status generation
PodDisruptionBudget            pdb       policy/v1                        status generation
ClusterRoleBinding             -         rbac.authorization.k8s.io/v1     cluster
ClusterRole                    -         rbac.authorization.k8s.io/v1     cluster
RoleBinding                    -         rbac.authorization.k8s.io/v1
Role                           -         rbac.authorization.k8s.io/v1
CSIDriver                      -         storage.k8s.io/v1                cluster
CSINode                        -         storage.k8s.io/v1                cluster
CSIStorageCapacity             -         storage.k8s.io/v1
StorageClass                   sc        storage.k8s.io/v1                cluster
VolumeAttachment               -         storage.k8s.io/v1                cluster status
MutatingWebhookConfiguration   -         admissionregistration.k8s.io/v1  cluster api-extensions generation
ValidatingWebhookConfiguration -         admissionregistration.k8s.io/v1  cluster api-extensions generation
CustomResourceDefinition       crd,crds  apiextensions.k8s.io/v1          cluster api-extensions status generation
PriorityClass                  pc        scheduling.k8s.io/v1             cluster generation
Lease                          -         coordination.k8s.io/v1
RuntimeClass                   -         node.k8s.io/v1                   cluster
EndpointSlice                  -         discovery.k8s.io/v1              generation
DeviceClass                    -         resource.k8s.io/v1               cluster generation
DeviceTaintRule                -         resource.k8s.io/v1               cluster status generation
ResourceClaim                  -         resource.k8s.io/v1               status
ResourceClaimTemplate          -         resource.k8s.io/v1
ResourceSlice                  -         resource.k8s.io/v1               cluster generation
"""


def _fields(*names: str, **defaults: str) -> tuple[SelectableField, ...]:
    """Fields by their paths, with what the absence of some means."""
    return tuple(
        SelectableField(name, tuple(name.split(".")), defaults.get(name.replace(".", "_"), "")) for name in names
    )


_EVENT_PARTS = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_EVENT_FIELDS = _fields(
    "reason", "type", "source", *(f"involvedObject.{part}" for part in _EVENT_PARTS), "reportingComponent"
)
#: Whatever else some have, by the name of their collection.
_MORE: dict[str, dict[str, Any]] = {
    "endpoints": {"singular": "endpoints"},
    "events": {"type_name": "CoreV1Event", "selectable": _EVENT_FIELDS},
    "namespaces": {
        "verbs": tuple(verb for verb in READ_WRITE if verb != "deletecollection"),
        "subresources": (
            Subresource("finalize", "Namespace", ("update",)),
            Subresource("status", "Namespace", STATUS_VERBS),
        ),
        "selectable": _fields("status.phase"),
    },
    "nodes": {"selectable": _fields("spec.unschedulable", spec_unschedulable="false"), "status_on_create": True},
    "pods": {
        "subresources": (
            Subresource("binding", "Binding", ("create",)),
            Subresource("ephemeralcontainers", "Pod", STATUS_VERBS),
            Subresource("eviction", "Eviction", ("create",), "policy", "v1"),
            Subresource("log", "Pod", ("get",)),
            Subresource("resize", "Pod", STATUS_VERBS),
            Subresource("status", "Pod", STATUS_VERBS),
        ),
        "selectable": _fields(
            *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
            *("spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName"),
            spec_hostNetwork="false",
        ),
    },
    "replicationcontrollers": {"selectable": _fields("status.replicas", status_replicas="0")},
    "secrets": {"selectable": _fields("type")},
    "serviceaccounts": {
        "subresources": (Subresource("token", "TokenRequest", ("create",), "authentication.k8s.io", "v1"),)
    },
    "services": {"selectable": _fields("spec.clusterIP", "spec.type")},
    "events.events.k8s.io": {
        "type_name": "EventsV1Event",
        "selectable": _EVENT_FIELDS,
        "storage_name": "events",
        "to_storage": to_core_event,
        "from_storage": from_core_event,
    },
    "jobs.batch": {"selectable": _fields("status.successful", status_successful="0")},
    "devicetaintrules.resource.k8s.io": {"type_name": "V1beta2DeviceTaintRule"},
    "resourceclaims.resource.k8s.io": {"type_name": "ResourceV1ResourceClaim"},
    "resourceslices.resource.k8s.io": {"selectable": _fields("spec.nodeName", "spec.driver")},
}


def _plural(singular: str) -> str:
    """The plural as Kubernetes guesses it (`k8s.io/apimachinery/pkg/api/meta`, UnsafeGuessKindToResource)."""
    if singular.endswith("y"):
        return f"{singular[:-1]}ies"
    return singular if singular == "endpoints" else f"{singular}es" if singular.endswith("s") else f"{singular}s"


def _resource(row: str) -> ResourceType:
    kind, short_names, api_version, *words = row.split()
    plural = _plural(kind.lower())
    group, _, version = api_version.rpartition("/")
    described: dict[str, Any] = {
        "type_name": f"V1{kind}",
        "singular": kind.lower(),
        "short_names": () if short_names == "-" else tuple(short_names.split(",")),
        "categories": tuple(word for word in words if word in ("all", "api-extensions")),
        "subresources": (Subresource("status", kind, STATUS_VERBS),) if "status" in words else (),
        **({"verbs": ("create",), "stored": False} if "asked" in words else {}),
        **_MORE.get(f"{plural}.{group}" if group else plural, {}),
    }
    return ResourceType(
        group=group,
        version=version,
        plural=plural,
        kind=kind,
        namespaced="cluster" not in words,
        generation="generation" in words,
        returned_when_deleted="returned" in words,
        **described,
    )


#: Every built-in resource.
BUILTIN_RESOURCES = tuple(map(_resource, _TABLE.strip().splitlines()))
