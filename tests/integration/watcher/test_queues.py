"""Queues of KAI and Kueue, of which a cluster may serve any or none, become the queues of the state."""

import pytest
from kai_watcher.watcher import WatcherOptions
from kaicore.errors import ConfigurationError
from kaicore.rules.state.cluster_state import ClusterState

from tests.given.processes.waiting import eventually
from tests.given.servers.kube import Json
from tests.integration.watcher.conftest import World


def cluster_queue(name: str, **spec: object) -> Json:
    flavor = {"name": "default", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 4}]}
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}]
    return {"metadata": {"name": name}, "spec": {"namespaceSelector": {}, "resourceGroups": groups, **spec}}


async def state(world: World) -> ClusterState:
    return ClusterState(world.cluster).fold_all(await world.events())


async def test_queues_of_kai_and_kueue_are_recorded(world: World) -> None:
    queues = await world.api.install_queues()
    cluster_queues = await world.api.install("kueue.x-k8s.io", "v1beta2", "ClusterQueue", scope="Cluster")
    local_queues = await world.api.install("kueue.x-k8s.io", "v1beta2", "LocalQueue")
    await world.api.post(queues, {"metadata": {"name": "a"}, "spec": {"resources": {"gpu": {"quota": 4, "limit": -1}}}})
    await world.api.post(queues, {"metadata": {"name": "broken"}, "spec": {"reclaimMinRuntime": "soon"}})
    await world.api.post(cluster_queues, cluster_queue("k", cohortName="c"))
    await world.api.post(local_queues, {"metadata": {"name": "lq"}, "spec": {"clusterQueue": "k"}})
    watcher = await world.settled()
    assert watcher.metric("lost_parts_total", kind="Queue.scheduling.run.ai") == 1
    recorded = await state(world)
    assert sorted(recorded.queues) == ["ClusterQueue/k", "a", "broken", "default/lq"]
    tree = recorded.queue_registry.tree
    assert [one.name for one in tree.queues] == ["Cohort/c", "a", "broken", "default", "ClusterQueue/k"]
    assert tree.resolve("default/lq", namespace="default") == 4
    await world.api.client.delete(f"{queues}/a")
    await world.api.client.delete(f"{local_queues}/lq")
    await world.converged()
    assert sorted((await state(world)).queues) == ["ClusterQueue/k", "broken"]


async def test_kinds_of_a_group_that_is_left_out_are_not_read_and_what_was_recorded_of_them_is_gone(
    world: World,
) -> None:
    queues = await world.api.install_queues()
    cluster_queues = await world.api.install("kueue.x-k8s.io", "v1beta2", "ClusterQueue", scope="Cluster")
    await world.api.post(queues, {"metadata": {"name": "a"}, "spec": {"resources": {"gpu": {"quota": 4, "limit": -1}}}})
    await world.api.post(cluster_queues, cluster_queue("k"))
    await (await world.start().ready()).stop()
    assert sorted((await state(world)).queues) == ["ClusterQueue/k", "a"]
    await world.start(leave_out="kueue.x-k8s.io").ready()
    await world.api.post(cluster_queues, cluster_queue("later"))
    await eventually(lambda: state(world), lambda recorded: sorted(recorded.queues) == ["a"])


def test_a_group_that_cannot_be_left_out_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"leave_out: kueue\.x-k8s\.oi is .*mean 'kueue\.x-k8s\.io'"):
        _ = WatcherOptions(leave_out="kueue.x-k8s.oi").left_out
