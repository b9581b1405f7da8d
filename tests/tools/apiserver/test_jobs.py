"""The Job controller."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kai_apiserver.controllers.jobs import read_indexes, write_indexes
from kai_apiserver.server import ApiServer, ApiServerOptions

from tests.tools.apiserver.client import PODS, Client, Watch, binding, pod
from tests.tools.apiserver.conftest import ServerFactory

JOBS = "/apis/batch/v1/namespaces/default/jobs"
SERVER_OPTIONS = {"job_backoff_s": 0.01}


def job(name: str = "j", **spec: Any) -> dict[str, Any]:
    template = {"spec": {**pod()["spec"], "restartPolicy": "Never"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template, **spec}}


async def new_pod(watch: Watch) -> dict[str, Any]:
    created: dict[str, Any] = (await watch.until("ADDED"))["object"]
    return created


async def end(client: Client, made: dict[str, Any], phase: str, **status: Any) -> None:
    answer = await client.merge(f"{PODS}/{made['metadata']['name']}/status", {"status": {"phase": phase, **status}})
    assert answer.status == 200, answer


async def until_status(client: Client, wanted: Any, name: str = "j") -> dict[str, Any]:
    async with client.watch(f"{JOBS}?fieldSelector=metadata.name%3D{name}") as watch:
        while True:
            job: dict[str, Any] = (await watch.next())["object"]
            if wanted(job["status"]):
                return job


def condition(status: dict[str, Any], kind: str) -> dict[str, Any] | None:
    return next(
        (item for item in status.get("conditions", ()) if item["type"] == kind and item["status"] == "True"), None
    )


async def test_a_rejected_pod_is_replaced_by_another(client: Client) -> None:
    async with client.watch(PODS) as watch:
        await client.post(JOBS, job())
        first = await new_pod(watch)
        await end(client, first, "Failed", reason="TopologyAffinityError")
        second = await new_pod(watch)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert second["metadata"]["name"] != first["metadata"]["name"]
    status = (await until_status(client, lambda status: status.get("failed") == 1 and status.get("active") == 1))[
        "status"
    ]
    assert status["uncountedTerminatedPods"] == {}
    old = (await client.get(f"{PODS}/{first['metadata']['name']}")).json
    assert "finalizers" not in old["metadata"], "it was counted"


async def test_a_jobs_pods_are_known_as_its_own(client: Client) -> None:
    async with client.watch(PODS) as watch:
        created = (await client.post(JOBS, job())).json
        made = await new_pod(watch)
    metadata = made["metadata"]
    assert metadata["name"].startswith("j-")
    assert metadata["labels"]["batch.kubernetes.io/job-name"] == "j"
    assert metadata["labels"]["batch.kubernetes.io/controller-uid"] == created["metadata"]["uid"]
    assert metadata["finalizers"] == ["batch.kubernetes.io/job-tracking"]
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Job", created["metadata"]["uid"], True)


async def test_a_job_runs_so_many_at_once_until_enough_have_succeeded(client: Client) -> None:
    async with client.watch(PODS) as watch:
        await client.post(JOBS, job(completions=5, parallelism=2))
        running = [await new_pod(watch), await new_pod(watch)]
        for _ in range(3):
            await end(client, running.pop(0), "Succeeded")
            running.append(await new_pod(watch))
        for made in running:
            await end(client, made, "Succeeded")
    done = await until_status(client, lambda status: condition(status, "Complete"))
    assert done["status"]["succeeded"] == 5
    assert done["status"]["completionTime"]
    assert condition(done["status"], "SuccessCriteriaMet")
    assert len((await client.get(PODS)).items) == 5


async def test_a_job_gives_up_after_its_backoff_limit(client: Client) -> None:
    async with client.watch(PODS) as watch:
        await client.post(JOBS, job(backoffLimit=1))
        for _ in range(2):
            await end(client, await new_pod(watch), "Failed")
    failed = await until_status(client, lambda status: condition(status, "Failed"))
    assert failed["status"]["failed"] == 2
    failure = condition(failed["status"], "Failed")
    assert failure is not None
    assert (failure["reason"], failure["message"]) == (
        "BackoffLimitExceeded",
        "Job has reached the specified backoff limit",
    )


async def test_a_failed_job_waits_for_its_last_pods(client: Client) -> None:
    async with client.watch(PODS) as watch:
        await client.post(JOBS, job(backoffLimit=0, parallelism=2, completions=2))
        bad, bound = await new_pod(watch), await new_pod(watch)
        name = bound["metadata"]["name"]
        await client.post(f"{PODS}/{name}/binding", binding(name, "n1"))
        await end(client, bad, "Failed")
        while not (await watch.until("MODIFIED", name))["object"]["metadata"].get("deletionTimestamp"):
            pass
    job_now = await until_status(client, lambda status: condition(status, "FailureTarget"))
    assert not condition(job_now["status"], "Failed"), "a pod is still terminating"
    await client.delete(f"{PODS}/{name}?gracePeriodSeconds=0")
    ended = await until_status(client, lambda status: condition(status, "Failed"))
    assert ended["status"]["failed"] == 2


async def test_a_deadline_ends_a_job(start_server: ServerFactory) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    server = await start_server(**SERVER_OPTIONS, clock=lambda: moment)
    async with Client(server.http_url, server.admin_token) as client:
        await client.post(JOBS, job(activeDeadlineSeconds=60))
        await until_status(client, lambda status: status.get("active") == 1)
        moment += timedelta(seconds=61)
        await client.merge(f"{JOBS}/j", {"metadata": {"labels": {"look": "again"}}})
        failed = await until_status(client, lambda status: condition(status, "Failed"))
        assert (condition(failed["status"], "Failed") or {})["reason"] == "DeadlineExceeded"
        assert (await client.get(PODS)).items == []


async def test_indexed_jobs_number_their_pods_and_replace_index_by_index(client: Client) -> None:
    async with client.watch(PODS) as watch:
        await client.post(JOBS, job(completions=3, parallelism=3, completionMode="Indexed"))
        made = [await new_pod(watch) for _ in range(3)]
        annotation = "batch.kubernetes.io/job-completion-index"
        assert [item["metadata"]["annotations"][annotation] for item in made] == ["0", "1", "2"]
        assert [item["metadata"]["labels"][annotation] for item in made] == ["0", "1", "2"]
        assert [item["spec"]["hostname"] for item in made] == ["j-0", "j-1", "j-2"]
        assert all(item["metadata"]["name"].startswith(f"j-{index}-") for index, item in enumerate(made))
        assert made[1]["spec"]["containers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"
        await end(client, made[1], "Failed")
        again = await new_pod(watch)
        assert again["metadata"]["annotations"][annotation] == "1"
        for item in (made[0], made[2]):
            await end(client, item, "Succeeded")
        partly = await until_status(client, lambda status: status.get("succeeded") == 2)
        assert partly["status"]["completedIndexes"] == "0,2"
        await end(client, again, "Succeeded")
    done = await until_status(client, lambda status: condition(status, "Complete"))
    assert (done["status"]["completedIndexes"], done["status"]["failed"]) == ("0-2", 1)


async def test_a_suspended_job_has_no_pods_and_starts_when_resumed(client: Client) -> None:
    await client.post(JOBS, job(suspend=True))
    suspended = await until_status(client, lambda status: condition(status, "Suspended"))
    assert "startTime" not in suspended["status"]
    assert (await client.get(PODS)).items == []
    async with client.watch(PODS) as watch:
        await client.merge(f"{JOBS}/j", {"spec": {"suspend": False}})
        await new_pod(watch)
        resumed = await until_status(client, lambda status: status.get("active") == 1)
        assert resumed["status"]["startTime"]
        await client.merge(f"{JOBS}/j", {"spec": {"suspend": True}})
        await watch.until("DELETED")
    stopped = await until_status(client, lambda status: condition(status, "Suspended") and "active" not in status)
    assert "failed" not in stopped["status"], "to be suspended is no failure"


async def test_a_failure_policy_ignores_counts_or_ends(client: Client) -> None:
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
    ]
    async with client.watch(PODS) as watch:
        await client.post(JOBS, job(backoffLimit=0, podFailurePolicy={"rules": rules}))
        disrupted = await new_pod(watch)
        await end(client, disrupted, "Failed", conditions=[{"type": "DisruptionTarget", "status": "True"}])
        again = await new_pod(watch)
        state = {"terminated": {"exitCode": 42}}
        await end(client, again, "Failed", containerStatuses=[{"name": "c", "state": state}])
    failed = await until_status(client, lambda status: condition(status, "Failed"))
    failure = condition(failed["status"], "Failed") or {}
    assert failure["reason"] == "PodFailurePolicy"
    assert f"default/{again['metadata']['name']} matching FailJob rule at index 1" in failure["message"]
    assert failed["status"]["failed"] == 1


async def test_fewer_at_once_take_pods_away(client: Client) -> None:
    await client.post(JOBS, job(parallelism=3, completions=9))
    await until_status(client, lambda status: status.get("active") == 3)
    await client.merge(f"{JOBS}/j", {"spec": {"parallelism": 1}})
    await until_status(client, lambda status: status.get("active") == 1)
    assert len((await client.get(PODS)).items) == 1


async def test_an_elastic_job_grows_and_keeps_its_first_indexes_when_it_shrinks(client: Client) -> None:
    await client.post(JOBS, job(parallelism=2, completions=2, completionMode="Indexed"))
    for count in (2, 4, 1):
        await client.merge(f"{JOBS}/j", {"spec": {"parallelism": count, "completions": count}})
        await until_status(client, lambda status, count=count: status.get("active") == count)
    (left,) = (pod for pod in (await client.get(PODS)).json["items"] if "deletionTimestamp" not in pod["metadata"])
    assert left["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] == "0"


async def test_a_finished_job_goes_when_its_time_is_over(start_server: ServerFactory) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    server = await start_server(**SERVER_OPTIONS, clock=lambda: moment)
    async with Client(server.http_url, server.admin_token) as client, client.watch(PODS) as watch:
        await client.post(JOBS, job(ttlSecondsAfterFinished=60))
        await end(client, await new_pod(watch), "Succeeded")
        await until_status(client, lambda status: condition(status, "Complete"))
        async with client.watch(JOBS) as jobs:
            moment += timedelta(seconds=61)
            await client.merge(f"{JOBS}/j", {"metadata": {"labels": {"look": "again"}}})
            await jobs.until("DELETED", "j")
        await watch.until("DELETED")


async def test_a_deleted_job_takes_its_bound_pods_along_when_the_kubelet_agrees(client: Client) -> None:
    async with client.watch(PODS) as watch:
        await client.post(JOBS, job())
        name = (await new_pod(watch))["metadata"]["name"]
        await client.post(f"{PODS}/{name}/binding", binding(name, "n1"))
        await client.delete(f"{JOBS}/j?propagationPolicy=Background")
        while not (await watch.until("MODIFIED", name))["object"]["metadata"].get("deletionTimestamp"):
            pass
        await client.delete(f"{PODS}/{name}?gracePeriodSeconds=0")
        await watch.until("DELETED", name)


async def test_pods_are_counted_once_across_a_restart(tmp_path: Path) -> None:
    def options(**rest: Any) -> ApiServerOptions:
        return ApiServerOptions(data_dir=tmp_path, **rest)

    async with (
        ApiServer(options(**SERVER_OPTIONS)) as server,
        Client(server.http_url, server.admin_token) as client,
        client.watch(PODS) as watch,
    ):
        await client.post(JOBS, job(completions=3, parallelism=3))
        made = [await new_pod(watch) for _ in range(3)]
    async with ApiServer(options(controllers=False)) as server, Client(server.http_url, server.admin_token) as client:
        for item in made[:2]:  # they end while they are not counted; of one the uid got as far as the status
            await end(client, item, "Succeeded")
        uncounted = {"succeeded": [made[0]["metadata"]["uid"]]}
        await client.merge(f"{JOBS}/j/status", {"status": {"uncountedTerminatedPods": uncounted}})
    async with ApiServer(options(**SERVER_OPTIONS)) as server, Client(server.http_url, server.admin_token) as client:
        await until_status(client, lambda status: status.get("succeeded") == 2)
        await end(client, made[2], "Succeeded")
        done = await until_status(client, lambda status: condition(status, "Complete"))
        assert done["status"]["succeeded"] == 3


async def test_a_large_job_does_not_stop_the_server(client: Client) -> None:
    await client.post(JOBS, job(parallelism=350, completions=350))
    listing = asyncio.create_task(client.get("/api/v1/namespaces"))
    await until_status(client, lambda status: status.get("active") == 350)
    assert (await listing).status == 200
    assert len((await client.get(PODS)).items) == 350


@given(st.sets(st.integers(0, 40)))
def test_indexes_are_written_as_they_are_read(indexes: set[int]) -> None:
    assert read_indexes(write_indexes(indexes)) == indexes


def test_runs_of_indexes_are_joined() -> None:
    assert write_indexes({0, 1, 2, 4, 5, 7}) == "0-2,4,5,7"
