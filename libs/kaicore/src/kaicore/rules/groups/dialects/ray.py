"""RayClusters, RayJobs and RayServices.

Source: KubeRay 1.4 (`ray-operator/controllers/ray`): the head gets a sidecar where autoscaling is on, each worker an
init container that waits for the head, and a RayJob a Job beside its cluster that submits it.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from kaicore.rules.groups.dialects.dialect import Dialect, ReadObject, WorkloadKind, named_by, pod_set_template
from kaicore.rules.groups.dialects.job import submitter_pod
from kaicore.rules.groups.pod_templates import with_templates
from kaicore.rules.model.group import GroupSource, GroupTemplate, PodSet
from kaicore.rules.objects.made import Made, list_in, made_object, pod_from
from kaicore.rules.objects.mappings import Fields, Object, generated_name, name_of, spec_of, status_of

RAY_CLUSTER = "RayCluster.ray.io"
RAY_JOB = "RayJob.ray.io"
RAY_GROUP_LABEL = "ray.io/group"
RAY_PRIORITY_LABEL = "ray.io/priority-class-name"

#: Name of the set of the pod that submits a RayJob.
SUBMITTER = "submitter"

_ENDED = ("Complete", "Failed")


def normalize_ray_cluster(cluster: ReadObject) -> GroupSource:
    """Reduce a RayCluster: its head and the workers that each group asks for start together.

    With its autoscaler, which makes the others later, the least workers that each group asks for.
    """
    return _ray_source(cluster, _ray_sets(cluster.spec, cluster.annotations))


def normalize_ray_job(job: ReadObject) -> GroupSource:
    """Reduce a RayJob: the pods of its cluster; the one that submits it comes when the cluster is there."""
    sets: tuple[PodSet, ...] = (PodSet(min_pods=1),)
    if job.spec.value.get("rayClusterSpec") is not None:
        submitter = pod_set_template(job.spec.inside("submitterPodTemplate"), 1)
        sets = (
            *_ray_sets(job.spec.inside("rayClusterSpec"), job.annotations),
            *with_templates((PodSet(SUBMITTER),), {SUBMITTER: submitter._replace(leads=True)}),
        )
    return _ray_source(job, sets)


def _ray_source(owner: ReadObject, sets: tuple[PodSet, ...]) -> GroupSource:
    priority_class = (owner.metadata.labels or {}).get(RAY_PRIORITY_LABEL)
    return owner.source(GroupTemplate(sets=sets), priority_class=priority_class)


def _ray_sets(spec: Fields, annotations: Mapping[str, str]) -> tuple[PodSet, ...]:
    sets = [PodSet(), PodSet("headgroup", min_pods=1)]
    head = pod_set_template(spec.inside("headGroupSpec").inside("template"), 1)
    pod_templates = {"headgroup": head._replace(leads=True)}
    for group in spec.items("workerGroupSpecs"):
        wanted, least = group.integer("replicas", 0), group.integer("minReplicas", 0)
        hosts, name = group.integer("numOfHosts", 1), group.text("groupName")
        if not name or name in (pod_set.name for pod_set in sets):
            raise group.error("groupName", "is there twice or empty")
        # KubeRay brings the replicas within their bounds, so that there are never less than the minimum. Only its
        # autoscaler makes fewer of them than are asked for (KubeRay 1.4, `volcano_scheduler.go`).
        pods = max(least, wanted) * hosts
        together = (least or wanted) * hosts if spec.flag("enableInTreeAutoscaling") else pods
        sets.append(PodSet(name, min_pods=0 if group.flag("suspend") else together))
        pod_templates[name] = pod_set_template(group.inside("template"), pods)
    return with_templates(sets, pod_templates, owner=annotations)


def _same(cpu: str, memory: str) -> dict[str, Any]:
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}


def ray_cluster_pods(cluster: Object) -> Iterator[Made]:
    """Yield the head and the workers of a RayCluster."""
    spec = spec_of(cluster)
    name = name_of(cluster)
    template = spec.inside("headGroupSpec", required=True).inside("template", required=True)
    labels = _ray_labels(name, group="headgroup", node_type="head")
    head = pod_from(cluster, template, generate_name=f"{name}-head-", labels=labels)
    if spec.flag("enableInTreeAutoscaling"):
        resources = spec.inside("autoscalerOptions").copy("resources") or _same("500m", "512Mi")
        list_in(head, "containers").append({"name": "autoscaler", "resources": resources})
    yield head
    for group in spec.items("workerGroupSpecs"):
        template = group.inside("template", required=True)
        group_name = group.text("groupName")
        labels = _ray_labels(name, group=group_name, node_type="worker")
        base = f"{name}-{group_name}-worker-"
        for number in range(_workers(group)):
            worker = pod_from(cluster, template, generate_name=base, key=str(number), labels=labels)
            waiting = {"name": "wait-gcs-ready", "resources": _same("200m", "256Mi")}
            list_in(worker, "initContainers").append(waiting)
            yield worker


def ray_job_parts(job: Object) -> list[Made]:
    """Return the RayCluster of a RayJob and the Job that submits it; nothing where it uses a cluster that is there."""
    spec, status = spec_of(job), status_of(job)
    if spec.value.get("clusterSelector") or status.text("jobDeploymentStatus") in _ENDED:
        return []
    name = name_of(job)
    made = [_own_cluster(job, "RayJob", spec.inside("rayClusterSpec", required=True), name=f"{name}-")]
    marks = {"ray.io/originated-from-cr-name": name, "ray.io/originated-from-crd": "RayJob"}
    if spec.text("submissionMode", "K8sJobMode") == "K8sJobMode":
        template = spec.inside("submitterPodTemplate")
        if not template.value:
            resources = {"requests": {"cpu": "500m", "memory": "200Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
            containers = [{"name": "ray-job-submitter", "resources": resources}]
            template = Fields("", {"spec": {"containers": containers, "restartPolicy": "Never"}}, template.path)
        made.append(submitter_pod(job, name=name, template=template, labels=marks))
    return made


def ray_service_cluster(service: Object) -> list[Made]:
    """Return the RayCluster of a RayService: the one that serves, of those that an upgrade has beside each other."""
    config = spec_of(service).inside("rayClusterConfig", required=True)
    return [_own_cluster(service, "RayService", config, name=f"{name_of(service)}-raycluster-")]


def _own_cluster(owner: Object, kind: str, config: Fields, *, name: str) -> Made:
    """Return the RayCluster that a RayJob or RayService brings."""
    marks = {"ray.io/originated-from-cr-name": name_of(owner), "ray.io/originated-from-crd": kind}
    cluster = made_object(
        owner,
        api_version=owner["apiVersion"],
        kind="RayCluster",
        name=generated_name(name, owner["metadata"]["uid"]),
        metadata=Fields("", {"labels": marks}),
    )
    cluster["spec"] = deepcopy(config.value)
    return Made(cluster, config.path)


def _ray_labels(cluster: str, *, group: str, node_type: str) -> dict[str, str]:
    return {
        "ray.io/cluster": cluster,
        RAY_GROUP_LABEL: group,
        "ray.io/node-type": node_type,
        "ray.io/identifier": f"{cluster}-{node_type}"[-63:].lstrip("-"),
        "ray.io/is-ray-node": "yes",
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }


def _workers(group: Fields) -> int:
    """The number of pods of a group of workers: its replicas within their bounds, times the hosts of each."""
    if group.flag("suspend"):
        return 0
    least, most = group.pods("minReplicas", 0), group.integer("maxReplicas", 2**31 - 1)
    return min(max(group.pods("replicas", 0), least), most) * group.pods("numOfHosts", 1)


DIALECT = Dialect(
    "Ray",
    (
        WorkloadKind(
            RAY_CLUSTER,
            "rayclusters",
            ("v1",),
            normalize_ray_cluster,
            ray_cluster_pods,
            suspend=(),
            pod_set=named_by(RAY_GROUP_LABEL),
        ),
        WorkloadKind(
            RAY_JOB,
            "rayjobs",
            ("v1",),
            normalize_ray_job,
            ray_job_parts,
            suspend=(),
            pod_set=named_by(RAY_GROUP_LABEL, default=SUBMITTER),
        ),
        WorkloadKind("RayService.ray.io", "rayservices", ("v1",), made=ray_service_cluster, suspend=()),
    ),
    annotations=("ray.io/",),
)
