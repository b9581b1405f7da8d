"""`kai dump` of a simulated cluster, and what `kai simulate` makes of it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from kai_cli.sources.manifests import read_located
from kai_cli.trials.dump import Dump
from kaicore.analysis.trial.simulation import read_world, simulate
from kaicore.kube.api.access import plain_access
from kaicore.kube.api.client import KubeClient
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL

from tests.given.servers.kube import PODS, Api, simulated

RBAC = "/apis/rbac.authorization.k8s.io/v1"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
TEMPLATE = {"spec": {"restartPolicy": "Never", "containers": [{"name": "m", "image": "x"}]}}


async def populate(api: Api) -> None:
    """A node with zones, a queue, a gang that waits, a finished Job without its pod, and one with its pod."""
    await api.install_topologies()
    queues = await api.install_queues()
    groups = await api.install_pod_groups("scheduling.run.ai")
    await api.node("n1", rack="r1")
    zone = {"name": "cpu", "capacity": "4", "allocatable": "4", "available": "4"}
    await api.post(
        "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies",
        {"metadata": {"name": "n1"}, "zones": [{"name": "node-0", "type": "Node", "resources": [zone]}]},
    )
    await api.post(
        queues,
        {
            "metadata": {"name": "team"},
            "spec": {"resources": {kind: {"quota": -1, "limit": -1} for kind in ("cpu", "memory", "gpu")}},
        },
    )
    await api.post(groups, {"metadata": {"name": "gang"}, "spec": {"minMember": 2, "queue": "team"}})
    for name, status in (("done", {"succeeded": 1, "completionTime": "2026-01-01T00:00:00Z"}), ("kept", {})):
        made = await api.post(JOBS, {"metadata": {"name": name}, "spec": {"template": TEMPLATE}})
        if status:
            ended = {"type": "Complete", "status": "True"}
            await api.merge(f"{JOBS}/{name}/status", {"status": {**status, "conditions": [ended]}})
        else:
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": made["metadata"]["uid"]}
            pod: dict[str, Any] = {
                "metadata": {
                    "name": "kept-x",
                    "labels": {KAI_QUEUE_LABEL: "team"},
                    "ownerReferences": [owner | {"controller": True}],
                }
            }
            await api.post(PODS, pod | {"spec": TEMPLATE["spec"] | {"schedulerName": "kai-ledger"}})
    await api.pod("a", labels={KAI_QUEUE_LABEL: "team"})


async def lister_of_pods(api: Api) -> str:
    """Make an account that may list pods and nothing else; return its token."""
    account = await api.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "reader"}})
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    await api.post(f"{RBAC}/clusterroles", {"metadata": {"name": "reader"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"}
    subject = {"kind": "ServiceAccount", "namespace": "default", "name": "reader"}
    binding = {"metadata": {"name": "reader"}, "roleRef": role, "subjects": [subject]}
    await api.post(f"{RBAC}/clusterrolebindings", binding)
    name = account["metadata"]["name"]
    made = await api.post(f"/api/v1/namespaces/default/serviceaccounts/{name}/token", {"spec": {}})
    return str(made["status"]["token"])


async def dump(client: KubeClient) -> tuple[list[dict[str, Any]], list[str]]:
    one = Dump(client)
    return await one.objects(), one.warnings


async def test_dump_of_a_cluster_is_a_world_to_simulate(tmp_path: Path) -> None:
    async with simulated() as api:
        await populate(api)
        objects, warnings = await dump(api.client)
    assert warnings == []
    kinds = {item["kind"] for item in objects}
    assert {"Node", "NodeResourceTopology", "Pod", "Job", "PodGroup", "Queue", "Namespace"} <= kinds
    assert not any("managedFields" in item["metadata"] for item in objects)
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    world = read_world(await asyncio.to_thread(read_located, [file]), scheduler_name="kai-ledger")
    assert (world.problems, world.warnings) == ([], [])
    outcome = await simulate(world, EngineConfig())
    # The finished Job makes no pod anew.
    assert {(pod.name, pod.phase) for pod in outcome.pods} == {("a", "Bound"), ("kept-x", "Bound")}


async def test_finished_pods_whose_owner_is_not_in_the_input_are_no_warning(tmp_path: Path) -> None:
    async with simulated() as api:
        await populate(api)
        await api.pod_status("kept-x", phase="Succeeded")
        objects = [item for item in (await dump(api.client))[0] if item["kind"] != "Job"]
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    world = read_world(await asyncio.to_thread(read_located, [file]), scheduler_name="kai-ledger")
    assert world.warnings == []


async def test_kind_that_may_not_be_listed_is_warned_of_and_the_rest_dumped() -> None:
    async with simulated() as api:
        await populate(api)
        async with KubeClient(plain_access(api.server.http_url, token=await lister_of_pods(api))) as client:
            objects, warnings = await dump(client)
    assert {item["kind"] for item in objects} == {"Pod"}
    assert "no jobs (batch/v1)" in [warning.partition(":")[0] for warning in warnings]


async def test_dump_goes_on_through_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kai_cli.trials.dump._PAGE", 3)
    async with simulated() as api:
        for number in range(8):
            await api.pod(f"p{number}")
        async with KubeClient(plain_access(api.server.http_url, token=api.server.admin_token)) as client:
            objects = await Dump(client).objects()
    assert [item["metadata"]["name"] for item in objects if item["kind"] == "Pod"] == [f"p{n}" for n in range(8)]
