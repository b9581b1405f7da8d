"""Suspended owners, and the same owners as they would be without suspension."""

import copy

from kaicore.kube.workloads.kubeflow import TRAINING_KINDS
from kaicore.kube.workloads.objects import Object, group_of
from kaicore.rules.groups.queue_names import KUEUE_QUEUE_LABEL

#: Where in its `spec` an owner says `suspend`.
_SUSPENDED_IN: dict[tuple[str, str], tuple[str, ...]] = {
    ("batch", "Job"): (),
    ("jobset.x-k8s.io", "JobSet"): (),
    ("ray.io", "RayCluster"): (),
    ("ray.io", "RayJob"): (),
    **{("kubeflow.org", kind): ("runPolicy",) for kind in (*TRAINING_KINDS, "MPIJob")},
}


def resumed(owner: Object) -> Object:
    """Return an owner as it is when it is resumed; the owner itself where it is not suspended."""
    path = _SUSPENDED_IN.get((group_of(owner["apiVersion"]), owner["kind"]))
    if path is None or _spec(owner, path).get("suspend") is not True:
        return owner
    running = copy.deepcopy(owner)
    _spec(running, path)["suspend"] = False
    return running


def kueue_queue(owner: Object) -> str:
    """Return Kueue's LocalQueue that is to resume an owner; empty where it is not Kueue that does."""
    labels = owner["metadata"].get("labels")
    return str(labels.get(KUEUE_QUEUE_LABEL, "")) if isinstance(labels, dict) else ""


def _spec(owner: Object, path: tuple[str, ...]) -> Object:
    part = owner.get("spec")
    for name in path:
        part = part.get(name) if isinstance(part, dict) else None
    return part if isinstance(part, dict) else {}
