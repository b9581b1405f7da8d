"""Evictions: one per request of the log, with one outcome each, and never of a successor of the same name."""

from typing import Any

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

from tests.given.processes.waiting import until_events
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


async def outcomes(scene: Scene, count: int) -> list[Any]:
    """Wait for so many outcomes, each of its own request."""
    events = await until_events(
        scene.log, scene.cluster, "PodEvicted", "EvictionFailed", holds=lambda events: len(events) >= count
    )
    asked = await scene.log.read(scene.cluster, where=Filter(types=("RepairRequested",)))
    assert {(event.cause, event.stream) for event in events} == {(event.id, event.stream) for event in asked}
    assert len(events) == count
    return [decode_payload(event) for event in events]


async def outcome(scene: Scene) -> PodEvicted | EvictionFailed:
    """Wait for the only outcome."""
    (only,) = await outcomes(scene, 1)
    assert isinstance(only, PodEvicted | EvictionFailed)
    return only


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


async def test_an_api_server_that_fails_is_asked_again(scene: Scene) -> None:
    faults = {"failing": ("internal-error", 1), "hanging-up": ("reset", 1), "without-credentials": ("unauthorized", 3)}
    for name, (kind, times) in faults.items():
        scene.api.faults(**EVICTIONS, name=name, kind=kind, times=times)
    scene.start()
    for name in faults:
        await request(scene, await scene.api.pod(name, node="n1"))
    done = await outcomes(scene, len(faults))
    assert {(type(one), one.attempts > 1) for one in done} == {(PodEvicted, True)}


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

    def condition(pod: Json) -> Json:
        conditions = pod["status"].get("conditions", ())
        return next((one for one in conditions if one["type"] == "DisruptionTarget"), {})

    seen = await scene.until_pod("a", lambda pod: condition(pod).get("reason") == "PreemptionByScheduler")
    assert "deletionTimestamp" in seen["metadata"]
    assert condition(seen)["status"] == "True"
    said = "ConfigurablePreemption by preemption config heroes rule lower/0: makes way for Job.batch/default/high"
    assert said in condition(seen)["message"]


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
        await scene.until_pod("a", lambda pod, shown=shown: pod["status"].get("nominatedNodeName") == shown)
    assert binder.metric("side_writes_total", kind="nomination", result="written") == 2
