"""Rules of the operators of batch work, as a table with one rule for each kind.

A rule is a pure function from an object and its children to a `Plan`. The library has the rule for the pods of an
object (`kaicore.rules.groups.dialects`), as in `kai simulate`. Here is what only a running operator does: replacing
what failed, the end, and the status. `training` has Kubeflow's and Ray's. Pods get no environment variables and no
Services: nothing runs in them.

A Deployment has one ReplicaSet per template. All pods of a new template are made at once; each that is ready takes the
place of an older one. Strategies, pauses, deadlines and limits of the history are not looked at, nothing is adopted.

Sources, for facts: JobSet 0.8 (`pkg/controllers`), LeaderWorkerSet 0.7 (`pkg/controllers`, `pkg/webhooks`), Volcano
1.13 (`pkg/controllers/job`), Kubernetes 1.36 (`pkg/controller/{statefulset,deployment,replicaset}`).
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from itertools import repeat
from typing import Any

from kaicore.errors import InvalidObject
from kaicore.rules.groups.dialects.apps import deployment_replica_sets, stateful_set_pods, template_hash
from kaicore.rules.groups.dialects.jobset import jobset_jobs
from kaicore.rules.groups.dialects.leader_worker_set import leader_worker_set_pods
from kaicore.rules.groups.dialects.volcano import volcano_job_pods
from kaicore.rules.objects.mappings import Fields, controlled_by, spec_of

from kai_apiserver.controllers.reconciling import Backoffs, Controller, controlled_pod
from kai_apiserver.controllers.workloads.training import mpi_job, pytorch_job, ray_cluster, ray_job
from kai_apiserver.controllers.workloads.view import (
    ENDED,
    Plan,
    View,
    exit_code,
    is_going,
    is_ready,
    label_of,
    phase_of,
)
from kai_apiserver.objects import Object, find_condition, holds, key_of, parse_time
from kai_apiserver.rest.backend import Backend, Target, shown
from kai_apiserver.store import Collection, Event, EventType, Stored
from kai_apiserver.store.store import Place

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
    plan.create += [controlled_pod(view.owner) for _ in repeat(None, missing)]
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


STATEFUL_SETS = "statefulsets.apps"
LEADER_WORKER_SETS = "leaderworkersets.leaderworkerset.x-k8s.io"

_LWS = "leaderworkerset.sigs.k8s.io"
_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
_TASK = "volcano.sh/task-spec"
_JOB_VERSION = "volcano.sh/job-version"
_RECREATE = "RecreateGroupOnPodRestart"
_VOLCANO_RETRIES = 3

Rule = Callable[[View], Plan]


# JobSet.


def job_set(view: View) -> Plan:
    """A JobSet: its Jobs, each when those that it depends on are as far; it ends and restarts by its policies."""
    jobs = view.children("Job")
    if view.has_ended("Completed", "Failed"):
        plan = Plan(delete=[job for job in jobs if not _job_end(job) and not is_going(job)])
        ends = [find_condition({"status": view.status}, kind) for kind in ("Completed", "Failed")]
        ended = next(one.get("lastTransitionTime") for one in ends if one.get("status") == "True")
        left = view.left_to_live(view.spec.get("ttlSecondsAfterFinished"), ended)
        plan.again, plan.delete_owner = left, left == 0.0
        return plan
    plan, attempt = Plan(), view.status.get("restarts", 0)
    if view.spec.get("suspend"):
        view.say("Suspended", "SuspendedJobs", "jobset is suspended")
        view.settle(plan, [])
        return plan
    if view.has_ended("Suspended"):
        view.say("StartupPolicyInProgress", "ResumeJobs", "jobset is resumed", instead_of=("Suspended",))
    present = [job for job in jobs if label_of(job, _ATTEMPT) in ("", str(attempt)) and not is_going(job)]
    failed = [job for job in present if _job_end(job) == "Failed"]
    if failed:
        if _restarts(view, failed[0], attempt):
            view.status["restarts"] = attempt + 1
            plan.delete += present
            return plan
        names = ", ".join(job["metadata"]["name"] for job in failed)
        view.status["terminalState"] = "Failed"
        view.say("Failed", "FailedJobs", f"jobset failed due to one or more job failures: {names}")
        return plan
    if _jobs_succeeded(view, present):
        view.status["terminalState"] = "Completed"
        view.say("Completed", "AllJobsCompleted", "jobset completed successfully")
        return plan
    wanted = [_attempted(made.object, attempt) for made in jobset_jobs(_without_dependencies(view.owner))]
    view.settle(plan, [job for job in wanted if _may_start(view, label_of(job, _REPLICATED_JOB), present)])
    view.status["replicatedJobsStatus"] = [_replicated(one["name"], present) for one in _replicated_jobs(view)]
    view.status.setdefault("restarts", 0)
    return plan


def _replicated_jobs(view: View) -> list[Object]:
    jobs: list[Object] = view.spec.get("replicatedJobs") or []
    return jobs


def _without_dependencies(owner: Object) -> Object:
    copy = deepcopy(owner)
    for one in copy["spec"].get("replicatedJobs") or ():
        one.pop("dependsOn", None)
    return copy


def _attempted(job: Object, attempt: int) -> Object:
    template = job["spec"]["template"]
    for metadata in (job["metadata"], template["metadata"]):
        metadata["labels"][_ATTEMPT] = metadata["annotations"][_ATTEMPT] = str(attempt)
    template["spec"].setdefault("restartPolicy", "OnFailure")
    if job["spec"].get("completions") is None and job["spec"]["completionMode"] == "Indexed":
        job["spec"]["completions"] = job["spec"].get("parallelism", 1)
    return job


def _job_end(job: Object) -> str:
    return next((kind for kind in ("Complete", "Failed") if holds(job, kind)), "")


def _replicated(name: str, jobs: Iterable[Object]) -> Object:
    mine = [job for job in jobs if label_of(job, _REPLICATED_JOB) == name]
    ends = [_job_end(job) for job in mine]
    return {
        "name": name,
        "ready": sum(_job_is_ready(job) for job in mine),
        "succeeded": ends.count("Complete"),
        "failed": ends.count("Failed"),
        "active": sum(bool((job.get("status") or {}).get("active")) for job in mine),
        "suspended": sum(bool(job["spec"].get("suspend")) for job in mine),
    }


def _job_is_ready(job: Object) -> bool:
    status, spec = job.get("status") or {}, job["spec"]
    pods = min(spec.get("parallelism", 1), spec.get("completions", spec.get("parallelism", 1)))
    return bool(status.get("ready", 0) + status.get("succeeded", 0) >= pods)


def _may_start(view: View, name: str, jobs: list[Object]) -> bool:
    """True if a replicated job may start: its own dependencies, and in an ordered set the jobs before it."""
    ones = _replicated_jobs(view)
    wanted = {one["name"]: one.get("replicas", 1) for one in ones}
    one = next(one for one in ones if one["name"] == name)
    needs = {need["name"]: need.get("status", "Ready") for need in one.get("dependsOn") or ()}
    if (view.spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder":
        before = list(wanted)[: list(wanted).index(name)]
        needs = dict.fromkeys(before, "Ready") | needs
    for other, state in needs.items():
        counts = _replicated(other, jobs)
        far = counts["succeeded"] if state == "Complete" else counts["ready"]
        if far < wanted.get(other, 0):
            return False
    return True


def _jobs_succeeded(view: View, jobs: Iterable[Object]) -> bool:
    policy = view.spec.get("successPolicy") or {}
    targets = policy.get("targetReplicatedJobs") or [one["name"] for one in _replicated_jobs(view)]
    wanted = sum(one.get("replicas", 1) for one in _replicated_jobs(view) if one["name"] in targets)
    done = sum(_job_end(job) == "Complete" for job in jobs if label_of(job, _REPLICATED_JOB) in targets)
    return done > 0 if policy.get("operator") == "Any" else bool(wanted) and done >= wanted


def _restarts(view: View, job: Object, attempt: int) -> bool:
    """True if the failure policy makes all Jobs anew after one has failed; the first rule that matches counts."""
    policy = view.spec.get("failurePolicy") or {}
    reason = find_condition(job, "Failed").get("reason")
    for rule in policy.get("rules") or ():
        reasons, targets = rule.get("onJobFailureReasons"), rule.get("targetReplicatedJobs")
        if (reasons and reason not in reasons) or (targets and label_of(job, _REPLICATED_JOB) not in targets):
            continue
        if rule.get("action") == "FailJobSet":
            return False
        if rule.get("action") == "RestartJobSetAndIgnoreMaxRestarts":
            return True
        break
    return bool(attempt < policy.get("maxRestarts", 0))


# StatefulSet and LeaderWorkerSet.


def stateful_set(view: View) -> Plan:
    """A StatefulSet: pods by ordinal, one after the other unless it says `Parallel`; what ends is made anew."""
    plan, pods = Plan(), view.children("Pod")
    made = _stateful_pods(view)
    if not _goes_with_its_leader(view):
        plan.delete += [pod for pod in pods if phase_of(pod) in ENDED and not is_going(pod)]
    wanted = [pod for pod in made if view.child("Pod", pod["metadata"]["name"]) is not None]
    for pod in made:
        present = view.child("Pod", pod["metadata"]["name"])
        if present is None:
            wanted.append(pod)
        if view.spec.get("podManagementPolicy") != "Parallel" and (present is None or not is_ready(present)):
            break
    view.settle(plan, wanted)
    ready = sum(map(is_ready, pods))
    revision = f"{view.name}-{template_hash(spec_of(view.owner).inside('template', required=True))}"
    standing = sum(not is_going(pod) for pod in pods)
    view.status = {
        "observedGeneration": view.owner["metadata"].get("generation", 0),
        "replicas": standing,
        "currentReplicas": standing,
        "updatedReplicas": standing,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "currentRevision": revision,
        "updateRevision": revision,
        "collisionCount": 0,
    }
    return plan


def _goes_with_its_leader(view: View) -> bool:
    """True if a StatefulSet is of workers who go with their leader when one of them ends."""
    owner = view.find(LEADER_WORKER_SETS, label_of(view.owner, f"{_LWS}/name"))
    of_workers = view.owner["metadata"].get("ownerReferences", [{}])[0].get("kind") == "Pod"
    return owner is not None and of_workers and _recreates_groups(owner)


def _recreates_groups(owner: Object) -> bool:
    policy = (owner["spec"].get("leaderWorkerTemplate") or {}).get("restartPolicy", _RECREATE)
    return bool(policy == _RECREATE)


def _stateful_pods(view: View) -> list[Object]:
    """Return the pods of a StatefulSet; those of one of a LeaderWorkerSet as its webhook marks them."""
    set_name = label_of(view.owner, f"{_LWS}/name")
    owner = view.find(LEADER_WORKER_SETS, set_name) if set_name else None
    if owner is None:
        return [made.object for made in stateful_set_pods(view.owner)]
    pods = []
    for made in leader_worker_set_pods(owner):
        pod = made.object
        if pod["metadata"]["ownerReferences"][0]["name"] != view.name:
            continue
        pod["metadata"]["ownerReferences"] = controlled_by(view.owner)
        pods.append(pod)
    return pods


def leader_worker_set(view: View) -> Plan:
    """A LeaderWorkerSet: a StatefulSet of leaders, and for each leader that is there one of its workers.

    Unless the restart policy is `None`, the leader goes with any pod of its group, and all others with it.
    """
    plan, spec = Plan(), view.spec
    template = spec_of(view.owner).inside("leaderWorkerTemplate", required=True)
    size, replicas = template.pods("size", 1), spec.get("replicas", 1)
    worker = template.inside("workerTemplate", required=True)
    leader = template.inside("leaderTemplate") if template.value.get("leaderTemplate") else worker
    leaders = _group_set(view, view.owner, view.name, leader, index="0", replicas=replicas)
    standing = view.child("StatefulSet", view.name)
    if standing is not None and standing["spec"].get("replicas") != replicas:
        plan.change.append(standing | {"spec": standing["spec"] | {"replicas": replicas}})
    view.settle(plan, [leaders])
    ready = 0
    for group in range(replicas):
        first = view.find("pods", f"{view.name}-{group}")
        if first is None or is_going(first):
            continue
        owned = view.find(STATEFUL_SETS, f"{view.name}-{group}")
        if owned is None or owned["metadata"]["ownerReferences"][0]["uid"] != first["metadata"]["uid"]:
            # None yet, or that of a leader before, which goes with it.
            ready += size == 1 and is_ready(first)
            if size > 1 and (spec.get("startupPolicy") != "LeaderReady" or is_ready(first)):
                name = f"{view.name}-{group}"
                plan.create.append(_group_set(view, first, name, worker, index="", replicas=size - 1, first=1))
            continue
        names = [f"{view.name}-{group}-{index}" for index in range(1, size)]
        there = [pod for name in names if (pod := view.find("pods", name)) is not None]
        workers = [pod for pod in there if pod["metadata"]["ownerReferences"][0]["uid"] == owned["metadata"]["uid"]]
        broken = [pod for pod in workers if is_going(pod) or phase_of(pod) in ENDED]
        if broken and _recreates_groups(view.owner):
            plan.delete.append(first)
            continue
        ready += is_ready(first) and len(workers) == size - 1 and all(map(is_ready, workers))
    view.status |= {"replicas": replicas, "readyReplicas": ready, "updatedReplicas": replicas}
    view.status["hpaPodSelector"] = f"{_LWS}/name={view.name},{_LWS}/worker-index=0"
    if ready == replicas:
        view.say("Available", "AllGroupsReady", "All replicas are ready", instead_of=("Progressing",))
    else:
        view.say("Progressing", "GroupsProgressing", "Replicas are progressing", instead_of=("Available",))
    return plan


def _group_set(
    view: View, owner: Object, name: str, template: Fields, *, index: str, replicas: int, first: int = 0
) -> Object:
    """Return the StatefulSet of the leaders, or of the workers of one leader."""
    labels = {f"{_LWS}/name": view.name}
    if index:
        labels[f"{_LWS}/worker-index"] = index
    metadata = template.copy("metadata")
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": name,
            "namespace": view.namespace,
            "labels": {f"{_LWS}/name": view.name},
            "ownerReferences": controlled_by(owner),
        },
        "spec": {
            "replicas": replicas,
            "ordinals": {"start": first},
            "serviceName": view.name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": metadata, "spec": template.copy("spec")},
        },
    }


# Volcano.


def volcano_job(view: View) -> Plan:
    """A Volcano Job: pods by task, its PodGroup, and what its policies do when a pod fails or a task is done."""
    pods, status = view.children("Pod"), view.status
    state: Object = status.get("state") or {}
    phase = state.get("phase", "Pending")
    if phase in ("Completed", "Failed", "Aborted", "Terminated"):
        plan = Plan(delete=[pod for pod in pods if phase_of(pod) not in ENDED and not is_going(pod)])
        plan.delete += view.children("PodGroup")
        left = view.left_to_live(view.spec.get("ttlSecondsAfterFinished"), state.get("lastTransitionTime"))
        plan.again, plan.delete_owner = left, left == 0.0
        return plan
    tasks = [
        {**task, "name": task.get("name") or f"default{index}"}
        for index, task in enumerate(view.spec.get("tasks") or ())
    ]
    total = sum(task.get("replicas", 0) for task in tasks)
    least = view.spec.get("minAvailable", total)
    plan = Plan()
    if phase == "Restarting":
        if not pods:
            _volcano_phase(view, "Pending")
        plan.delete += [pod for pod in pods if not is_going(pod)]
        return plan
    _count_tasks(view, tasks, pods, least=least)
    action = _volcano_action(view, tasks, pods)
    if action == "RestartJob":
        if status.get("retryCount", 0) >= view.spec.get("maxRetry", _VOLCANO_RETRIES):
            _volcano_phase(view, "Failed")
        else:
            status["retryCount"] = status.get("retryCount", 0) + 1
            status["version"] = status.get("version", 0) + 1
            _volcano_phase(view, "Restarting")
        return plan
    ended = {"AbortJob": "Aborted", "TerminateJob": "Terminated", "CompleteJob": "Completed"}.get(action)
    ended = ended or _volcano_end(view, tasks, total=total, least=least)
    if ended:
        _volcano_phase(view, ended)
        return plan
    started = status["running"] + status["succeeded"] + status["failed"]
    _volcano_phase(view, "Running" if started >= least and total else phase)
    if action in ("RestartTask", "RestartPod"):
        failed = [pod for pod in pods if phase_of(pod) == "Failed"]
        named = {label_of(pod, _TASK) for pod in failed}
        plan.delete += [pod for pod in pods if label_of(pod, _TASK) in named] if action == "RestartTask" else failed
    if not any(task.get("partitionPolicy") for task in tasks):
        # Of partitions the PodGroup would need sub-groups; without one the Job says it all itself.
        plan.create.append(_volcano_group(view, tasks, least))
    view.settle(plan, [made.object for made in volcano_job_pods(view.owner)])
    return plan


def _volcano_phase(view: View, phase: str) -> None:
    if (view.status.get("state") or {}).get("phase") != phase:
        view.status["state"] = {"phase": phase, "lastTransitionTime": view.stamp}


def _count_tasks(view: View, tasks: Iterable[Object], pods: Iterable[Object], *, least: int) -> None:
    phases = [(label_of(pod, _TASK), "Terminating" if is_going(pod) else phase_of(pod)) for pod in pods]
    for phase in ("Pending", "Running", "Succeeded", "Failed", "Terminating"):
        view.status[phase.lower()] = sum(of == phase for _, of in phases)
    view.status["minAvailable"] = least
    view.status["taskStatusCount"] = {
        task["name"]: {
            "phase": {
                phase: number
                for phase in ("Pending", "Running", "Succeeded", "Failed")
                if (number := phases.count((task["name"], phase)))
            }
        }
        for task in tasks
    }
    view.status.setdefault("version", 0)
    view.status.setdefault("retryCount", 0)


def _volcano_action(view: View, tasks: Iterable[Object], pods: Iterable[Object]) -> str:
    """Return the action of the first policy that what has become of the pods meets; a task's own come first."""
    by_name = {task["name"]: task for task in tasks}
    version = str(view.status.get("version", 0))
    for pod in pods:
        task = by_name.get(label_of(pod, _TASK))
        if task is None or (pod["metadata"].get("annotations") or {}).get(_JOB_VERSION) != version:
            continue
        event = "PodFailed" if phase_of(pod) == "Failed" else "PodEvicted" if is_going(pod) else ""
        if event and (action := _policy(view, task, event, exit_code(pod))):
            return action
    for name, task in by_name.items():
        done = view.status["taskStatusCount"][name]["phase"].get("Succeeded", 0)
        if task.get("replicas", 0) and done >= task["replicas"] and (action := _policy(view, task, "TaskCompleted")):
            return action
    return ""


def _policy(view: View, task: Object, event: str, exit_code: int | None = None) -> str:
    for policy in [*(task.get("policies") or ()), *(view.spec.get("policies") or ())]:
        events = {policy.get("event"), *(policy.get("events") or ())}
        any_event = "*" in events and event != "TaskCompleted"
        if event in events or any_event or (exit_code is not None and policy.get("exitCode") == exit_code):
            return str(policy.get("action", ""))
    return ""


def _volcano_end(view: View, tasks: Iterable[Object], *, total: int, least: int) -> str:
    """Return the phase that a job ends in when nothing of it runs any more; empty where it goes on."""
    status = view.status
    wanted = view.spec.get("minSuccess")
    if wanted is not None and status["succeeded"] >= wanted:
        return "Completed"
    if not total or status["succeeded"] + status["failed"] < total:
        return ""
    for task in tasks:
        done = status["taskStatusCount"][task["name"]]["phase"].get("Succeeded", 0)
        if task.get("minAvailable") is not None and done < task["minAvailable"]:
            return "Failed"
    if wanted is not None:
        return "Failed"
    return "Completed" if status["succeeded"] >= least else "Failed"


def _volcano_group(view: View, tasks: Iterable[Object], least: int) -> Object:
    spec: Object = {
        "minMember": least,
        "minTaskMember": {task["name"]: task.get("minAvailable", task.get("replicas", 0)) for task in tasks},
        "queue": view.spec.get("queue", "default"),
    }
    for name in ("priorityClassName", "networkTopology"):
        if view.spec.get(name):
            spec[name] = deepcopy(view.spec[name])
    metadata = view.owner["metadata"]
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {
            "name": f"{view.name}-{metadata['uid']}",
            "namespace": view.namespace,
            "labels": dict(metadata.get("labels") or {}),
            "annotations": dict(metadata.get("annotations") or {}),
            "ownerReferences": controlled_by(view.owner),
        },
        "spec": spec,
    }


#: The rule of each kind, by its collection.
KINDS: dict[str, Rule] = {
    "deployments.apps": deployment,
    "replicasets.apps": replica_set,
    STATEFUL_SETS: stateful_set,
    "pytorchjobs.kubeflow.org": pytorch_job,
    "mpijobs.kubeflow.org": mpi_job,
    "rayclusters.ray.io": ray_cluster,
    "rayjobs.ray.io": ray_job,
    "jobsets.jobset.x-k8s.io": job_set,
    LEADER_WORKER_SETS: leader_worker_set,
    "jobs.batch.volcano.sh": volcano_job,
}


PODS = "pods"

#: Children that are made before others get their turn.
_AT_ONCE = 100
#: Seconds until a name is tried again that another object still has, such as one of an owner that is gone.
_NAME_TAKEN_S = 0.5


class WorkloadController(Controller[Place]):
    """Runs every kind of `KINDS`, as far as the server has its definition."""

    name = "workload-controller"

    def __init__(self, backend: Backend, *, base_backoff_s: float) -> None:
        super().__init__(backend)
        self._backoffs = Backoffs(base_backoff_s)
        self._places: dict[str, Place] = {}  # of what owns something or may, by uid

    def begin(self) -> None:
        """Look at every object of the kinds, and at what they own."""
        for collection in self.backend.store.collections:
            for stored in collection:
                self._seen(collection.resource.storage, stored)
        self.backend.store.subscribe(self._changed)

    def _seen(self, storage: str, stored: Stored) -> None:
        place = storage, stored.key
        if storage in KINDS:
            self._places[stored.uid] = place
            self.queue(place)
        elif stored.owners:
            self._places[stored.uid] = place

    def _changed(self, collection: Collection, event: Event) -> None:
        stored, storage = event.stored, collection.resource.storage
        if event.type is not EventType.DELETED:
            self._seen(storage, stored)
        else:
            self._places.pop(stored.uid, None)
            self._backoffs.forget(stored.uid)
        self._queue_owners(stored, failed=storage == PODS and self.has_just_failed(event))

    def _queue_owners(self, stored: Stored, *, failed: bool = False) -> None:
        """Have all look again whom a change of a child concerns: its owners, their owners, and so on.

        Args:
            failed: whether it is a pod that has just failed.
        """
        for uid in stored.owners:
            place = self._places.get(uid)
            if place is None:
                continue
            if place[0] in KINDS:
                if failed:
                    self._backoffs.failed(uid, self.backend.now().timestamp())
                self.queue_gathered(place, uid)
            above = self.backend.store.find(*place)
            if above is not None:
                self._queue_owners(above)

    def reconcile(self, key: Place) -> float | None:
        """Make, replace and delete an object's children, and say in its status how they are."""
        stored = self.backend.store.find(*key)
        if stored is None:
            return None
        resource = self.backend.registry.of_storage(key[0])
        view = View(
            shown(stored, resource),
            self._children_of(stored.uid),
            now=self.backend.now(),
            failures=self._backoffs.count(stored.uid),
            find=self._find,
        )
        if view.owner["metadata"].get("deletionTimestamp"):
            return None
        try:
            plan = KINDS[key[0]](view)
        except InvalidObject as error:
            self._log.warning("nothing is made of it", object=str(key), why=str(error))
            return None
        if view.status.get("readyReplicas"):
            self._backoffs.forget(stored.uid)
        again = self._carry_out(stored, view, plan)
        if plan.delete_owner:
            self.delete(stored, resource)
            return None
        new = stored.decode()
        new["status"] = view.status
        if annotations := view.owner["metadata"].get("annotations"):
            new["metadata"]["annotations"] = annotations
        self.backend.write_status(resource, new, stored)
        return min((wait for wait in (again, plan.again) if wait is not None), default=None)

    def _carry_out(self, stored: Stored, view: View, plan: Plan) -> float | None:
        """Delete and create; return seconds to wait before the rest is made."""
        for child in plan.delete:
            self._delete(child)
        for child in plan.change:
            self._change(child)
        missing = [child for child in plan.create if view.child(child["kind"], _name(child)) is None]
        if not missing:
            return None
        wait = self._backoffs.remaining(stored.uid, view.now.timestamp())
        if wait > 0:
            return wait
        taken = False
        for child in missing[:_AT_ONCE]:
            resource = self.backend.registry.of_kind(child["apiVersion"], child["kind"])
            if resource is None:
                continue
            if self._find(resource.storage, view.namespace, _name(child)) is not None:
                taken = True
                continue
            self.create(resource, child, namespace=view.namespace)
        return 0.001 if len(missing) > _AT_ONCE else _NAME_TAKEN_S if taken else None

    def _delete(self, child: Object) -> None:
        resource = self.backend.registry.of_kind(child["apiVersion"], child["kind"])
        assert resource is not None, child["kind"]
        metadata = child["metadata"]
        stored = self.backend.collection(resource).get(key_of(child))
        if stored is not None and stored.uid == metadata["uid"] and not metadata.get("deletionTimestamp"):
            self.delete(stored, resource)

    def _change(self, child: Object) -> None:
        """Write a child's spec and annotations."""
        resource = self.backend.registry.of_kind(child["apiVersion"], child["kind"])
        assert resource is not None, child["kind"]
        stored = self.backend.get(Target(resource, child["metadata"]["namespace"], child["metadata"]["name"]))
        new = stored.decode() | {"spec": child["spec"]}
        new["metadata"]["annotations"] = child["metadata"].get("annotations") or {}
        new["metadata"]["generation"] = new["metadata"].get("generation", 0) + 1
        self.commit(stored, resource, new)

    def _children_of(self, uid: str) -> list[Object]:
        children = []
        for place in self.backend.store.dependents(uid):
            stored = self.backend.store.find(*place)
            if stored is not None:
                children.append(shown(stored, self.backend.registry.of_storage(place[0])))
        return children

    def _find(self, storage: str, namespace: str, name: str) -> Object | None:
        """Return any object, with kind and apiVersion."""
        stored = self.backend.store.find(storage, f"{namespace}/{name}")
        return shown(stored, self.backend.registry.of_storage(storage)) if stored is not None else None


def _name(child: Object) -> str:
    """A child's name; empty where it is yet to be generated."""
    return str(child["metadata"].get("name", ""))
