"""A fleet at a simulated API server: nodes appear, pods live and die, topologies follow, faults are survived."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from kai_apiserver.server import ApiServer, ApiServerOptions
from kai_fleet.fleet import Fleet
from kai_fleet.main import running_fleet
from kai_fleet.node.nrt import pods_fingerprint
from kai_fleet.profiles.nodes import expand
from kai_fleet.profiles.profile import load_profile
from kaicore.errors import ConfigurationError
from kaicore.kube.api.access import configured_access, plain_access

from tests.tools.fleet.cluster import LEASES, NODES, NRT, PODS, Cluster, Json, eventually, fingerprint, free
from tests.tools.fleet.conftest import JoinFleet
from tests.tools.fleet.objects import small_fleet

STRATEGIC = "application/strategic-merge-patch+json"


def ready(node: Json) -> str:
    """The status of a node's condition Ready."""
    (condition,) = [item for item in node["status"]["conditions"] if item["type"] == "Ready"]
    return str(condition["status"])


def held(fleet: Fleet, node: str = "node-0") -> dict[str, Any]:
    """The holders of CPUs, devices and memory."""
    managers = fleet.nodes[node].agent.kubelet.managers
    return {
        "cpus": {uid: dict(held) for uid, held in managers.cpus.assigned.items()},
        "devices": {uid: dict(held) for uid, held in managers.devices.assigned.items()},
        "memory": {uid: dict(held) for uid, held in managers.memory.assigned.items()},
    }


def allocatable_gpus(node: Json) -> str:
    return str(node["status"]["allocatable"]["nvidia.com/gpu"])


# --- nodes ------------------------------------------------------------------------------------------------------------


async def test_nodes_join_with_amounts_conditions_labels_and_leases(cluster: Cluster, join: JoinFleet) -> None:
    async with join(expand(load_profile("demo24"))):
        nodes = await cluster.list(NODES)
        assert len(nodes) == 24
        gpu = next(node for node in nodes if node["metadata"]["name"] == "gpu-0")
        assert gpu["metadata"]["labels"]["kubernetes.io/hostname"] == "gpu-0"
        assert gpu["metadata"]["labels"]["cloud.provider.com/topology-rack"] == "rack-0"
        assert gpu["spec"]["taints"] == [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
        status = gpu["status"]
        assert status["capacity"]["cpu"] == "128"
        assert status["allocatable"]["cpu"] == "124"
        assert status["allocatable"]["nvidia.com/gpu"] == "8"
        assert status["allocatable"]["hugepages-1Gi"] == "64Gi"
        assert status["allocatable"]["pods"] == "110"
        assert status["nodeInfo"]["kubeletVersion"] == "v1.36.2"
        assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "True"
        lease = await cluster.until(LEASES, "gpu-0", lambda lease: lease)
        assert lease["spec"]["holderIdentity"] == "gpu-0"
        assert lease["spec"]["leaseDurationSeconds"] == 40
        assert lease["metadata"]["ownerReferences"][0]["uid"] == gpu["metadata"]["uid"]
        topologies = {topology["metadata"]["name"]: topology for topology in await cluster.list(NRT)}
        assert len(topologies) == 20, "nodes without a publisher have no NodeResourceTopology"
        assert topologies["gpu-0"]["metadata"]["ownerReferences"][0]["name"] == "gpu-0"


async def test_a_node_that_exists_is_adopted(cluster: Cluster, join: JoinFleet) -> None:
    await cluster.client.post(NODES, {"metadata": {"name": "node-0", "labels": {"mine": "stays"}}})
    async with join():
        node = await cluster.until(NODES, "node-0", lambda node: "cpu" in (node or {})["status"].get("capacity", {}))
        assert node["metadata"]["labels"]["mine"] == "stays"
        assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "node-0"


async def test_a_node_of_a_real_kubelet_is_left_alone(cluster: Cluster, join: JoinFleet) -> None:
    real = {"metadata": {"name": "node-0"}, "status": {"nodeInfo": {"kubeletVersion": "v1.36.0"}}}
    await cluster.client.post(NODES, real)
    with pytest.raises(ConfigurationError, match="1 nodes exist and belong to another program: node-0"):
        async with join(small_fleet(2)):
            pass
    assert "cpu" not in (await cluster.get(NODES, "node-0") or {})["status"].get("capacity", {})


async def test_a_fleet_joins_over_tls_by_kubeconfig(tmp_path: Path) -> None:
    options = ApiServerOptions(controllers=False, https=True)
    async with ApiServer(options) as server, Cluster(server.http_url, server.admin_token) as cluster:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        access = configured_access(str(tmp_path / "kubeconfig"))
        async with running_fleet(small_fleet(), access, tmp_path / "data", install_crds=True):
            await cluster.run_pod("a")
            await cluster.until(NRT, "node-0", lambda topology: free(topology, "cpu") == [5, 8])


async def test_node_lease_is_renewed(cluster: Cluster, join: JoinFleet) -> None:
    async with join(small_fleet(timing="leasePeriod: 30ms, statusPeriod: 30ms")):
        lease = await cluster.until(LEASES, "node-0", lambda lease: lease)
        first = lease["spec"]["renewTime"]
        await cluster.until(LEASES, "node-0", lambda lease: lease and lease["spec"]["renewTime"] > first)


async def test_a_node_that_was_given_up_says_that_it_is_ready(cluster: Cluster, join: JoinFleet) -> None:
    """After a pause, or a jump of the clock, in which no sign of life came; not only with the next heartbeat."""
    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    async with join(small_fleet(timing="leasePeriod: 1h, statusPeriod: 1h")):
        patch = {"status": {"conditions": [unknown]}}
        given_up = json.loads(await cluster.client.patch(f"{NODES}/node-0/status", patch, content_type=STRATEGIC))
        assert ready(given_up) == "Unknown"
        await cluster.until(NODES, "node-0", lambda node: node and ready(node) == "True")


async def test_a_deleted_node_is_left_alone_until_it_is_created_again(
    cluster: Cluster, join: JoinFleet, server: ApiServer
) -> None:
    async with join(small_fleet(timing="leasePeriod: 20ms")) as fleet:
        await cluster.run_pod("a")
        await cluster.client.delete(f"{NODES}/node-0")
        # The simulated server collects no garbage without controllers; the node's objects go with it elsewhere.
        await cluster.client.delete(f"{NRT}/node-0")
        await eventually(lambda: not fleet.nodes["node-0"].registered)
        await cluster.delete_pod("a")
        await cluster.until(PODS, "a", lambda pod: pod is None)
        await cluster.client.post(NODES, {"metadata": {"name": "node-0"}})
        await cluster.until(NODES, "node-0", lambda node: "cpu" in (node or {})["status"].get("capacity", {}))
        await cluster.until(NRT, "node-0", lambda topology: free(topology, "cpu") == [7, 8])
        await cluster.run_pod("b")


async def test_labels_that_others_set_count_for_node_affinity(cluster: Cluster, join: JoinFleet) -> None:
    async with join() as fleet:
        await cluster.client.patch(f"{NODES}/node-0", {"metadata": {"labels": {"disk": "ssd"}}}, content_type=STRATEGIC)
        await eventually(lambda: fleet.nodes["node-0"].agent.kubelet.labels.get("disk") == "ssd")
        await cluster.run_pod("fits", nodeSelector={"disk": "ssd"})
        await cluster.create_pod("misfit", nodeSelector={"disk": "tape"})
        assert (await cluster.pod_in("Failed", "misfit"))["status"]["reason"] == "NodeAffinity"


async def test_fleet_without_the_topology_definition_says_so(server: ApiServer, tmp_path: Any) -> None:
    access = plain_access(server.http_url, token=server.admin_token)
    with pytest.raises(ConfigurationError, match="--install-crds"):
        async with running_fleet(small_fleet(), access, tmp_path):
            pass
    async with running_fleet(small_fleet(publisher="none"), access, tmp_path):
        pass


# --- pods -------------------------------------------------------------------------------------------------------------


async def test_an_admitted_pod_runs_and_the_topology_follows(cluster: Cluster, join: JoinFleet) -> None:
    async with join():
        pod = await cluster.run_pod("a", amounts={"cpu": "3", "memory": "1Gi", "nvidia.com/gpu": "2"})
        assert pod["status"]["podIP"] == "10.0.0.2"
        assert pod["status"]["containerStatuses"][0]["ready"]
        expected = pods_fingerprint([("default", "a")])
        topology = await cluster.until(NRT, "node-0", lambda topology: fingerprint(topology) == expected)
        assert free(topology, "nvidia.com/gpu") == [2, 4]
        assert free(topology, "cpu") == [4, 8]


async def test_conditions_that_others_wrote_stay(cluster: Cluster, join: JoinFleet) -> None:
    async with join() as fleet:
        fleet.stop_kubelet("node-0")
        await cluster.create_pod("a")
        gate = {"status": {"conditions": [{"type": "example.com/gate", "status": "True"}]}}
        await cluster.client.patch(f"{PODS}/a/status", gate, content_type=STRATEGIC)
        fleet.start_kubelet("node-0")
        pod = await cluster.pod_in("Running", "a")
        assert {"example.com/gate", "Ready"} <= {condition["type"] for condition in pod["status"]["conditions"]}


async def test_a_misfit_is_rejected_with_a_warning(cluster: Cluster, join: JoinFleet) -> None:
    async with join(small_fleet(policy="single-numa-node")):
        await cluster.create_pod("a", amounts={"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "5"})
        pod = await cluster.pod_in("Failed", "a")
        assert pod["status"]["reason"] == "TopologyAffinityError"
        assert pod["status"]["message"].startswith("Pod was rejected: ")
        event = await cluster.event_of(pod)
        assert (event["type"], event["reason"]) == ("Warning", "TopologyAffinityError")
        assert event["source"] == {"component": "kubelet", "host": "node-0"}


async def test_a_pod_ends_when_it_said_and_gives_back_what_it_held(cluster: Cluster, join: JoinFleet) -> None:
    async with join():
        annotations = {"simulator.kai.scheduler/run-seconds": "0.1", "simulator.kai.scheduler/exit-code": "2"}
        await cluster.create_pod("a", metadata={"annotations": annotations})
        pod = await cluster.pod_in("Failed", "a")
        assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 2
        await cluster.until(NRT, "node-0", lambda topology: fingerprint(topology) == pods_fingerprint([]))
        await cluster.until(NRT, "node-0", lambda topology: free(topology, "cpu") == [7, 8])


@pytest.mark.parametrize("grace", [None, 0])
async def test_a_deleted_pod_goes_and_makes_room(cluster: Cluster, join: JoinFleet, grace: int | None) -> None:
    whole = {"cpu": "8", "memory": "1Gi", "nvidia.com/gpu": "4"}
    async with join(small_fleet(policy="single-numa-node")) as fleet:
        await cluster.run_pod("a", amounts=whole)
        await cluster.delete_pod("a", grace=grace)
        await cluster.until(PODS, "a", lambda pod: pod is None)
        await eventually(lambda: not fleet.nodes["node-0"].agent.pods)
        await cluster.run_pod("b", amounts=whole)


async def test_a_pod_of_another_node_is_none_of_ours(cluster: Cluster, join: JoinFleet) -> None:
    await cluster.create_pod("other", node="elsewhere")
    async with join() as fleet:
        await cluster.run_pod("a")
        assert [pod.metadata.name for pod in fleet.nodes["node-0"].api_pods.values()] == ["a"]
        assert (await cluster.get(PODS, "other") or {})["status"]["phase"] == "Pending"


async def test_pods_that_wait_are_taken_up_oldest_first(cluster: Cluster, join: JoinFleet) -> None:
    whole = {"cpu": "8", "memory": "1Gi"}
    for name in ("z", "a", "m"):
        await cluster.create_pod(name, amounts=whole)
    async with join(small_fleet(policy="single-numa-node")) as fleet:
        decided = lambda pod: pod and pod["status"]["phase"] != "Pending"  # noqa: E731
        phases = [await cluster.until(PODS, name, decided) for name in "zam"]
        # Zone 0 has a reserved CPU, so one of them fits: of those of the same second the first by name.
        waiting = sorted(phases, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))
        assert [pod["status"]["phase"] for pod in waiting] == ["Running", "Failed", "Failed"]
        assert fleet.metrics.registry.get_sample_value("kai_fleet_admissions_total") == 1
        reason = {"reason": "TopologyAffinityError"}
        assert fleet.metrics.registry.get_sample_value("kai_fleet_rejections_total", reason) == 2


async def test_a_time_of_day_that_is_set_back_while_timers_wait_leaves_nothing_undone(
    cluster: Cluster, join: JoinFleet
) -> None:
    """As a step of NTP sets it back; here by half of all that passes, so that it is behind whenever a timer fires."""
    async with join() as fleet:
        began = time.time()
        fleet.timers.clock = lambda: began + (time.time() - began) / 2
        annotations = {"simulator.kai.scheduler/run-seconds": "0.2"}
        await cluster.create_pod("a", metadata={"annotations": annotations})
        await cluster.until(NRT, "node-0", lambda topology: free(topology, "cpu") == [5, 8])
        await cluster.pod_in("Succeeded", "a")
        await cluster.until(NRT, "node-0", lambda topology: free(topology, "cpu") == [7, 8])


async def test_a_clock_that_is_set_back_while_a_pod_runs_does_not_delay_what_its_status_lags_behind(
    cluster: Cluster, join: JoinFleet
) -> None:
    async with join(small_fleet(lag="{status: 0.1, podresources: 0, sync: 0}")) as fleet:
        annotations = {"simulator.kai.scheduler/run-seconds": "0.5"}
        await cluster.create_pod("a", metadata={"annotations": annotations})
        await cluster.pod_in("Running", "a")
        fleet.timers.clock = lambda: time.time() - 3600
        await cluster.pod_in("Succeeded", "a")


# --- restart ----------------------------------------------------------------------------------------------------------


async def test_after_a_restart_pods_hold_the_same_cpus_and_devices(cluster: Cluster, join: JoinFleet) -> None:
    amounts = {"cpu": "2", "memory": "2Gi", "nvidia.com/gpu": "1"}
    async with join() as fleet:
        for name in ("a", "b", "c"):
            await cluster.run_pod(name, amounts=amounts)
        before = held(fleet)
    await cluster.delete_pod("b", grace=0)
    await cluster.create_pod("d", amounts=amounts)
    async with join() as fleet:
        await cluster.pod_in("Running", "d")
        gone = {uid for uid in before["cpus"] if uid not in fleet.nodes["node-0"].agent.pods}
        assert len(gone) == 1
        after = held(fleet)
        for kind, by_uid in before.items():
            for uid, assigned in by_uid.items():
                if uid not in gone:
                    assert after[kind][uid] == assigned


async def test_a_kubelet_that_is_down_admits_nothing_and_catches_up(cluster: Cluster, join: JoinFleet) -> None:
    async with join(small_fleet(2)) as fleet:
        await cluster.run_pod("a")
        await cluster.run_pod("gone")
        before = held(fleet)
        fleet.stop_kubelet("node-0")
        await cluster.create_pod("b")
        await cluster.delete_pod("gone", grace=0)
        # What comes to the other node has been seen after what came to this one.
        await cluster.run_pod("c", node="node-1")
        assert (await cluster.get(PODS, "b") or {})["status"]["phase"] == "Pending"
        assert held(fleet) == before
        fleet.start_kubelet("node-0")
        await cluster.pod_in("Running", "b")
        assert sorted(pod.name for pod in fleet.nodes["node-0"].agent.kubelet.pods.values()) == ["a", "b"]


# --- faults -----------------------------------------------------------------------------------------------------------


def rule(kind: str, *, verb: str = "", resource: str = "", **fault: Any) -> Json:
    return {"match": {"verb": verb, "resource": resource, "userAgent": "kai-fleet"}, "fault": {"kind": kind, **fault}}


@pytest.mark.parametrize("kind", ["conflict", "internal-error", "reset", "lost-answer", "unauthorized"])
async def test_a_write_that_fails_is_repeated(cluster: Cluster, join: JoinFleet, server: ApiServer, kind: str) -> None:
    async with join() as fleet:
        server.faults.add(rule(kind, verb="patch", resource="pods", times=2))
        await cluster.run_pod("a")
        retried = 1 if kind == "unauthorized" else 2  # The first 401 makes it read the credentials anew, at once.
        sample = ("kai_fleet_api_retries_total", {"kind": "pod-status"})
        await eventually(lambda: fleet.metrics.registry.get_sample_value(*sample) == retried)


@pytest.mark.parametrize(
    "fault",
    [
        rule("drop-watch", verb="watch", resource="pods", times=3),
        rule("gone", verb="watch", resource="pods", times=1),
        rule("gone", verb="watch", resource="pods", times=2, when="open"),
        rule("duplicate-event", verb="watch", resource="pods", times=5),
        rule("internal-error", verb="list", resource="pods", times=2),
    ],
)
async def test_a_broken_watch_loses_nothing(cluster: Cluster, join: JoinFleet, server: ApiServer, fault: Json) -> None:
    async with join():
        server.faults.add(fault)
        for name in ("a", "b", "c"):
            await cluster.create_pod(name)
        await cluster.delete_pod("a")
        for name in ("b", "c"):
            await cluster.pod_in("Running", name)
        await cluster.until(PODS, "a", lambda pod: pod is None)
        await cluster.until(NRT, "node-0", lambda topology: free(topology, "cpu") == [3, 8])


async def test_a_pod_recreated_under_its_name_is_another_pod(
    cluster: Cluster, join: JoinFleet, server: ApiServer
) -> None:
    async with join():
        first = await cluster.run_pod("a")
        await cluster.delete_pod("a", grace=0)
        second = await cluster.run_pod("a")
        assert first["metadata"]["uid"] != second["metadata"]["uid"]


async def test_an_unhealthy_device_leaves_node_and_topology(cluster: Cluster, join: JoinFleet) -> None:
    async with join() as fleet:
        fleet.set_device_health("node-0", "nvidia.com/gpu", "gpu-00", healthy=False)
        await cluster.until(NODES, "node-0", lambda node: node and allocatable_gpus(node) == "7")
        await cluster.until(NRT, "node-0", lambda topology: free(topology, "nvidia.com/gpu") == [3, 4])
        fleet.set_device_health("node-0", "nvidia.com/gpu", "gpu-00", healthy=True)
        await cluster.until(NRT, "node-0", lambda topology: free(topology, "nvidia.com/gpu") == [4, 4])
        with pytest.raises(KeyError):
            fleet.set_device_health("node-0", "nvidia.com/gpu", "gpu-99", healthy=False)


def wrote(topology: Json | None) -> str:
    """The reason for RTE's last write."""
    return str(topology["metadata"]["annotations"]["k8stopoawareschedwg/rte-update"]) if topology else ""


async def test_a_publisher_may_lie_and_lose(cluster: Cluster, join: JoinFleet) -> None:
    async with join(small_fleet(period="100ms")) as fleet:
        faults = fleet.nodes["node-0"].publisher.faults
        faults.wrong_fingerprint = True
        await cluster.run_pod("a")
        right = pods_fingerprint([("default", "a")])
        wrong = await cluster.until(NRT, "node-0", lambda topology: free(topology, "cpu") == [5, 8])
        assert fingerprint(wrong) not in ("", right)
        faults.wrong_fingerprint = False
        await cluster.until(NRT, "node-0", lambda topology: fingerprint(topology) == right)
        # RTE tells why it wrote last; so the next periodic write is seen by those that watch.
        await cluster.until(NRT, "node-0", lambda topology: wrote(topology) == "periodic")
        faults.lose = 1
        await cluster.run_pod("b")
        # The lost write is made up for at the next period.
        await cluster.until(NRT, "node-0", lambda topology: free(topology, "cpu") == [3, 8])
        lost = fleet.metrics.registry.get_sample_value("kai_fleet_nrt_publishes_total", {"result": "lost"})
        assert lost == 1


async def test_a_deleted_topology_comes_back(cluster: Cluster, join: JoinFleet) -> None:
    async with join():
        await cluster.client.delete(f"{NRT}/node-0")
        await cluster.run_pod("a")
        await cluster.until(NRT, "node-0", lambda topology: free(topology, "cpu") == [5, 8])
