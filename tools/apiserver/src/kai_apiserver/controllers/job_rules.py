"""Rules for the status of a Job: pure functions over the Job and its pods."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from kai_apiserver.objects import Object, find_condition, parse_time

INDEX = "batch.kubernetes.io/job-completion-index"
TRACKING = "batch.kubernetes.io/job-tracking"


@dataclass(frozen=True, slots=True)
class End:
    """How a Job ends: the condition that says so, and why."""

    condition: str
    reason: str
    message: str


@dataclass(slots=True)
class Tally:
    """A Job's pods, sorted.

    Attributes:
        active: neither finished nor being deleted.
        terminating: being deleted, and not finished.
        succeeded: finished well and not counted in the status yet.
        failed: finished badly (or deleted on the way) and not counted yet.
        ready: how many of the active ones are ready.
    """

    active: list[Object] = field(default_factory=list)
    terminating: list[Object] = field(default_factory=list)
    succeeded: list[Object] = field(default_factory=list)
    failed: list[Object] = field(default_factory=list)

    @property
    def ready(self) -> int:
        """How many of the active pods are ready."""
        return sum(find_condition(pod, "Ready").get("status") == "True" for pod in self.active)


def sort_pods(job: Object, pods: Iterable[Object]) -> Tally:
    """Sort a Job's pods. Those without the tracking finalizer are counted already."""
    tally = Tally()
    replace_only_failed = job["spec"].get("podReplacementPolicy") == "Failed"
    for pod in pods:
        phase = pod["status"].get("phase")
        going = bool(pod["metadata"].get("deletionTimestamp"))
        tracked = TRACKING in (pod["metadata"].get("finalizers") or ())
        if phase == "Succeeded":
            if tracked:
                tally.succeeded.append(pod)
        elif phase == "Failed":
            if tracked:
                tally.failed.append(pod)
        elif not going:
            tally.active.append(pod)
        else:
            tally.terminating.append(pod)
            if tracked and not replace_only_failed:
                tally.failed.append(pod)
    return tally


def completion_index(pod: Object) -> int | None:
    """The completion index that a pod works on."""
    text = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
    return int(text) if text.isdecimal() else None


def read_indexes(text: str) -> set[int]:
    """`0-2,5` as a set."""
    indexes: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        indexes.update(range(int(first), int(last or first) + 1))
    return indexes


def write_indexes(indexes: Iterable[int]) -> str:
    """A set as `0-2,5`: runs of three and more are joined."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    parts: list[str] = []
    for first, last in runs:
        if last - first > 1:
            parts.append(f"{first}-{last}")
        else:
            parts += [str(index) for index in range(first, last + 1)]
    return ",".join(parts)


def is_finished(job: Object) -> bool:
    """Whether a Job has ended, well or badly."""
    return any(find_condition(job, kind).get("status") == "True" for kind in ("Complete", "Failed"))


def wanted_active(job: Object, *, succeeded: int) -> int:
    """How many pods should be active at once."""
    spec = job["spec"]
    parallelism: int = spec.get("parallelism", 1)
    completions = spec.get("completions")
    if completions is None:
        return 0 if succeeded else parallelism
    return max(0, min(parallelism, int(completions) - succeeded))


def failure(job: Object, tally: Tally, *, failed: int, now: datetime) -> End | None:
    """Why a Job has to fail now, if it has to."""
    spec, status = job["spec"], job["status"]
    started, deadline = status.get("startTime"), spec.get("activeDeadlineSeconds")
    if started and deadline is not None and (now - parse_time(started)).total_seconds() >= deadline:
        return End("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
    for pod in tally.failed:
        ended = policy_action(job, pod)
        if ended[0] == "FailJob":
            return End("Failed", "PodFailurePolicy", ended[1])
    limit = spec.get("backoffLimit", 6)
    if failed > limit:
        return End("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    if spec["template"]["spec"].get("restartPolicy") == "OnFailure":
        restarts = sum(
            item.get("restartCount", 0)
            for pod in tally.active
            for item in [
                *(pod["status"].get("containerStatuses") or ()),
                *(pod["status"].get("initContainerStatuses") or ()),
            ]
        )
        if restarts >= max(limit, 1):
            return End("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    return None


def success(job: Object, *, succeeded: int, active: int) -> End | None:
    """Whether a Job has done what it was for."""
    completions = job["spec"].get("completions")
    done = succeeded > 0 and active == 0 if completions is None else succeeded >= completions
    if not done:
        return None
    return End("Complete", "CompletionsReached", "Reached expected number of succeeded pods")


def policy_action(job: Object, pod: Object) -> tuple[str, str]:
    """What the Job's pod failure policy says to a failed pod: `Count`, `Ignore` or `FailJob`, and a message.

    `FailIndex` is taken for `Count`: limits per index are not simulated.
    """
    policy = job["spec"].get("podFailurePolicy") or {}
    for place, rule in enumerate(policy.get("rules") or ()):
        why = _exit_codes_match(rule.get("onExitCodes"), pod) or _conditions_match(rule.get("onPodConditions"), pod)
        if why:
            action, name = rule["action"], f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            message = f"{why} for pod {name} matching {action} rule at index {place}"
            return ("Count" if action == "FailIndex" else action), message
    return "Count", ""


def _exit_codes_match(wanted: Object | None, pod: Object) -> str:
    if not wanted:
        return ""
    for status in pod["status"].get("containerStatuses") or ():
        ended = (status.get("state") or {}).get("terminated") or {}
        code = ended.get("exitCode", 0)
        if not code or wanted.get("containerName", status["name"]) != status["name"]:
            continue
        if (code in wanted.get("values", ())) is (wanted["operator"] == "In"):
            return f"Container {status['name']} with exit code {code}"
    return ""


def _conditions_match(wanted: list[Object] | None, pod: Object) -> str:
    for pattern in wanted or ():
        if find_condition(pod, pattern["type"]).get("status") == pattern.get("status", "True"):
            return f"Pod with condition {pattern['type']}"
    return ""
