"""Deployments and ReplicaSets, as rules of `kinds` (upstream: pkg/controller/{deployment,replicaset}).

A Deployment has one ReplicaSet per template. All pods of a new template are made at once; each that is ready takes the
place of an older one. Strategies, pauses, deadlines and limits of the history are not looked at, nothing is adopted.
"""

from copy import deepcopy
from itertools import repeat
from typing import Any

from kaicore.rules.groups.dialects.apps import deployment_replica_sets

from kai_apiserver.controllers.reconciling import controlled_pod, owner_reference
from kai_apiserver.controllers.workloads.view import ENDED, Plan, View, is_going, is_ready, label_of, phase_of
from kai_apiserver.objects import Object, parse_time

_REVISION = "deployment.kubernetes.io/revision"
_TEMPLATE_HASH = "pod-template-hash"
_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASE_RANK = {"Pending": 0, "Unknown": 1, "Running": 2}


def replica_set(view: View) -> Plan:
    """A ReplicaSet: as many pods as it asks for; a pod that failed stays, and another takes its place."""
    pods = [pod for pod in view.children("Pod") if phase_of(pod) not in ENDED and not is_going(pod)]
    pods.sort(key=_keeps_longer)
    missing = view.spec["replicas"] - len(pods)
    plan = Plan(delete=pods[: max(-missing, 0)])
    reference = owner_reference(view.owner, api_version="apps/v1", kind="ReplicaSet")
    plan.create += [controlled_pod(view.owner, reference) for _ in repeat(None, missing)]
    left = pods[len(plan.delete) :]
    ready = sum(map(is_ready, left))
    counts = {"fullyLabeledReplicas": len(left), "readyReplicas": ready, "availableReplicas": ready}
    view.status = {"replicas": len(left), **_counted(counts), "observedGeneration": _generation(view)}
    return plan


def deployment(view: View) -> Plan:
    """A Deployment: its template's ReplicaSet has all pods; older ones those that the new one cannot replace yet."""
    plan, replicas = Plan(), view.spec["replicas"]
    (made,) = deployment_replica_sets(view.owner)
    newest = view.child("ReplicaSet", made.object["metadata"]["name"])
    sets = [one for one in view.children("ReplicaSet") if not is_going(one)]
    old = sorted((one for one in sets if one is not newest), key=_revision_of, reverse=True)
    revision = max(map(_revision_of, old), default=0) + 1
    if newest is not None:
        revision = max(_revision_of(newest), revision)
    view.owner["metadata"].setdefault("annotations", {})[_REVISION] = str(revision)
    if newest is None:
        plan.create.append(_created(view, made.object, revision))
    elif (newest["spec"]["replicas"], _revision_of(newest)) != (replicas, revision):
        plan.change.append(_changed(newest, replicas, revision))
    left = max(replicas - _status(newest, "availableReplicas"), 0)
    for one in old:
        size = min(one["spec"]["replicas"], left)
        left -= size
        if size != one["spec"]["replicas"]:
            plan.change.append(_changed(one, size, _revision_of(one)))
    names = ("replicas", "readyReplicas", "availableReplicas")
    counts = {name: sum(_status(one, name) for one in sets) for name in names}
    available = counts["availableReplicas"]
    counts |= {"updatedReplicas": _status(newest, "replicas"), "unavailableReplicas": max(replicas - available, 0)}
    conditions = {"conditions": view.status.get("conditions") or []}
    view.status = {"observedGeneration": _generation(view), **_counted(counts), **conditions}
    if available >= replicas:
        view.say("Available", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    else:
        view.say("Progressing", "ReplicaSetUpdated", "Deployment is progressing.", instead_of=("Available",))
    return plan


def _created(view: View, replica_set: Object, revision: int) -> Object:
    selector = deepcopy(view.spec["selector"])
    digest = {_TEMPLATE_HASH: label_of(replica_set, _TEMPLATE_HASH)}
    selector["matchLabels"] = {**(selector.get("matchLabels") or {}), **digest}
    replica_set["spec"]["selector"] = selector
    replica_set["metadata"]["annotations"][_REVISION] = str(revision)
    return replica_set


def _changed(replica_set: Object, replicas: int, revision: int) -> Object:
    annotations = {**(replica_set["metadata"].get("annotations") or {}), _REVISION: str(revision)}
    metadata = {**replica_set["metadata"], "annotations": annotations}
    return {**replica_set, "metadata": metadata, "spec": {**replica_set["spec"], "replicas": replicas}}


def _revision_of(replica_set: Object) -> int:
    """The revision that a ReplicaSet stands for; 0 if it says none."""
    text = (replica_set["metadata"].get("annotations") or {}).get(_REVISION, "0")
    return int(text) if text.isdecimal() else 0


def _status(replica_set: Object | None, field: str) -> int:
    return int(((replica_set or {}).get("status") or {}).get(field, 0))


def _counted(counts: dict[str, int]) -> Object:
    return {name: count for name, count in counts.items() if count}


def _generation(view: View) -> int:
    return int(view.owner["metadata"].get("generation", 0))


def _keeps_longer(pod: Object) -> tuple[Any, ...]:
    """Sorts pods by who goes first: not on a node, not running, not ready, cheap to delete, young (last made first)."""
    metadata = pod["metadata"]
    try:
        cost = int((metadata.get("annotations") or {}).get(_DELETION_COST, 0))
    except ValueError:
        cost = 0
    made = parse_time(metadata["creationTimestamp"]).timestamp()
    rank = _PHASE_RANK.get(phase_of(pod), 1)
    return bool(pod["spec"].get("nodeName")), rank, is_ready(pod), cost, -made, metadata["name"]
