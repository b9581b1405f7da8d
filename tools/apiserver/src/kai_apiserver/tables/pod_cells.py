"""The cells of a pod's row: how many containers are ready, and one word for what it is up to."""

from datetime import datetime
from typing import Any

from kai_apiserver.objects import Object, age, at, find_condition


def _sidecars(pod: Object) -> set[str]:
    return {
        container["name"]
        for container in pod["spec"].get("initContainers") or ()
        if container.get("restartPolicy") == "Always"
    }


def ready(pod: Object, now: datetime) -> str:
    """`ready/all` of the containers and sidecars."""
    del now
    sidecars = _sidecars(pod)
    status = pod.get("status") or {}
    counted = [
        *(status.get("containerStatuses") or ()),
        *(item for item in status.get("initContainerStatuses") or () if item.get("name") in sidecars),
    ]
    total = len(pod["spec"].get("containers") or ()) + len(sidecars)
    return f"{sum(1 for item in counted if item.get('ready'))}/{total}"


def restarts(pod: Object, now: datetime) -> str:
    """How often containers were restarted, and when last."""
    sidecars = _sidecars(pod)
    status = pod.get("status") or {}
    counted = [
        *(status.get("containerStatuses") or ()),
        *(item for item in status.get("initContainerStatuses") or () if item.get("name") in sidecars),
    ]
    count = sum(item.get("restartCount", 0) for item in counted)
    ends = [at(item, ("lastState", "terminated", "finishedAt")) for item in counted]
    last = max(filter(None, ends), default=None)
    return f"{count} ({age(last, now)} ago)" if count and last else str(count)


def status_word(pod: Object, now: datetime) -> str:
    """One word (or two) for the pod's state: its phase, or what stands in the way."""
    del now
    status = pod.get("status") or {}
    phase: str = status.get("phase", "")
    word: str = status.get("reason") or phase
    if find_condition(pod, "PodScheduled").get("reason") == "SchedulingGated":
        word = "SchedulingGated"
    initializing = _init_word(pod, status)
    word = initializing or _container_word(status, word)
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if phase not in ("Failed", "Succeeded"):
            return "Terminating"
    return word


def _init_word(pod: Object, status: Object) -> str:
    sidecars = _sidecars(pod)
    all_init = pod["spec"].get("initContainers") or ()
    for index, item in enumerate(status.get("initContainerStatuses") or ()):
        state = item.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting") or {}
        if terminated is not None and terminated.get("exitCode") == 0:
            continue
        if item.get("name") in sidecars and item.get("started"):
            continue
        if terminated is not None:
            return f"Init:{_end_word(terminated)}"
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{len(all_init)}"
    return ""


def _container_word(status: Object, word: str) -> str:
    running = False
    for item in reversed(status.get("containerStatuses") or ()):
        state: Any = item.get("state") or {}
        if (state.get("waiting") or {}).get("reason"):
            word = state["waiting"]["reason"]
        elif state.get("terminated"):
            word = _end_word(state["terminated"])
        elif item.get("ready") and state.get("running"):
            running = True
    if word == "Completed" and running:
        return "Running" if find_condition({"status": status}, "Ready").get("status") == "True" else "NotReady"
    return word


def _end_word(terminated: Object) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def readiness_gates(pod: Object, now: datetime) -> str:
    """`met/all` of the readiness gates."""
    del now
    gates = pod["spec"].get("readinessGates") or ()
    if not gates:
        return "<none>"
    met = sum(find_condition(pod, gate["conditionType"]).get("status") == "True" for gate in gates)
    return f"{met}/{len(gates)}"
