"""The arithmetic of rollouts: how large each ReplicaSet of a Deployment may be now, and how the Deployment stands.

From kube-controller-manager 1.36, pkg/controller/deployment (rolling.go, progress.go, sync.go).
"""

from collections.abc import Iterator
from datetime import datetime

from kai_apiserver.objects import Object, parse_time, replace_condition, timestamp

REVISION = "deployment.kubernetes.io/revision"
TEMPLATE_HASH = "pod-template-hash"

_ALL_WHEN_DONE = ("replicas", "updatedReplicas", "availableReplicas")


def revision_of(replica_set: Object) -> int:
    """The revision that a ReplicaSet stands for; 0 if it says none."""
    text = (replica_set["metadata"].get("annotations") or {}).get(REVISION, "0")
    return int(text) if text.isdecimal() else 0


def same_template(replica_set: Object, deployment: Object) -> bool:
    """Whether a ReplicaSet runs the Deployment's template."""
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
    """How many pods there may be too many, and too few."""
    spec = deployment["spec"]
    rolling = spec["strategy"].get("rollingUpdate") or {}
    surge = _count(rolling.get("maxSurge", 0), spec["replicas"], up=True)
    unavailable = min(_count(rolling.get("maxUnavailable", 0), spec["replicas"], up=False), spec["replicas"])
    return surge, unavailable if surge or unavailable else 1


def new_size(deployment: Object, newest: Object, old: list[Object]) -> int:
    """How large the newest ReplicaSet should be now."""
    wanted: int = deployment["spec"]["replicas"]
    present: int = newest["spec"]["replicas"]
    if deployment["spec"]["strategy"]["type"] == "Recreate" or present >= wanted:
        return wanted
    surge, _ = _bounds(deployment)
    room: int = wanted + surge - present - sum(item["spec"]["replicas"] for item in old)
    return present + max(0, min(room, wanted - present))


def old_sizes(deployment: Object, newest: Object, old: list[Object]) -> Iterator[tuple[Object, int]]:
    """How large older ReplicaSets should be now, those that shrink: first what is not available, then the oldest."""
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
    """What a Deployment's status says, its conditions as they were."""
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
    """Write the conditions Available and Progressing; return seconds until no progress would be a failure.

    Args:
        deployment: with its new counts.
        before: its status as it was.
        newest: the ReplicaSet of the present template.
        now: the time.
    """
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
