"""The simulated autoscaler: whole requests or nothing, on the nodes that a profile keeps in reserve."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kai_apiserver.server import ApiServer
from kai_fleet.autoscaler import NothingFits, PodSet, pack, pod_set_of
from kai_fleet.fleet import Fleet
from kai_fleet.main import running_fleet
from kai_fleet.profiles.nodes import expand, reserve_of
from kai_fleet.profiles.profile import Profile, parse_profile
from kaicore.errors import ConfigurationError
from kaicore.kube.api.access import plain_access

from tests.tools.fleet.cluster import NODES, Cluster, Json

REQUESTS = "/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests"
TEMPLATES = "/api/v1/namespaces/default/podtemplates"

TEXT = """
topologyLabels: {{rack: 2}}
autoscaler: {{delay: 10ms, booking: {booking}}}
groups:
  - name: cpu
    count: 1
    reserve: 2
    zones: 1
    perZone: {{cpus: 8, memory: 8Gi}}
    nrt: {{publisher: none}}
  - name: gpu
    count: 1
    reserve: 1
    labels: {{pool: gpu}}
    taints: [{{key: nvidia.com/gpu, effect: NoSchedule}}]
    zones: 1
    perZone: {{cpus: 8, memory: 8Gi, devices: {{nvidia.com/gpu: 4}}}}
    nrt: {{publisher: none}}
"""


def profile(*, booking: str = "10m") -> Profile:
    return parse_profile(TEXT.format(booking=booking), source="test")


def pods(count: int, *, cpu: str = "6", **spec: Any) -> PodSet:
    container = {"name": "main", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    return pod_set_of({"containers": [container], **spec}, name="t", count=count)


def packed(*pod_sets: PodSet) -> list[str]:
    return [spec.name for spec in pack(pod_sets, reserve_of(profile()))]


def test_a_reserve_is_no_part_of_the_fleet_and_is_numbered_on() -> None:
    assert [spec.name for spec in expand(profile())] == ["cpu-0", "gpu-0"]
    reserve = reserve_of(profile())
    assert [spec.name for spec in reserve] == ["cpu-1", "cpu-2", "gpu-1"]
    assert [(spec.number, spec.labels["rack"]) for spec in reserve] == [(2, "rack-1"), (3, "rack-1"), (4, "rack-2")]


def test_names_of_a_reserve_are_nobody_elses() -> None:
    text = """{groups: [{name: a, count: 1, reserve: 2, zones: 1, perZone: {cpus: 2, memory: 1Gi}},
                        {name: a, first: 2, zones: 1, perZone: {cpus: 2, memory: 1Gi}}]}"""
    with pytest.raises(ConfigurationError, match="two nodes are named a-2"):
        parse_profile(text, source="f")


def test_pods_are_packed_onto_as_few_new_nodes_as_the_order_needs() -> None:
    assert packed(pods(1)) == ["cpu-1"]
    assert packed(pods(2, cpu="4")) == ["cpu-1"]
    assert packed(pods(2)) == ["cpu-1", "cpu-2"]
    init = {"name": "init", "resources": {"requests": {"cpu": "7"}}}
    assert packed(pods(2, cpu="1", initContainers=[init])) == ["cpu-1", "cpu-2"], "an init container needs it first"


def test_what_is_free_already_is_used_first() -> None:
    there = [(expand(profile())[0], {"cpu": 6000, "memory": 2**31, "pods": 9})]
    assert [spec.name for spec in pack([pods(2)], reserve_of(profile()), there=there)] == ["cpu-1"]


def test_selectors_taints_and_amounts_decide_which_nodes() -> None:
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert packed(pods(1, nodeSelector={"pool": "gpu"}, tolerations=tolerations)) == ["gpu-1"]
    assert packed(pods(3, tolerations=[{"operator": "Exists"}])) == ["cpu-1", "cpu-2", "gpu-1"]
    for impossible in (pods(3), pods(1, nodeSelector={"pool": "gpu"}), pods(1, cpu="9")):
        with pytest.raises(NothingFits, match="no node is left in reserve for pod"):
            packed(impossible)


def test_a_template_with_an_amount_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="PodTemplate t"):
        pods(1, cpu="a lot")


@asynccontextmanager
async def autoscaled(server: ApiServer, data: Path, **times: str) -> AsyncIterator[Fleet]:
    with_timing = profile(**times)
    async with running_fleet(
        expand(with_timing),
        plain_access(server.http_url, token=server.admin_token),
        data,
        install_crds=True,
        reserve=reserve_of(with_timing),
        autoscaler=with_timing.autoscaler,
    ) as fleet:
        yield fleet


async def ask(cluster: Cluster, name: str, count: int, *, template: bool = True) -> None:
    resources = {"requests": {"cpu": "6", "memory": "1Gi"}}
    body = {"spec": {"containers": [{"name": "main", "image": "x", "resources": resources}]}}
    if template:
        await cluster.client.post(TEMPLATES, {"metadata": {"name": f"{name}-0"}, "template": body})
    sets = [{"podTemplateRef": {"name": f"{name}-0"}, "count": count}]
    spec = {"provisioningClassName": "any.example.com", "podSets": sets}
    await cluster.client.post(REQUESTS, {"metadata": {"name": name}, "spec": spec})


def has(condition: str) -> Any:
    def holds(request: Json | None) -> bool:
        return any(one["type"] == condition for one in ((request or {}).get("status") or {}).get("conditions") or ())

    return holds


def message(request: Json, condition: str) -> str:
    (only,) = [one["message"] for one in request["status"]["conditions"] if one["type"] == condition]
    return str(only)


async def node_names(cluster: Cluster) -> Sequence[str]:
    return sorted(node["metadata"]["name"] for node in await cluster.list(NODES))


async def test_a_request_is_answered_with_nodes_whole_or_not_at_all(
    server: ApiServer, cluster: Cluster, tmp_path: Path
) -> None:
    async with autoscaled(server, tmp_path / "data") as fleet:
        await cluster.run_pod("there", node="cpu-0", cpu="1")
        await cluster.run_pod("also", node="cpu-0", cpu="2")
        await ask(cluster, "many", 3)
        failed = await cluster.until(REQUESTS, "many", has("Failed"))
        assert message(failed, "Failed") == "no node is left in reserve for pod 3 of 3 of many-0"
        assert len(await node_names(cluster)) == 2
        await ask(cluster, "two", 2)
        provisioned = await cluster.until(REQUESTS, "two", has("Provisioned"))
        assert message(provisioned, "Provisioned") == "added cpu-1, cpu-2"
        assert {one["type"] for one in provisioned["status"]["conditions"]} == {"Accepted", "Provisioned"}
        assert await node_names(cluster) == ["cpu-0", "cpu-1", "cpu-2", "gpu-0"]
        await cluster.run_pod("p", node="cpu-2", cpu="1")
        assert "cpu-2" in fleet.nodes
        await ask(cluster, "none-left", 9)
        await cluster.until(REQUESTS, "none-left", has("Failed"))


async def test_nodes_that_were_added_join_again_after_a_restart(
    server: ApiServer, cluster: Cluster, tmp_path: Path
) -> None:
    async with autoscaled(server, tmp_path / "data"):
        await ask(cluster, "one", 2)
        await cluster.until(REQUESTS, "one", has("Provisioned"))
    async with autoscaled(server, tmp_path / "data") as fleet:
        assert set(fleet.nodes) == {"cpu-0", "gpu-0", "cpu-1"}
        await ask(cluster, "another", 3)
        request_shown = await cluster.until(REQUESTS, "another", has("Provisioned"))
        assert message(request_shown, "Provisioned") == "added cpu-2"


async def test_nodes_are_kept_for_a_while_and_a_request_without_its_template_hurts_nobody(
    server: ApiServer, cluster: Cluster, tmp_path: Path
) -> None:
    async with autoscaled(server, tmp_path / "data", booking="10ms"):
        await ask(cluster, "without", 1, template=False)
        await ask(cluster, "with", 2)
        expired = await cluster.until(REQUESTS, "with", has("BookingExpired"))
        assert has("Provisioned")(expired)
        without = json.loads(await cluster.client.get(f"{REQUESTS}/without"))
        assert not has("Provisioned")(without)
