"""Expansion of any owner into its pods, through all the objects that are created in between."""

from collections.abc import Callable

from kaicore.errors import InvalidObject
from kaicore.kube.workloads.owners import (
    TRAINING_KINDS,
    NodesFor,
    daemon_set_pods,
    deployment_replica_sets,
    hyper_job_jobs,
    job_pods,
    jobset_jobs,
    leader_worker_set_pods,
    mpi_job_pods,
    ray_cluster_pods,
    ray_job_parts,
    replica_set_pods,
    stateful_set_pods,
    training_job_pods,
    volcano_job_pods,
)
from kaicore.rules.objects.made import Made
from kaicore.rules.objects.mappings import Object, group_of

__all__ = ["Made", "NodesFor", "expand", "is_owner"]

_MAKERS: dict[tuple[str, str], Callable[[Object], list[Made]]] = {
    ("", "ReplicationController"): replica_set_pods,
    ("apps", "Deployment"): deployment_replica_sets,
    ("apps", "ReplicaSet"): replica_set_pods,
    ("apps", "StatefulSet"): stateful_set_pods,
    ("batch", "Job"): job_pods,
    ("batch.volcano.sh", "Job"): volcano_job_pods,
    ("jobset.x-k8s.io", "JobSet"): jobset_jobs,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): leader_worker_set_pods,
    ("kubeflow.org", "MPIJob"): mpi_job_pods,
    ("topology.volcano.sh", "HyperJob"): hyper_job_jobs,
    ("training.volcano.sh", "HyperJob"): hyper_job_jobs,
    ("ray.io", "RayCluster"): ray_cluster_pods,
    ("ray.io", "RayJob"): ray_job_parts,
    **{("kubeflow.org", kind): training_job_pods for kind in TRAINING_KINDS},
}
_DAEMON_SET = ("apps", "DaemonSet")


def is_owner(api_version: str, kind: str) -> bool:
    """Whether objects of a kind stand for pods that `expand` can make."""
    key = group_of(api_version), kind
    return key in _MAKERS or key == _DAEMON_SET


def expand(owner: Object, *, nodes_for: NodesFor, between: Callable[[Object], None] = lambda _: None) -> list[Made]:
    """Return the pods that the controllers would make for an owner, in the order in which they would.

    Names and uids are made of the owner's, so the same owner always gives the same pods.

    Args:
        owner: an object whose kind `is_owner` knows, with name, namespace and uid; it stays as it is.
        nodes_for: tells which nodes a pod of a DaemonSet may run on.
        between: is given each object that is made on the way to the pods, such as the Jobs of a JobSet.

    Raises:
        InvalidObject: naming the field of the owner that says something impossible.
    """
    key = group_of(owner["apiVersion"]), owner["kind"]
    made = daemon_set_pods(owner, nodes_for) if key == _DAEMON_SET else _MAKERS[key](owner)
    pods: list[Made] = []
    for part in made:
        if part.object["kind"] == "Pod":
            if part.through is not None:
                between(part.through)
            pods.append(part)
            continue
        between(part.object)
        try:
            inner = expand(part.object, nodes_for=nodes_for, between=between)
        except InvalidObject as error:
            subject = f"{owner['kind']} {owner['metadata']['namespace']}/{owner['metadata']['name']}"
            raise InvalidObject(subject, part.field_in_owner(error.field), error.value, error.problem) from error
        pods += [Made(pod.object, part.field_in_owner(pod.spec_field)) for pod in inner]
    return pods
