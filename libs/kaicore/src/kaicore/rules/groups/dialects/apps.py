"""Deployments, ReplicaSets, ReplicationControllers, StatefulSets and DaemonSets: owners that are no groups.

Source: `pkg/controller/{deployment,replicaset,statefulset,daemon}` of Kubernetes 1.36. The start of a StatefulSet's
pods one after the other is left out: all of them exist at once.
"""

from collections.abc import Iterator
from copy import deepcopy
from hashlib import sha256

import msgspec

from kaicore.rules.groups.dialects.dialect import Dialect, NodesFor, WorkloadKind
from kaicore.rules.objects.made import Made, list_in, made_object, mapping_in, marked, pod_from
from kaicore.rules.objects.mappings import Fields, Object, name_of, spec_of, suffix

_encoder = msgspec.json.Encoder(order="deterministic")

#: Taints that pods of DaemonSets tolerate (`util.AddOrUpdateDaemonPodTolerations`).
_DAEMON_TOLERATIONS = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)


def template_hash(template: Fields) -> str:
    """Return letters that stand for a pod template, as `pod-template-hash` does."""
    return suffix(sha256(_encoder.encode(template.value)).hexdigest(), length=10)


def deployment_replica_sets(deployment: Object) -> list[Made]:
    """Return the ReplicaSet of a Deployment."""
    spec = spec_of(deployment)
    template = spec.inside("template", required=True)
    revision = template_hash(template)
    made = made_object(
        deployment,
        api_version="apps/v1",
        kind="ReplicaSet",
        name=f"{name_of(deployment)}-{revision}",
        metadata=template.inside("metadata"),
    )
    labels = {"pod-template-hash": revision}
    made["metadata"]["labels"].update(labels)
    made_template = {**deepcopy(template.value), "metadata": marked(template, labels)}
    made["spec"] = {"replicas": spec.pods("replicas", 1), "template": made_template}
    return [Made(made, "spec")]


def replica_set_pods(owner: Object) -> Iterator[Made]:
    """Yield the pods of a ReplicaSet or a ReplicationController."""
    spec = spec_of(owner)
    template = spec.inside("template", required=True)
    count = spec.pods("replicas", 1)
    for number in range(count):
        yield pod_from(owner, template, generate_name=f"{name_of(owner)}-", key=str(number))


def stateful_set_pods(owner: Object) -> Iterator[Made]:
    """Yield the pods of a StatefulSet, by ordinal."""
    spec = spec_of(owner)
    template = spec.inside("template", required=True)
    first = spec.inside("ordinals").integer("start", 0)
    name = name_of(owner)
    revision = f"{name}-{template_hash(template)}"
    for ordinal in range(first, first + spec.pods("replicas", 1)):
        labels = {
            "controller-revision-hash": revision,
            "statefulset.kubernetes.io/pod-name": f"{name}-{ordinal}",
            "apps.kubernetes.io/pod-index": str(ordinal),
        }
        pod = pod_from(owner, template, name=f"{name}-{ordinal}", labels=labels)
        pod.object["spec"].setdefault("hostname", f"{name}-{ordinal}")
        for claim in spec.items("volumeClaimTemplates"):
            volume = claim.inside("metadata").text("name")
            claims = {"claimName": f"{volume}-{name}-{ordinal}"}
            list_in(pod, "volumes").append({"name": volume, "persistentVolumeClaim": claims})
        yield pod


def daemon_set_pods(owner: Object, nodes_for: NodesFor) -> Iterator[Made]:
    """Yield a pod of a DaemonSet for each node that it may run on, bound to that node by its affinity."""
    spec = spec_of(owner)
    template = spec.inside("template", required=True)
    labels = {"controller-revision-hash": template_hash(template)}
    model = pod_from(owner, template, generate_name=f"{name_of(owner)}-")
    tolerations = [item.value for item in template.inside("spec").items("tolerations")]
    tolerations += [{"key": key, "operator": "Exists", "effect": effect} for key, effect in _DAEMON_TOLERATIONS]
    if model.object["spec"].get("hostNetwork"):
        key = "node.kubernetes.io/network-unavailable"
        tolerations.append({"key": key, "operator": "Exists", "effect": "NoSchedule"})
    model.object["spec"]["tolerations"] = tolerations
    for node in nodes_for(model.object):
        pod = pod_from(owner, template, generate_name=f"{name_of(owner)}-", key=node, labels=labels)
        pod_spec = pod.object["spec"]
        pod_spec["tolerations"] = deepcopy(tolerations)
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        node_affinity = mapping_in(mapping_in(pod_spec, "affinity"), "nodeAffinity")
        node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [term]}
        yield pod


DIALECT = Dialect(
    "Kubernetes' apps",
    (
        WorkloadKind("ReplicationController", "replicationcontrollers", short_names=("rc",), made=replica_set_pods),
        WorkloadKind("Deployment.apps", "deployments", short_names=("deploy",), made=deployment_replica_sets),
        WorkloadKind("ReplicaSet.apps", "replicasets", short_names=("rs",), made=replica_set_pods),
        WorkloadKind("StatefulSet.apps", "statefulsets", short_names=("sts",), made=stateful_set_pods),
        WorkloadKind("DaemonSet.apps", "daemonsets", short_names=("ds",), made_per_node=daemon_set_pods),
    ),
)
