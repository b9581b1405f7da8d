"""The ReplicaSet controller: as many pods as are asked for (kube-controller-manager's pkg/controller/replicaset).

Pods that it did not make are not adopted. A pod that failed is replaced like any other that is gone, and stays; where
one after the other fails the next waits, which the real controller does not do and its API server's limits do for it.
"""

from typing import Any

from kai_apiserver.controllers.backoff import Backoffs
from kai_apiserver.controllers.controlled import controlled_pod, has_failed, owner_reference
from kai_apiserver.controllers.reconciling import Controller
from kai_apiserver.objects import Object, find_condition, parse_time
from kai_apiserver.rest.backend import CONTROLLER, Backend, Operation, Target
from kai_apiserver.rest.deletion import DeleteOptions, delete
from kai_apiserver.rest.writing import create
from kai_apiserver.store import Collection, Event, EventType, Stored

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
        self._pods: dict[str, dict[str, None]] = {}  # uid of an owner to keys of pods
        self._pod_resource = backend.registry.find("", "v1", plural="pods")
        self._resource = backend.registry.find("apps", "v1", plural="replicasets")

    def begin(self) -> None:
        """Look at every ReplicaSet, and at the pods that have one."""
        for stored in self.backend.store.collection(REPLICA_SETS):
            self._sets[stored.uid] = stored.key
            self.queue(stored.key)
        for stored in self.backend.store.collection(PODS):
            for owner in stored.owners:
                self._pods.setdefault(owner, {})[stored.key] = None
        self.backend.store.subscribe(self._set_changed, REPLICA_SETS)
        self.backend.store.subscribe(self._pod_changed, PODS)

    def _set_changed(self, collection: Collection, event: Event) -> None:
        del collection
        if event.type is EventType.DELETED:
            self._sets.pop(event.stored.uid, None)
            self._backoffs.forget(event.stored.uid)
        else:
            self._sets[event.stored.uid] = event.stored.key
            self.queue(event.stored.key)

    def _pod_changed(self, collection: Collection, event: Event) -> None:
        stored, previous = event.stored, event.previous
        for owner in stored.owners:
            pods = self._pods.setdefault(owner, {})
            if event.type is EventType.DELETED:
                pods.pop(stored.key, None)
                if not pods:
                    del self._pods[owner]
            else:
                pods[stored.key] = None
            if owner in self._sets:
                if has_failed(stored, collection) and not has_failed(previous, collection):
                    self._backoffs.failed(owner, self.backend.now().timestamp())
                # What happens to many pods gathers for a while, for each look is at all of them.
                self.queue_after(self._sets[owner], min(len(pods) / _PODS_PER_SECOND, _LONGEST_GATHERING_S))

    def reconcile(self, key: str) -> float | None:
        """Make the pods that are missing or delete those that are too many, and say how it stands."""
        stored = self.backend.store.collection(REPLICA_SETS).get(key)
        if stored is None:
            return None
        replica_set = stored.decode()
        pods = [pod for pod in self._pods_of(stored.uid) if _active(pod)]
        again = None
        if not replica_set["metadata"].get("deletionTimestamp"):
            again = self._manage(replica_set, pods)
        return _soonest(again, self._write_status(stored, replica_set, pods))

    def _pods_of(self, uid: str) -> list[Object]:
        collection = self.backend.store.collection(PODS)
        owned = (collection.get(key) for key in self._pods.get(uid, ()))
        return [pod.decode() for pod in owned if pod is not None]

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
        target = Target(self._pod_resource, replica_set["metadata"]["namespace"])
        for _ in range(min(missing, _AT_ONCE)):
            pod = controlled_pod(replica_set, reference)
            pods.append(create(self.backend, target, given=pod, operation=Operation(user=CONTROLLER)).decode())
        return 0.001 if missing > _AT_ONCE else None

    def _delete(self, pod: Object) -> None:
        stored = self.backend.store.collection(PODS).get(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")
        if stored is not None and stored.uid == pod["metadata"]["uid"]:
            options = DeleteOptions(propagation="Background")
            operation = Operation(user=CONTROLLER)
            delete(self.backend, stored, resource=self._pod_resource, options=options, operation=operation)

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
