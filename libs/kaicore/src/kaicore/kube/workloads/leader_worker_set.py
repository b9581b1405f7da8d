"""LeaderWorkerSets: groups of a leader and its workers.

Source: LeaderWorkerSet 0.7 (`pkg/controllers`, `pkg/webhooks/pod_webhook.go`). Leaders belong to a StatefulSet named
as the set, the workers of a group to one named as their leader.
"""

from kaicore.kube.workloads.apps import template_hash
from kaicore.kube.workloads.fields import Fields, annotation_of, spec_of
from kaicore.kube.workloads.objects import Object, name_of, namespace_of, sha1_key
from kaicore.kube.workloads.pods import Made, keep_alone, made_object, pod_from

_PREFIX = "leaderworkerset.sigs.k8s.io"
_GROUP_KEY = f"{_PREFIX}/group-key"
_EXCLUSIVE = f"{_PREFIX}/exclusive-topology"


def leader_worker_set_pods(owner: Object) -> list[Made]:
    """Return leaders and workers of all groups; a group has `size` pods, its leader among them."""
    spec = spec_of(owner)
    template = spec.inside("leaderWorkerTemplate", required=True)
    worker = template.inside("workerTemplate", required=True)
    leader = template.inside("leaderTemplate") if template.value.get("leaderTemplate") else worker
    size = template.pods("size", 1)
    if not size:
        raise template.error("size", "must be 1 or more")
    revision = template_hash(template)
    leaders = _stateful_set(owner, name_of(owner))
    topology_key = annotation_of(owner, _EXCLUSIVE)
    pods = []
    for group in range(spec.pods("replicas", 1)):
        leader_name = f"{name_of(owner)}-{group}"
        workers = _stateful_set(owner, leader_name)
        for index in range(size):
            labels = {
                f"{_PREFIX}/name": name_of(owner),
                f"{_PREFIX}/group-index": str(group),
                f"{_PREFIX}/worker-index": str(index),
                f"{_PREFIX}/template-revision-hash": revision,
                _GROUP_KEY: sha1_key(f"{namespace_of(owner)}/{leader_name}"),
            }
            notes = {f"{_PREFIX}/size": str(size)}
            if index:
                notes[f"{_PREFIX}/leader-name"] = leader_name
            _mark_subgroup(template, labels, notes, leader=leader_name, index=index, size=size)
            name = f"{leader_name}-{index}" if index else leader_name
            labels["statefulset.kubernetes.io/pod-name"] = name
            labels["apps.kubernetes.io/pod-index"] = str(index or group)
            pod = pod_from(
                workers if index else leaders,
                worker if index else leader,
                name=name,
                labels=labels,
                annotations=notes | ({_EXCLUSIVE: topology_key} if topology_key else {}),
            )
            if topology_key:
                keep_alone(pod.object, label=_GROUP_KEY, topology_key=topology_key)
            pods.append(pod)
    return pods


def _stateful_set(owner: Object, name: str) -> Object:
    return made_object(owner, api_version="apps/v1", kind="StatefulSet", name=name)


def _mark_subgroup(
    template: Fields, labels: dict[str, str], notes: dict[str, str], *, leader: str, index: int, size: int
) -> None:
    """Say which subgroup a pod belongs to, where the group is divided."""
    policy = template.inside("subGroupPolicy")
    width = policy.integer("subGroupSize", 0)
    if not width:
        return
    notes[f"{_PREFIX}/subgroup-size"] = str(width)
    alone = policy.text("subGroupPolicyType", "LeaderWorker") == "LeaderExcluded"
    if alone and not index:
        return
    # A leader that is one too many joins the first subgroup.
    extra = alone or (size - 1) % width == 0
    number = max(index - 1, 0) // width if extra else index // width
    labels[f"{_PREFIX}/subgroup-index"] = str(number)
    labels[f"{_PREFIX}/subgroup-key"] = sha1_key(f"{leader}/{number}")
