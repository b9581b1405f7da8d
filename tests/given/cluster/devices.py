"""Devices of a cluster, for tests: slices as drivers publish them, classes, claims, and pods that use them."""

from typing import Any

import msgspec
from kaicore.kube.normalize.device import (
    normalize_device_class,
    normalize_resource_claim,
    normalize_slice,
    normalize_taint_rule,
)
from kaicore.kube.wire.resources import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, TAINT_RULES
from kaicore.rules.events import payloads
from kaicore.rules.model.device import DeviceClass, DeviceTaintRule, PodClaim, ResourceClaim, ResourceSlice
from kaicore.rules.model.pod import Pod

from tests.given.cluster.factory import Cluster, pod

DRIVER = "gpu.example.com"
NUMA = "resource.kubernetes.io/numaNode"

Document = dict[str, Any]


def gpu(name: str, *, numa: int | list[int] | None = None, memory: str = "80Gi", **more: Any) -> Document:
    """A device of the shape in which GPU drivers publish theirs."""
    attributes: Document = {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "uuid": {"string": f"GPU-{name}"},
        "driverVersion": {"version": "580.65.6"},
        **more.pop("attributes", {}),
    }
    if numa is not None:
        attributes[NUMA] = {"ints": numa} if isinstance(numa, list) else {"int": numa}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}, **more}


def slice_document(node: str, *devices: Document, name: str = "", **spec: Any) -> Document:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1, **spec.pop("pool", {})}
    where = (
        {} if any(key in spec for key in ("allNodes", "nodeSelector", "perDeviceNodeSelection")) else {"nodeName": node}
    )
    return {
        "metadata": {"name": name or f"{node}-{DRIVER}", "uid": f"uid-{name or node}", "resourceVersion": "1"},
        "spec": {"driver": DRIVER, "pool": pool, **where, "devices": list(devices), **spec},
    }


def read_slice(document: Document, version: str = "v1") -> ResourceSlice:
    return normalize_slice(RESOURCE_SLICES.at(version).decode(msgspec.json.encode(document)))


def read_class(name: str, *selectors: str, version: str = "v1", **spec: Any) -> DeviceClass:
    document = {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {"selectors": [{"cel": {"expression": text}} for text in selectors], **spec},
    }
    return normalize_device_class(DEVICE_CLASSES.at(version).decode(msgspec.json.encode(document)))


def read_class_document(document: Document) -> DeviceClass:
    return normalize_device_class(DEVICE_CLASSES.at("v1").decode(msgspec.json.encode(document)))


def read_taint_rule(name: str = "broken", version: str = "v1", **spec: Any) -> DeviceTaintRule:
    taint = {"key": "example.com/broken", "effect": "NoSchedule", **spec.pop("taint", {})}
    document = {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {"deviceSelector": {}, "taint": taint, **spec},
    }
    return normalize_taint_rule(TAINT_RULES.at(version).decode(msgspec.json.encode(document)))


def exactly(name: str = "gpu", device_class: str = DRIVER, *selectors: str, **more: Any) -> Document:
    expressions = [{"cel": {"expression": text}} for text in selectors]
    return {"name": name, "exactly": {"deviceClassName": device_class, "selectors": expressions, **more}}


def claim_document(
    name: str, *requests: Document, owner: Pod | None = None, group: str = "", **devices: Any
) -> Document:
    metadata: Document = {"namespace": "default", "name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    if owner is not None:
        reference = {"apiVersion": "v1", "kind": "Pod", "name": owner.name, "uid": owner.uid, "controller": True}
        metadata["ownerReferences"] = [reference]
    if group:
        reference = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "name": group, "uid": f"u-{group}"}
        metadata["ownerReferences"] = [{**reference, "controller": True}]
    status = devices.pop("status", {})
    return {
        "metadata": metadata,
        "spec": {"devices": {"requests": list(requests) or [exactly()], **devices}},
        "status": status,
    }


def read_claim(document: Document, version: str = "v1") -> ResourceClaim:
    return normalize_resource_claim(RESOURCE_CLAIMS.at(version).decode(msgspec.json.encode(document)))


def devices(cluster: Cluster | None = None, **gpus: int) -> Cluster:
    """Nodes of 8 CPUs, by name with how many GPUs, and the class of these."""
    scene = cluster or Cluster()
    scene.record("deviceclass/gpu", payloads.DeviceClassObserved(read_class(DRIVER, f'device.driver == "{DRIVER}"')))
    for node, count in gpus.items():
        scene.add_node(node, cpu=8, memory=64)
        add_slice(scene, slice_document(node, *(gpu(f"gpu-{number}") for number in range(count))))
    return scene


def add_slice(cluster: Cluster, document: Document) -> None:
    seen = read_slice(document)
    cluster.record(f"resourceslice/{seen.name}", payloads.ResourceSliceObserved(seen))


def add_taint_rule(cluster: Cluster, name: str = "broken", **spec: Any) -> None:
    seen = read_taint_rule(name, **spec)
    cluster.record(f"devicetaintrule/{name}", payloads.DeviceTaintRuleObserved(seen))


def add_claim(cluster: Cluster, name: str, *requests: Document, **more: Any) -> ResourceClaim:
    """The watcher sees a claim."""
    seen = read_claim(claim_document(name, *requests, **more))
    cluster.record(f"resourceclaim/default/{name}", payloads.ResourceClaimObserved(seen))
    return seen


def using(cluster: Cluster, *claims: str, name: str = "p", cpu: int = 1, **more: Any) -> Pod:
    """The watcher sees a pod that uses claims that are there for any pod."""
    uses = tuple(PodClaim(claim, claim) for claim in claims)
    return cluster.add_pod(pod(name, cpu=cpu, resource_claims=uses, **more))


def from_template(cluster: Cluster, *requests: Document, name: str = "p", cpu: int = 1, **more: Any) -> Pod:
    """The watcher sees a pod with a claim that was made for it from a template."""
    one = pod(name, cpu=cpu, resource_claims=(PodClaim("gpu", f"{name}-gpu", "one-gpu"),), **more)
    add_claim(cluster, f"{name}-gpu", *requests, owner=one)
    return cluster.add_pod(one)
