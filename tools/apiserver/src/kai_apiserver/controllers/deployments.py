"""The Deployment controller: rolls a template out over ReplicaSets (upstream: pkg/controller/deployment).

One ReplicaSet per template; the newest grows and the older ones shrink within `maxSurge` and `maxUnavailable`, or with
`Recreate` the older ones end first. ReplicaSets that it did not make are not adopted, and a Deployment that is scaled
in the middle of a rollout does not spread the difference over its ReplicaSets.

The arithmetic of rollouts: how large each ReplicaSet of a Deployment may be now, and how the Deployment stands.

From kube-controller-manager 1.36, pkg/controller/deployment (rolling.go, progress.go, sync.go).

The ReplicaSet controller: as many pods as are asked for (kube-controller-manager's pkg/controller/replicaset).

Pods that it did not make are not adopted. A pod that failed is replaced like any other that is gone, and stays; where
one after the other fails the next waits, which the real controller does not do and its API server's limits do for it.
"""

import hashlib
from collections.abc import Iterator
from copy import deepcopy
from datetime import datetime
from typing import Any

from kai_apiserver.controllers.reconciling import Backoffs, Controller, controlled_pod, owner_reference
from kai_apiserver.objects import Object, encode_json, find_condition, parse_time, replace_condition, timestamp
from kai_apiserver.rest.backend import Backend, Operation, Target
from kai_apiserver.rest.writing import update
from kai_apiserver.store import Event, EventType, Stored

REPLICA_SETS = "replicasets.apps"
PODS = "pods"

_AT_ONCE = 100
_PODS_PER_SECOND = 5000.0
_LONGEST_GATHERING_S = 1.0
_ENDED = ("Succeeded", "Failed")
_PHASE_RANK = {"Pending": 0, "Unknown": 1, "Running": 2}
_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


class ReplicaSetController(Controller[str]):
    """Runs ReplicaSets."""

    name = "replicaset-controller"

    def __init__(self, backend: Backend, *, base_backoff_s: float) -> None:
        super().__init__(backend)
        self._backoffs = Backoffs(base_backoff_s)
        self._sets: dict[str, str] = {}  # uid to key
        self._pod_resource = backend.registry.find("", "v1", plural="pods")
        self._resource = backend.registry.find("apps", "v1", plural="replicasets")

    def begin(self) -> None:
        """Look at every ReplicaSet, and at the pods that have one."""
        for stored in self.backend.store.collection(REPLICA_SETS):
            self._sets[stored.uid] = stored.key
            self.queue(stored.key)
        self.backend.store.follow(REPLICA_SETS, self._set_changed)
        self.backend.store.follow(PODS, self._pod_changed)

    def _set_changed(self, event: Event) -> None:
        if event.type is EventType.DELETED:
            self._sets.pop(event.stored.uid, None)
            self._backoffs.forget(event.stored.uid)
        else:
            self._sets[event.stored.uid] = event.stored.key
            self.queue(event.stored.key)

    def _pod_changed(self, event: Event) -> None:
        for owner in event.stored.owners:
            if owner in self._sets:
                if self.has_just_failed(event):
                    self._backoffs.failed(owner, self.backend.now().timestamp())
                # What happens to many pods gathers for a while, for each look is at all of them.
                pods = len(self.backend.store.dependents(owner))
                self.queue_after(self._sets[owner], min(pods / _PODS_PER_SECOND, _LONGEST_GATHERING_S))

    def reconcile(self, key: str) -> float | None:
        """Make the pods that are missing or delete those that are too many, and say how it stands."""
        stored = self.backend.store.collection(REPLICA_SETS).get(key)
        if stored is None:
            return None
        replica_set = stored.decode()
        owned = (pod.decode() for pod in self.backend.store.owned(stored.uid, PODS))
        pods = [pod for pod in owned if _active(pod)]
        again = None
        if not replica_set["metadata"].get("deletionTimestamp"):
            again = self._manage(replica_set, pods)
        return _soonest(again, self._write_status(stored, replica_set, pods))

    def _manage(self, replica_set: Object, pods: list[Object]) -> float | None:
        """Create or delete pods, also in the list; return seconds to wait before doing the rest."""
        missing = replica_set["spec"]["replicas"] - len(pods)
        if missing < 0:
            surplus = sorted(pods, key=_keeps_longer)[:-missing]
            for pod in surplus:
                self._delete(pod)
                pods.remove(pod)
            return None
        if not missing:
            return None
        wait = self._backoffs.remaining(replica_set["metadata"]["uid"], self.backend.now().timestamp())
        if wait > 0:
            return wait
        reference = owner_reference(replica_set, api_version="apps/v1", kind="ReplicaSet")
        namespace = replica_set["metadata"]["namespace"]
        for _ in range(min(missing, _AT_ONCE)):
            made = self.create(self._pod_resource, controlled_pod(replica_set, reference), namespace=namespace)
            pods.append(made.decode())
        return 0.001 if missing > _AT_ONCE else None

    def _delete(self, pod: Object) -> None:
        stored = self.backend.store.collection(PODS).get(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")
        if stored is not None and stored.uid == pod["metadata"]["uid"]:
            self.delete(stored, self._pod_resource)

    def _write_status(self, stored: Stored, replica_set: Object, pods: list[Object]) -> float | None:
        """Say how it stands; return seconds until a ready pod counts as available."""
        waits = [_until_available(replica_set, pod, now=self.backend.now().timestamp()) for pod in pods]
        template_labels = (replica_set["spec"]["template"].get("metadata") or {}).get("labels") or {}
        ready = sum(wait is not None for wait in waits)
        if ready:
            self._backoffs.forget(stored.uid)
        counts = {
            "fullyLabeledReplicas": sum(_has_labels(pod, template_labels) for pod in pods),
            "readyReplicas": ready,
            "availableReplicas": sum(wait is not None and wait <= 0 for wait in waits),
        }
        replica_set["status"] = {
            "replicas": len(pods),
            **{name: count for name, count in counts.items() if count},
            "observedGeneration": replica_set["metadata"].get("generation", 0),
        }
        self.backend.write_status(self._resource, replica_set, stored)
        return _soonest(*(wait for wait in waits if wait is not None and wait > 0))


def _soonest(*seconds: float | None) -> float | None:
    return min((wait for wait in seconds if wait is not None), default=None)


def _active(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") not in _ENDED and not pod["metadata"].get("deletionTimestamp")


def _has_labels(pod: Object, labels: dict[str, str]) -> bool:
    own = pod["metadata"].get("labels") or {}
    return all(own.get(key) == value for key, value in labels.items())


def _ready(pod: Object) -> bool:
    return find_condition(pod, "Ready").get("status") == "True"


def _until_available(replica_set: Object, pod: Object, *, now: float) -> float | None:
    """Seconds until a pod has been ready for long enough; None if it is not ready."""
    if not _ready(pod):
        return None
    since = find_condition(pod, "Ready").get("lastTransitionTime")
    least = replica_set["spec"].get("minReadySeconds", 0)
    return float(parse_time(since).timestamp() + least - now) if since and least else 0.0


def _keeps_longer(pod: Object) -> tuple[Any, ...]:
    """Sorts pods by who goes first: not on a node, not running, not ready, cheap to delete, young (last made first)."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    try:
        cost = int((metadata.get("annotations") or {}).get(_DELETION_COST, 0))
    except ValueError:
        cost = 0
    made = parse_time(metadata["creationTimestamp"]).timestamp()
    on_node, rank = bool(pod["spec"].get("nodeName")), _PHASE_RANK.get(status.get("phase", ""), 1)
    return on_node, rank, _ready(pod), cost, -made, metadata["name"]


REVISION = "deployment.kubernetes.io/revision"
TEMPLATE_HASH = "pod-template-hash"


def revision_of(replica_set: Object) -> int:
    """The revision that a ReplicaSet stands for; 0 if it says none."""
    text = (replica_set["metadata"].get("annotations") or {}).get(REVISION, "0")
    return int(text) if text.isdecimal() else 0


def same_template(replica_set: Object, deployment: Object) -> bool:
    """True if a ReplicaSet runs the Deployment's template."""
    return _without_hash(replica_set["spec"]["template"]) == _without_hash(deployment["spec"]["template"])


def _without_hash(template: Object) -> Object:
    metadata = template.get("metadata") or {}
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != TEMPLATE_HASH}
    return {**template, "metadata": {**metadata, "labels": labels}}


def _count(value: int | str, replicas: int, *, up: bool) -> int:
    """A number of pods, or a percentage of the replicas."""
    if isinstance(value, int):
        return value
    parts = int(value.removesuffix("%")) * replicas
    return -(-parts // 100) if up else parts // 100


def _bounds(deployment: Object) -> tuple[int, int]:
    """The number of pods that may be too many, and too few."""
    spec = deployment["spec"]
    rolling = spec["strategy"].get("rollingUpdate") or {}
    surge = _count(rolling.get("maxSurge", 0), spec["replicas"], up=True)
    unavailable = min(_count(rolling.get("maxUnavailable", 0), spec["replicas"], up=False), spec["replicas"])
    return surge, unavailable if surge or unavailable else 1


def new_size(deployment: Object, newest: Object, old: list[Object]) -> int:
    """The desired size of the newest ReplicaSet now."""
    wanted: int = deployment["spec"]["replicas"]
    present: int = newest["spec"]["replicas"]
    if deployment["spec"]["strategy"]["type"] == "Recreate" or present >= wanted:
        return wanted
    surge, _ = _bounds(deployment)
    room: int = wanted + surge - present - sum(item["spec"]["replicas"] for item in old)
    return present + max(0, min(room, wanted - present))


def old_sizes(deployment: Object, newest: Object, old: list[Object]) -> Iterator[tuple[Object, int]]:
    """The desired sizes of older ReplicaSets, those that shrink: first unavailable pods, then the oldest."""
    _, unavailable = _bounds(deployment)
    least = deployment["spec"]["replicas"] - unavailable
    everything = [newest, *old]
    starting = newest["spec"]["replicas"] - _status(newest, "availableReplicas")
    may_go = sum(item["spec"]["replicas"] for item in everything) - least - starting
    sizes = {item["metadata"]["uid"]: item["spec"]["replicas"] for item in old}
    oldest_first = sorted(old, key=lambda item: (revision_of(item), item["metadata"]["name"]))
    for item in oldest_first:
        idle = sizes[item["metadata"]["uid"]] - _status(item, "availableReplicas")
        gone = max(0, min(idle, may_go))
        sizes[item["metadata"]["uid"]] -= gone
        may_go -= gone
    available = sum(_status(item, "availableReplicas") for item in everything)
    may_go = min(may_go, available - least)
    for item in oldest_first:
        gone = max(0, min(sizes[item["metadata"]["uid"]], may_go))
        sizes[item["metadata"]["uid"]] -= gone
        may_go -= gone
        if sizes[item["metadata"]["uid"]] < item["spec"]["replicas"]:
            yield item, sizes[item["metadata"]["uid"]]


def _status(replica_set: Object, field: str) -> int:
    return int((replica_set.get("status") or {}).get(field, 0))


def status_of(deployment: Object, newest: Object | None, old: list[Object]) -> Object:
    """A Deployment's status, its conditions as they were."""
    everything = old if newest is None else [newest, *old]
    total = sum(_status(item, "replicas") for item in everything)
    available = sum(_status(item, "availableReplicas") for item in everything)
    counts = {
        "replicas": total,
        "updatedReplicas": 0 if newest is None else _status(newest, "replicas"),
        "readyReplicas": sum(_status(item, "readyReplicas") for item in everything),
        "availableReplicas": available,
        "unavailableReplicas": max(0, sum(item["spec"]["replicas"] for item in everything) - available),
    }
    status: Object = {"observedGeneration": deployment["metadata"].get("generation", 0)}
    status |= {name: count for name, count in counts.items() if count}
    return status | {"conditions": list((deployment.get("status") or {}).get("conditions") or ())}


def progress(deployment: Object, before: Object, newest: Object | None, *, now: datetime) -> float | None:
    """Write the conditions Available and Progressing; return seconds until no progress would be a failure."""
    status, spec = deployment["status"], deployment["spec"]
    conditions: list[Object] = status["conditions"]
    _, unavailable = _bounds(deployment)
    enough = status.get("availableReplicas", 0) >= spec["replicas"] - unavailable
    _set(
        conditions,
        ("Available", "True" if enough else "False"),
        "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
        f"Deployment {'has' if enough else 'does not have'} minimum availability.",
        now=now,
    )
    if newest is None:
        return None
    name = f'ReplicaSet "{newest["metadata"]["name"]}"'
    counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    done = all(
        status.get(field, 0) == spec["replicas"] for field in ("replicas", "updatedReplicas", "availableReplicas")
    )
    moved = any(status.get(field, 0) != before.get(field, 0) for field in counts)
    present = next((item for item in conditions if item["type"] == "Progressing"), None)
    if done:
        _set(
            conditions,
            ("Progressing", "True"),
            "NewReplicaSetAvailable",
            f"{name} has successfully progressed.",
            now=now,
        )
        return None
    if present is None or moved or present["reason"] == "NewReplicaSetAvailable":
        _set(conditions, ("Progressing", "True"), "ReplicaSetUpdated", f"{name} is progressing.", now=now, renew=True)
        present = next(item for item in conditions if item["type"] == "Progressing")
    if spec.get("paused"):
        return None
    left = float(
        (parse_time(present["lastUpdateTime"]) - now).total_seconds() + spec.get("progressDeadlineSeconds", 600)
    )
    if left > 0:
        return left
    _set(
        conditions, ("Progressing", "False"), "ProgressDeadlineExceeded", f"{name} has timed out progressing.", now=now
    )
    return None


def _set(
    conditions: list[Object],
    kind_and_status: tuple[str, str],
    reason: str,
    message: str,
    *,
    now: datetime,
    renew: bool = False,
) -> None:
    """Set a condition; `lastUpdateTime` moves with the status and the reason, or where it is renewed."""
    kind, status = kind_and_status
    present = next((item for item in conditions if item["type"] == kind), None)
    time = timestamp(now)
    same = present is not None and (present["status"], present["reason"]) == (status, reason)
    updated = present["lastUpdateTime"] if present is not None and same and not renew else time
    condition = {"type": kind, "status": status, "lastUpdateTime": updated, "reason": reason, "message": message}
    replace_condition(conditions, condition, time)


DEPLOYMENTS = "deployments.apps"

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
#: Seconds after which `Recreate` looks again whether the old pods have gone.
_LOOK_AGAIN_S = 0.5
_NOT_COPIED = ("kubectl.kubernetes.io/last-applied-configuration", REVISION)


class DeploymentController(Controller[str]):
    """Runs Deployments."""

    name = "deployment-controller"

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._deployments: dict[str, str] = {}  # uid to key
        self._resource = backend.registry.find("apps", "v1", plural="deployments")
        self._set_resource = backend.registry.find("apps", "v1", plural="replicasets")

    def begin(self) -> None:
        """Look at every Deployment."""
        for stored in self.backend.store.collection(DEPLOYMENTS):
            self._deployments[stored.uid] = stored.key
            self.queue(stored.key)
        self.backend.store.follow(DEPLOYMENTS, self._deployment_changed)
        self.backend.store.follow(REPLICA_SETS, self._set_changed)

    def _deployment_changed(self, event: Event) -> None:
        if event.type is EventType.DELETED:
            self._deployments.pop(event.stored.uid, None)
        else:
            self._deployments[event.stored.uid] = event.stored.key
            self.queue(event.stored.key)

    def _set_changed(self, event: Event) -> None:
        for owner in event.stored.owners:
            if owner in self._deployments:
                self.queue(self._deployments[owner])

    def reconcile(self, key: str) -> float | None:
        """Bring one Deployment a step on its way; what its ReplicaSets do next calls for the next step."""
        stored = self.backend.store.collection(DEPLOYMENTS).get(key)
        if stored is None:
            return None
        deployment = stored.decode()
        if deployment["metadata"].get("deletionTimestamp"):
            return None
        sets = self._sets_of(stored.uid)
        newest = next((item for item in sets if same_template(item, deployment)), None)
        old = [item for item in sets if item is not newest]
        again = None
        if deployment["spec"].get("paused"):
            if newest is not None or old:
                self._set(newest or max(old, key=revision_of), replicas=deployment["spec"]["replicas"])
        elif deployment["spec"]["strategy"]["type"] == "Recreate" and self._end_first(old):
            again = _LOOK_AGAIN_S
        else:
            newest = self._roll(deployment, newest, old)
            self._forget_old(deployment, old)
        return self._write_status(stored, deployment, newest, old, again=again)

    def _sets_of(self, uid: str) -> list[Object]:
        sets = [item.decode() for item in self.backend.store.owned(uid, REPLICA_SETS)]
        return [item for item in sets if not item["metadata"].get("deletionTimestamp")]

    def _end_first(self, old: list[Object]) -> bool:
        """Scale older ReplicaSets down; tell whether pods of theirs are still there."""
        for item in old:
            self._set(item, replicas=0)
        uids = {item["metadata"]["uid"] for item in old}
        return any(not uids.isdisjoint(pod.owners) for pod in self.backend.store.collection(PODS))

    def _roll(self, deployment: Object, newest: Object | None, old: list[Object]) -> Object:
        """Have a ReplicaSet of the present template, and move pods to it as far as may be; return it."""
        last = max(map(revision_of, old), default=0)
        if newest is None:
            newest = self._create(deployment, old, revision=last + 1)
        elif revision_of(newest) <= last:
            newest = self._set(newest, revision=last + 1)  # the template is that of an earlier revision again
        newest = self._set(newest, replicas=new_size(deployment, newest, old))
        for item, size in old_sizes(deployment, newest, old):
            self._set(item, replicas=size)
        return newest

    def _create(self, deployment: Object, old: list[Object], *, revision: int) -> Object:
        template = deepcopy(deployment["spec"]["template"])
        digest = hashlib.blake2b(encode_json(template), digest_size=10).digest()
        name = "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest)
        labels = {**((template.get("metadata") or {}).get("labels") or {}), TEMPLATE_HASH: name}
        template["metadata"] = {**(template.get("metadata") or {}), "labels": labels}
        selector = deepcopy(deployment["spec"]["selector"])
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), TEMPLATE_HASH: name}
        given = deployment["metadata"].get("annotations") or {}
        annotations = {key: value for key, value in given.items() if key not in _NOT_COPIED}
        spec = {"replicas": 0, "selector": selector, "template": template}
        if "minReadySeconds" in deployment["spec"]:
            spec["minReadySeconds"] = deployment["spec"]["minReadySeconds"]
        wanted = {
            "metadata": {
                "name": f"{deployment['metadata']['name']}-{name}",
                "labels": labels,
                "annotations": {**annotations, REVISION: str(revision)},
                "ownerReferences": [owner_reference(deployment, api_version="apps/v1", kind="Deployment")],
            },
            "spec": {**spec, "replicas": new_size(deployment, {"spec": {"replicas": 0}}, old)},
        }
        return self.create(self._set_resource, wanted, namespace=deployment["metadata"]["namespace"]).decode()

    def _set(self, replica_set: Object, *, replicas: int | None = None, revision: int | None = None) -> Object:
        """Write size or revision of a ReplicaSet, where they are others now; return it as it is then."""
        target = Target(self._set_resource, replica_set["metadata"]["namespace"], replica_set["metadata"]["name"])
        stored = self.backend.get(target)
        new = stored.decode()
        if replicas is not None:
            new["spec"]["replicas"] = replicas
        if revision is not None:
            new["metadata"].setdefault("annotations", {})[REVISION] = str(revision)
        if new == stored.decode():
            return new
        return update(self.backend, target, stored=stored, new=new, operation=Operation()).decode()

    def _forget_old(self, deployment: Object, old: list[Object]) -> None:
        """Delete old ReplicaSets without pods, beyond those that are kept to go back to."""
        empty = [item for item in old if not item["spec"]["replicas"] and not item["status"].get("replicas")]
        surplus = len(empty) - deployment["spec"]["revisionHistoryLimit"]
        for item in sorted(empty, key=revision_of)[: max(surplus, 0)]:
            key = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
            stored = self.backend.store.collection(REPLICA_SETS).get(key)
            if stored is not None:
                self.delete(stored, self._set_resource, "")

    def _write_status(
        self, stored: Stored, deployment: Object, newest: Object | None, old: list[Object], *, again: float | None
    ) -> float | None:
        """Say how it stands; return seconds after which to look again."""
        if newest is not None:
            annotations = deployment["metadata"].setdefault("annotations", {})
            annotations[REVISION] = newest["metadata"]["annotations"][REVISION]
        deployment["status"] = status_of(deployment, newest, old)
        overdue = progress(deployment, stored.decode()["status"], newest, now=self.backend.now())
        self.backend.write_status(self._resource, deployment, stored)
        return min((wait for wait in (again, overdue) if wait is not None), default=None)
