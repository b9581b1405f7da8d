"""PyTorchJobs, MPIJobs, RayClusters and RayJobs: what their operators make of them, as rules of `kinds`.

Sources, for facts: training-operator 1.9 (`pkg/controller.v1/{common,pytorch}`), mpi-operator 0.6 (`pkg/controller`),
KubeRay 1.4 (`ray-operator/controllers/ray`).
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy

from kaicore.rules.groups.dialects.kubeflow import mpi_job_pods, training_job_pods
from kaicore.rules.groups.dialects.ray import ray_cluster_pods, ray_job_parts
from kaicore.rules.objects.made import Made

from kai_apiserver.controllers.workloads.view import (
    ENDED,
    Plan,
    View,
    exit_code,
    is_going,
    is_past_deadline,
    is_ready,
    label_of,
    phase_of,
)
from kai_apiserver.objects import Object, find_condition, holds

_REPLICA_TYPE = "training.kubeflow.org/replica-type"
_RAY_GROUP = "ray.io/group"
#: Beginning of the annotations by which the simulated kubelets know how long a pod runs, and how it ends.
_SIMULATOR = "simulator.kai.scheduler/"

#: Exit codes from here on are of signals: retried under the restart policy `ExitCode`. None at all counts as such.
_SIGNALS = 128
_RAY_SUBMITTER_RETRIES = 2


def _run_policy(view: View) -> Object:
    policy: Object = view.spec.get("runPolicy") or {}
    return policy


def _clean_up(view: View, plan: Plan, policy: str, *, running: Iterable[Object]) -> None:
    """Delete what a clean-up policy (`None`, `Running`, `All`) does not leave of an ended job."""
    if policy == "All":
        plan.delete += view.children("Pod")
    elif policy == "Running":
        plan.delete += [child for child in running if not is_going(child) and phase_of(child) not in ENDED]


# Kubeflow: what jobs of the training operator and of the MPI operator have in common.


def _kubeflow_ended(view: View, *, running: Iterable[Object]) -> Plan | None:
    """Return what is left to do for a job that has ended; None where it has not."""
    if not view.has_ended("Succeeded", "Failed"):
        return None
    plan, policy = Plan(), _run_policy(view)
    _clean_up(view, plan, str(policy.get("cleanPodPolicy", "None")), running=running)
    left = view.left_to_live(policy.get("ttlSecondsAfterFinished"), view.status.get("completionTime"))
    plan.again, plan.delete_owner = left, left == 0.0
    return plan


def _end_kubeflow(view: View, kind: str, message: str) -> None:
    subject = f"{view.owner['kind']}{kind}"
    view.say(kind, subject, f"{view.owner['kind']} {view.namespace}/{view.name} {message}", instead_of=("Running",))
    view.status["completionTime"] = view.stamp


def _kubeflow_begins(view: View) -> Plan | None:
    """Say that a job was seen; return the plan of one that is suspended."""
    kind = view.owner["kind"]
    view.say("Created", f"{kind}Created", f"{kind} {view.namespace}/{view.name} is created.")
    if _run_policy(view).get("suspend"):
        plan = Plan()
        view.settle(plan, [])
        view.status.pop("startTime", None)
        view.say("Suspended", f"{kind}Suspended", f"{kind} {view.name} is suspended.", instead_of=("Running",))
        return plan
    view.status.setdefault("startTime", view.stamp)
    return None


def _count_replicas(view: View, replicas: Mapping[str, Object], pods: Iterable[Object]) -> Object:
    """Count pods by replica type, as `replicaStatuses` has it."""
    statuses: Object = {}
    for replica_type in sorted(replicas):
        mine = [pod for pod in pods if label_of(pod, _REPLICA_TYPE) == replica_type.lower()]
        phases = [phase_of(pod) for pod in mine]
        selector = f"training.kubeflow.org/job-name={view.name},{_REPLICA_TYPE}={replica_type.lower()}"
        counts = {
            "active": phases.count("Running"),
            "succeeded": phases.count("Succeeded"),
            "failed": phases.count("Failed"),
        }
        statuses[replica_type] = {name: number for name, number in counts.items() if number} | {"selector": selector}
    view.status["replicaStatuses"] = statuses
    return statuses


def pytorch_job(view: View) -> Plan:
    """A PyTorchJob: pods with ranks, replaced by their restart policy; it ends with its master, or all its workers."""
    pods = view.children("Pod")
    if (ended := _kubeflow_ended(view, running=pods)) or (ended := _kubeflow_begins(view)):
        return ended
    replicas: Mapping[str, Object] = view.spec.get("pytorchReplicaSpecs") or {}
    statuses = _count_replicas(view, replicas, pods)
    kind, wanted, policy = view.owner["kind"], list(training_job_pods(view.owner)), _run_policy(view)
    policies = {name.lower(): replica.get("restartPolicy", "OnFailure") for name, replica in replicas.items()}
    failed = [pod for pod in pods if phase_of(pod) == "Failed" and not is_going(pod)]
    lost = [pod for pod in failed if not _is_retried(pod, policies.get(label_of(pod, _REPLICA_TYPE), "Never"))]
    limit = policy.get("backoffLimit")
    plan = Plan()
    if is_past_deadline(view, policy.get("activeDeadlineSeconds")):
        _end_kubeflow(view, "Failed", "is past its deadline.")
    elif lost or (failed and limit is not None and view.failures > limit):
        _end_kubeflow(view, "Failed", "has failed: " + ", ".join(pod["metadata"]["name"] for pod in lost or failed))
    elif _training_succeeded(replicas, statuses):
        _end_kubeflow(view, "Succeeded", "successfully completed.")
    else:
        if failed:
            plan.delete += failed
            view.say("Restarting", f"{kind}Restarting", f"{kind} {view.name} is restarting.", instead_of=("Running",))
        elif any(status.get("active") for status in statuses.values()):
            others = ("Restarting", "Suspended")
            view.say("Running", f"{kind}Running", f"{kind} {view.name} is running.", instead_of=others)
        for made in wanted:
            restarts = policies.get(label_of(made.object, _REPLICA_TYPE), "OnFailure")
            made.object["spec"]["restartPolicy"] = "Never" if restarts == "ExitCode" else restarts
        view.settle(plan, [made.object for made in wanted])
        return plan
    return plan


def _is_retried(pod: Object, policy: str) -> bool:
    return policy in ("OnFailure", "Always") or (policy == "ExitCode" and exit_code(pod) >= _SIGNALS)


def _training_succeeded(replicas: Mapping[str, Object], statuses: Object) -> bool:
    decisive = "Master" if "Master" in replicas else "Worker"
    wanted = (replicas.get(decisive) or {}).get("replicas", 1)
    return bool(wanted) and statuses.get(decisive, {}).get("succeeded", 0) >= wanted


def mpi_job(view: View) -> Plan:
    """An MPIJob of the MPI operator: workers, and a Job for the launcher, with which it ends."""
    pods = view.children("Pod")
    launcher = view.child("Job", f"{view.name}-launcher")
    if (ended := _kubeflow_ended(view, running=pods)) or (ended := _kubeflow_begins(view)):
        return ended
    replicas: Mapping[str, Object] = view.spec.get("mpiReplicaSpecs") or {}
    statuses = _count_replicas(view, replicas, pods)
    done = (launcher or {}).get("status") or {}
    statuses["Launcher"] = {name: done[name] for name in ("active", "succeeded", "failed") if done.get(name)}
    policy, plan = _run_policy(view), Plan()
    if launcher is not None and holds(launcher, "Complete"):
        _end_kubeflow(view, "Succeeded", "successfully completed.")
    elif launcher is not None and holds(launcher, "Failed"):
        _end_kubeflow(view, "Failed", find_condition(launcher, "Failed").get("message", "has failed"))
    elif is_past_deadline(view, policy.get("activeDeadlineSeconds")):
        _end_kubeflow(view, "Failed", "is past its deadline.")
    else:
        made = list(mpi_job_pods(view.owner))
        workers = [one.object for one in made if one.through is None]
        for pod in workers:
            pod["spec"]["restartPolicy"] = (replicas.get("Worker") or {}).get("restartPolicy", "Never")
        running = [pod for pod in pods if phase_of(pod) == "Running"]
        if done.get("active") and len(running) == len(workers):
            view.say("Running", "MPIJobRunning", f"MPIJob {view.name} is running.", instead_of=("Suspended",))
        waits = view.spec.get("launcherCreationPolicy") == "WaitForWorkersReady" and launcher is None
        if not waits or len([pod for pod in pods if is_ready(pod)]) == len(workers):
            workers += [_mpi_launcher(view, one, policy) for one in made if one.through is not None]
        plan.delete += [pod for pod in pods if phase_of(pod) == "Failed"]
        view.settle(plan, workers)
        return plan
    return plan


def _mpi_launcher(view: View, made: Made, policy: Object) -> Object:
    pod = made.object
    launcher = (view.spec.get("mpiReplicaSpecs") or {}).get("Launcher") or {}
    pod["spec"]["restartPolicy"] = launcher.get("restartPolicy", "Never")
    fields = ("backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
    return _job_of(made, {name: policy[name] for name in fields if policy.get(name) is not None})


def _job_of(made: Made, spec: Object) -> Object:
    """Return the Job of a pod that a library's rule shows as if the Job had made it already."""
    assert made.through is not None
    pod, job = made.object, deepcopy(made.through)
    metadata = {name: pod["metadata"][name] for name in ("labels", "annotations")}
    job["spec"] = {**spec, "template": {"metadata": metadata, "spec": pod["spec"]}}
    return job


# Ray.


def ray_cluster(view: View) -> Plan:
    """A RayCluster: a head and workers, made anew when they end; it runs until it is deleted."""
    plan, pods = Plan(), view.children("Pod")
    made = [one.object for one in ray_cluster_pods(view.owner)]
    for pod in made:
        for container in [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]:
            # What the operator adds itself has the image of the Ray container.
            container.setdefault("image", pod["spec"]["containers"][0].get("image", "rayproject/ray"))
    plan.delete += [pod for pod in pods if phase_of(pod) in ENDED and not is_going(pod)]
    view.settle(plan, made)
    workers = [pod for pod in pods if label_of(pod, _RAY_GROUP) != "headgroup"]
    ready = sum(map(is_ready, workers))
    heads = [pod for pod in pods if label_of(pod, _RAY_GROUP) == "headgroup" and is_ready(pod)]
    view.status |= {
        "desiredWorkerReplicas": max(len(made) - 1, 0),
        "availableWorkerReplicas": sum(phase_of(pod) == "Running" and not is_going(pod) for pod in workers),
        "readyWorkerReplicas": ready,
        "observedGeneration": view.owner["metadata"].get("generation", 0),
        "head": {"podName": heads[0]["metadata"]["name"]} if heads else {},
    }
    if not made:
        view.status["state"] = "suspended"
    elif heads and ready == len(made) - 1:
        view.status["state"] = "ready"
        view.say("HeadPodReady", "HeadPodRunningAndReady", "")
        view.say("RayClusterProvisioned", "AllPodRunningAndReadyFirstTime", "All Ray Pods are ready for the first time")
    return plan


def ray_job(view: View) -> Plan:
    """A RayJob: a RayCluster, and when that is ready a Job that submits; it ends with the latter."""
    plan, status = Plan(), view.status
    cluster = next(iter(view.children("RayCluster")), None)
    if status.get("jobDeploymentStatus") in ("Complete", "Failed"):
        if view.spec.get("shutdownAfterJobFinishes") and cluster is not None:
            left = view.left_to_live(view.spec.get("ttlSecondsAfterFinished", 0), status.get("endTime"))
            plan.again = left or None
            plan.delete += [] if left else [cluster]
        return plan
    parts = ray_job_parts(view.owner)
    if not parts:
        view.settle(plan, [])
        status["jobDeploymentStatus"] = "Suspended" if view.spec.get("suspend") else "Running"
        return plan
    status.setdefault("startTime", view.stamp)
    status.setdefault("jobId", f"{view.name}-{view.owner['metadata']['uid'][:5]}")
    submitter = view.child("Job", view.name)
    wanted = [parts[0].object]
    status["rayClusterName"] = wanted[0]["metadata"]["name"]
    is_up = cluster is not None and not is_going(cluster) and (cluster.get("status") or {}).get("state") == "ready"
    if is_up or submitter is not None:
        limit = (view.spec.get("submitterConfig") or {}).get("backoffLimit", _RAY_SUBMITTER_RETRIES)
        wanted += [_ray_submitter(view, one, limit) for one in parts[1:]]
    for condition, ends_as, says in (("Complete", "Complete", "SUCCEEDED"), ("Failed", "Failed", "FAILED")):
        if submitter is not None and holds(submitter, condition):
            return _end_ray_job(view, submitter, cluster, ends_as=ends_as, says=says)
    if is_past_deadline(view, view.spec.get("activeDeadlineSeconds")):
        status |= {"jobDeploymentStatus": "Failed", "reason": "DeadlineExceeded", "endTime": view.stamp}
        view.settle(plan, [])
        return plan
    running = submitter is not None and (submitter.get("status") or {}).get("ready")
    status["jobDeploymentStatus"] = "Running" if submitter is not None else "Initializing"
    status["jobStatus"] = "RUNNING" if running else "PENDING" if submitter is not None else ""
    view.settle(plan, wanted)
    return plan


def _ray_submitter(view: View, made: Made, limit: int) -> Object:
    pod = made.object
    container = pod["spec"]["containers"][0]
    template = ((view.spec.get("rayClusterSpec") or {}).get("headGroupSpec") or {}).get("template") or {}
    head = ((template.get("spec") or {}).get("containers") or [{}])[0]
    container.setdefault("image", head.get("image", "rayproject/ray"))
    if not view.spec.get("submitterPodTemplate"):
        # How long the entry point runs can be said of nothing else than the RayJob.
        own = view.owner["metadata"].get("annotations") or {}
        pod["metadata"]["annotations"] |= {name: own[name] for name in own if name.startswith(_SIMULATOR)}
    return _job_of(made, {"backoffLimit": limit})


def _end_ray_job(view: View, submitter: Object, cluster: Object | None, *, ends_as: str, says: str) -> Plan:
    status, plan = view.status, Plan()
    failed = ends_as == "Failed"
    tried = status.get("failed", 0) + failed
    status |= {"failed": tried, "succeeded": int(not failed), "jobStatus": says}
    if failed and tried <= view.spec.get("backoffLimit", 0):
        status["jobDeploymentStatus"] = "Retrying"
        plan.delete += [submitter, *([cluster] if cluster is not None else ())]
        return plan
    status |= {"jobDeploymentStatus": ends_as, "endTime": view.stamp}
    return plan
