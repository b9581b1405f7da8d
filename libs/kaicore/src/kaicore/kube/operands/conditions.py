"""Conditions in the status of a Config or a shard, in the form of `metav1.Condition`.

`Available`: all operands are there. `Progressing`: a change is under way. `Degraded`: there is a fault that does not go
away by itself. `SettingsIgnored`: some fields have no effect.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kaicore.kube.operands.names import Key, Object, key_of, title_of
from kaicore.kube.operands.plan import Part

#: Longest message that a definition of conditions takes.
_LONGEST = 32_768

_CONDITIONS = ("Available", "Progressing", "Degraded", "SettingsIgnored")


class _Told(NamedTuple):
    status: bool
    reason: str
    message: str


class _Rollout(NamedTuple):
    """The progress of a workload."""

    available: bool
    done: bool
    text: str


def status_of(part: Part, live: Mapping[Key, Object], failures: Mapping[Key, str], *, now: str) -> Object | None:
    """Return the status that an owner is to have; None where it has it.

    Args:
        part: what was planned for it.
        live: the operands as they are, by kind and name.
        failures: what the API server refused, by the operand's kind and name.
        now: RFC 3339.
    """
    metadata, before = part.owner["metadata"], part.owner.get("status") or {}
    generation = metadata.get("generation", 0)
    known = {condition.get("type"): condition for condition in before.get("conditions") or ()}
    conditions = [condition for name, condition in known.items() if name not in _CONDITIONS]
    for name, condition in zip(_CONDITIONS, _conditions(part, live, failures), strict=True):
        status = str(condition.status)
        last = known.get(name, {})
        conditions.append(
            {
                "type": name,
                "status": status,
                "reason": condition.reason,
                "message": condition.message[:_LONGEST],
                "observedGeneration": generation,
                "lastTransitionTime": last["lastTransitionTime"] if last.get("status") == status else now,
            }
        )
    wanted = {"observedGeneration": generation, "conditions": conditions}
    return None if all(before.get(name) == value for name, value in wanted.items()) else wanted


def _conditions(part: Part, live: Mapping[Key, Object], failures: Mapping[Key, str]) -> Iterator[_Told]:
    refused = [
        f"{kind} {name}: {problem}"
        for (kind, name), problem in failures.items()
        if (kind, name) in {key_of(obj) for obj in (*(part.wanted or ()), *part.prune)}
    ]
    rollouts = list(_rollouts(part, live))
    missing = [title_of(operand) for operand in part.wanted or () if key_of(operand) not in live]
    yield _available(part, rollouts, missing)
    unfinished = [rollout.text for rollout in rollouts if not rollout.done]
    changing = [*missing, *(title_of(operand) for operand in part.prune)]
    if changing or unfinished:
        yield _Told(True, "RollingOut", "; ".join([*changing, *unfinished]))
    else:
        yield _Told(False, "AsWanted", "")
    if part.reason in ("InvalidSpec", "NoConfig", "NotTheConfig"):
        yield _Told(part.reason != "NoConfig", part.reason, part.because)
    elif part.taken:
        yield _Told(True, "NameTaken", "; ".join(part.taken))
    elif refused:
        yield _Told(True, "Refused", "; ".join(refused))
    else:
        yield _Told(False, "AsWanted", "")
    if part.ignored:
        yield _Told(True, "NoCounterpart", f"{', '.join(part.ignored)}: nothing here corresponds to it")
    else:
        yield _Told(False, "AllUsed", "")


def _available(part: Part, rollouts: list[_Rollout], missing: list[str]) -> _Told:
    if part.wanted is None:
        return _Told(False, part.reason, part.because)
    if not part.wanted:
        return _Told(True, part.reason, part.because)
    if missing:
        return _Told(False, "Missing", ", ".join(missing))
    text = "; ".join([rollout.text for rollout in rollouts] + ([part.because] if part.because else []))
    return _Told(True, "Available", text) if all(one.available for one in rollouts) else _Told(False, "NotReady", text)


def _rollouts(part: Part, live: Mapping[Key, Object]) -> Iterator[_Rollout]:
    for operand in part.wanted or ():
        there = live.get(key_of(operand))
        if there is not None and operand["kind"] in ("DaemonSet", "Deployment", "StatefulSet"):
            yield _rollout(there)


def _rollout(workload: Object) -> _Rollout:
    """Return how far a workload has come, as `kubectl rollout status` judges it."""
    status, title = workload.get("status") or {}, title_of(workload)
    if status.get("observedGeneration", 0) < workload["metadata"].get("generation", 0):
        return _Rollout(False, False, f"{title}: not seen by its controller yet")
    if workload["kind"] == "DaemonSet":
        wanted, available = status.get("desiredNumberScheduled", 0), status.get("numberAvailable", 0)
        updated = status.get("updatedNumberScheduled", 0)
        text = f"{title}: {available} of {wanted} nodes"
        return _Rollout(available >= wanted, available >= wanted and updated >= wanted, text)
    wanted = workload["spec"].get("replicas", 1)
    available = status.get("availableReplicas", status.get("readyReplicas", 0))
    done = available >= wanted and status.get("updatedReplicas", 0) >= wanted and status.get("replicas", 0) == wanted
    # One of a shard's schedulers is enough for pods to be placed.
    return _Rollout(available >= 1, done, f"{title}: {available} of {wanted} replicas")
