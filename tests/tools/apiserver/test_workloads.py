"""Kinds of batch work without running operators: their pods are made, marked, replaced and counted, and they end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from importlib import resources
from typing import Any

import pytest
from kaicore.yaml_text import load_yaml

from tests.tools.apiserver.client import PODS, Client
from tests.tools.apiserver.test_deployments import kubelet, running

Json = dict[str, Any]
PATIENCE_S = 60.0
SERVER_OPTIONS = {"job_backoff_s": 0.02, "demonstration": True}
PLURALS = {
    "PyTorchJob": "pytorchjobs",
    "MPIJob": "mpijobs",
    "RayCluster": "rayclusters",
    "RayJob": "rayjobs",
    "JobSet": "jobsets",
    "LeaderWorkerSet": "leaderworkersets",
    "StatefulSet": "statefulsets",
    "Job": "jobs",
}


def example(name: str, **spec: Any) -> Json:
    """A manifest of the demonstration's teams, with fields of its spec replaced."""
    text = (resources.files("kai_cli.demonstration") / "teams" / "work" / f"{name}.yaml").read_text()
    manifest: Json = load_yaml(text)
    manifest["metadata"]["namespace"] = "default"
    manifest["spec"] |= spec
    return manifest


def collection(manifest: Json) -> str:
    return f"/apis/{manifest['apiVersion']}/namespaces/default/{PLURALS[manifest['kind']]}"


class Cluster:
    """A server with a kubelet that runs every pod, until a test ends it."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def create(self, manifest: Json) -> str:
        made = await self.client.post(collection(manifest), manifest)
        assert made.status == 201, made
        return f"{collection(manifest)}/{manifest['metadata']['name']}"

    async def pods(self) -> dict[str, Json]:
        listed = (await self.client.get(PODS)).json["items"]
        return {pod["metadata"]["name"]: pod for pod in listed}

    async def until(self, path: str, holds: Callable[[Json], Any]) -> Json:
        """Look at an object or a list until something holds of it."""
        seen: Json = {}
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds(seen := (await self.client.get(path)).json):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"{path}: {seen}")
        return seen

    async def running(self, count: int) -> dict[str, Json]:
        """Wait until so many pods run."""
        await self.until(PODS, lambda pods: [pod["status"]["phase"] for pod in pods["items"]].count("Running") == count)
        return await self.pods()

    async def end(self, *names: str, code: int = 0) -> None:
        """End pods, well or badly."""
        for name in names:
            pod = (await self.client.get(f"{PODS}/{name}")).json
            ended = [
                {
                    "name": one["name"],
                    "ready": False,
                    "image": "",
                    "imageID": "",
                    "restartCount": 0,
                    "state": {"terminated": {"exitCode": code}},
                }
                for one in pod["spec"]["containers"]
            ]
            phase = "Failed" if code else "Succeeded"
            status = {"phase": phase, "conditions": [], "containerStatuses": ended}
            assert (await self.client.merge(f"{PODS}/{name}/status", {"status": status})).status == 200


@pytest.fixture
async def cluster(client: Client) -> AsyncIterator[Cluster]:
    async with kubelet(client, running):
        yield Cluster(client)


def conditions(shown: Json) -> dict[str, str]:
    return {one["type"]: one["status"] for one in (shown.get("status") or {}).get("conditions") or ()}


def is_true(kind: str) -> Callable[[Json], bool]:
    return lambda shown: conditions(shown).get(kind) == "True"


def label(pod: Json, name: str) -> str:
    return str(pod["metadata"]["labels"].get(name))


async def test_a_pytorch_job_replaces_a_worker_and_ends_with_its_master(cluster: Cluster) -> None:
    path = await cluster.create(example("pretrain"))
    pods = await cluster.running(4)
    assert sorted(pods) == ["pretrain-master-0", "pretrain-worker-0", "pretrain-worker-1", "pretrain-worker-2"]
    worker = pods["pretrain-worker-1"]
    assert label(worker, "training.kubeflow.org/replica-index") == "1"
    assert worker["metadata"]["ownerReferences"][0]["kind"] == "PyTorchJob"
    assert worker["spec"]["restartPolicy"] == "OnFailure"
    await cluster.until(path, is_true("Running"))
    await cluster.end("pretrain-worker-1", code=1)
    shown = await cluster.until(
        PODS,
        lambda pods: (
            [p["metadata"]["uid"] for p in pods["items"]]
            and len(pods["items"]) == 4
            and all(p["metadata"]["uid"] != worker["metadata"]["uid"] for p in pods["items"])
        ),
    )
    assert len(shown["items"]) == 4, "a pod that failed is made anew, under its name"
    await cluster.running(4)
    await cluster.end("pretrain-master-0")
    ended = await cluster.until(path, is_true("Succeeded"))
    assert conditions(ended)["Running"] == "False"
    assert ended["status"]["completionTime"]


async def test_a_pytorch_job_that_is_not_to_restart_fails_with_its_first_pod(cluster: Cluster) -> None:
    manifest = example("pretrain", runPolicy={"cleanPodPolicy": "Running"})
    manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = "ExitCode"
    path = await cluster.create(manifest)
    await cluster.running(4)
    await cluster.end("pretrain-worker-0", code=3)
    await cluster.until(path, is_true("Failed"))
    await cluster.until(PODS, lambda pods: [pod["metadata"]["name"] for pod in pods["items"]] == ["pretrain-worker-0"])


async def test_a_job_that_is_suspended_has_no_pods_until_it_is_resumed(cluster: Cluster) -> None:
    path = await cluster.create(example("pretrain", runPolicy={"suspend": True}))
    await cluster.until(path, is_true("Suspended"))
    assert await cluster.pods() == {}
    await cluster.client.merge(path, {"spec": {"runPolicy": {"suspend": False}}})
    await cluster.running(4)
    shown = await cluster.until(path, is_true("Running"))
    assert conditions(shown)["Suspended"] == "False"


async def test_an_mpi_job_ends_with_its_launcher_and_its_workers_go(cluster: Cluster) -> None:
    path = await cluster.create(example("segment"))
    pods = await cluster.running(5)
    (launcher,) = (pod for name, pod in pods.items() if "launcher" in name)
    assert launcher["metadata"]["ownerReferences"][0]["kind"] == "Job"
    assert label(launcher, "training.kubeflow.org/job-role") == "launcher"
    await cluster.until(path, is_true("Running"))
    await cluster.end(launcher["metadata"]["name"])
    await cluster.until(path, is_true("Succeeded"))
    await cluster.until(
        PODS, lambda left: [pod["metadata"]["name"] for pod in left["items"]] == [launcher["metadata"]["name"]]
    )


async def test_a_ray_job_submits_when_its_cluster_is_ready_and_shuts_it_down(cluster: Cluster) -> None:
    path = await cluster.create(example("render"))
    pods = await cluster.running(6)
    heads = [pod for pod in pods.values() if label(pod, "ray.io/node-type") == "head"]
    workers = [pod for pod in pods.values() if label(pod, "ray.io/group") == "gpu"]
    (submitter,) = (
        pod
        for pod in pods.values()
        if pod["metadata"]["name"].startswith("render-") and "ray.io/cluster" not in pod["metadata"]["labels"]
    )
    assert len(heads) == 1
    assert len(workers) == 4
    assert submitter["metadata"]["annotations"]["simulator.kai.scheduler/run-seconds"] == "40"
    await cluster.until(path, lambda job: job["status"]["jobDeploymentStatus"] == "Running")
    made = max(pod["metadata"]["creationTimestamp"] for pod in [*heads, *workers])
    assert submitter["metadata"]["creationTimestamp"] >= made
    await cluster.end(submitter["metadata"]["name"])
    done = await cluster.until(path, lambda job: job["status"]["jobDeploymentStatus"] == "Complete")
    assert done["status"]["jobStatus"] == "SUCCEEDED"
    clusters = "/apis/ray.io/v1/namespaces/default/rayclusters"
    await cluster.until(clusters, lambda listed: listed["items"] == [])
    await cluster.until(
        PODS, lambda left: [pod["metadata"]["name"] for pod in left["items"]] == [submitter["metadata"]["name"]]
    )


async def test_a_ray_cluster_replaces_a_worker_and_follows_its_replicas(cluster: Cluster) -> None:
    manifest = example("transcribe")
    path = await cluster.create(manifest)
    pods = await cluster.running(4)
    await cluster.until(path, lambda shown: shown["status"].get("state") == "ready")
    worker = next(name for name, pod in pods.items() if label(pod, "ray.io/group") == "gpu")
    await cluster.end(worker, code=1)
    await cluster.running(4)
    manifest["spec"]["workerGroupSpecs"][0] |= {"replicas": 1, "minReplicas": 1}
    groups = {"spec": {"workerGroupSpecs": manifest["spec"]["workerGroupSpecs"]}}
    assert (await cluster.client.merge(path, groups)).status == 200
    await cluster.running(2)
    shown = await cluster.until(path, lambda shown: shown["status"]["readyWorkerReplicas"] == 1)
    assert shown["status"]["desiredWorkerReplicas"] == 1


async def test_a_job_set_restarts_as_a_whole_and_completes_with_all_its_jobs(cluster: Cluster) -> None:
    path = await cluster.create(example("rollout"))
    pods = await cluster.running(5)
    first = next(name for name, pod in pods.items() if label(pod, "jobset.sigs.k8s.io/replicatedjob-name") == "driver")
    assert label(pods[first], "batch.kubernetes.io/job-completion-index") == "0"
    await cluster.end(first, code=1)
    await cluster.until(path, lambda shown: shown["status"].get("restarts") == 1)
    again = "jobset.sigs.k8s.io/restart-attempt=1"
    await cluster.until(
        f"{PODS}?labelSelector={again}",
        lambda listed: [pod["status"]["phase"] for pod in listed["items"]] == ["Running"] * 5,
    )
    await cluster.end(*(name for name, pod in (await cluster.pods()).items() if pod["status"]["phase"] == "Running"))
    done = await cluster.until(path, is_true("Completed"))
    assert done["status"]["terminalState"] == "Completed"


async def test_a_job_that_depends_on_another_waits_for_it(cluster: Cluster) -> None:
    manifest = example("rollout", successPolicy={"operator": "All", "targetReplicatedJobs": ["workers"]})
    manifest["spec"]["replicatedJobs"][1]["dependsOn"] = [{"name": "driver", "status": "Complete"}]
    path = await cluster.create(manifest)
    (driver,) = await cluster.running(1)
    await cluster.end(driver)
    pods = await cluster.running(4)
    assert {label(pod, "jobset.sigs.k8s.io/job-global-index") for name, pod in pods.items() if name != driver} == {
        "1",
        "2",
    }
    await cluster.end(*(set(pods) - {driver}))
    await cluster.until(path, is_true("Completed"))


async def test_a_leader_worker_set_makes_a_group_anew_when_one_of_its_pods_goes(cluster: Cluster) -> None:
    path = await cluster.create(example("chat"))
    pods = await cluster.running(4)
    assert sorted(pods) == ["chat-0", "chat-0-1", "chat-1", "chat-1-1"]
    assert label(pods["chat-1-1"], "leaderworkerset.sigs.k8s.io/worker-index") == "1"
    owner = pods["chat-1-1"]["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("StatefulSet", "chat-1")
    await cluster.until(path, lambda shown: shown["status"].get("readyReplicas") == 2)
    before = {name: pod["metadata"]["uid"] for name, pod in pods.items()}
    await cluster.end("chat-1-1", code=1)
    await cluster.until(
        PODS,
        lambda listed: (
            sum(
                pod["metadata"]["uid"] not in before.values() and pod["status"]["phase"] == "Running"
                for pod in listed["items"]
            )
            == 2
        ),
    )
    after = {name: pod["metadata"]["uid"] for name, pod in (await cluster.running(4)).items()}
    assert {name for name in after if after[name] != before[name]} == {"chat-1", "chat-1-1"}
    assert (await cluster.client.merge(path, {"spec": {"replicas": 1}})).status == 200
    assert sorted(await cluster.running(2)) == ["chat-0", "chat-0-1"]
    await cluster.client.delete(path)
    await cluster.until(PODS, lambda listed: listed["items"] == [])


async def test_a_new_leader_does_not_go_for_a_worker_of_the_one_before(cluster: Cluster) -> None:
    await cluster.create(example("chat", replicas=1))
    before = {name: pod["metadata"]["uid"] for name, pod in (await cluster.running(2)).items()}
    stays = {"metadata": {"finalizers": ["example.com/stays"]}}
    assert (await cluster.client.merge(f"{PODS}/chat-0-1", stays)).status == 200
    async with cluster.client.watch(PODS) as watch:
        await cluster.client.delete(f"{PODS}/chat-0-1")
        await watch.until("DELETED", "chat-0")
        await watch.until("ADDED", "chat-0")
        stored = await cluster.until(f"{PODS}/chat-0", lambda pod: pod["status"].get("phase") == "Running")
        assert stored["metadata"]["uid"] != before["chat-0"]
        await cluster.client.merge(f"{PODS}/chat-0-1", {"metadata": {"finalizers": None}})
        await watch.until("ADDED", "chat-0-1")
    after = await cluster.running(2)
    assert after["chat-0"]["metadata"]["uid"] == stored["metadata"]["uid"]
    assert after["chat-0-1"]["metadata"]["uid"] != before["chat-0-1"]


async def test_a_stateful_set_makes_its_pods_one_after_the_other(cluster: Cluster) -> None:
    labels = {"app": "db"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    spec = {"replicas": 3, "serviceName": "db", "selector": {"matchLabels": labels}, "template": template}
    path = await cluster.create(
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": spec}
    )
    pods = await cluster.running(3)
    assert sorted(pods) == ["db-0", "db-1", "db-2"]
    versions = [int(pods[name]["metadata"]["resourceVersion"]) for name in sorted(pods)]
    assert versions == sorted(versions), "each ran before the next was made"
    await cluster.until(path, lambda shown: shown["status"].get("readyReplicas") == 3)
    await cluster.client.delete(f"{PODS}/db-1")
    await cluster.until(
        f"{PODS}/db-1", lambda pod: pod.get("metadata", {}).get("uid") not in (None, pods["db-1"]["metadata"]["uid"])
    )


async def test_a_volcano_job_starts_again_when_a_pod_fails_and_completes_when_all_have_ended(cluster: Cluster) -> None:
    path = await cluster.create(example("labels"))
    pods = await cluster.running(4)
    worker = pods["labels-worker-2"]
    assert label(worker, "volcano.sh/task-spec") == "worker"
    groups = (await cluster.client.get("/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups")).json[
        "items"
    ]
    assert [group["metadata"]["name"] for group in groups] == [
        worker["metadata"]["annotations"]["scheduling.k8s.io/group-name"]
    ]
    assert groups[0]["spec"]["minMember"] == 4
    await cluster.end("labels-worker-2", code=1)
    await cluster.until(path, lambda shown: shown["status"].get("retryCount") == 1)
    await cluster.until(
        PODS,
        lambda listed: (
            len(listed["items"]) == 4
            and all(p["metadata"]["annotations"]["volcano.sh/job-version"] == "1" for p in listed["items"])
        ),
    )
    await cluster.running(4)
    await cluster.until(path, lambda shown: shown["status"]["state"]["phase"] == "Running")
    await cluster.end(*pods)
    done = await cluster.until(path, lambda shown: shown["status"]["state"]["phase"] == "Completed")
    assert done["status"]["succeeded"] == 4


async def test_a_task_that_is_done_completes_a_volcano_job(cluster: Cluster) -> None:
    manifest = example("labels")
    manifest["spec"]["tasks"][1]["policies"] = [{"event": "TaskCompleted", "action": "CompleteJob"}]
    path = await cluster.create(manifest)
    await cluster.running(4)
    await cluster.end(*(f"labels-worker-{index}" for index in range(3)))
    await cluster.until(path, lambda shown: shown["status"]["state"]["phase"] == "Completed")
    await cluster.until(
        PODS,
        lambda listed: (
            sorted(pod["metadata"]["name"] for pod in listed["items"])
            == [f"labels-worker-{index}" for index in range(3)]
        ),
    )


async def test_an_ended_job_goes_when_its_time_to_live_is_over(cluster: Cluster) -> None:
    path = await cluster.create(example("pretrain", runPolicy={"ttlSecondsAfterFinished": 0}))
    await cluster.running(4)
    await cluster.end("pretrain-master-0")
    await cluster.until(path, lambda shown: shown.get("code") == 404)
    await cluster.until(PODS, lambda listed: listed["items"] == [])


async def test_an_object_that_makes_no_sense_stops_none_of_the_others(cluster: Cluster) -> None:
    refused = await cluster.client.post(
        collection(example("pretrain")), example("pretrain", pytorchReplicaSpecs={"Master": {"replicas": "many"}})
    )
    assert refused.status == 422
    assert "spec.pytorchReplicaSpecs.Master.replicas" in refused.json["message"]
    broken = example("pretrain", pytorchReplicaSpecs={"Master": {"replicas": 1}})
    broken["metadata"]["name"] = "broken"
    await cluster.create(broken)
    await cluster.create(example("pretrain"))
    assert all(name.startswith("pretrain-") for name in await cluster.running(4))
