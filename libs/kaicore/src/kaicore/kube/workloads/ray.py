"""RayClusters and RayJobs.

Source: KubeRay 1.4 (`ray-operator/controllers/ray`): the head gets a sidecar where autoscaling is on, each worker an
init container that waits for the head, and a RayJob a Job beside its cluster that submits it.
"""

from typing import Any

from kaicore.kube.workloads.batch import submitter_pod
from kaicore.kube.workloads.fields import Fields, spec_of, status_of
from kaicore.kube.workloads.objects import Object, generated_name, name_of
from kaicore.kube.workloads.pods import Made, list_in, made_object, pod_from

_ENDED = ("Complete", "Failed")


def _same(cpu: str, memory: str) -> dict[str, Any]:
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}


def ray_cluster_pods(cluster: Object) -> list[Made]:
    """Return the head and the workers of a RayCluster."""
    spec = spec_of(cluster)
    if spec.flag("suspend"):
        return []
    name = name_of(cluster)
    template = spec.inside("headGroupSpec", required=True).inside("template", required=True)
    labels = _labels(name, group="headgroup", node_type="head")
    head = pod_from(cluster, template, generate_name=f"{name}-head-", labels=labels)
    if spec.flag("enableInTreeAutoscaling"):
        resources = spec.inside("autoscalerOptions").copy("resources") or _same("500m", "512Mi")
        list_in(head, "containers").append({"name": "autoscaler", "resources": resources})
    pods = [head]
    for group in spec.items("workerGroupSpecs"):
        template = group.inside("template", required=True)
        group_name = group.text("groupName")
        labels = _labels(name, group=group_name, node_type="worker")
        base = f"{name}-{group_name}-worker-"
        for number in range(_workers(group)):
            worker = pod_from(cluster, template, generate_name=base, key=str(number), labels=labels)
            waiting = {"name": "wait-gcs-ready", "resources": _same("200m", "256Mi")}
            list_in(worker, "initContainers").append(waiting)
            pods.append(worker)
    return pods


def ray_job_parts(job: Object) -> list[Made]:
    """Return the RayCluster of a RayJob and the Job that submits it; nothing where it uses a cluster that is there."""
    spec, status = spec_of(job), status_of(job)
    if spec.flag("suspend") or spec.value.get("clusterSelector") or status.text("jobDeploymentStatus") in _ENDED:
        return []
    name = name_of(job)
    source = spec.inside("rayClusterSpec", required=True)
    marks = {"ray.io/originated-from-cr-name": name, "ray.io/originated-from-crd": "RayJob"}
    cluster = made_object(
        job,
        api_version=job["apiVersion"],
        kind="RayCluster",
        name=generated_name(f"{name}-", job["metadata"]["uid"]),
        metadata=Fields("", {"labels": marks}),
    )
    cluster["spec"] = spec.copy("rayClusterSpec")
    made = [Made(cluster, source.path)]
    if spec.text("submissionMode", "K8sJobMode") == "K8sJobMode":
        template = spec.inside("submitterPodTemplate")
        if not template.value:
            resources = {"requests": {"cpu": "500m", "memory": "200Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
            containers = [{"name": "ray-job-submitter", "resources": resources}]
            template = Fields("", {"spec": {"containers": containers, "restartPolicy": "Never"}}, template.path)
        made.append(submitter_pod(job, name=name, template=template, labels=marks))
    return made


def _labels(cluster: str, *, group: str, node_type: str) -> dict[str, str]:
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
    """How many pods a group of workers has: its replicas within their bounds, times the hosts of each."""
    if group.flag("suspend"):
        return 0
    least, most = group.pods("minReplicas", 0), group.integer("maxReplicas", 2**31 - 1)
    return min(max(group.pods("replicas", 0), least), most) * group.pods("numOfHosts", 1)
