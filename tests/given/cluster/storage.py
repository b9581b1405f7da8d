"""Storage of a cluster, for tests: nodes in zones, storage classes, claims, volumes, and pods that use them."""

from typing import Any

from kaicore.rules.events import payloads
from kaicore.rules.model.pod import ClaimUse, Pod
from kaicore.rules.model.selector import Requirement
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim, StorageClass

from tests.given.cluster.factory import Cluster, node, pod

ZONE = "topology.kubernetes.io/zone"


def storage(cluster: Cluster | None = None) -> Cluster:
    """Nodes a1, a2 and b1 in zones, x in none; storage classes that wait for a consumer, and one that does not."""
    scene = cluster or Cluster()
    for name, labels in {"a1": {ZONE: "a"}, "a2": {ZONE: "a"}, "b1": {ZONE: "b"}, "x": {}}.items():
        scene.record(f"node/{name}", payloads.NodeObserved(node(name, cpu=8, labels={**labels, "host": name})))
    only_b = ((Requirement(ZONE, "In", ("b",)),),)
    for storage_class in (
        StorageClass("u-late", "late", "1", "x.io", waits=True),
        StorageClass("u-now", "now", "1", "x.io"),
        StorageClass("u-zoned", "zoned", "1", "x.io", waits=True, topologies=only_b),
        StorageClass("u-local", "local", "1", "kubernetes.io/no-provisioner", waits=True),
    ):
        scene.record(f"sc/{storage_class.name}", payloads.StorageClassObserved(storage_class))
    return scene


def claim(cluster: Cluster, name: str = "c", *, storage_class: str = "late", **more: Any) -> None:
    wanted = PersistentVolumeClaim(f"u-{name}", "default", name, "1", storage_class=storage_class, **more)
    cluster.record(f"pvc/{name}", payloads.PersistentVolumeClaimObserved(wanted))


def volume(cluster: Cluster, name: str = "v", **more: Any) -> None:
    cluster.record(f"pv/{name}", payloads.PersistentVolumeObserved(PersistentVolume(f"u-{name}", name, "1", **more)))


def using(cluster: Cluster, *claims: str, name: str = "p", cpu: int = 1, **more: Any) -> Pod:
    return cluster.add_pod(pod(name, cpu=cpu, claims=tuple(ClaimUse(claim) for claim in claims), **more))
