"""Kubernetes objects as an API server sends them, for tests, in few words."""

from typing import Any

import msgspec

Wire = dict[str, Any]


def metadata(name: str, *, namespace: str = "", uid: str = "", version: str = "1", **more: Any) -> Wire:
    """An object's metadata; the uid is made of the name."""
    named: Wire = {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": version, **more}
    return named | ({"namespace": namespace} if namespace else {})


def pod(name: str = "p", *, namespace: str = "default", status: Wire | None = None, **spec: Any) -> Wire:
    """A pod with one container, unless `spec` has others; keywords of `metadata` go there."""
    about = {
        key: spec.pop(key) for key in ("uid", "version", "labels", "annotations", "ownerReferences") if key in spec
    }
    given: Wire = {
        "schedulerName": "kai-ledger",
        "containers": [{"name": "main", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}],
        **spec,
    }
    return {
        "metadata": metadata(name, namespace=namespace, **about),
        "spec": given,
        "status": {"phase": "Pending", **(status or {})},
    }


def node(name: str = "n1", *, ready: bool = True, allocatable: Wire | None = None, **more: Any) -> Wire:
    """A node; keywords of `metadata` go there."""
    about = {key: more.pop(key) for key in ("uid", "version", "labels") if key in more}
    held = allocatable or {"cpu": "8", "memory": "32Gi", "pods": "110"}
    return {
        "metadata": metadata(name, **about),
        "spec": more.pop("spec", {}),
        "status": {
            "allocatable": held,
            "capacity": held,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            **more,
        },
    }


def zone(number: int, *, cpu: str = "4", memory: str = "16Gi", free_cpu: str = "", **more: Any) -> Wire:
    """A NUMA zone with CPUs and memory all free, or only some CPUs."""
    resources = [
        {"name": name, "capacity": amount, "allocatable": amount, "available": free}
        for name, amount, free in (("cpu", cpu, free_cpu or cpu), ("memory", memory, memory))
    ]
    costs = [{"name": f"node-{number}", "value": 10}]
    return {"name": f"node-{number}", "type": "Node", "resources": resources, "costs": costs, **more}


def topology(name: str = "n1", *, zones: list[Wire] | None = None, **more: Any) -> Wire:
    """A NodeResourceTopology of two zones under `single-numa-node`; keywords of `metadata` go there."""
    about = {key: more.pop(key) for key in ("uid", "version", "annotations") if key in more}
    attributes = [
        {"name": "topologyManagerPolicy", "value": "single-numa-node"},
        {"name": "topologyManagerScope", "value": "container"},
    ]
    document = {"metadata": metadata(name, **about), "attributes": attributes, **more}
    return document | {"zones": [zone(0), zone(1)] if zones is None else zones}


def encode(document: Wire) -> bytes:
    """An object's bytes."""
    return msgspec.json.encode(document)
