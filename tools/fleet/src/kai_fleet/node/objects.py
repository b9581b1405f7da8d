"""The Node and Lease objects of a node, as a kubelet registers and renews them."""

from typing import Any

import msgspec

from kai_fleet.kubelet import Kubelet
from kai_fleet.kubelet.quantity import format_amount
from kai_fleet.node.pod_status import rfc3339, rfc3339_micro
from kai_fleet.profiles.nodes import NodeSpec

Json = dict[str, Any]

LEASE_NAMESPACE = "kube-node-lease"
#: What marks a node as one of a fleet.
MANAGED_BY = "simulator.kai.scheduler/fleet"

_encode = msgspec.json.Encoder().encode

_PRESSURES = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)


def node_object(spec: NodeSpec, kubelet: Kubelet, *, now: float) -> bytes:
    """The Node with which the kubelet registers."""
    return _encode(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": spec.name, **_marks(spec)},
            "spec": {
                "podCIDR": spec.pod_cidr,
                "podCIDRs": [spec.pod_cidr],
                "providerID": f"kai-fleet://{spec.name}",
                "taints": [taint.model_dump() for taint in spec.group.taints],
            },
            "status": _status(spec, kubelet, now=now, since=now),
        }
    )


def node_marks(spec: NodeSpec) -> bytes:
    """Patch for a Node that exists already: the kubelet's labels and annotations."""
    return _encode({"metadata": _marks(spec)})


def node_status(spec: NodeSpec, kubelet: Kubelet, *, now: float, since: float) -> bytes:
    """Patch of the node's whole status; the node is ready since `since`."""
    return _encode({"status": _status(spec, kubelet, now=now, since=since)})


def node_heartbeat(*, now: float, since: float) -> bytes:
    """Patch of the conditions' heartbeat times."""
    return _encode({"status": {"conditions": _conditions(now, since)}})


def lease_object(spec: NodeSpec, *, uid: str, now: float) -> bytes:
    """The node's Lease."""
    return _encode(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": spec.name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner(spec, uid)]},
            "spec": {
                "holderIdentity": spec.name,
                # `nodeLeaseDurationSeconds`, four times the default renewal period.
                "leaseDurationSeconds": max(1, round(4 * spec.group.timing.lease_period)),
                "renewTime": rfc3339_micro(now),
            },
        }
    )


def lease_renewal(now: float) -> bytes:
    """Merge patch that renews a Lease."""
    return b'{"spec":{"renewTime":"%b"}}' % rfc3339_micro(now).encode()


def owner(spec: NodeSpec, uid: str) -> Json:
    """Return an owner reference to the node."""
    return {"apiVersion": "v1", "kind": "Node", "name": spec.name, "uid": uid}


def _marks(spec: NodeSpec) -> Json:
    return {
        "labels": {**spec.labels},
        "annotations": {
            MANAGED_BY: spec.group.name,
            "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            **spec.group.annotations,
        },
    }


def _status(spec: NodeSpec, kubelet: Kubelet, *, now: float, since: float) -> Json:
    version = spec.group.kubelet.version
    return {
        "capacity": {resource: format_amount(resource, amount) for resource, amount in spec.capacity.items()},
        "allocatable": {r: format_amount(r, amount) for r, amount in kubelet.allocatable.items()},
        "conditions": _conditions(now, since),
        "addresses": [
            {"type": "InternalIP", "address": spec.internal_ip},
            {"type": "Hostname", "address": spec.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": f"boot-{spec.name}",
            "containerRuntimeVersion": "containerd://2.1.0",
            "kernelVersion": "6.12.0",
            "kubeProxyVersion": "",
            "kubeletVersion": version,
            "machineID": f"machine-{spec.name}",
            "operatingSystem": "linux",
            "osImage": "kai-fleet",
            "systemUUID": f"system-{spec.name}",
        },
    }


def _conditions(now: float, since: float) -> list[Json]:
    times = {"lastHeartbeatTime": rfc3339(now), "lastTransitionTime": rfc3339(since)}
    conditions: list[Json] = [
        {"type": kind, "status": "False", "reason": reason, "message": message, **times}
        for kind, reason, message in _PRESSURES
    ]
    conditions.append(
        {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
            **times,
        }
    )
    return conditions
