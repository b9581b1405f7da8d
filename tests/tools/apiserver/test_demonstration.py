"""A cluster for demonstrations has what a stranger's first manifests need."""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from kai_apiserver.server import ApiServer, ApiServerOptions
from kaicore.kube.kinds.table import QUEUE_KINDS

from tests.tools.apiserver.client import PODS, Client, pod
from tests.tools.apiserver.conftest import ServerFactory

Json = dict[str, Any]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEFAULTS = "scheduler.alpha.kubernetes.io/defaultTolerations"
DOCS = Path(__file__).parents[3] / "docs/reference/simulator.md"
GPU = {"key": "nvidia.com/gpu", "operator": "Exists"}

MANIFESTS: dict[str, tuple[str, Json]] = {
    "KAI PodGroup": (
        "/apis/scheduling.run.ai/v2alpha2/namespaces/default/podgroups",
        {"minMember": 2, "queue": "q"},
    ),
    "KAI Queue": ("/apis/scheduling.run.ai/v2/queues", {"resources": {"gpu": {"quota": 1}}}),
    "scheduler-plugins' PodGroup": (
        "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups",
        {"minMember": 2},
    ),
    "the same under its other name": (
        "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups",
        {"minMember": 2},
    ),
    "Volcano PodGroup": (
        "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups",
        {"minMember": 2, "queue": "default"},
    ),
    "Volcano Job": (
        "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs",
        {"minAvailable": 2, "tasks": [{"name": "worker", "replicas": 2, "template": {"spec": {}}}]},
    ),
    "Volcano Job in partitions": (
        "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs",
        {
            "networkTopology": {"mode": "hard", "highestTierAllowed": 2},
            "tasks": [
                {
                    "name": "worker",
                    "replicas": 2,
                    "partitionPolicy": {
                        "totalPartitions": 2,
                        "partitionSize": 1,
                        "networkTopology": {"highestTierAllowed": 1},
                    },
                    "template": {"spec": {}},
                }
            ],
        },
    ),
    "HyperJob": (
        "/apis/topology.volcano.sh/v1alpha1/namespaces/default/hyperjobs",
        {
            "minAvailable": 1,
            "networkTopology": {"mode": "hard", "highestTierAllowed": 2},
            "replicatedJobs": [
                {
                    "name": "a",
                    "replicas": 2,
                    "template": {
                        "networkTopology": {"highestTierName": "rack"},
                        "tasks": [{"name": "w", "replicas": 2}],
                    },
                }
            ],
        },
    ),
    "PodGroup of Kubernetes": (
        "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups",
        {"schedulingPolicy": {"gang": {"minCount": 2}}, "disruptionMode": "PodGroup"},
    ),
    "Workload of Kubernetes": (
        "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/workloads",
        {"podGroupTemplates": [{"name": "workers", "schedulingPolicy": {"gang": {"minCount": 2}}}]},
    ),
    "Volcano Queue": ("/apis/scheduling.volcano.sh/v1beta1/queues", {"weight": 1, "capability": {"cpu": 4}}),
    "Kueue ResourceFlavor": (
        "/apis/kueue.x-k8s.io/v1beta1/resourceflavors",
        {"nodeLabels": {"pool": "a"}, "topologyName": "dc"},
    ),
    "Kueue Cohort": ("/apis/kueue.x-k8s.io/v1beta2/cohorts", {"parentName": "all"}),
    "Kueue ClusterQueue": (
        "/apis/kueue.x-k8s.io/v1beta1/clusterqueues",
        {
            "cohort": "team",
            "namespaceSelector": {},
            "resourceGroups": [
                {
                    "coveredResources": ["cpu"],
                    "flavors": [{"name": "a", "resources": [{"name": "cpu", "nominalQuota": 9}]}],
                }
            ],
        },
    ),
    "Kueue LocalQueue": ("/apis/kueue.x-k8s.io/v1beta1/namespaces/default/localqueues", {"clusterQueue": "q"}),
    "Kueue PreemptionConfig": (
        "/apis/kueue.x-k8s.io/v1alpha1/preemptionconfigs",
        {"rules": [{"name": "r", "candidateSelectors": [{"scope": "WithinClusterQueue"}]}]},
    ),
    "Kueue Topology": ("/apis/kueue.x-k8s.io/v1beta2/topologies", {"levels": [{"nodeLabel": "rack"}]}),
}


async def test_podgroups_and_queues_of_every_dialect_are_served(start_server: ServerFactory) -> None:
    server = await start_server(controllers=False, demonstration=True)
    async with Client(server.http_url, server.admin_token) as client:
        for number, (what, (path, spec)) in enumerate(MANIFESTS.items()):
            made = {"metadata": {"name": f"x{number}"}, "spec": spec}
            created = await client.post(f"{path}?fieldValidation=Strict", made)
            assert created.status == 201, (what, created)
            assert created.json["spec"] == spec, what
            assert "warning" not in created.headers, what
        for resource in (kind.resource for kind in QUEUE_KINDS):
            served = [(await client.get(f"/apis/{resource.group}/{version}")) for version in resource.versions]
            names = [item["name"] for answer in served if answer.status == 200 for item in answer.json["resources"]]
            assert resource.plural in names


async def test_a_pod_in_the_playground_tolerates_the_taint_of_gpu_nodes(start_server: ServerFactory) -> None:
    server = await start_server(controllers=False, demonstration=True)
    async with Client(server.http_url, server.admin_token) as client:
        for namespace, expected in (("playground", True), ("default", False)):
            made = await client.post(f"/api/v1/namespaces/{namespace}/pods", pod("p"))
            assert (GPU in made.json["spec"]["tolerations"]) is expected
        own = {"key": "a", "operator": "Exists"}
        made = await client.post("/api/v1/namespaces/playground/pods", pod("q", tolerations=[own, GPU]))
        assert made.json["spec"]["tolerations"][:2] == [own, GPU]
        assert made.json["spec"]["tolerations"].count(GPU) == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed here")
async def test_the_documented_first_tries_are_scheduled(start_server: ServerFactory, tmp_path: Path) -> None:
    """The commands of docs/reference/simulator.md, as they stand there."""
    text = DOCS.read_text()
    commands = text[text.index("kubectl run hello") : text.index("```", text.index("kubectl run hello"))]
    server = await start_server(default_scheduler=True, demonstration=True, https=True)
    server.write_kubeconfig(tmp_path / "kubeconfig")
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig"), "HOME": str(tmp_path)}
    async with Client(server.http_url, server.admin_token) as client:
        node = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "9"}}}
        await client.post("/api/v1/nodes", node)
        process = await asyncio.create_subprocess_exec("bash", "-e", "-c", commands, env=environment)
        assert await process.wait() == 0
        async with client.watch(PODS) as watch:
            while not (await watch.next())["object"]["spec"].get("nodeName"):
                pass
        train = (await client.get("/api/v1/namespaces/playground/pods/train")).json["spec"]
        assert train["schedulerName"] == "kai-ledger"
        assert train["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] == "1"
        assert GPU in train["tolerations"]


@pytest.mark.parametrize("text", ["no JSON", '{"key": "a"}', "[1]", '[{"operator": "Near"}]', '[{"key": []}]'])
async def test_default_tolerations_that_make_no_sense_refuse_the_pod(client: Client, text: str) -> None:
    namespace = {"metadata": {"name": "ns", "annotations": {DEFAULTS: text}}}
    assert (await client.post("/api/v1/namespaces", namespace)).status == 201
    refused = await client.post("/api/v1/namespaces/ns/pods", pod("p"))
    assert refused.status in (403, 422), refused
    assert "toleration" in refused.json["message"]


async def test_restart_keeps_what_was_changed_and_renews_our_own_definition(tmp_path: Path) -> None:
    options = ApiServerOptions(controllers=False, demonstration=True, data_dir=tmp_path)
    async with ApiServer(options) as server, Client(server.http_url, server.admin_token) as client:
        await client.merge("/api/v1/namespaces/playground", {"metadata": {"annotations": {DEFAULTS: json.dumps([])}}})
        shipped = (await client.get(f"{DEFINITIONS}/reservations.kai.scheduler")).json["spec"]
        for name in ("reservations.kai.scheduler", "queues.scheduling.run.ai"):
            changed = await client.merge(f"{DEFINITIONS}/{name}", {"spec": {"names": {"shortNames": ["mine"]}}})
            assert changed.status == 200
    async with ApiServer(options) as server, Client(server.http_url, server.admin_token) as client:
        namespace = (await client.get("/api/v1/namespaces/playground")).json
        assert namespace["metadata"]["annotations"] == {DEFAULTS: "[]"}
        ours = (await client.get(f"{DEFINITIONS}/reservations.kai.scheduler")).json["spec"]
        assert ours == shipped, "a definition of the release before would drop what is newer"
        theirs = (await client.get(f"{DEFINITIONS}/queues.scheduling.run.ai")).json["spec"]
        assert theirs["names"]["shortNames"] == ["mine"]
        queue = {"metadata": {"name": "q"}, "spec": {}}
        assert (await client.post("/apis/scheduling.run.ai/v2/queues", queue)).status == 201
