"""The objects of a run: what every cluster has, and the work that comes."""

from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
from kai_apiserver.rest.patching import apply_json_patch
from kai_fleet.profiles.nodes import NodeSpec, expand
from kai_fleet.profiles.profile import parse_profile
from kaicore.analysis.trial.dispatching import read_dispatch
from kaicore.analysis.trial.simulation import Located
from kaicore.kube.normalize.gpu_shares import SHARE_ANNOTATIONS, sharing_patch
from kaicore.rules.events.payloads import DispatchSubmitted

from tests.simulation.api import ApiServer
from tests.simulation.plan import GANG_GRACE_S, LIMITS, NODES, Arrival
from tests.simulation.shares import NAMESPACE

_PROFILE = """
groups:
  - name: single
    count: 2
    zones: 2
    perZone: &zone {cpus: 8, memory: 32Gi, devices: {nvidia.com/gpu: 2}}
    kubelet: {topologyManagerPolicy: single-numa-node, cpuManagerPolicy: static, kubeReserved: {cpu: "1", memory: 1Gi}}
    nrt: &nrt {publisher: rte}
    timing: &timing {startupDelay: 50ms, startupJitter: 100ms, terminationSeconds: 200ms}
    lag: &lag {LAG}
  - name: restricted
    count: 1
    zones: 2
    perZone: *zone
    kubelet:
      topologyManagerPolicy: restricted
      topologyManagerScope: pod
      cpuManagerPolicy: static
      memoryManagerPolicy: Static
      kubeReserved: {cpu: "1", memory: 1Gi}
    nrt: *nrt
    timing: *timing
    lag: *lag
"""
_LAG = "status: 2s, podresources: 400ms, sync: 100ms"

RACK = "example.com/rack"


@cache
def nodes(*, lag: bool) -> tuple[NodeSpec, ...]:
    """The nodes; their kubelets are ahead of the API, or not."""
    specs = expand(parse_profile(_PROFILE.replace("LAG", _LAG if lag else ""), source="simulation"))
    assert tuple(spec.name for spec in specs) == NODES
    of_gpus = {"nvidia.com/gpu.memory": "40000"}
    return tuple(replace(spec, labels={**spec.labels, **of_gpus, RACK: f"r{spec.number // 2}"}) for spec in specs)


def prepare(api: ApiServer) -> None:
    api.create("", "namespaces", {"metadata": {"name": NAMESPACE}}, namespace="")
    for name, value in (("low", -10), ("high", 50)):
        api.create("scheduling.k8s.io", "priorityclasses", {"metadata": {"name": name}, "value": value}, namespace="")
    anything = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    for name, limit in LIMITS.items():
        gpu = {"quota": limit // 2, "limit": limit, "overQuotaWeight": 1}
        spec = {"resources": {"cpu": anything, "memory": anything, "gpu": gpu}}
        body = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
        api.create("scheduling.run.ai", "queues", body, namespace="")
    levels = [{"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]
    body = {"apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": {"name": "dc"}}
    api.create("kai.scheduler", "topologies", body | {"spec": {"levels": levels}}, namespace="")


def come(api: ApiServer, one: Arrival) -> list[str]:
    """Have work come; return the uids of its pods, as far as they are made by that."""
    if one.kind == "job":
        template = {"metadata": _metadata("", one), "spec": _spec(one)}
        spec = {"parallelism": one.pods, "completions": one.pods + 1, "backoffLimit": 100, "template": template}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": one.name}, "spec": spec}
        api.create("batch", "jobs", job)
        return []
    if one.kind == "gang":
        api.create("scheduling.run.ai", "podgroups", _pod_group(one))
    uids = []
    for number in range(one.pods):
        pod = {"metadata": _metadata(f"{one.name}-{number}", one), "spec": _spec(one)}
        _admit(pod)
        stored = api.create("", "pods", pod)
        uids += [stored.uid] if stored is not None else []
    return uids


def _admit(pod: dict[str, Any]) -> None:
    """Complete a new pod as the webhook does."""
    if not pod["metadata"]["annotations"].keys().isdisjoint(SHARE_ANNOTATIONS):
        document = apply_json_patch(pod, sharing_patch(pod, "1234567"))
        pod.clear()
        pod.update(document)


def dispatch(one: Arrival) -> DispatchSubmitted:
    """The work that is submitted to the hub."""
    return read_dispatch(one.name, [Located(one.name, item) for item in manifests(one)])


def manifests(one: Arrival) -> list[dict[str, Any]]:
    """The objects of a dispatch: a pod, or a gang with its group."""
    whole = msgspec.structs.replace(one, kind="gang")
    objects = [_pod_group(whole)] if one.pods > 1 else []
    for number in range(one.pods):
        metadata = _metadata(f"{one.name}-{number}", whole if one.pods > 1 else one)
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _spec(one)}
        _admit(pod)
        objects.append(pod)
    return objects


def _pod_group(one: Arrival) -> dict[str, Any]:
    spec: dict[str, Any] = {"minMember": one.pods, "queue": one.queue, "stalenessGracePeriod": f"{GANG_GRACE_S:g}s"}
    if one.rack:
        spec["topologyConstraint"] = {"topology": "dc", "requiredTopologyLevel": RACK}
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": one.name},
        "spec": spec,
    }


def _metadata(name: str, one: Arrival) -> dict[str, Any]:
    annotations = {"simulator.kai.scheduler/run-seconds": str(one.run_s)}
    if one.kind == "gang":
        annotations["pod-group-name"] = one.name
    if one.milli:
        annotations["gpu-fraction"] = str(one.milli / 1000)
    if one.mib:
        annotations["gpu-memory"] = str(one.mib)
    if one.devices > 1 and (one.milli or one.mib):
        annotations["gpu-fraction-num-devices"] = str(one.devices)
    named = {"name": name} if name else {}
    return {**named, "annotations": annotations, "labels": {"kai.scheduler/queue": one.queue}}


def _spec(one: Arrival) -> dict[str, Any]:
    held = {"cpu": str(one.cpu), "memory": "1Gi"} | ({"nvidia.com/gpu": str(one.gpu)} if one.gpu else {})
    spec: dict[str, Any] = {
        "schedulerName": "kai-ledger",
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "x", "resources": {"requests": held, "limits": held}}],
    }
    if one.priority:
        spec["priorityClassName"] = one.priority
    if one.staged:
        some = {"cpu": "1", "memory": "1Gi"}
        resources = {"requests": some, "limits": some}
        spec["initContainers"] = [
            {"name": "init", "image": "x", "resources": resources},
            {"name": "side", "image": "x", "resources": resources, "restartPolicy": "Always"},
        ]
    return spec
