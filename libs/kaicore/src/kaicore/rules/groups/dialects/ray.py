"""RayClusters, RayJobs and RayServices.

Source: KubeRay 1.4 (`ray-operator/controllers/ray`): the head gets a sidecar where autoscaling is on, each worker an
init container that waits for the head, and a RayJob a Job beside its cluster that submits it.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import msgspec

from kaicore.errors import InvalidObject, Lost, unheard
from kaicore.rules.groups.dialects.dialect import Dialect, WorkloadKind, named_by
from kaicore.rules.groups.dialects.job import submitter_pod
from kaicore.rules.groups.dialects.source import PodTemplate, annotations_of, count, group_source, source_subject
from kaicore.rules.groups.pod_templates import PodSetTemplate, with_templates
from kaicore.rules.model.group import GroupSource, GroupTemplate, PodSet
from kaicore.rules.objects.made import Made, list_in, made_object, pod_from
from kaicore.rules.objects.mappings import Fields, Object, generated_name, name_of, spec_of, status_of
from kaicore.rules.objects.wire import KubernetesObject, Wire

RAY_CLUSTER = "RayCluster.ray.io"
RAY_JOB = "RayJob.ray.io"
RAY_GROUP_LABEL = "ray.io/group"
RAY_PRIORITY_LABEL = "ray.io/priority-class-name"

#: Name of the set of the pod that submits a RayJob.
SUBMITTER = "submitter"

_ENDED = ("Complete", "Failed")


class RayWorkerGroup(Wire):
    """Workers that are alike."""

    group_name: str = ""
    replicas: int | None = None
    min_replicas: int | None = None
    num_of_hosts: int | None = None
    suspend: bool | None = None
    template: PodTemplate | None = None


class RayHeadGroup(Wire):
    """The head."""

    template: PodTemplate | None = None


class RayClusterSpec(Wire):
    """The pods of a RayCluster."""

    head_group_spec: RayHeadGroup | None = None
    worker_group_specs: list[RayWorkerGroup] | None = None
    enable_in_tree_autoscaling: bool | None = None
    suspend: bool | None = None


class RayClusterObject(KubernetesObject):
    """A `ray.io/v1` RayCluster."""

    spec: RayClusterSpec = msgspec.field(default_factory=RayClusterSpec)


class RayJobSpec(Wire):
    """A RayJob brings its cluster, unless it uses one that is there."""

    ray_cluster_spec: RayClusterSpec | None = None
    suspend: bool | None = None
    submitter_pod_template: PodTemplate | None = None
    active_deadline_seconds: int | None = None


class RayJobObject(KubernetesObject):
    """A `ray.io/v1` RayJob."""

    spec: RayJobSpec = msgspec.field(default_factory=RayJobSpec)


def normalize_ray_cluster(wire: RayClusterObject, lost: Lost = unheard) -> GroupSource:
    """Reduce a RayCluster: its head and the workers that each group asks for start together.

    With its autoscaler, which makes the others later, the least workers that each group asks for.
    """
    subject = source_subject(RAY_CLUSTER, wire)
    sets = _ray_sets(wire.spec, wire.metadata.annotations, subject=subject, field="spec")
    labels = wire.metadata.labels or {}
    return group_source(
        wire, RAY_CLUSTER, (GroupTemplate(sets=sets),), priority_class=labels.get(RAY_PRIORITY_LABEL), lost=lost
    )


def normalize_ray_job(wire: RayJobObject, lost: Lost = unheard) -> GroupSource:
    """Reduce a RayJob: the pods of its cluster; the one that submits it comes when the cluster is there."""
    subject = source_subject(RAY_JOB, wire)
    cluster = wire.spec.ray_cluster_spec
    sets: tuple[PodSet, ...] = (PodSet(min_pods=1),)
    if cluster is not None:
        submitter = _template_of(wire.spec.submitter_pod_template, 1, where="spec.submitterPodTemplate.metadata")
        sets = (
            *_ray_sets(cluster, wire.metadata.annotations, subject=subject, field="spec.rayClusterSpec"),
            *with_templates((PodSet(SUBMITTER),), {SUBMITTER: submitter._replace(leads=True)}),
        )
    labels = wire.metadata.labels or {}
    return group_source(
        wire, RAY_JOB, (GroupTemplate(sets=sets),), priority_class=labels.get(RAY_PRIORITY_LABEL), lost=lost
    )


def _ray_sets(
    spec: RayClusterSpec, annotations: Mapping[str, str] | None, *, subject: str, field: str
) -> tuple[PodSet, ...]:
    sets = [PodSet(), PodSet("headgroup", min_pods=1)]
    head = spec.head_group_spec.template if spec.head_group_spec is not None else None
    pod_templates = {
        "headgroup": _template_of(head, 1, where=f"{field}.headGroupSpec.template.metadata")._replace(leads=True)
    }
    for index, one in enumerate(spec.worker_group_specs or ()):
        where = f"{field}.workerGroupSpecs[{index}]"
        wanted = count(one.replicas, 0, subject=subject, field=f"{where}.replicas")
        least = count(one.min_replicas, 0, subject=subject, field=f"{where}.minReplicas")
        hosts = count(one.num_of_hosts, 1, subject=subject, field=f"{where}.numOfHosts")
        if not one.group_name or one.group_name in (pod_set.name for pod_set in sets):
            raise InvalidObject(subject, f"{where}.groupName", one.group_name, "is there twice or empty")
        # KubeRay brings the replicas within their bounds, so that there are never less than the minimum. Only its
        # autoscaler makes fewer of them than are asked for (KubeRay 1.4, `volcano_scheduler.go`).
        pods = max(least, wanted) * hosts
        together = (least or wanted) * hosts if spec.enable_in_tree_autoscaling else pods
        sets.append(PodSet(one.group_name, min_pods=0 if one.suspend else together))
        pod_templates[one.group_name] = _template_of(one.template, pods, where=f"{where}.template.metadata")
    return with_templates(sets, pod_templates, owner=annotations)


def _template_of(template: PodTemplate | None, pods: int, *, where: str) -> PodSetTemplate:
    return PodSetTemplate(annotations_of(template), where, pods)


def _same(cpu: str, memory: str) -> dict[str, Any]:
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}


def ray_cluster_pods(cluster: Object) -> Iterator[Made]:
    """Yield the head and the workers of a RayCluster."""
    spec = spec_of(cluster)
    if spec.flag("suspend"):
        return
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
    if spec.flag("suspend") or spec.value.get("clusterSelector") or status.text("jobDeploymentStatus") in _ENDED:
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
    spec = spec_of(service)
    if spec.flag("suspend"):
        return []
    config = spec.inside("rayClusterConfig", required=True)
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
        "ray.io/group": group,
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
            RayClusterObject,
            normalize_ray_cluster,
            ray_cluster_pods,
            suspend=(),
            pod_set=named_by(RAY_GROUP_LABEL),
        ),
        WorkloadKind(
            RAY_JOB,
            "rayjobs",
            ("v1",),
            RayJobObject,
            normalize_ray_job,
            ray_job_parts,
            suspend=(),
            pod_set=named_by(RAY_GROUP_LABEL, default=SUBMITTER),
        ),
        WorkloadKind("RayService.ray.io", "rayservices", ("v1",), made=ray_service_cluster, suspend=()),
    ),
    annotations=("ray.io/",),
)
