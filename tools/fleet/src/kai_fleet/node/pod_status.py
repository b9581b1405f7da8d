"""Writes of a kubelet about a pod: status patches (strategic merge, guarded by the pod's uid) and Warning events."""

import hashlib
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from kai_fleet.kubelet import Rejection
from kai_fleet.node.pod_conversion import ContainerSpec, PodObject

Json = dict[str, Any]

_encode = msgspec.json.Encoder().encode


@lru_cache(maxsize=256)
def _rfc3339(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339(now: float) -> str:
    """Write a time (seconds since the epoch) as `metav1.Time` does."""
    return _rfc3339(int(now))


def rfc3339_micro(now: float) -> str:
    """Write a time as `metav1.MicroTime` does."""
    return f"{_rfc3339(int(now))[:-1]}.{int(now % 1 * 1_000_000):06d}Z"


class StatusWriter:
    """Statuses of the pods of one node."""

    def __init__(self, node: str, host_ip: str) -> None:
        self._node = node
        self._host = {"hostIP": host_ip, "hostIPs": [{"ip": host_ip}]}

    def starting(self, pod: PodObject, *, now: float, running_init: str) -> bytes:
        """Init containers before `running_init` are done; that one runs; the rest waits."""
        init, done = [], True
        for container in pod.spec.init_containers or ():
            if container.name == running_init:
                done = False
                state = _running(now)
            else:
                state = _terminated(now, now, 0) if done else {"waiting": {"reason": "PodInitializing"}}
            init.append(_container(pod, container, state, ready=done))
        waiting = {"waiting": {"reason": "PodInitializing"}}
        return _patch(
            pod,
            {
                "phase": "Pending",
                **self._host,
                "startTime": rfc3339(now),
                "conditions": [
                    _condition("PodReadyToStartContainers", now),
                    _condition("Initialized", now, "ContainersNotInitialized"),
                    _condition("Ready", now, "ContainersNotReady"),
                    _condition("ContainersReady", now, "ContainersNotReady"),
                ],
                "initContainerStatuses": init,
                "containerStatuses": [_container(pod, c, waiting, ready=False) for c in pod.spec.containers],
            },
        )

    def running(self, pod: PodObject, *, now: float, since: float, ip: str) -> bytes:
        """All init containers are done, the others run; the kubelet took the pod up at `since`."""
        status: Json = {
            "phase": "Running",
            **self._host,
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "startTime": rfc3339(since),
            "conditions": [
                _condition(kind, now)
                for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
            ],
            "containerStatuses": [_container(pod, c, _running(now), ready=True) for c in pod.spec.containers],
        }
        if pod.spec.init_containers:
            done = _terminated(since, now, 0)
            status["initContainerStatuses"] = [
                _container(pod, c, _running(now) if c.restart_policy == "Always" else done, ready=True)
                for c in pod.spec.init_containers
            ]
        return _patch(pod, status)

    def ended(self, pod: PodObject, *, now: float, since: float, exit_code: int) -> bytes:
        """All containers have ended."""
        succeeded = exit_code == 0
        reason = "PodCompleted" if succeeded else "PodFailed"
        state = _terminated(since, now, exit_code)
        status: Json = {
            "phase": "Succeeded" if succeeded else "Failed",
            "conditions": [
                _condition("PodReadyToStartContainers", now, ""),
                _condition("Ready", now, reason),
                _condition("ContainersReady", now, reason),
            ],
            "containerStatuses": [_container(pod, c, state, ready=False) for c in pod.spec.containers],
        }
        if pod.spec.init_containers:
            done = _terminated(since, now, 0)
            status["initContainerStatuses"] = [_container(pod, c, done, ready=True) for c in pod.spec.init_containers]
        return _patch(pod, status)

    def rejected(self, pod: PodObject, rejection: Rejection, *, now: float) -> bytes:
        """The pod was not admitted: terminal for its uid (facts row 8)."""
        message = f"Pod was rejected: {rejection.message}"
        return _patch(
            pod,
            {"phase": "Failed", "reason": rejection.reason, "message": message, "startTime": rfc3339(now)},
        )

    def rejected_event(self, pod: PodObject, rejection: Rejection, *, now: float) -> bytes:
        """The Warning that goes with a rejection."""
        meta = pod.metadata
        time = rfc3339(now)
        return _encode(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"{meta.name}.{int(now * 1e9):x}", "namespace": meta.namespace},
                "involvedObject": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "namespace": meta.namespace,
                    "name": meta.name,
                    "uid": meta.uid,
                    "resourceVersion": meta.resource_version,
                },
                "type": "Warning",
                "reason": rejection.reason,
                "message": rejection.message,
                "source": {"component": "kubelet", "host": self._node},
                "reportingComponent": "kubelet",
                "reportingInstance": self._node,
                "firstTimestamp": time,
                "lastTimestamp": time,
                "count": 1,
            }
        )


def _patch(pod: PodObject, status: Json) -> bytes:
    return _encode({"metadata": {"uid": pod.metadata.uid}, "status": status})


def _condition(kind: str, now: float, why_not: str | None = None) -> Json:
    condition = {
        "type": kind,
        "status": "True" if why_not is None else "False",
        "lastProbeTime": None,
        "lastTransitionTime": rfc3339(now),
    }
    if why_not:
        condition["reason"] = why_not
    return condition


def _running(now: float) -> Json:
    return {"running": {"startedAt": rfc3339(now)}}


def _terminated(started: float, finished: float, exit_code: int) -> Json:
    return {
        "terminated": {
            "exitCode": exit_code,
            "reason": "Error" if exit_code else "Completed",
            "startedAt": rfc3339(started),
            "finishedAt": rfc3339(finished),
        }
    }


def _container(pod: PodObject, container: ContainerSpec, state: Json, *, ready: bool) -> Json:
    status: Json = {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "ready": ready,
        "started": "running" in state,
        "restartCount": 0,
        "state": state,
    }
    if "waiting" not in state:
        digest = hashlib.sha256(f"{pod.metadata.uid}/{container.name}".encode()).hexdigest()
        status["containerID"] = f"containerd://{digest}"
        status["imageID"] = container.image
    return status
