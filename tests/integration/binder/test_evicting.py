"""Evictions: one per request of the log, with one outcome each, and never of a successor of the same name."""

import asyncio
from typing import Any

import pytest
from kaicore.ledger.log.port import Filter
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import (
    EvictionDecided,
    EvictionFailed,
    NominationCleared,
    PodEvicted,
    PodNominated,
    RepairRequested,
)

from tests.given.processes.service_task import PATIENCE_S
from tests.given.servers.kube import PODS, Json
from tests.integration.binder.conftest import Scene

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
EVICTIONS = {"verb": "create", "resource": "pods", "subresource": "eviction"}


async def request(scene: Scene, pod: Json, *, uid: str = "") -> None:
    """Record that a pod is to be evicted."""
    meta = pod["metadata"]
    payload = RepairRequested(
        uid=uid or meta["uid"],
        namespace=meta["namespace"],
        name=meta["name"],
        node="n1",
        cycle=f"default/{scene.cycles + 1}",
        pod_class="class",
        owner="uid-owner",
        missed="cpu on node-0+node-1",
    )
    await scene.append((payload.uid, payload))


async def outcome(scene: Scene) -> PodEvicted | EvictionFailed:
    """Wait for the only outcome."""
    where = Filter(types=("PodEvicted", "EvictionFailed"))
    head = 0
    async with asyncio.timeout(PATIENCE_S):
        while not (events := await scene.log.read(scene.cluster, where=where)):
            head = await scene.log.wait_beyond(scene.cluster, head, timeout_s=0.5)
    (event,) = events
    (asked,) = await scene.log.read(scene.cluster, where=Filter(types=("RepairRequested",)))
    assert (event.cause, event.stream) == (asked.id, asked.stream)
    payload = decode_payload(event)
    assert isinstance(payload, PodEvicted | EvictionFailed)
    return payload


async def standing(scene: Scene) -> list[str]:
    """The names of pods that are not being deleted."""
    return [
        pod["metadata"]["name"] for pod in await scene.api.items(PODS) if "deletionTimestamp" not in pod["metadata"]
    ]


async def test_a_pod_is_evicted(scene: Scene) -> None:
    pod = await scene.api.pod("a", node="n1")
    binder = scene.start()
    await request(scene, pod)
    assert await outcome(scene) == PodEvicted(pod["metadata"]["uid"], "default", "a", "n1", 1)
    assert await standing(scene) == []
    assert binder.metric("evictions_total", outcome="evicted") == 1


async def test_what_was_asked_for_before_the_binder_started_is_done_once(scene: Scene) -> None:
    await request(scene, await scene.api.pod("a", node="n1"))
    first = scene.start()
    assert isinstance(await outcome(scene), PodEvicted)
    await first.stop()
    second = scene.start()
    await scene.decide((await scene.api.pod("b"), "n1"))
    await scene.outcomes(1)
    assert second.metric("evictions_total", outcome="evicted") == 0


async def test_a_successor_of_the_same_name_is_left_alone(scene: Scene) -> None:
    pod = await scene.api.pod("a", node="n1")
    scene.start()
    await request(scene, pod, uid="uid-of-its-predecessor")
    failed = await outcome(scene)
    assert isinstance(failed, EvictionFailed)
    assert (failed.code, failed.gone) == (409, True)
    assert await standing(scene) == ["a"]


async def test_eviction_of_a_pod_that_is_gone_is_a_success(scene: Scene) -> None:
    pod = await scene.api.pod("a")
    await scene.api.delete_pod("a")
    scene.start()
    await request(scene, pod)
    failed = await outcome(scene)
    assert isinstance(failed, EvictionFailed)
    assert (failed.code, failed.gone) == (404, True)


async def test_a_budget_that_forbids_it_is_respected_and_told(scene: Scene) -> None:
    await scene.api.post(
        BUDGETS,
        {
            "metadata": {"name": "guard"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
        },
    )
    pod = await scene.api.pod("a", node="n1", labels={"app": "guarded"})
    await scene.api.pod_status("a", phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    binder = scene.start(evict_give_up_s=0.001)
    await request(scene, pod)
    failed = await outcome(scene)
    assert isinstance(failed, EvictionFailed)
    assert (failed.code, failed.gone) == (429, False)
    assert await standing(scene) == ["a"]
    assert binder.metric("evictions_total", outcome="failed") == 1


FAULTS: dict[str, dict[str, Any]] = {
    "failing": {"kind": "internal-error", "times": 1},
    "hanging up": {"kind": "reset", "times": 1},
    "not taking our credentials": {"kind": "unauthorized", "times": 3},
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_an_api_server_that_fails_is_asked_again(scene: Scene, fault: dict[str, Any]) -> None:
    scene.api.faults(**EVICTIONS, **fault)
    pod = await scene.api.pod("a", node="n1")
    scene.start()
    await request(scene, pod)
    done = await outcome(scene)
    assert isinstance(done, PodEvicted)
    assert done.attempts > 1


async def test_a_lost_answer_is_an_eviction(scene: Scene) -> None:
    """The eviction happened; asked again, the pod is gone, and the log has that it ended one way or the other."""
    scene.api.faults(**EVICTIONS, kind="lost-answer", times=1)
    pod = await scene.api.pod("a")
    scene.start()
    await request(scene, pod)
    done = await outcome(scene)
    assert isinstance(done, PodEvicted) or done.gone


async def test_a_victims_condition_names_its_preemptor_and_the_rule(scene: Scene) -> None:
    pod = await scene.api.pod("a", node="n1")
    uid = pod["metadata"]["uid"]
    scene.start()
    decided = EvictionDecided(
        *(uid, "default", "a", "n1"),
        cycle="default/1",
        group="Pod/default/a",
        reason="ConfigurablePreemption",
        preemptor="Job.batch/default/high",
        rule="heroes rule lower/0",
    )
    await scene.append((uid, decided))
    async with asyncio.timeout(PATIENCE_S):
        while True:
            (seen,) = await scene.api.items(PODS)
            conditions = [item for item in seen["status"].get("conditions", ()) if item["type"] == "DisruptionTarget"]
            if conditions and conditions[0]["reason"] == "PreemptionByScheduler":
                break
            await asyncio.sleep(0.01)
    (condition,) = conditions
    assert "deletionTimestamp" in seen["metadata"]
    assert condition["status"] == "True"
    said = "ConfigurablePreemption by preemption config heroes rule lower/0: makes way for Job.batch/default/high"
    assert said in condition["message"]


async def test_nominations_are_written_and_taken_off(scene: Scene) -> None:
    pod = await scene.api.pod("a")
    uid = pod["metadata"]["uid"]
    binder = scene.start()
    nominated = PodNominated(
        uid=uid, namespace="default", name="a", node="n7", cycle="default/1", pod_class="c", group="Pod/default/a"
    )
    for payload, shown in (
        (nominated, "n7"),
        (NominationCleared(uid, "default", "a", "n7", "default/2", "NoLongerFits"), None),
    ):
        await scene.append((uid, payload))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                (seen,) = await scene.api.items(PODS)
                if seen["status"].get("nominatedNodeName") == shown:
                    break
                await asyncio.sleep(0.01)
    assert binder.metric("side_writes_total", kind="nomination", result="written") == 2
