"""Each service has the rights that it needs, and none that it never uses: `deploy/k8s/rbac.yaml` as it is.

The simulated API server tells which rules allowed which requests. A foreign one does not: there, what an account may
do is compared with the manifests, a right that is missing shows as a refusal in the services' logs, as in every
end-to-end test, and whether a right is ever used cannot be known.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from kaicore.errors import ApiStatus
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.discovery import served_version
from kaicore.kube.kinds.table import GROUP_KINDS, KINDS
from kaicore.kube.normalize.storage import SELECTED_NODE_ANNOTATION
from kaicore.kube.wire.resources import OptionalResource
from kaicore.yaml_text import load_yaml_all

from tests.e2e.cluster import DEPLOY, PATIENCE_S, TWO_GPU_NODES, Cluster, cluster_for_module, foreign_kubeconfig
from tests.e2e.live_stack import LiveStack, bound, pod_manifest, running_on
from tests.e2e.rights import Right, granted, rights_of, used

pytestmark = pytest.mark.slow

Json = dict[str, Any]

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POD_GROUP_PATHS = {
    f"{kind.resource.plural}.{kind.resource.group}": (
        f"/apis/{kind.resource.group}/{kind.resource.versions[0]}/namespaces/{{namespace}}/{kind.resource.plural}"
    )
    for kind in GROUP_KINDS
    if kind.resource.plural in ("podgroups", "compositepodgroups")
}
PROVISIONING_CLASS = "any.example.com"
QUEUES = "/apis/scheduling.run.ai/v2/queues"
#: What every user may do on a real API server (the roles system:basic-user and system:discovery).
_EVERYBODYS = ("selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews", "clustertrustbundles")


cluster = cluster_for_module(TWO_GPU_NODES)


@pytest.fixture
def stack(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveStack]:
    """A stack on a cluster that serves every kind which it reads, and where every sort of thing is written."""
    monkeypatch.setenv("KAI_EMPTY_GROUPS", "true")
    monkeypatch.setenv("KAI_SCHEDULED_EVENTS", "true")
    asyncio.run(serve_every_kind(cluster))
    with running_on(cluster, f"provisioning: {{other_classes: [{PROVISIONING_CLASS}]}}") as live:
        yield live


async def serve_every_kind(cluster: Cluster) -> None:
    """Install the definitions of all kinds that the watcher follows where they are served."""
    async with cluster.client() as client:
        for resource in (kind.resource for kind in KINDS):
            if not isinstance(resource, OptionalResource) or await served_version(client, resource):
                continue
            try:
                await client.post(DEFINITIONS, definition(resource))
            except ApiStatus as error:
                if error.code != 409:  # another definition serves it, or it is built in
                    raise


def definition(resource: OptionalResource[Any], *, status: bool = True) -> Json:
    """The definition that we ship, or else one of which anything goes."""
    name = f"{resource.plural}.{resource.group}"
    for file in DEPLOY.glob("crds/**/*.yaml"):
        for shipped in load_yaml_all(file.read_text()):
            if shipped["metadata"]["name"] == name:
                return dict(shipped)
    kind = resource.kind.partition(".")[0]
    version = {
        "name": resource.versions[0],
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        "subresources": {"status": {}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name, "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"}},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {"plural": resource.plural, "kind": kind},
            "versions": [version],
        },
    }


async def get(client: KubeClient, path: str) -> Json:
    return dict(msgspec.json.decode(await client.get(path)))


async def until(client: KubeClient, path: str, holds: Callable[[Json], object]) -> Json:
    async with asyncio.timeout(PATIENCE_S):
        while not holds(seen := await get(client, path)):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    return seen


async def test_an_account_may_do_what_the_manifests_say_and_nothing_else(cluster: Cluster) -> None:
    for service in ("watcher", "binder", "ingest", "exporter"):
        user = f"system:serviceaccount:kai-system:kai-{service}"
        expected = {right for right in granted() if right.user == user}
        if service == "exporter":
            assert expected == set(), "the exporter needs nothing of the API server"
            continue
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
        async with cluster.client(service) as client:
            path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
            answer = await client.post(path, {**review, "spec": {"namespace": "default"}})
        rules = msgspec.json.decode(answer)["status"]["resourceRules"]
        held = {right for right in rights_of(user, rules) if right.resource not in _EVERYBODYS}
        assert held == expected


@pytest.mark.skipif(foreign_kubeconfig() is not None, reason="only the simulated API server tells of the use of rights")
async def test_every_right_is_used_and_none_is_missing(cluster: Cluster, stack: LiveStack) -> None:
    async with cluster.client() as admin:
        await claims_are_provisioned_and_bound(stack, admin)
        await claims_get_devices(stack, admin)
        await a_binding_is_not_answered(stack, admin)
        await a_pod_makes_way(stack, admin)
        await nodes_are_asked_for(stack, admin)
        await write_topology_statuses(cluster, admin)
        # Queues last: once there are some, pods need one.
        await write_pod_group_and_queue_statuses(cluster, admin, wave="first")
        await without_status_subresource(admin)
        await write_pod_group_and_queue_statuses(cluster, admin, wave="second")
        unused: set[Right] = set()
        async with asyncio.timeout(PATIENCE_S):
            while unused := granted() - used(counted := await get(admin, "/simulator/rights")):
                print("not used yet:", *sorted(unused), sep="\n  ")
                await asyncio.sleep(1)
    assert [refusal for refusal in counted["refused"] if "kai-system" in refusal["user"]] == []


async def write_pod_group_and_queue_statuses(cluster: Cluster, admin: KubeClient, *, wave: str) -> None:
    """PodGroups of every dialect and a Queue, each until it has a status."""
    paths = [path.format(namespace=cluster.namespace) for path in POD_GROUP_PATHS.values()]
    for path in (*paths, QUEUES):
        spec: Json = {"minMember": 1}
        if path == QUEUES:
            spec = {"resources": {"gpu": {"quota": -1, "limit": -1, "overQuotaWeight": 1}}}
        group, version = path.split("/")[2:4]
        kinds = {"queues": "Queue", "podgroups": "PodGroup", "compositepodgroups": "CompositePodGroup"}
        kind = kinds[path.rpartition("/")[2]]
        body = {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": {"name": wave}, "spec": spec}
        await admin.post(path, body)
    for path in (*paths, QUEUES):
        await until(admin, f"{path}/{wave}", lambda seen: seen.get("status"))


async def write_topology_statuses(cluster: Cluster, admin: KubeClient) -> None:
    """A HyperNode and a ClusterNetworkTopology, each until it has a status."""
    member = {"type": "Node", "selector": {"regexMatch": {"pattern": "."}}}
    layers = [{"topologyLayer": "NodeTopologyLayer"}]
    for group, kind, name, spec in (
        ("topology.volcano.sh", "HyperNode", "rights", {"tier": 1, "members": [member]}),
        ("scheduling.koordinator.sh", "ClusterNetworkTopology", "default", {"networkTopologySpec": layers}),
    ):
        plural = "hypernodes" if kind == "HyperNode" else "clusternetworktopologies"
        path = f"/apis/{group}/v1alpha1/{plural}"
        body = {"apiVersion": f"{group}/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        await admin.post(path, body)
        await until(admin, f"{path}/{name}", lambda seen: seen.get("status"))


async def without_status_subresource(admin: KubeClient) -> None:
    """The same kinds, with statuses that are parts of the objects, as older definitions have it."""
    for name in (*POD_GROUP_PATHS, "queues.scheduling.run.ai"):
        definition = await get(admin, f"{DEFINITIONS}/{name}")
        versions = [{**version, "subresources": {}} for version in definition["spec"]["versions"]]
        await admin.patch(f"{DEFINITIONS}/{name}", {"spec": {"versions": versions}})


async def claims_are_provisioned_and_bound(stack: LiveStack, admin: KubeClient) -> None:
    """A pod with a volume made beforehand, and with one that is made for it."""
    where = f"/api/v1/namespaces/{stack.namespace}"
    claims = f"{where}/persistentvolumeclaims"
    amounts = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    for name, provisioner in (("local", "kubernetes.io/no-provisioner"), ("late", "example.com/late")):
        await admin.post(
            "/apis/storage.k8s.io/v1/storageclasses",
            {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"},
        )
        await admin.post(claims, {"metadata": {"name": name}, "spec": {**amounts, "storageClassName": name}})
    volume = {"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local"}
    await admin.post(
        "/api/v1/persistentvolumes",
        {"metadata": {"name": "made"}, "spec": {**volume, "hostPath": {"path": "/data"}}},
    )
    pod = pod_manifest("claims", cpu="1", memory="1Gi", gpu="1")
    pod["spec"]["volumes"] = [
        {"name": name, "persistentVolumeClaim": {"claimName": name}} for name in ("local", "late")
    ]
    await stack.create(pod)
    chosen = lambda claim: SELECTED_NODE_ANNOTATION in claim["metadata"].get("annotations", {})  # noqa: E731
    await until(admin, f"{claims}/late", chosen)
    provisioned = {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}}
    await admin.patch(f"{claims}/late", {**provisioned, "spec": {"volumeName": "provisioned"}})
    await stack.until(bound(1, "claims"))


async def claims_get_devices(stack: LiveStack, admin: KubeClient) -> None:
    """A pod with a claim that is made of a template, and one with an extended resource; its claim is made twice."""
    group, driver = "/apis/resource.k8s.io/v1", "gpu.example.com"
    device_class = {"metadata": {"name": driver}, "spec": {"extendedResourceName": "example.com/gpu"}}
    await admin.post(f"{group}/deviceclasses", device_class)
    pool = {"name": "everywhere", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "pool": pool, "allNodes": True, "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}]}
    await admin.post(f"{group}/resourceslices", {"metadata": {"name": "everywhere"}, "spec": spec})
    requests = [{"name": "gpu", "exactly": {"deviceClassName": driver}}]
    template = {"metadata": {"name": "gpu"}, "spec": {"spec": {"devices": {"requests": requests}}}}
    await admin.post(f"{group}/namespaces/{stack.namespace}/resourceclaimtemplates", template)
    pod = pod_manifest("devices", cpu="1", memory="1Gi", gpu="1")
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    await stack.create(pod)
    await stack.until(bound(1, "devices"))
    extended = pod_manifest("extended", cpu="1", memory="1Gi")
    (container,) = extended["spec"]["containers"]
    for amounts in (container["resources"]["requests"], container["resources"]["limits"]):
        amounts["example.com/gpu"] = "1"
    # Without its claim in its status, the pod is given back, its claim deleted, and all of it done again.
    match = {"verb": "patch", "resource": "pods", "subresource": "status", "name": "extended"}
    await admin.post("/simulator/faults", {"match": match, "fault": {"kind": "gone", "times": 1}})
    await stack.create(extended)
    await stack.until(bound(1, "extended"))


async def a_binding_is_not_answered(stack: LiveStack, admin: KubeClient) -> None:
    """The binder must look what became of a binding."""
    match = {"verb": "create", "resource": "pods", "subresource": "binding", "name": "lost"}
    await admin.post("/simulator/faults", {"match": match, "fault": {"kind": "lost-answer", "times": 1}})
    await stack.create(pod_manifest("lost", cpu="1", memory="1Gi"))
    await stack.until(bound(1, "lost"))


async def nodes_are_asked_for(stack: LiveStack, admin: KubeClient) -> None:
    """A pod that no node can take asks for one, until it is gone."""
    pod = pod_manifest("huge", cpu="900", memory="1Gi")
    pod["metadata"]["annotations"]["kai.scheduler/provisioning-class"] = PROVISIONING_CLASS
    await stack.create(pod)
    requests = f"/apis/autoscaling.x-k8s.io/v1/namespaces/{stack.namespace}/provisioningrequests"
    await until(admin, requests, lambda seen: seen["items"])
    await admin.delete(f"/api/v1/namespaces/{stack.namespace}/pods/huge")
    await until(admin, requests, lambda seen: not seen["items"])


async def a_pod_makes_way(stack: LiveStack, admin: KubeClient) -> None:
    """A pod is evicted for one that matters more, which is nominated for its node meanwhile."""
    await admin.post("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "e2e-high"}, "value": 90})
    large = [pod_manifest(f"low-{number}", cpu="10", memory="1Gi") for number in range(2)]
    await stack.create(*large)
    await stack.until(bound(2, "low"))
    high = pod_manifest("high", cpu="10", memory="1Gi")
    high["spec"]["priorityClassName"] = "e2e-high"
    await stack.create(high)
    state = await stack.until(bound(1, "high"))
    assert state.counters.evictions == 1
