"""Ordinary constraints and volumes in a simulation of manifests."""

from pathlib import Path

from tests.given.logs.simulating import document_of, world_of

NODES = """
apiVersion: v1
kind: Node
metadata: {name: a, labels: {topology.kubernetes.io/zone: a}}
status: {allocatable: {cpu: 8, memory: 8Gi}}
---
apiVersion: v1
kind: Node
metadata: {name: b, labels: {topology.kubernetes.io/zone: b}}
status: {allocatable: {cpu: 8, memory: 8Gi}}
---
"""

STORAGE = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: zoned, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: x.io
volumeBindingMode: WaitForFirstConsumer
allowedTopologies: [{matchLabelExpressions: [{key: topology.kubernetes.io/zone, values: [b]}]}]
---
"""

STATEFUL_SET = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 1}}}]}
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
"""

SPREAD = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: front}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: topology.kubernetes.io/zone
          whenUnsatisfiable: DoNotSchedule
          labelSelector: {matchLabels: {app: web}}
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - topologyKey: topology.kubernetes.io/zone
              labelSelector: {matchLabels: {app: db}}
              namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
      containers: [{name: c, image: i, resources: {requests: {cpu: 1}}}]
---
"""


def test_spread_and_volumes_of_plain_manifests_are_kept(tmp_path: Path) -> None:
    pods = document_of(world_of(NODES + STORAGE + STATEFUL_SET, tmp_path))["pods"]
    assert [pod["node"] for pod in pods] == ["b", "b"], "where the claims' class provisions"
    pods = document_of(world_of(NODES + SPREAD, tmp_path))["pods"]
    assert sorted(pod["node"] for pod in pods) == ["a", "a", "b", "b"]


def test_pods_that_must_be_together_wait_with_reasons(tmp_path: Path) -> None:
    pods = document_of(world_of(NODES + STORAGE + STATEFUL_SET + SPREAD, tmp_path))["pods"]
    placed = [pod["node"] for pod in pods if pod["namespace"] == "front"]
    assert sorted(node or "" for node in placed) == ["", "", "", "a"]
    waiting = next(pod for pod in pods if not pod["node"])
    assert {reason["code"] for reason in waiting["reasons"]} == {
        "TopologySpread",
        "PodAntiAffinity",
        "NoOtherPlaceForThem",
        "FitsAfter",
    }


LOCAL = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: zoned, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk-of-b}
spec:
  storageClassName: zoned
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  nodeAffinity:
    required: {nodeSelectorTerms: [{matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [b]}]}]}
---
"""


def test_local_volume_is_given_to_one_of_two_pods(tmp_path: Path) -> None:
    pods = document_of(world_of(NODES + LOCAL + STATEFUL_SET, tmp_path))["pods"]
    assert [pod["node"] for pod in pods] == ["b", None]
    messages = [reason["message"] for reason in pods[1]["reasons"]]
    assert "2 nodes for which no fitting volume of storage class zoned is left (such as a)" in messages


def test_claim_that_is_bound_in_the_manifest_keeps_its_volume(tmp_path: Path) -> None:
    bound = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data-db-0}
spec: {storageClassName: zoned, accessModes: [ReadWriteOnce], volumeName: disk-of-b}
status: {phase: Bound}
---
"""
    taken = LOCAL.replace("spec:\n", "spec:\n  claimRef: {namespace: default, name: data-db-0}\n")
    pods = document_of(world_of(NODES + taken + bound + STATEFUL_SET, tmp_path))["pods"]
    assert [pod["node"] for pod in pods] == ["b", None]


def test_a_claim_that_does_not_exist_makes_its_pod_wait(tmp_path: Path) -> None:
    lonely = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: c, image: i}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
"""
    (pod,) = document_of(world_of(NODES + lonely, tmp_path))["pods"]
    (reason,) = pod["reasons"]
    assert reason["message"] == "waits for its volumes: claim data does not exist"
