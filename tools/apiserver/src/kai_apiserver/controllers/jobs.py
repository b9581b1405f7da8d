"""The Job controller: makes pods, replaces failed ones, counts, and ends the Job.

Pods are counted exactly once, also across a kill: a finished pod's uid goes into the status first, then the pod loses
its tracking finalizer, then the counter moves and the uid leaves the status again.

The pods a Job makes.

Rules for the status of a Job: pure functions over the Job and its pods.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from kai_apiserver.controllers.reconciling import Backoffs, Controller, controlled_pod
from kai_apiserver.kinds.pods import containers_of
from kai_apiserver.objects import Object, find_condition, holds, key_of, parse_time, replace_condition
from kai_apiserver.rest.backend import Backend
from kai_apiserver.store import Event, EventType, Stored

INDEX = "batch.kubernetes.io/job-completion-index"
TRACKING = "batch.kubernetes.io/job-tracking"


@dataclass(frozen=True, slots=True)
class End:
    """The end of a Job: the condition that says so, and the reason."""

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
        """The number of active pods that are ready."""
        return sum(holds(pod, "Ready") for pod in self.active)


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
    """True if a Job has ended, well or badly."""
    return any(holds(job, kind) for kind in ("Complete", "Failed"))


def wanted_active(job: Object, *, succeeded: int) -> int:
    """The desired number of active pods."""
    spec = job["spec"]
    parallelism: int = spec.get("parallelism", 1)
    completions = spec.get("completions")
    if completions is None:
        return 0 if succeeded else parallelism
    return max(0, min(parallelism, int(completions) - succeeded))


def failure(job: Object, tally: Tally, *, failed: int, now: datetime) -> End | None:
    """The reason why a Job has to fail now, if it has to."""
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
    """True if a Job has reached its goal."""
    completions = job["spec"].get("completions")
    done = succeeded > 0 and active == 0 if completions is None else succeeded >= completions
    if not done:
        return None
    return End("Complete", "CompletionsReached", "Reached expected number of succeeded pods")


def policy_action(job: Object, pod: Object) -> tuple[str, str]:
    """The Job's pod failure policy for a failed pod: `Count`, `Ignore` or `FailJob`, and a message.

    `FailIndex` is taken for `Count`: limits per index are not simulated.
    """
    policy = job["spec"].get("podFailurePolicy") or {}
    for place, rule in enumerate(policy.get("rules") or ()):
        why = _exit_codes_match(rule.get("onExitCodes"), pod) or _conditions_match(rule.get("onPodConditions"), pod)
        if why:
            action, name = rule["action"], key_of(pod)
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


_INDEX_VARIABLE = "JOB_COMPLETION_INDEX"


def pod_of(job: Object, index: int | None) -> Object:
    """A new pod of a Job; `index` is what it works on in an Indexed one."""
    name = job["metadata"]["name"]
    base = name if index is None else f"{name}-{index}"
    pod = controlled_pod({**job, "apiVersion": "batch/v1", "kind": "Job"}, name=base)
    metadata, spec = pod["metadata"], pod["spec"]
    metadata.setdefault("finalizers", []).append(TRACKING)
    if index is not None:
        metadata["labels"][INDEX] = metadata["annotations"][INDEX] = str(index)
        spec.setdefault("hostname", base)
        for container in containers_of(spec):
            _add_index_variable(container)
    return pod


def _add_index_variable(container: Object) -> None:
    variables = container.setdefault("env", [])
    if any(variable.get("name") == _INDEX_VARIABLE for variable in variables):
        return
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
    variables.append({"name": _INDEX_VARIABLE, "valueFrom": source})


JOBS = "jobs.batch"
PODS = "pods"

_CREATED_AT_ONCE = 100


class JobController(Controller[str]):
    """Runs Jobs."""

    name = "job-controller"

    def __init__(self, backend: Backend, *, base_backoff_s: float) -> None:
        super().__init__(backend)
        self._backoffs = Backoffs(base_backoff_s)
        self._jobs: dict[str, str] = {}  # uid to key
        self._briefs: dict[str, tuple[Stored, Object]] = {}
        self._pod_resource = backend.registry.find("", "v1", plural="pods")
        self._job_resource = backend.registry.find("batch", "v1", plural="jobs")

    def begin(self) -> None:
        """Look at every Job and every pod that has one."""
        for stored in self.backend.store.collection(JOBS):
            self._jobs[stored.uid] = stored.key
            self.queue(stored.key)
        for stored in self.backend.store.collection(PODS):
            self._pod_seen(stored)
        self.backend.store.follow(JOBS, self._job_changed)
        self.backend.store.follow(PODS, self._pod_changed)

    def _job_changed(self, event: Event) -> None:
        stored = event.stored
        if event.type is EventType.DELETED:
            self._jobs.pop(stored.uid, None)
            self._backoffs.forget(stored.uid)
            for pod in self.backend.store.owned(stored.uid, PODS):
                self.queue(f"pod/{pod.key}")
        else:
            self._jobs[stored.uid] = stored.key
            self.queue(stored.key)

    def _pod_seen(self, stored: Stored) -> None:
        for owner in stored.owners:
            job = self._jobs.get(owner)
            if job is not None:
                self.queue_gathered(job, owner)
            elif TRACKING.encode() in stored.body:
                self.queue(f"pod/{stored.key}")

    def _pod_changed(self, event: Event) -> None:
        if event.type is not EventType.DELETED:
            self._pod_seen(event.stored)
            return
        self._briefs.pop(event.stored.key, None)
        for owner in event.stored.owners:
            if owner in self._jobs:
                self.queue_gathered(self._jobs[owner], owner)

    def reconcile(self, key: str) -> float | None:
        """Bring one Job on its way, or release a pod without its Job."""
        if key.startswith("pod/"):
            self._release_orphan(key.removeprefix("pod/"))
            return None
        stored = self.backend.store.collection(JOBS).get(key)
        if stored is None:
            return None
        job = stored.decode()
        pods = self._pods_of(stored.uid)
        if job["metadata"].get("deletionTimestamp"):
            for pod in pods:
                self._untrack(pod)
            return None
        if is_finished(job):
            return self._expire(stored, job)
        return self._sync(stored, job, pods=pods)

    def _pods_of(self, uid: str) -> list[Object]:
        return [self._brief(stored) for stored in self.backend.store.owned(uid, PODS)]

    def _brief(self, stored: Stored) -> Object:
        """A pod without its spec, decoded once per version; not to be changed."""
        cached = self._briefs.get(stored.key)
        if cached is None or cached[0] is not stored:
            pod = stored.decode()
            del pod["spec"]
            cached = self._briefs[stored.key] = (stored, pod)
        return cached[1]

    def _release_orphan(self, key: str) -> None:
        stored = self.backend.store.collection(PODS).get(key)
        if stored is not None and not any(owner in self._jobs for owner in stored.owners):
            self._untrack(stored.decode())

    def _untrack(self, pod: Object) -> None:
        """Take the tracking finalizer from a pod: it was counted, or is not counted any more."""
        metadata = pod["metadata"]
        if TRACKING not in (metadata.get("finalizers") or ()):
            return
        stored = self.backend.store.collection(PODS).get(key_of(pod))
        if stored is None or stored.uid != metadata["uid"]:
            return
        current = stored.decode()
        left = [name for name in current["metadata"].pop("finalizers", ()) if name != TRACKING]
        if left:
            current["metadata"]["finalizers"] = left
        self.commit(stored, self._pod_resource, current)

    def _expire(self, stored: Stored, job: Object) -> float | None:
        """Delete a finished Job when its time to live is over."""
        for pod in self._pods_of(stored.uid):
            self._untrack(pod)
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        if seconds is None:
            return None
        ends = [find_condition(job, kind).get("lastTransitionTime") for kind in ("Complete", "Failed")]
        ended = parse_time(next(filter(None, ends)))
        left = float(seconds - (self.backend.now() - ended).total_seconds())
        if left > 0:
            return left
        self.delete(stored, self._job_resource, "Foreground")
        return None

    def _sync(self, stored: Stored, job: Object, *, pods: list[Object]) -> float | None:
        status = job["status"]
        suspended = bool(job["spec"].get("suspend"))
        self._note_suspension(job, suspended=suspended)
        tally = sort_pods(job, pods)
        stored = self._count(stored, job, tally=tally)
        failed, succeeded = status.get("failed", 0), status.get("succeeded", 0)
        end = self._decided_end(job) or failure(job, tally, failed=failed, now=self.backend.now())
        end = end or success(job, succeeded=succeeded, active=len(tally.active))
        again = self._deadline(job)
        if suspended or end is not None:
            self._delete_pods(tally.active, count=end is not None and end.condition == "Failed", job=job)
            tally.terminating += tally.active
            tally.active = []
        else:
            created, wait = self._manage(job, tally, succeeded=succeeded)
            again = min(filter(None, (again, wait)), default=None)
            tally.active += created
        self._write_status(stored, job, tally=tally, end=end)
        return again

    def _note_suspension(self, job: Object, *, suspended: bool) -> None:
        status, now = job["status"], self.backend.timestamp()
        conditions = status.setdefault("conditions", [])
        present = find_condition(job, "Suspended").get("status")
        if suspended:
            status.pop("startTime", None)
            if present != "True":
                self._set_condition(conditions, "Suspended", "True", "JobSuspended", "Job suspended")
        else:
            if present == "True":
                self._set_condition(conditions, "Suspended", "False", "JobResumed", "Job resumed")
            status.setdefault("startTime", now)
        if not conditions:
            status.pop("conditions")

    def _set_condition(self, conditions: list[Object], kind: str, status: str, reason: str, message: str) -> None:
        now = self.backend.timestamp()
        condition = {"type": kind, "status": status, "lastProbeTime": now, "reason": reason, "message": message}
        replace_condition(conditions, condition, now)

    def _count(self, stored: Stored, job: Object, *, tally: Tally) -> Stored:
        """Move finished pods into the counters, by way of their uids in the status."""
        status = job["status"]
        waiting = status.setdefault("uncountedTerminatedPods", {})
        fresh = False
        for outcome, pods in (("succeeded", tally.succeeded), ("failed", tally.failed)):
            for pod in pods:
                uid = pod["metadata"]["uid"]
                if uid in waiting.get("succeeded", ()) or uid in waiting.get("failed", ()):
                    continue
                self._note_outcome(job, succeeded=outcome == "succeeded")
                if outcome == "failed" and policy_action(job, pod)[0] == "Ignore":
                    continue
                waiting.setdefault(outcome, []).append(uid)
                fresh = True
        if fresh:
            self._note_indexes(job, tally)
            stored = self._write(stored, job)
        for pod in [*tally.succeeded, *tally.failed]:
            self._untrack(pod)
        if job["spec"].get("completionMode") == "Indexed":
            counted = len(read_indexes(status.get("completedIndexes", "")))
        else:
            counted = status.get("succeeded", 0) + len(waiting.get("succeeded", ()))
        if counted:
            status["succeeded"] = counted
        if waiting.get("failed"):
            status["failed"] = status.get("failed", 0) + len(waiting["failed"])
        status["uncountedTerminatedPods"] = {}
        return stored

    @staticmethod
    def _note_indexes(job: Object, tally: Tally) -> None:
        if job["spec"].get("completionMode") != "Indexed":
            return
        done = read_indexes(job["status"].get("completedIndexes", ""))
        indexes = (completion_index(pod) for pod in tally.succeeded)
        done |= {index for index in indexes if index is not None and index < job["spec"]["completions"]}
        if done:
            job["status"]["completedIndexes"] = write_indexes(done)

    def _note_outcome(self, job: Object, *, succeeded: bool) -> None:
        uid = job["metadata"]["uid"]
        if succeeded:
            self._backoffs.forget(uid)
        else:
            self._backoffs.failed(uid, self.backend.now().timestamp())

    @staticmethod
    def _decided_end(job: Object) -> End | None:
        """The end that was decided earlier, while pods were still around."""
        for interim, final in (("FailureTarget", "Failed"), ("SuccessCriteriaMet", "Complete")):
            condition = find_condition(job, interim)
            if condition.get("status") == "True":
                return End(final, condition["reason"], condition["message"])
        return None

    def _deadline(self, job: Object) -> float | None:
        """Seconds until the Job has been active for too long."""
        started, deadline = job["status"].get("startTime"), job["spec"].get("activeDeadlineSeconds")
        if not started or deadline is None:
            return None
        return max(0.01, float(deadline - (self.backend.now() - parse_time(started)).total_seconds()))

    def _delete_pods(self, pods: list[Object], *, count: bool, job: Object) -> None:
        """Delete active pods; they count as failed only where the Job fails with them."""
        collection = self.backend.store.collection(PODS)
        for pod in pods:
            self._untrack(pod)
            stored = collection.get(key_of(pod))
            if stored is not None and stored.uid == pod["metadata"]["uid"]:
                self.delete(stored, self._pod_resource)
        if count and pods:
            job["status"]["failed"] = job["status"].get("failed", 0) + len(pods)

    def _manage(self, job: Object, tally: Tally, *, succeeded: int) -> tuple[list[Object], float | None]:
        """Delete pods that are too many or make missing ones; return those made, and seconds to wait with the rest."""
        wanted = wanted_active(job, succeeded=succeeded)
        standing = len(tally.active)
        if job["spec"].get("podReplacementPolicy") == "Failed":
            standing += len(tally.terminating)
        if standing > wanted:
            surplus = sorted(tally.active, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), reverse=True)
            # Indexes that a smaller elastic Job no longer has go first.
            most = job["spec"].get("completions") or 0
            surplus.sort(key=lambda pod: (completion_index(pod) or 0) < most)
            surplus = surplus[: max(0, len(tally.active) - wanted)]
            self._delete_pods(surplus, count=False, job=job)
            gone = {pod["metadata"]["uid"] for pod in surplus}
            tally.active = [pod for pod in tally.active if pod["metadata"]["uid"] not in gone]
            return [], None
        missing = wanted - standing
        wait = self._backoffs.remaining(job["metadata"]["uid"], self.backend.now().timestamp())
        if missing and wait > 0:
            return [], wait
        indexes = self._indexes(job, tally, missing)
        created = [self._create(job, index) for index in indexes[:_CREATED_AT_ONCE]]
        return created, 0.001 if len(indexes) > _CREATED_AT_ONCE else None

    @staticmethod
    def _indexes(job: Object, tally: Tally, missing: int) -> list[int | None]:
        """The work of the pods to be made: the lowest free indexes, or nothing in particular."""
        if job["spec"].get("completionMode") != "Indexed":
            return [None] * missing
        taken = read_indexes(job["status"].get("completedIndexes", ""))
        taken |= {index for pod in tally.active if (index := completion_index(pod)) is not None}
        if job["spec"].get("podReplacementPolicy") == "Failed":
            taken |= {index for pod in tally.terminating if (index := completion_index(pod)) is not None}
        free: list[int | None] = [index for index in range(job["spec"]["completions"]) if index not in taken]
        return free[:missing]

    def _create(self, job: Object, index: int | None) -> Object:
        namespace = job["metadata"]["namespace"]
        return self.create(self._pod_resource, pod_of(job, index), namespace=namespace).decode()

    def _write_status(self, stored: Stored, job: Object, *, tally: Tally, end: End | None) -> None:
        status = job["status"]
        for name, value in (("active", len(tally.active)), ("terminating", len(tally.terminating))):
            status[name] = value
        if not status["active"]:
            del status["active"]
        status["ready"] = tally.ready
        if end is not None:
            conditions = status.setdefault("conditions", [])
            interim = "FailureTarget" if end.condition == "Failed" else "SuccessCriteriaMet"
            if not find_condition(job, interim):
                self._set_condition(conditions, interim, "True", end.reason, end.message)
            if not self._standing(tally):
                self._set_condition(conditions, end.condition, "True", end.reason, end.message)
                if end.condition == "Complete":
                    status["completionTime"] = self.backend.timestamp()
        self._write(stored, job)

    def _standing(self, tally: Tally) -> bool:
        """True if pods of an ended Job are still running out their grace period."""
        collection = self.backend.store.collection(PODS)
        return any(collection.get(key_of(pod)) is not None for pod in tally.terminating)

    def _write(self, stored: Stored, job: Object) -> Stored:
        return self.backend.write_status(self._job_resource, job, stored)
