"""What the operators of batch work make of their objects, as a table with one rule for each kind.

A rule is a pure function from an object and its children to a `Plan`. Which pods an object stands for is the library's
rule (`kaicore.kube.workloads`), as `kai simulate` has it; here is what only a running operator does: environment
variables and Services, replacing what failed, the end, and the status.

Sources, for facts: training-operator 1.9 (`pkg/controller.v1/{common,pytorch}`), mpi-operator 0.6 (`pkg/controller`),
KubeRay 1.4 (`ray-operator/controllers/ray`), JobSet 0.8 (`pkg/controllers`), LeaderWorkerSet 0.7 (`pkg/controllers`,
`pkg/webhooks`), Volcano 1.13 (`pkg/controllers/job`), Kubernetes 1.36 (`pkg/controller/statefulset`).
"""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kaicore.kube.workloads.apps import stateful_set_pods, template_hash
from kaicore.kube.workloads.batch import jobset_jobs
from kaicore.kube.workloads.fields import Fields, spec_of
from kaicore.kube.workloads.kubeflow import mpi_job_pods, training_job_pods
from kaicore.kube.workloads.leader_worker_set import leader_worker_set_pods
from kaicore.kube.workloads.objects import controlled_by
from kaicore.kube.workloads.pods import Made
from kaicore.kube.workloads.ray import ray_cluster_pods, ray_job_parts
from kaicore.kube.workloads.volcano import volcano_job_pods

from kai_apiserver.objects import Object, find_condition, parse_time, timestamp

STATEFUL_SETS = "statefulsets.apps"
LEADER_WORKER_SETS = "leaderworkersets.leaderworkerset.x-k8s.io"

_LWS = "leaderworkerset.sigs.k8s.io"
_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
_REPLICA_TYPE = "training.kubeflow.org/replica-type"
_TASK = "volcano.sh/task-spec"
_JOB_VERSION = "volcano.sh/job-version"
_RAY_GROUP = "ray.io/group"
#: Beginning of the annotations by which the simulated kubelets know how long a pod runs, and how it ends.
_SIMULATOR = "simulator.kai.scheduler/"

#: Exit codes from here on are of signals: retried under the restart policy `ExitCode`. None at all counts as such.
_SIGNALS = 128
_NO_EXIT_CODE = 0xBEEF
_ENDED = ("Succeeded", "Failed")
_MASTER_PORT = "23456"
_RAY_PORT = "6379"
_RECREATE = "RecreateGroupOnPodRestart"
_VOLCANO_RETRIES = 3
_RAY_SUBMITTER_RETRIES = 2


@dataclass(slots=True)
class Plan:
    """What is to be done for an object.

    Attributes:
        create: children that should be there, with kind and apiVersion; those that are there stay.
        change: children with another spec.
        delete: children to delete; the controller makes them anew where they are wanted.
        delete_owner: whether the object's time to live is over.
        again: seconds until the object is to be looked at again, or None.
    """

    create: list[Object] = field(default_factory=list)
    change: list[Object] = field(default_factory=list)
    delete: list[Object] = field(default_factory=list)
    delete_owner: bool = False
    again: float | None = None


class View:
    """An object and its children, as a rule sees them; `status` is the rule's to change."""

    def __init__(
        self,
        owner: Object,
        children: Iterable[Object],
        *,
        now: datetime,
        failures: int,
        find: Callable[[str, str, str], Object | None],
    ) -> None:
        """Args:
        owner: with kind and apiVersion.
        children: with kind and apiVersion.
        now: the time.
        failures: how many of its pods have failed.
        find: returns any object by collection, namespace and name.
        """
        self.owner = owner
        self.name: str = owner["metadata"]["name"]
        self.namespace: str = owner["metadata"]["namespace"]
        self.spec: Object = owner.get("spec") or {}
        self.status: Object = deepcopy(owner.get("status") or {})
        self.now = now
        self.stamp = timestamp(now)
        self.failures = failures
        self._find = find
        self._children = {(child["kind"], child["metadata"]["name"]): child for child in children}

    def child(self, kind: str, name: str) -> Object | None:
        """Return a child."""
        return self._children.get((kind, name))

    def children(self, kind: str) -> list[Object]:
        """Return the children of a kind, those that are being deleted among them."""
        return [child for (of, _), child in self._children.items() if of == kind]

    def find(self, storage: str, name: str) -> Object | None:
        """Return any object of the namespace."""
        return self._find(storage, self.namespace, name)

    def settle(self, plan: Plan, wanted: list[Object]) -> None:
        """Plan to have the wanted pods, Jobs and whatever else, and no others of these kinds.

        A child that has ended stays, as far as it is wanted.
        """
        names = {(child["kind"], child["metadata"]["name"]) for child in wanted}
        kinds = {"Pod", "Job", "RayCluster", "StatefulSet"}
        plan.create += wanted
        plan.delete += [
            child
            for (kind, name), child in self._children.items()
            if kind in kinds and (kind, name) not in names and not is_going(child)
        ]

    def has_ended(self, *conditions: str) -> bool:
        """Whether one of these conditions is true."""
        return any(find_condition({"status": self.status}, kind).get("status") == "True" for kind in conditions)

    def say(self, kind: str, reason: str, message: str, *, instead_of: Iterable[str] = ()) -> None:
        """Set a condition, and those that it takes the place of to false; what is new comes last."""
        conditions: list[Object] = self.status.setdefault("conditions", [])
        for other in conditions:
            if other["type"] in instead_of and other["status"] == "True":
                other |= {"status": "False", "lastTransitionTime": self.stamp}
        present = next((one for one in conditions if one["type"] == kind), None)
        if present is not None and present["status"] == "True":
            return
        if present is not None:
            conditions.remove(present)
        conditions.append(
            {
                "type": kind,
                "status": "True",
                "reason": reason,
                "message": message,
                "lastTransitionTime": self.stamp,
                "lastUpdateTime": self.stamp,
            }
        )

    def left_to_live(self, seconds: Any, ended: str | None) -> float | None:
        """Return seconds until an ended object's time to live is over; None where it lives on."""
        if seconds is None or not ended:
            return None
        return max(0.0, float(seconds - (self.now - parse_time(ended)).total_seconds()))


Rule = Callable[[View], Plan]


def is_going(child: Object) -> bool:
    """Whether something is being deleted."""
    return bool(child["metadata"].get("deletionTimestamp"))


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def _is_ready(pod: Object) -> bool:
    return not is_going(pod) and find_condition(pod, "Ready").get("status") == "True"


def _label(child: Object, name: str) -> str:
    return str((child["metadata"].get("labels") or {}).get(name, ""))


def _exit_code(pod: Object) -> int:
    codes = [
        status["state"]["terminated"].get("exitCode", 0)
        for status in (pod.get("status") or {}).get("containerStatuses") or ()
        if (status.get("state") or {}).get("terminated")
    ]
    return max(codes, default=_NO_EXIT_CODE)


def _add_env(pod: Object, variables: Mapping[str, str | Object], *, initial: bool = False) -> None:
    """Give a pod's containers environment variables; those that they set themselves stay."""
    spec = pod["spec"]
    for container in [*((spec.get("initContainers") or ()) if initial else ()), *(spec.get("containers") or ())]:
        env = container["env"] = list(container.get("env") or ())
        present = {variable.get("name") for variable in env}
        env += [
            {"name": name, **({"value": value} if isinstance(value, str) else {"valueFrom": value})}
            for name, value in variables.items()
            if name not in present
        ]


def _of_label(name: str) -> Object:
    return {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{name}']"}}


def _headless(view: View, name: str, selector: Mapping[str, str], *, ports: Iterable[Object] = ()) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": view.namespace, "ownerReferences": controlled_by(view.owner)},
        "spec": {
            "clusterIP": "None",
            "selector": dict(selector),
            "publishNotReadyAddresses": True,
            "ports": list(ports),
        },
    }


def _run_policy(view: View) -> Object:
    policy: Object = view.spec.get("runPolicy") or {}
    return policy


def _clean_up(view: View, plan: Plan, policy: str, *, running: Iterable[Object]) -> None:
    """Delete what a clean-up policy (`None`, `Running`, `All`) does not leave of an ended job."""
    if policy == "All":
        plan.delete += [*view.children("Pod"), *view.children("Service")]
    elif policy == "Running":
        plan.delete += [child for child in running if not is_going(child) and _phase(child) not in _ENDED]


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


def _past_deadline(view: View, deadline: Any) -> bool:
    started = view.status.get("startTime")
    return bool(
        deadline is not None and started and (view.now - parse_time(started)).total_seconds() >= float(deadline)
    )


def _count_replicas(view: View, replicas: Mapping[str, Object], pods: Iterable[Object]) -> Object:
    """Count pods by replica type, as `replicaStatuses` has it."""
    statuses: Object = {}
    for replica_type in sorted(replicas):
        mine = [pod for pod in pods if _label(pod, _REPLICA_TYPE) == replica_type.lower()]
        phases = [_phase(pod) for pod in mine]
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
    kind, wanted, policy = view.owner["kind"], training_job_pods(view.owner), _run_policy(view)
    policies = {name.lower(): replica.get("restartPolicy", "OnFailure") for name, replica in replicas.items()}
    failed = [pod for pod in pods if _phase(pod) == "Failed" and not is_going(pod)]
    lost = [pod for pod in failed if not _is_retried(pod, policies.get(_label(pod, _REPLICA_TYPE), "Never"))]
    limit = policy.get("backoffLimit")
    plan = Plan()
    if _past_deadline(view, policy.get("activeDeadlineSeconds")):
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
        plan.create += _services(view, wanted, policies)
        view.settle(plan, [_with_ranks(view, made.object, wanted, policies) for made in wanted])
        return plan
    return plan


def _is_retried(pod: Object, policy: str) -> bool:
    return policy in ("OnFailure", "Always") or (policy == "ExitCode" and _exit_code(pod) >= _SIGNALS)


def _training_succeeded(replicas: Mapping[str, Object], statuses: Object) -> bool:
    decisive = "Master" if "Master" in replicas else "Worker"
    wanted = (replicas.get(decisive) or {}).get("replicas", 1)
    return bool(wanted) and statuses.get(decisive, {}).get("succeeded", 0) >= wanted


def _services(view: View, wanted: Iterable[Made], policies: Mapping[str, str]) -> list[Object]:
    """Return the Services of a PyTorchJob: of its master, or without one of each worker."""
    led = "master" if "master" in policies else "worker"
    ports = [{"name": "pytorchjob-port", "port": int(_MASTER_PORT)}]
    names = ("training.kubeflow.org/job-name", _REPLICA_TYPE, "training.kubeflow.org/replica-index")
    return [
        _headless(
            view,
            made.object["metadata"]["name"],
            {name: _label(made.object, name) for name in names},
            ports=ports,
        )
        for made in wanted
        if _label(made.object, _REPLICA_TYPE) == led
    ]


def _with_ranks(view: View, pod: Object, wanted: Iterable[Made], policies: Mapping[str, str]) -> Object:
    kind = _label(pod, _REPLICA_TYPE)
    policy = policies.get(kind, "OnFailure")
    pod["spec"]["restartPolicy"] = "Never" if policy == "ExitCode" else policy
    world = str(sum(1 for _ in wanted))
    variables = {"PYTHONUNBUFFERED": "1"}
    if "master" in policies:
        rank = str(int(_label(pod, "training.kubeflow.org/replica-index")) + (kind == "worker"))
        address = f"{view.name}-master-0"
        variables |= {
            "MASTER_PORT": _MASTER_PORT,
            "PET_MASTER_PORT": _MASTER_PORT,
            "MASTER_ADDR": address,
            "PET_MASTER_ADDR": address,
            "WORLD_SIZE": world,
            "RANK": rank,
            "PET_NODE_RANK": rank,
        }
    elastic = view.spec.get("elasticPolicy") or {}
    least, most = elastic.get("minReplicas"), elastic.get("maxReplicas")
    variables["PET_NNODES"] = f"{least}:{most}" if least is not None and most is not None else world
    variables["PET_NPROC_PER_NODE"] = str(view.spec.get("nprocPerNode", "auto"))
    _add_env(pod, variables)
    return pod


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
    if launcher is not None and find_condition(launcher, "Complete").get("status") == "True":
        _end_kubeflow(view, "Succeeded", "successfully completed.")
    elif launcher is not None and find_condition(launcher, "Failed").get("status") == "True":
        _end_kubeflow(view, "Failed", find_condition(launcher, "Failed").get("message", "has failed"))
    elif _past_deadline(view, policy.get("activeDeadlineSeconds")):
        _end_kubeflow(view, "Failed", "is past its deadline.")
    else:
        made = mpi_job_pods(view.owner)
        workers = [_mpi_worker(view, one.object, replicas) for one in made if one.through is None]
        running = [pod for pod in pods if _phase(pod) == "Running"]
        if done.get("active") and len(running) == len(workers):
            view.say("Running", "MPIJobRunning", f"MPIJob {view.name} is running.", instead_of=("Suspended",))
        waits = view.spec.get("launcherCreationPolicy") == "WaitForWorkersReady" and launcher is None
        if not waits or len([pod for pod in pods if _is_ready(pod)]) == len(workers):
            workers += [_mpi_launcher(view, one, policy) for one in made if one.through is not None]
        plan.delete += [pod for pod in pods if _phase(pod) == "Failed"]
        plan.create.append(_headless(view, view.name, {"training.kubeflow.org/job-name": view.name}))
        view.settle(plan, workers)
        return plan
    return plan


def _mpi_worker(view: View, pod: Object, replicas: Mapping[str, Object]) -> Object:
    spec = pod["spec"]
    spec["restartPolicy"] = (replicas.get("Worker") or {}).get("restartPolicy", "Never")
    spec["hostname"], spec["subdomain"] = pod["metadata"]["name"], view.name
    _add_env(pod, {"K_MPI_JOB_ROLE": "worker"})
    return pod


def _mpi_launcher(view: View, made: Made, policy: Object) -> Object:
    pod = made.object
    launcher = (view.spec.get("mpiReplicaSpecs") or {}).get("Launcher") or {}
    pod["spec"]["restartPolicy"] = launcher.get("restartPolicy", "Never")
    variables = {
        "K_MPI_JOB_ROLE": "launcher",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    }
    if not view.spec.get("runLauncherAsWorker"):
        variables |= {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
    _add_env(pod, variables)
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
        _with_ray_env(view, pod)
    plan.delete += [pod for pod in pods if _phase(pod) in _ENDED and not is_going(pod)]
    head_service = f"{view.name}-head-svc"
    selector = {"ray.io/cluster": view.name, "ray.io/node-type": "head"}
    ports = [{"name": "gcs-server", "port": int(_RAY_PORT)}, {"name": "dashboard", "port": 8265}]
    if made:
        plan.create.append(_headless(view, head_service, selector, ports=ports))
    view.settle(plan, made)
    workers = [pod for pod in pods if _label(pod, _RAY_GROUP) != "headgroup"]
    ready = sum(map(_is_ready, workers))
    heads = [pod for pod in pods if _label(pod, _RAY_GROUP) == "headgroup" and _is_ready(pod)]
    view.status |= {
        "desiredWorkerReplicas": max(len(made) - 1, 0),
        "availableWorkerReplicas": sum(_phase(pod) == "Running" and not is_going(pod) for pod in workers),
        "readyWorkerReplicas": ready,
        "observedGeneration": view.owner["metadata"].get("generation", 0),
        "head": {"serviceName": head_service} | ({"podName": heads[0]["metadata"]["name"]} if heads else {}),
    }
    if not made:
        view.status["state"] = "suspended"
    elif heads and ready == len(made) - 1:
        view.status["state"] = "ready"
        view.say("HeadPodReady", "HeadPodRunningAndReady", "")
        view.say("RayClusterProvisioned", "AllPodRunningAndReadyFirstTime", "All Ray Pods are ready for the first time")
    return plan


def _with_ray_env(view: View, pod: Object) -> None:
    name, service = view.name, f"{view.name}-head-svc"
    full = f"{service}.{view.namespace}.svc.cluster.local"
    variables: dict[str, str | Object] = {
        "RAY_CLUSTER_NAME": _of_label("ray.io/cluster"),
        "RAY_CLOUD_INSTANCE_ID": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
        "RAY_NODE_TYPE_NAME": _of_label(_RAY_GROUP),
        "RAY_PORT": _RAY_PORT,
        "RAY_USAGE_STATS_KUBERAY_IN_USE": "1",
        "RAY_USAGE_STATS_EXTRA_TAGS": f"kuberay_crd=RayCluster;cluster={name}",
    }
    if _label(pod, "ray.io/node-type") == "head":
        variables["RAY_ADDRESS"] = f"127.0.0.1:{_RAY_PORT}"
    else:
        variables |= {"FQ_RAY_IP": full, "RAY_IP": service, "RAY_ADDRESS": f"{full}:{_RAY_PORT}"}
    _add_env(pod, variables, initial=True)
    for container in [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]:
        # What the operator adds itself has the image of the Ray container.
        container.setdefault("image", pod["spec"]["containers"][0].get("image", "rayproject/ray"))


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
        if submitter is not None and find_condition(submitter, condition).get("status") == "True":
            return _end_ray_job(view, submitter, cluster, ends_as=ends_as, says=says)
    if _past_deadline(view, view.spec.get("activeDeadlineSeconds")):
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
    service = f"{view.status['rayClusterName']}-head-svc.{view.namespace}.svc.cluster.local"
    _add_env(pod, {"RAY_DASHBOARD_ADDRESS": f"{service}:8265", "RAY_JOB_SUBMISSION_ID": view.status["jobId"]})
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
    present = [job for job in jobs if _label(job, _ATTEMPT) in ("", str(attempt)) and not is_going(job)]
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
    network = view.spec.get("network") or {}
    subdomain = network.get("subdomain") or view.name
    if network.get("enableDNSHostnames", True):
        plan.create.append(_headless(view, subdomain, {"jobset.sigs.k8s.io/jobset-name": view.name}))
    wanted = [_attempted(made.object, attempt, subdomain) for made in jobset_jobs(_without_dependencies(view.owner))]
    view.settle(plan, [job for job in wanted if _may_start(view, _label(job, _REPLICATED_JOB), present)])
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


def _attempted(job: Object, attempt: int, subdomain: str) -> Object:
    template = job["spec"]["template"]
    for metadata in (job["metadata"], template["metadata"]):
        metadata["labels"][_ATTEMPT] = metadata["annotations"][_ATTEMPT] = str(attempt)
    template["spec"].setdefault("restartPolicy", "OnFailure")
    template["spec"].setdefault("subdomain", subdomain)
    if job["spec"].get("completions") is None and job["spec"]["completionMode"] == "Indexed":
        job["spec"]["completions"] = job["spec"].get("parallelism", 1)
    return job


def _job_end(job: Object) -> str:
    return next((kind for kind in ("Complete", "Failed") if find_condition(job, kind).get("status") == "True"), "")


def _replicated(name: str, jobs: Iterable[Object]) -> Object:
    mine = [job for job in jobs if _label(job, _REPLICATED_JOB) == name]
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
    """Whether what a replicated job depends on is as far: in its own list, and before it where they start in order."""
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
    done = sum(_job_end(job) == "Complete" for job in jobs if _label(job, _REPLICATED_JOB) in targets)
    return done > 0 if policy.get("operator") == "Any" else bool(wanted) and done >= wanted


def _restarts(view: View, job: Object, attempt: int) -> bool:
    """Whether the failure policy makes all Jobs anew after one has failed; the first rule that matches counts."""
    policy = view.spec.get("failurePolicy") or {}
    reason = find_condition(job, "Failed").get("reason")
    for rule in policy.get("rules") or ():
        reasons, targets = rule.get("onJobFailureReasons"), rule.get("targetReplicatedJobs")
        if (reasons and reason not in reasons) or (targets and _label(job, _REPLICATED_JOB) not in targets):
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
        plan.delete += [pod for pod in pods if _phase(pod) in _ENDED and not is_going(pod)]
    wanted = [pod for pod in made if view.child("Pod", pod["metadata"]["name"]) is not None]
    for pod in made:
        present = view.child("Pod", pod["metadata"]["name"])
        if present is None:
            wanted.append(pod)
        if view.spec.get("podManagementPolicy") != "Parallel" and (present is None or not _is_ready(present)):
            break
    view.settle(plan, wanted)
    ready = sum(map(_is_ready, pods))
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
    """Whether a StatefulSet is of workers who go with their leader when one of them ends."""
    owner = view.find(LEADER_WORKER_SETS, _label(view.owner, f"{_LWS}/name"))
    of_workers = view.owner["metadata"].get("ownerReferences", [{}])[0].get("kind") == "Pod"
    return owner is not None and of_workers and _recreates_groups(owner)


def _recreates_groups(owner: Object) -> bool:
    policy = (owner["spec"].get("leaderWorkerTemplate") or {}).get("restartPolicy", _RECREATE)
    return bool(policy == _RECREATE)


def _stateful_pods(view: View) -> list[Object]:
    """Return the pods of a StatefulSet; those of one of a LeaderWorkerSet as its webhook marks them."""
    set_name = _label(view.owner, f"{_LWS}/name")
    owner = view.find(LEADER_WORKER_SETS, set_name) if set_name else None
    if owner is None:
        return [made.object for made in stateful_set_pods(view.owner)]
    pods = []
    for made in leader_worker_set_pods(owner):
        pod = made.object
        if pod["metadata"]["ownerReferences"][0]["name"] != view.name:
            continue
        pod["metadata"]["ownerReferences"] = controlled_by(view.owner)
        group = _label(pod, f"{_LWS}/group-index")
        size = pod["metadata"]["annotations"][f"{_LWS}/size"]
        variables = {
            "LWS_LEADER_ADDRESS": f"{set_name}-{group}.{set_name}.{view.namespace}",
            "LWS_GROUP_SIZE": size,
            "LWS_WORKER_INDEX": _label(pod, f"{_LWS}/worker-index"),
        }
        pod["spec"] |= {"hostname": pod["metadata"]["name"], "subdomain": set_name}
        _add_env(pod, variables, initial=True)
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
    plan.create.append(_headless(view, view.name, {f"{_LWS}/name": view.name}))
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
            ready += size == 1 and _is_ready(first)
            if size > 1 and (spec.get("startupPolicy") != "LeaderReady" or _is_ready(first)):
                name = f"{view.name}-{group}"
                plan.create.append(_group_set(view, first, name, worker, index="", replicas=size - 1, first=1))
            continue
        names = [f"{view.name}-{group}-{index}" for index in range(1, size)]
        there = [pod for name in names if (pod := view.find("pods", name)) is not None]
        workers = [pod for pod in there if pod["metadata"]["ownerReferences"][0]["uid"] == owned["metadata"]["uid"]]
        broken = [pod for pod in workers if is_going(pod) or _phase(pod) in _ENDED]
        if broken and _recreates_groups(view.owner):
            plan.delete.append(first)
            continue
        ready += _is_ready(first) and len(workers) == size - 1 and all(map(_is_ready, workers))
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
        plan = Plan(delete=[pod for pod in pods if _phase(pod) not in _ENDED and not is_going(pod)])
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
        failed = [pod for pod in pods if _phase(pod) == "Failed"]
        named = {_label(pod, _TASK) for pod in failed}
        plan.delete += [pod for pod in pods if _label(pod, _TASK) in named] if action == "RestartTask" else failed
    if not any(task.get("partitionPolicy") for task in tasks):
        # Of partitions the PodGroup would need sub-groups; without one the Job says it all itself.
        plan.create.append(_volcano_group(view, tasks, least))
    view.settle(plan, [_with_plugins(view, made.object, tasks) for made in volcano_job_pods(view.owner)])
    if "svc" in (view.spec.get("plugins") or {}):
        plan.create.append(_headless(view, view.name, {"volcano.sh/job-name": view.name}))
    return plan


def _volcano_phase(view: View, phase: str) -> None:
    if (view.status.get("state") or {}).get("phase") != phase:
        view.status["state"] = {"phase": phase, "lastTransitionTime": view.stamp}


def _count_tasks(view: View, tasks: Iterable[Object], pods: Iterable[Object], *, least: int) -> None:
    phases = [(_label(pod, _TASK), "Terminating" if is_going(pod) else _phase(pod)) for pod in pods]
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
        task = by_name.get(_label(pod, _TASK))
        if task is None or (pod["metadata"].get("annotations") or {}).get(_JOB_VERSION) != version:
            continue
        event = "PodFailed" if _phase(pod) == "Failed" else "PodEvicted" if is_going(pod) else ""
        if event and (action := _policy(view, task, event, _exit_code(pod))):
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


def _with_plugins(view: View, pod: Object, tasks: Iterable[Object]) -> Object:
    """Give a pod what the job's plugins `env` and `svc` would."""
    plugins, variables = view.spec.get("plugins") or {}, {}
    if "env" in plugins:
        index = pod["metadata"]["annotations"]["volcano.sh/task-index"]
        variables |= {"VK_TASK_INDEX": index, "VC_TASK_INDEX": index}
    if "svc" in plugins:
        pod["spec"].setdefault("hostname", pod["metadata"]["name"])
        pod["spec"].setdefault("subdomain", view.name)
        for task in tasks:
            name, count = task["name"], task.get("replicas", 0)
            hosts = ",".join(f"{view.name}-{name}-{number}.{view.name}" for number in range(count))
            key = name.upper().replace("-", "_")
            variables |= {f"VC_{key}_HOSTS": hosts, f"VC_{key}_NUM": str(count)}
    _add_env(pod, variables, initial=True)
    return pod


#: The rule of each kind, by its collection.
KINDS: dict[str, Rule] = {
    STATEFUL_SETS: stateful_set,
    "pytorchjobs.kubeflow.org": pytorch_job,
    "mpijobs.kubeflow.org": mpi_job,
    "rayclusters.ray.io": ray_cluster,
    "rayjobs.ray.io": ray_job,
    "jobsets.jobset.x-k8s.io": job_set,
    LEADER_WORKER_SETS: leader_worker_set,
    "jobs.batch.volcano.sh": volcano_job,
}
