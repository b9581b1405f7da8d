"""Read a JSON object as one of the built-in types: drop what the type does not have, and say what was dropped.

What comes out is what the real API server would hold in its Go struct and write back: unknown fields gone, nulls and
empty strings, lists and maps left out, quantities in canonical form, and the always-written fields filled in.

Each type is compiled once to a closure. The hot path is a dict lookup per field; paths are kept as linked tuples and
only spelled out when something is wrong.

Fields that the real API server always writes out, and empty values that it keeps.

Its types are Go structs: a field without `omitempty`, and a struct by value, are on the wire even when they were not
set. Clients see the difference (`status: {}`, `lastProbeTime: null`), so this server writes the same.

Lists of the built-in types that merge element by element, and their keys.

A strategic merge patch and a server-side apply read the same table; what is not in it is replaced as a whole.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

from kai_fleet.kubelet.quantity import canonical
from kaicore.kube.wire.builtin_fields import TYPES

from kai_apiserver.objects import Object, micro_timestamp, parse_time, timestamp

_WITH_CONDITIONS = (
    *("CustomResourceDefinition", "DaemonSet", "Deployment", "Job", "Namespace", "Node", "PersistentVolumeClaim"),
    *("Pod", "PodDisruptionBudget", "ReplicaSet", "Service", "StatefulSet"),
)

#: `Type.field` of a list of objects to the keys that identify an element; the first is the patch merge key.
MERGE_KEYS: dict[str, tuple[str, ...]] = {
    **{f"V1{kind}Status.conditions": ("type",) for kind in _WITH_CONDITIONS},
    **{
        f"V1{kind}.{field}": keys
        for kind in ("Container", "EphemeralContainer")
        for field, keys in {
            "env": ("name",),
            "ports": ("containerPort", "protocol"),
            "volumeDevices": ("devicePath",),
            "volumeMounts": ("mountPath",),
        }.items()
    },
    "V1CSINodeSpec.drivers": ("name",),
    "V1NodeStatus.addresses": ("type",),
    "V1ObjectMeta.ownerReferences": ("uid",),
    "V1PodSpec.containers": ("name",),
    "V1PodSpec.ephemeralContainers": ("name",),
    "V1PodSpec.hostAliases": ("ip",),
    "V1PodSpec.imagePullSecrets": ("name",),
    "V1PodSpec.initContainers": ("name",),
    "V1PodSpec.resourceClaims": ("name",),
    "V1PodSpec.schedulingGates": ("name",),
    "V1PodSpec.topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "V1PodSpec.volumes": ("name",),
    "V1PodStatus.hostIPs": ("ip",),
    "V1PodStatus.podIPs": ("ip",),
    "V1PodStatus.resourceClaimStatuses": ("name",),
    "V1ResourceRequirements.claims": ("name",),
    "V1ServiceAccount.secrets": ("name",),
    "V1ServiceAccount.imagePullSecrets": ("name",),
    "V1ServiceSpec.ports": ("port", "protocol"),
}

#: Lists merged by key in server-side apply only: a strategic merge patch replaces them.
APPLY_ONLY_KEYS: dict[str, tuple[str, ...]] = {
    "V1NodeSpec.taints": ("key", "effect"),
}

#: `Type.field` of lists of scalars that behave as sets.
SETS = frozenset({"V1ObjectMeta.finalizers", "V1NodeSpec.podCIDRs"})

#: Types with values that server-side apply takes as a whole, and such maps.
ATOMIC = frozenset(
    {
        "V1ConfigMapKeySelector",
        "V1LabelSelector",
        "V1LocalObjectReference",
        "V1NodeSelector",
        "V1NodeSelectorTerm",
        "V1ObjectFieldSelector",
        "V1ObjectReference",
        "V1PodSpec.nodeSelector",
        "V1ReplicationControllerSpec.selector",
        "V1ResourceFieldSelector",
        "V1SecretKeySelector",
        "V1ServiceSpec.selector",
        "V1TypedLocalObjectReference",
    }
)

#: Elements may leave these out of their key; then this stands in.
KEY_DEFAULTS = {"protocol": "TCP"}


def patch_merge_key(path: str) -> str | None:
    """The strategic merge key of the list at `Type.field`, or None if patches replace it."""
    keys = MERGE_KEYS.get(path)
    return keys[0] if keys else None


def apply_keys(path: str) -> tuple[str, ...] | None:
    """The keys by which server-side apply tells the list's elements apart, or None if it is atomic."""
    return MERGE_KEYS.get(path) or APPLY_ONLY_KEYS.get(path)


_NODE_INFO = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)
_NO_DISRUPTIONS = {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}

#: Per type, the fields that are never left out, with what stands there when they were not set.
ZERO_VALUES: dict[str, dict[str, Any]] = {
    "CoreV1Event": {
        "involvedObject": {},
        "source": {},
        "firstTimestamp": None,
        "lastTimestamp": None,
        "eventTime": None,
        "reportingComponent": "",
        "reportingInstance": "",
    },
    "V1Binding": {"target": {}},
    "V1Container": {"resources": {}},
    "V1ContainerStateRunning": {"startedAt": None},
    "V1ContainerStateTerminated": {"exitCode": 0, "startedAt": None, "finishedAt": None},
    "V1ContainerStatus": {
        "state": {},
        "lastState": {},
        "ready": False,
        "restartCount": 0,
        "image": "",
        "imageID": "",
    },
    "V1ClusterRole": {"rules": None},
    "V1CronJob": {"spec": {}, "status": {}},
    "V1CustomResourceDefinition": {
        "status": {"conditions": None, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": None}
    },
    "V1CustomResourceDefinitionNames": {"plural": "", "kind": ""},
    "V1CustomResourceDefinitionStatus": {
        "conditions": None,
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": None,
    },
    "V1DaemonSet": {
        "spec": {},
        "status": {
            "currentNumberScheduled": 0,
            "numberMisscheduled": 0,
            "desiredNumberScheduled": 0,
            "numberReady": 0,
        },
    },
    "V1Deployment": {"spec": {}, "status": {}},
    "V1DeploymentCondition": {"lastUpdateTime": None, "lastTransitionTime": None},
    "V1EphemeralContainer": {"resources": {}},
    "V1Job": {"spec": {}, "status": {}},
    "V1JobCondition": {"lastProbeTime": None, "lastTransitionTime": None},
    "V1Lease": {"spec": {}},
    "V1Namespace": {"spec": {}, "status": {}},
    "V1Node": {
        "spec": {},
        "status": {
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
            "nodeInfo": dict.fromkeys(_NODE_INFO, ""),
        },
    },
    "V1NodeCondition": {"lastHeartbeatTime": None, "lastTransitionTime": None},
    "V1NodeDaemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
    "V1NodeStatus": {
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
        "nodeInfo": dict.fromkeys(_NODE_INFO, ""),
    },
    "V1NodeSystemInfo": dict.fromkeys(_NODE_INFO, ""),
    "V1PersistentVolume": {"spec": {}, "status": {}},
    "V1PersistentVolumeClaim": {"spec": {}, "status": {}},
    "V1PersistentVolumeClaimSpec": {"resources": {}},
    "V1Pod": {"spec": {}, "status": {}},
    "V1PodCondition": {"lastProbeTime": None, "lastTransitionTime": None},
    "V1PodDisruptionBudget": {"spec": {}, "status": dict(_NO_DISRUPTIONS)},
    "V1PodDisruptionBudgetStatus": dict(_NO_DISRUPTIONS),
    "V1PodTemplateSpec": {"metadata": {}, "spec": {"containers": None}},
    "V1PriorityClass": {"value": 0},
    "V1ReplicaSet": {"spec": {}, "status": {"replicas": 0}},
    "V1ReplicaSetStatus": {"replicas": 0},
    "V1ReplicationController": {"spec": {}, "status": {"replicas": 0}},
    "V1ResourceQuota": {"spec": {}, "status": {}},
    "V1Role": {"rules": None},
    "V1Service": {"spec": {}, "status": {"loadBalancer": {}}},
    "V1ServiceStatus": {"loadBalancer": {}},
    "V1StatefulSet": {"spec": {}, "status": {"replicas": 0}},
    "V1StatefulSetStatus": {"replicas": 0},
}

#: `Type.field` with an empty value that differs from its absence.
KEPT_EMPTY = frozenset(
    {
        "V1HostPathVolumeSource.type",
        "V1LeaseSpec.holderIdentity",
        "V1PersistentVolumeClaimSpec.storageClassName",
        "V1PodAffinityTerm.namespaces",
        "V1PolicyRule.resourceNames",
        "V1ValidationRule.rule",
    }
)

#: Booleans by value: false and absent are the same, and written as absent.
FALSE_IS_ABSENT = frozenset(
    {
        "V1Container.stdin",
        "V1Container.stdinOnce",
        "V1Container.tty",
        "V1DeploymentSpec.paused",
        "V1NodeSpec.unschedulable",
        "V1PodSpec.hostIPC",
        "V1PodSpec.hostNetwork",
        "V1PodSpec.hostPID",
        "V1PriorityClass.globalDefault",
        "V1VolumeMount.readOnly",
    }
)


_Path = tuple[Any, ...] | None  # (parent, segment)
_Decode = Callable[[Any, _Path, list[str]], Any]

_GO_KIND = {dict: "object", list: "array", str: "string", int: "number", float: "number", bool: "bool"}


class Mismatch(ValueError):
    """A value is of the wrong kind; the message is what the API server would say."""


def decode(type_name: str, value: Any) -> tuple[Object, list[str]]:
    """Read `value` as the type `type_name`. Raises Mismatch: a field holds a value of the wrong kind.

    Returns:
        the object, and the paths of the fields that the type does not have, such as `spec.nonsense`.
    """
    unknown: list[str] = []
    decoded: Object = _compiled(type_name)(value, None, unknown)
    return decoded, unknown


def spell(path: _Path) -> str:
    """A linked path as `spec.containers[0].name`."""
    parts: list[str] = []
    while path is not None:
        parent, segment = path
        if isinstance(segment, int):
            parts.append(f"[{segment}]")
        else:
            parts.append(f".{segment}" if parent is not None else segment)
        path = parent
    return "".join(reversed(parts))


def _wrong(value: Any, path: _Path, wanted: str) -> Mismatch:
    return Mismatch(
        f"json: cannot unmarshal {_GO_KIND.get(type(value), 'value')} into Go struct field {spell(path)} of type "
        f"{wanted}"
    )


@cache
def _compiled(notation: str) -> _Decode:
    if notation.startswith("[]"):
        return _list_of(notation[2:])
    if notation.startswith("{}"):
        return _map_of(notation[2:])
    scalar = _SCALAR_DECODERS.get(notation)
    return scalar if scalar is not None else _struct(notation)


def _lazily(notation: str) -> _Decode:
    """The decoder for `notation`, compiled on first use: types may contain themselves."""
    scalar = _SCALAR_DECODERS.get(notation)
    if scalar is not None:
        return scalar

    def decoder(value: Any, path: _Path, unknown: list[str]) -> Any:
        return _compiled(notation)(value, path, unknown)

    return decoder


def _struct(name: str) -> _Decode:
    described = TYPES[name]
    zeros = ZERO_VALUES.get(name, {})
    scalar_zeros = {field: zero for field, zero in zeros.items() if not isinstance(zero, dict)}
    nested_zeros = {field: zero for field, zero in zeros.items() if isinstance(zero, dict)}
    decoders = {field: _lazily(notation) for field, notation in described.fields.items()}
    droppable = frozenset(
        field
        for field, notation in described.fields.items()
        if (notation in ("string", "time") or notation[:2] in ("[]", "{}"))
        and field not in described.required
        and f"{name}.{field}" not in KEPT_EMPTY
    )
    false_dropped = frozenset(field for field in described.fields if f"{name}.{field}" in FALSE_IS_ABSENT)

    def decoder(value: Any, path: _Path, unknown: list[str]) -> Any:
        if type(value) is not dict:
            raise _wrong(value, path, name)
        out: Object = {}
        for field, given in value.items():
            read = decoders.get(field)
            if read is None:
                unknown.append(spell((path, field)))
                continue
            if given is None:
                continue
            result = read(given, (path, field), unknown)
            if not result and (field in droppable or (field in false_dropped and result is False)):
                continue
            out[field] = result
        for field, zero in scalar_zeros.items():
            if field not in out:
                out[field] = zero
        for field, zero in nested_zeros.items():
            if field not in out:
                out[field] = deepcopy(zero)
        return out

    return decoder


def _list_of(notation: str) -> _Decode:
    read = _lazily(notation)

    def decoder(value: Any, path: _Path, unknown: list[str]) -> Any:
        if type(value) is not list:
            raise _wrong(value, path, f"[]{notation}")
        return [read(item, (path, index), unknown) for index, item in enumerate(value)]

    return decoder


def _map_of(notation: str) -> _Decode:
    read = _lazily(notation)

    def decoder(value: Any, path: _Path, unknown: list[str]) -> Any:
        if type(value) is not dict:
            raise _wrong(value, path, f"map[string]{notation}")
        return {
            key: read("" if item is None and notation == "string" else item, (path, key), unknown)
            for key, item in value.items()
        }

    return decoder


def _string(value: Any, path: _Path, _: list[str]) -> Any:
    if type(value) is not str:
        raise _wrong(value, path, "string")
    return value


def _integer(value: Any, path: _Path, _: list[str]) -> Any:
    if type(value) is not int:
        raise _wrong(value, path, "int64")
    return value


def _boolean(value: Any, path: _Path, _: list[str]) -> Any:
    if type(value) is not bool:
        raise _wrong(value, path, "bool")
    return value


def _number(value: Any, path: _Path, _: list[str]) -> Any:
    if type(value) not in (int, float):
        raise _wrong(value, path, "float64")
    return value


def _quantity(value: Any, path: _Path, _: list[str]) -> Any:
    if type(value) not in (str, int, float):
        raise _wrong(value, path, "resource.Quantity")
    try:
        return canonical(str(value))
    except ValueError as error:
        raise Mismatch(str(error)) from error


def _time(value: Any, path: _Path, _: list[str]) -> Any:
    if type(value) is str and (not value or (len(value) == 20 and value[19] == "Z" and value[10] == "T")):
        return value
    return timestamp(_moment(value, path))


def _micro_time(value: Any, path: _Path, _: list[str]) -> Any:
    if type(value) is str and len(value) == 27 and value[26] == "Z" and value[10] == "T":
        return value
    return micro_timestamp(_moment(value, path))


def _moment(value: Any, path: _Path) -> Any:
    if type(value) is not str:
        raise _wrong(value, path, "v1.Time")
    try:
        return parse_time(value)
    except ValueError:
        raise Mismatch(f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse "{value}"') from None


def _any(value: Any, _: _Path, __: list[str]) -> Any:
    return value


_SCALAR_DECODERS: dict[str, _Decode] = {
    "string": _string,
    "integer": _integer,
    "boolean": _boolean,
    "number": _number,
    "quantity": _quantity,
    "time": _time,
    "microtime": _micro_time,
    "any": _any,
}
