"""Pods, nodes and zones of the model as Kubernetes objects for a model of kubelets (`kaicore.analysis.simulation`).

The log keeps only the fields that scheduling needs, so these objects contain no others. A pod's node selector,
affinity, ports and volumes are left out: its kubelet would judge them as the scheduler did.
"""

from kaicore.kube.workloads import Object
from kaicore.rules.model.node import Node, NodeTopology
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import Amounts, Container, ContainerKind, Pod
from kaicore.rules.model.quantity import canonical_quantity


def pod_object(pod: Pod, node: str) -> Object:
    """Return a pod that is bound to a node."""
    spec: Object = {
        "nodeName": node,
        "initContainers": [_container(one) for one in pod.containers if one.kind is not ContainerKind.APP],
        "containers": [_container(one) for one in pod.containers if one.kind is ContainerKind.APP],
    }
    if pod.overhead:
        spec["overhead"] = _quantities(pod.overhead)
    if pod.pod_resources is not None:
        spec["resources"] = {"requests": _quantities(pod.pod_resources), "limits": _quantities(pod.pod_resources)}
    metadata = {"uid": pod.uid, "namespace": pod.namespace, "name": pod.name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(container: Container) -> Object:
    resources = {"requests": _quantities(container.requests), "limits": _quantities(container.limits)}
    sidecar = {"restartPolicy": "Always"} if container.kind is ContainerKind.SIDECAR else {}
    return {"name": container.name, "resources": resources, **sidecar}


def node_object(node: Node) -> Object:
    """Return a node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "uid": node.uid, "labels": dict(node.labels)},
        "status": {"capacity": _quantities(node.capacity), "allocatable": _quantities(node.allocatable)},
    }


def topology_object(topology: NodeTopology) -> Object:
    """Return a node's NodeResourceTopology."""
    attributes = {
        "topologyManagerPolicy": topology.policy.value,
        "topologyManagerScope": topology.scope.value,
        **{_option(name): value for name, value in sorted(topology.options.items())},
    }
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": topology.node},
        "attributes": [{"name": name, "value": value} for name, value in attributes.items()],
        "zones": [
            {
                "name": zone.name,
                "type": "Node",
                "costs": [{"name": name, "value": cost} for name, cost in sorted(zone.costs.items())],
                "resources": [
                    {
                        "name": name,
                        "capacity": canonical_quantity(name, resource.capacity),
                        "allocatable": canonical_quantity(name, resource.allocatable),
                        "available": canonical_quantity(name, resource.allocatable),
                    }
                    for name, resource in sorted(zone.resources.items())
                ],
            }
            for zone in topology.zones
        ],
    }


def _option(name: str) -> str:
    """Return the attribute of a Topology Manager option: `topologyManagerOptionPreferClosestNumaNodes`."""
    return "topologyManagerOption" + "".join(word.capitalize() for word in name.split("-"))


def held_zones(placement: Placement | None) -> list[Object]:
    """Return what a placement is known to hold by zone."""
    if placement is None:
        return []
    return [{"zone": item.zone, "amount": dict(item.amount)} for item in placement.zone_amounts()]


def _quantities(amounts: Amounts) -> dict[str, str]:
    return {name: canonical_quantity(name, amounts[name]) for name in sorted(amounts)}
