"""Junk in any field of any kind is named, or does no harm."""

from typing import Any

import msgspec
import pytest
from kaicore.errors import InvalidObject
from kaicore.kube.kinds.table import GROUP_KINDS
from kaicore.rules.groups.membership import membership
from kaicore.rules.model.group import leaves, min_pods, satisfied

from tests.given.work.groups import documents, read_pod, source_of
from tests.given.work.spoiling import places, spoiled

JUNK: list[Any] = ["9" * 5000, None, -1, 0, 2**31, 2**70, -(10**30), 1.5, "", "junk", "\u0000", True]
JUNK += [[], {}, [None], [{}], {"": None}]

OBJECTS = """
apiVersion: scheduling.run.ai/v2alpha2
kind: PodGroup
metadata: {name: g, labels: {priorityClassName: p}, annotations: {kai.scheduler/preemption-delay: 5s}}
spec:
  queue: q
  priorityClassName: p
  preemptibility: preemptible
  stalenessGracePeriod: 60s
  markUnschedulable: true
  schedulingBackoff: 1
  minSubGroup: 1
  topologyConstraint: {topology: t, requiredTopologyLevel: l}
  subGroups: [{name: a, minSubGroup: 1}, {name: b, parent: a, minMember: 2, topologyConstraint: {topology: t}}]
---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata:
  name: g
  annotations:
    gang.scheduling.koordinator.sh/groups: '["a/b"]'
    gang.scheduling.koordinator.sh/match-policy: only-waiting
spec: {minMember: 2, scheduleTimeoutSeconds: 60}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: g, annotations: {volcano.sh/preemptable: "true"}}
spec:
  minMember: 3
  minTaskMember: {a: 1}
  queue: q
  networkTopology: {mode: hard}
  subGroupPolicy:
    - name: p
      subGroupSize: 2
      minSubGroups: 1
      matchLabelKeys: [k]
      labelSelector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}
---
apiVersion: scheduling.k8s.io/v1alpha3
kind: PodGroup
metadata: {name: g}
spec:
  schedulingPolicy: {gang: {minCount: 2}}
  schedulingConstraints: {topology: [{key: k}]}
  disruptionMode: {all: {}}
  priority: 7
---
apiVersion: scheduling.k8s.io/v1alpha3
kind: CompositePodGroup
metadata: {name: g}
spec:
  parentCompositePodGroupName: h
  workloadRef: {workloadName: w, templateName: t}
  schedulingPolicy: {gang: {minGroupCount: 2}}
  schedulingConstraints: {topology: [{key: k}]}
---
apiVersion: scheduler.grove.io/v1alpha1
kind: PodGang
metadata: {name: g, annotations: {grove.io/topology-name: t}}
spec:
  podgroups: [{name: a, minReplicas: 2, topologyConstraint: {packConstraint: {required: k}}}]
  topologyConstraint: {packConstraint: {preferred: k}}
  topologyConstraintGroupConfigs: [{name: c, podGroupNames: [a]}]
---
apiVersion: scheduling.k8s.io/v1alpha1
kind: Workload
metadata: {name: g}
spec: {podGroups: [{name: a, policy: {gang: {minCount: 2}}}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: g, annotations: {kai.scheduler/batch-min-member: "2"}}
spec:
  parallelism: 4
  completions: 4
  completionMode: Indexed
  template:
    metadata:
      annotations:
        kueue.x-k8s.io/podset-preferred-topology: block
        kueue.x-k8s.io/podset-slice-required-topology-constraints: '[{"topology": "rack", "size": 2}]'
        kueue.x-k8s.io/pod-index-offset: "1"
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: g, annotations: {volcano.sh/preemptable: "true"}}
spec:
  minAvailable: 3
  queue: q
  priorityClassName: p
  policies: [{event: PodEvicted, events: [PodFailed], action: RestartJob}]
  networkTopology: {mode: hard, highestTierAllowed: 1, highestTierName: t}
  tasks:
    - name: a
      replicas: 3
      minAvailable: 2
      policies: [{event: "*", action: RestartTask}]
    - name: b
      replicas: 4
      partitionPolicy:
        totalPartitions: 2
        partitionSize: 2
        minPartitions: 1
        networkTopology: {mode: soft, highestTierAllowed: 2}
---
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperJob
metadata: {name: g}
spec:
  minAvailable: 2
  networkTopology: [{mode: hard, highestTierAllowed: 2}]
  replicatedJobs: [{name: a, replicas: 2, template: {networkTopology: {mode: hard}, tasks: [{name: w, replicas: 2}]}}]
---
apiVersion: training.volcano.sh/v1alpha1
kind: HyperJob
metadata: {name: g}
spec: {replicatedJobs: [{name: a, templateSpec: {minAvailable: 1, queue: q, tasks: [{replicas: 2}]}}]}
---
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: g}
spec:
  startupPolicy: {startupPolicyOrder: AnyOrder}
  replicatedJobs:
    - name: a
      replicas: 2
      template: {spec: {parallelism: 2, template: {metadata: {annotations: {kueue.x-k8s.io/podset-slice-size: "2"}}}}}
    - {name: b, dependsOn: [{name: a}], template: {spec: {}}}
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: g}
spec:
  runPolicy: {schedulingPolicy: {minAvailable: 2, queue: q, priorityClass: p}}
  elasticPolicy: {minReplicas: 1}
  pytorchReplicaSpecs:
    Master:
      template: &near
        metadata: {annotations: {kueue.x-k8s.io/podset-required-topology: r, kueue.x-k8s.io/podset-group-name: g}}
    Worker: {replicas: 2, template: *near}
---
apiVersion: scheduler.grove.io/v1alpha1
kind: PodGang
metadata: {name: g, annotations: {grove.io/topology-name: t}}
spec:
  podgroups:
    - {name: a, minReplicas: 2, topologyConstraint: {packConstraint: {required: r, preferred: p}}}
    - {name: b, minReplicas: 1}
  topologyConstraint: {packConstraint: {required: r}}
  topologyConstraintGroupConfigs: [{name: p-0, podGroupNames: [b], topologyConstraint: {packConstraint: {required: r}}}]
  priorityClassName: p
---
apiVersion: kubeflow.org/v1
kind: MPIJob
metadata: {name: g}
spec: {launcherCreationPolicy: WaitForWorkersReady, mpiReplicaSpecs: {Launcher: {}, Worker: {replicas: 2}}}
---
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: g}
spec: {workerGroupSpecs: [{groupName: a, replicas: 2, minReplicas: 1, numOfHosts: 2, suspend: false}]}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: Workload
metadata: {name: g, ownerReferences: [{apiVersion: batch/v1, kind: Job, name: g, uid: u, controller: true}]}
spec: {maximumExecutionTimeSeconds: 60}
---
apiVersion: ray.io/v1
kind: RayJob
metadata: {name: g}
spec:
  rayClusterSpec:
    headGroupSpec: {template: {metadata: {annotations: {volcano.sh/network-topology-mode: soft}}}}
    workerGroupSpecs: [{groupName: a, replicas: 2, template: {metadata: {annotations: {a: b}}}}]
  submitterPodTemplate: {metadata: {annotations: {volcano.sh/network-topology-highest-tier: "1"}}}
---
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: g, annotations: {kueue.x-k8s.io/tas-unhealthy-nodes-eviction-threshold: "2"}}
spec:
  startupPolicy: LeaderReady
  leaderWorkerTemplate:
    size: 3
    leaderTemplate: &near
      metadata:
        annotations:
          kueue.x-k8s.io/podset-required-topology: r
          kueue.x-k8s.io/podset-group-name: g
          kueue.x-k8s.io/podset-topology-spreading:
            '{"rules": [{"topologyKey": "r", "maxShareAllowingPlacement": ".5"}]}'
    workerTemplate: *near
"""


@pytest.mark.parametrize("document", documents(OBJECTS), ids=lambda one: f"{one['kind']}.{one['apiVersion']}")
def test_objects(document: Any) -> None:
    source_of(document)
    for path in places({key: document[key] for key in ("metadata", "spec")}):
        for junk in JUNK:
            try:
                source = source_of(spoiled(document, path, junk))
            except InvalidObject:
                continue
            # Whatever passes can be recorded and is a tree that can be asked.
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(source), type=type(source)) == source
            for template in source.templates:
                full = {one.name: 2**40 for one in leaves(template.sets)}
                assert min_pods(template.sets) >= 0
                assert satisfied(template.sets, full)


def test_every_kind_is_tried() -> None:
    kinds = {f"{one['kind']}.{one['apiVersion'].rpartition('/')[0]}" for one in documents(OBJECTS)}
    siblings = {f"{kind}.kubeflow.org" for kind in ("JAXJob", "PaddleJob", "TFJob", "XGBoostJob")}
    assert kinds | siblings | {"PodGroup.scheduling.x-k8s.io"} == {kind.name for kind in GROUP_KINDS}


WORDS = [
    "pod-group-name",
    "kai.scheduler/subgroup-name",
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
    "pod-group.scheduling.sigs.k8s.io/min-available",
    "gang.scheduling.koordinator.sh/name",
    "gang.scheduling.koordinator.sh/min-available",
    "gang.scheduling.koordinator.sh/groups",
    "scheduling.k8s.io/group-name",
    "leaderworkerset.sigs.k8s.io/name",
    "leaderworkerset.sigs.k8s.io/group-index",
    "jobset.sigs.k8s.io/jobset-name",
    "kueue.x-k8s.io/pod-group-name",
    "kueue.x-k8s.io/pod-group-total-count",
    "volcano.sh/partition-id",
]


@pytest.mark.parametrize("word", WORDS)
def test_pods(word: str) -> None:
    sources = {parsed.key: parsed for parsed in map(source_of, documents(OBJECTS))}
    for text in ("", "g", "junk", "-1", "²", "9" * 5000, "a/b", ":", "\u0000"):
        metadata = {"name": "p", "namespace": "default", "uid": "u"}
        for place in ("labels", "annotations"):
            pod = read_pod({"metadata": {**metadata, place: {word: text}}, "spec": {}})
            parsed = membership(pod, sources.get)
            assert parsed.group
