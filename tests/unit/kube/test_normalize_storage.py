"""Volumes, claims, storage classes, namespaces and disruption budgets from the wire into the model."""

from typing import Any

import pytest
from kaicore.errors import InvalidObject
from kaicore.kube.normalize.storage import (
    DEFAULT_TOLERATIONS,
    normalize_budget,
    normalize_claim,
    normalize_namespace,
    normalize_storage_class,
    normalize_volume,
)
from kaicore.kube.wire.resources import BUDGETS, CLAIMS, NAMESPACES, STORAGE_CLASSES, VOLUMES
from kaicore.rules.model.pod import Namespace, PodDisruptionBudget, Toleration
from kaicore.rules.model.selector import PodSelector, Requirement
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim, StorageClass

from tests.given.cluster import wire

GI = 2**30


def encoded(name: str, *, namespace: str = "", annotations: Any = None, labels: Any = None, **body: Any) -> bytes:
    metadata = wire.metadata(name, namespace=namespace, annotations=annotations, labels=labels)
    return wire.encode({"metadata": metadata, **body})


def test_claim_is_normalized() -> None:
    spec = {
        "accessModes": ["ReadWriteOncePod"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    waiting = normalize_claim(CLAIMS.decode(encoded("c", namespace="ml", spec=spec, status={"phase": "Pending"})))
    assert waiting == PersistentVolumeClaim(
        "uid-c", "ml", "c", "1", storage_class="fast", access_modes=("ReadWriteOncePod",), request=GI
    )
    annotations = {"pv.kubernetes.io/bind-completed": "yes", "volume.kubernetes.io/selected-node": "n1"}
    bound = normalize_claim(
        CLAIMS.decode(encoded("c", namespace="ml", annotations=annotations, spec={**spec, "volumeName": "v"}))
    )
    assert (bound.volume, bound.bound, bound.selected_node) == ("v", True, "n1")
    picky = {**spec, "volumeMode": "Block", "selector": {"matchLabels": {"disk": "nvme"}}}
    claim = normalize_claim(CLAIMS.decode(encoded("c", namespace="ml", spec=picky)))
    assert (claim.volume_mode, claim.selector) == ("Block", (Requirement("disk", "In", ("nvme",)),))
    half = normalize_claim(CLAIMS.decode(encoded("c", namespace="ml", spec={**spec, "volumeName": "v"})))
    assert (half.volume, half.bound) == ("v", False)


def test_volume_is_normalized() -> None:
    term = {"matchExpressions": [{"key": "host", "operator": "In", "values": ["n1"]}]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "claimRef": {"namespace": "ml", "name": "c", "uid": "uid-c"},
        "volumeMode": "Block",
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    labels = {"topology.kubernetes.io/zone": "a__b", "other": "x"}
    assert normalize_volume(VOLUMES.decode(encoded("v", labels=labels, spec=spec, status={"phase": "Bound"}))) == (
        PersistentVolume(
            "uid-v",
            "v",
            "1",
            storage_class="local",
            claimed=True,
            claim="ml/c",
            claim_uid="uid-c",
            phase="Bound",
            capacity=GI,
            access_modes=("ReadWriteOnce",),
            node_affinity=((Requirement("host", "In", ("n1",)),),),
            zones={"topology.kubernetes.io/zone": "a__b"},
            volume_mode="Block",
            labels=labels,
        )
    )
    nowhere = {"nodeAffinity": {"required": {"nodeSelectorTerms": []}}}
    assert normalize_volume(VOLUMES.decode(encoded("v", spec=nowhere))).node_affinity == ((),)


def test_storage_class_is_normalized() -> None:
    topologies = [{"matchLabelExpressions": [{"key": "zone", "values": ["b", "a"]}]}]
    document = encoded(
        "fast", provisioner="x.io", volumeBindingMode="WaitForFirstConsumer", allowedTopologies=topologies
    )
    assert normalize_storage_class(STORAGE_CLASSES.decode(document)) == StorageClass(
        "uid-fast", "fast", "1", "x.io", waits=True, topologies=((Requirement("zone", "In", ("a", "b")),),)
    )
    assert not normalize_storage_class(STORAGE_CLASSES.decode(encoded("slow", provisioner="x.io"))).waits


def test_namespace_and_budget_are_normalized() -> None:
    namespace = normalize_namespace(NAMESPACES.decode(encoded("ml", labels={"team": "x"}, spec={})))
    assert namespace == Namespace("uid-ml", "ml", "1", {"team": "x"})
    tolerations = '[{"key": "gpu", "operator": "Exists", "tolerationSeconds": 5}]'
    tolerant = encoded("ml", annotations={DEFAULT_TOLERATIONS: tolerations})
    assert normalize_namespace(NAMESPACES.decode(tolerant)).default_tolerations == (Toleration("gpu", "Exists"),)
    lost: list[InvalidObject] = []
    malformed = encoded("ml", labels={"team": "x"}, annotations={DEFAULT_TOLERATIONS: "gpu"})
    assert normalize_namespace(NAMESPACES.decode(malformed), lost.append) == namespace
    assert "is no list of tolerations" in str(*lost)
    status = {"disruptionsAllowed": 2, "disruptedPods": {"p1": "2026-01-01T00:00:00Z"}, "currentHealthy": 7}
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}
    assert normalize_budget(BUDGETS.decode(encoded("b", namespace="ml", spec=spec, status=status))) == (
        PodDisruptionBudget(
            "uid-b",
            "ml",
            "b",
            "1",
            PodSelector(("ml",), None, (Requirement("app", "In", ("x",)),)),
            disruptions_allowed=2,
            disrupted=("p1",),
        )
    )
    none = normalize_budget(BUDGETS.decode(encoded("b", namespace="ml", spec={"selector": {}})))
    assert none.selector.labels == (), "an empty selector selects all"


@pytest.mark.parametrize(
    ("policy", "healthy", "desired", "frees"),
    [
        (None, 2, 2, True),
        ("IfHealthyBudget", 1, 2, False),
        ("IfHealthyBudget", 0, 0, False),
        ("AlwaysAllow", 0, 2, True),
        ("OfALaterKubernetes", 1, 2, False),
    ],
)
def test_budget_frees_unready_pods_as_the_eviction_api_does(
    policy: str | None, healthy: int, desired: int, frees: bool
) -> None:
    spec = {"selector": {}} | ({"unhealthyPodEvictionPolicy": policy} if policy else {})
    status = {"disruptionsAllowed": 0, "currentHealthy": healthy, "desiredHealthy": desired}
    document = encoded("b", namespace="ml", spec=spec, status=status)
    assert normalize_budget(BUDGETS.decode(document)).frees_unready is frees
