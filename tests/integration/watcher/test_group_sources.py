"""Objects that say how pods belong together, of which a cluster may serve any or none."""

import asyncio
from typing import Any

from kaicore.rules.events.reasons.group import GroupNotFound
from kaicore.rules.state.cluster_state import ClusterState

from tests.given.processes.service_task import PATIENCE_S
from tests.given.servers.kube import DEFINITIONS, Json
from tests.given.work.groups import shape
from tests.integration.watcher.conftest import World

JOBS = "/apis/batch/v1/namespaces/default/jobs"
OWNED = {"apiVersion": "batch/v1", "kind": "Job", "controller": True}


def group(name: str, **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": spec}


async def state(world: World) -> ClusterState:
    return ClusterState(world.cluster).fold_all(await world.events())


async def test_pod_groups_and_owners_become_groups(world: World) -> None:
    groups = await world.api.install_pod_groups("scheduling.run.ai")
    pytorch = await world.api.install("kubeflow.org", "v1", "PyTorchJob")
    sub_groups = [{"name": "a", "minMember": 1}, {"name": "b", "minMember": 3}]
    await world.api.post(groups, group("g", queue="team-a", subGroups=sub_groups))
    replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": 2}}
    await world.api.post(pytorch, group("t", pytorchReplicaSpecs=replicas, anything="else"))
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}
    job = await world.api.post(JOBS, group("j", template=template))
    container = {"name": "main", "image": "x"}
    for name, meta in (
        ("p", {"annotations": {"pod-group-name": "g"}, "labels": {"kai.scheduler/subgroup-name": "b"}}),
        ("q", {"ownerReferences": [{**OWNED, "name": "j", "uid": job["metadata"]["uid"]}]}),
    ):
        pod = {"metadata": {"name": name, **meta}, "spec": {"containers": [container]}}
        await world.api.post("/api/v1/namespaces/default/pods", pod)
    await world.settled()
    recorded = await state(world)
    assert {key: shape(one.sets) for key, one in recorded.groups.items()} == {
        "PodGroup.scheduling.run.ai/default/g": "(a>=1 b>=3)/all",
        "Job.batch/default/j": ">=1",
    }
    assert "PyTorchJob.kubeflow.org/default/t" in recorded.group_table.sources
    # Changes and ends are recorded.
    await world.api.merge(f"{groups}/g", {"spec": {"queue": "team-b"}, "status": {"phase": "Pending"}})
    await world.converged()
    assert (await state(world)).groups["PodGroup.scheduling.run.ai/default/g"].queue == "team-b"
    await world.api.client.delete(f"{groups}/g")
    await world.converged()
    recorded = await state(world)
    assert list(recorded.groups) == ["Job.batch/default/j"]
    assert [entry.group_problem for entry in recorded.pods.values() if entry.group_problem] == [
        GroupNotFound(group="PodGroup.scheduling.run.ai default/g")
    ]


async def test_hyper_jobs_are_read_of_whichever_group_serves_them(world: World) -> None:
    places = (
        await world.api.install_hyper_jobs(),
        await world.api.install("training.volcano.sh", "v1alpha1", "HyperJob"),
    )
    template = {"networkTopology": {"highestTierAllowed": 1}, "tasks": [{"name": "w", "replicas": 2, "template": {}}]}
    for place in places:
        await world.api.post(place, group("h", replicatedJobs=[{"name": "a", "replicas": 2, "template": template}]))
    await world.settled()
    sets_by_kind = {one.kind: one.templates[0].sets for one in (await state(world)).group_table.sources.values()}
    assert {kind: shape(sets) for kind, sets in sets_by_kind.items()} == dict.fromkeys(
        ("HyperJob.topology.volcano.sh", "HyperJob.training.volcano.sh"),
        "(a-0(a-0.w>=2 a-0.-)/all>=2 a-1(a-1.w>=2 a-1.-)/all>=2)/all",
    )
    assert {one.topology.exclusive for sets in sets_by_kind.values() for one in sets if one.topology is not None} == {
        True
    }


async def test_kinds_that_are_served_later_or_no_more_are_followed(world: World) -> None:
    watcher = await world.start().ready()
    groups = await world.api.install_pod_groups("scheduling.sigs.k8s.io")
    await world.api.post(groups, group("g", minMember=2))
    await world.until(lambda events: "GroupSourceObserved" in [event.type for event in events])
    await world.converged()
    await world.api.client.delete(f"{DEFINITIONS}/podgroups.scheduling.sigs.k8s.io")
    await world.until(lambda events: "GroupSourceDeleted" in [event.type for event in events])
    assert watcher.health.ready


async def test_kind_that_is_served_in_unknown_versions_only_is_told_and_what_is_known_of_it_stands(
    world: World,
) -> None:
    jobs = await world.api.install("kubeflow.org", "v1", "TFJob")
    await world.api.post(jobs, group("j", tfReplicaSpecs={"Worker": {"replicas": 2}}))
    watcher = await world.settled(recheck_s=0.05)
    definition = f"{DEFINITIONS}/tfjobs.kubeflow.org"
    (served,) = (await world.api.get(definition))["spec"]["versions"]
    versions = [{**served, "name": "v9"}, {**served, "served": False, "storage": False}]
    await world.api.merge(definition, {"spec": {"versions": versions}})
    async with asyncio.timeout(PATIENCE_S):
        while not watcher.metric("refused_objects_total", kind="TFJob.kubeflow.org"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await world.api.merge(definition, {"spec": {"versions": [served]}})
    await world.api.post(jobs, group("k", tfReplicaSpecs={"Worker": {"replicas": 2}}))
    await world.until(lambda events: sum(event.type == "GroupSourceObserved" for event in events) == 2)
    assert watcher.metric("refused_objects_total", kind="TFJob.kubeflow.org") == 1
    assert not await world.events("GroupSourceDeleted")


async def test_what_is_malformed_is_told_once_and_the_rest_goes_on(world: World) -> None:
    jobs = await world.api.install("kubeflow.org", "v1", "TFJob")
    await world.api.post(jobs, group("bad", tfReplicaSpecs={"Worker": {"replicas": "many"}}))
    await world.api.post(jobs, group("good", tfReplicaSpecs={"Worker": {"replicas": 2}}))
    watcher = await world.settled()
    assert list((await state(world)).group_table.sources) == ["TFJob.kubeflow.org/default/good"]
    assert watcher.metric("refused_objects_total", kind="TFJob.kubeflow.org") == 1
    # The next version gets its chance.
    await world.api.merge(f"{jobs}/bad", {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 1}}}})
    await world.until(lambda events: sum(event.type == "GroupSourceObserved" for event in events) == 2)
