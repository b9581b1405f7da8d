"""Reasons of waiting pods are written on them and into events, on a simulated API server."""

from collections.abc import Callable

from kaicore.kube.normalize.pod import normalize_pod
from kaicore.kube.wire.resources import PODS as POD_RESOURCE
from kaicore.rules.events.payloads import ClassPending, CycleCompleted, PodObserved, PodsLeftWaiting, WaitingPod
from kaicore.rules.events.reasons.group import GangIncomplete, SchedulingGated
from kaicore.rules.events.reasons.node import InsufficientResource, NodeNotReady, UntoleratedTaint
from kaicore.rules.events.reasons.queue import OverLimit
from kaicore.rules.events.reasons.reason import Reason
from msgspec import json

from tests.given.processes.waiting import eventually
from tests.given.servers.kube import PODS, Json
from tests.integration.binder.conftest import RunningBinder, Scene

EVENTS = "/api/v1/namespaces/default/events"
CLASS = "0123456789ab"


async def left_waiting(scene: Scene, *pods: Json, pod_class: str = CLASS) -> None:
    waiting = tuple(
        WaitingPod(pod["metadata"]["uid"], "default", pod["metadata"]["name"], pod_class, f"Pod/{index}")
        for index, pod in enumerate(pods)
    )
    await scene.append(("waiting", PodsLeftWaiting("default", waiting)))


async def why(scene: Scene, *reasons: Reason, pod_class: str = CLASS) -> int:
    """A cycle recorded why; returns the log's position of it."""
    pending = (ClassPending(pod_class, 1, reasons),)
    await scene.append(("cycle", CycleCompleted("default/1", "default", 0, "", "1", 0, "", 1, 0, pending)))
    return (await scene.log.head(scene.cluster)).position


async def events(scene: Scene, holds: Callable[[list[Json]], object]) -> list[Json]:
    """Wait until something holds for the events of the namespace."""
    return await eventually(lambda: scene.api.items(EVENTS), holds)


async def written(binder: RunningBinder, kind: str) -> None:
    """Wait until the binder has taken note of a write of a kind; it does not tell of it."""
    await eventually(lambda: binder.metric("side_writes_total", kind=kind, result="written"))


def condition(pod: Json) -> Json:
    """The condition PodScheduled of a pod, empty where it has none."""
    conditions = pod.get("status", {}).get("conditions", [])
    return next((one for one in conditions if one["type"] == "PodScheduled"), {})


def short_of(resource: str, *, free: int = 0, nodes: int = 3) -> Reason:
    return InsufficientResource(nodes=nodes, example="n1", resource=resource, requested=2, free=free)


async def test_waiting_pod_says_why_until_it_is_bound(scene: Scene) -> None:
    scene.start()
    made = await scene.api.pod("a")
    await left_waiting(scene, made)
    position = await why(scene, short_of("nvidia.com/gpu"))
    pod = await scene.until_pod("a", condition)
    shown = condition(pod)
    assert (shown["status"], shown["reason"]) == ("False", "Unschedulable")
    assert shown["message"] == "3 nodes short of nvidia.com/gpu: 2 needed, 0 free (such as n1)"
    (event,) = await events(scene, bool)
    assert (event["reason"], event["type"], event["reportingComponent"]) == (
        "FailedScheduling",
        "Warning",
        "kai-ledger",
    )
    assert event["message"] == f"{shown['message']} (log position {position}; `kai why default/a`)"
    assert event["involvedObject"]["uid"] == made["metadata"]["uid"]
    await scene.decide((made, "n1"))
    pod = await scene.until_pod("a", lambda pod: condition(pod)["status"] == "True")
    assert "reason" not in condition(pod)
    both = await events(scene, lambda items: len(items) == 2)
    (scheduled,) = [event for event in both if event["reason"] == "Scheduled"]
    assert scheduled["message"] == f"Successfully assigned default/a to n1 (log position {position + 2})"
    assert scheduled["type"] == "Normal"


async def test_event_of_a_failed_binding_says_what_the_api_server_said(scene: Scene) -> None:
    scene.start()
    made = await scene.api.pod("a", schedulingGates=[{"name": "example.com/g"}])
    await scene.decide((made, "n1"))
    (event,) = await events(scene, bool)
    assert (event["reason"], event["type"]) == ("FailedScheduling", "Warning")
    assert "Binding to n1 failed: 409 Conflict: " in event["message"]
    assert "pod a has non-empty .spec.schedulingGates" in event["message"]


async def test_condition_is_rewritten_only_when_it_says_something_else(scene: Scene) -> None:
    binder = scene.start()
    made = await scene.api.pod("a")
    await left_waiting(scene, made)
    await why(scene, short_of("nvidia.com/gpu"))
    first = await scene.until_pod("a", condition)
    for _ in range(3):
        await left_waiting(scene, made)
        await why(scene, short_of("nvidia.com/gpu"))
    # Other amounts: another message, but no other event.
    await why(scene, short_of("nvidia.com/gpu", free=1))
    pod = await scene.until_pod("a", lambda pod: "1 free" in condition(pod)["message"])
    assert condition(pod)["lastTransitionTime"] == condition(first)["lastTransitionTime"]
    # Other reasons: both.
    await why(scene, NodeNotReady(nodes=3, example="n1"))
    await scene.until_pod("a", lambda pod: "not ready" in condition(pod)["message"])
    await events(scene, lambda items: len(items) == 2)
    assert binder.metric("side_writes_total", kind="condition", result="written") == 3
    assert binder.metric("side_writes_total", kind="event", result="written") == 2


async def test_condition_of_a_pod_that_other_nodes_would_not_help_is_not_unschedulable(scene: Scene) -> None:
    scene.start()
    cases = {
        "gated": (SchedulingGated(gates="example.com/hold"), "SchedulingGated"),
        "limited": (OverLimit(resource="gpu", requested=2, queue="team"), "OverLimit"),
        "alone": (GangIncomplete(min_pods=4, ready_pods=1), "GangIncomplete"),
    }
    for name, (reason, _) in cases.items():
        await left_waiting(scene, await scene.api.pod(name), pod_class=name)
        await why(scene, reason, short_of("cpu"), pod_class=name)
    for name, (_, expected) in cases.items():
        pod = await scene.until_pod(name, condition)
        assert condition(pod)["reason"] == expected


async def test_next_binder_writes_what_the_last_one_had_not_written(scene: Scene) -> None:
    binder = scene.start(snapshot_events=1)
    made, other = await scene.api.pod("a"), await scene.api.pod("b")
    await left_waiting(scene, made)
    await why(scene, short_of("cpu"))
    for kind in ("condition", "event"):
        await written(binder, kind)
    await binder.stop()
    await left_waiting(scene, other)
    successor = scene.start()
    pod = await scene.until_pod("b", condition)
    assert condition(pod)["message"].startswith("3 nodes short of cpu")
    await events(scene, lambda items: len(items) == 2)
    assert successor.metric("side_writes_total", kind="condition", result="written") == 1


async def test_pod_that_another_scheduler_took_is_left_alone(scene: Scene) -> None:
    binder = scene.start()
    theirs, ours = await scene.api.pod("theirs"), await scene.api.pod("ours")
    await left_waiting(scene, theirs, ours)
    seen = normalize_pod(POD_RESOURCE.decode(json.encode({**theirs, "spec": {**theirs["spec"], "nodeName": "n1"}})))
    await scene.append((seen.uid, PodObserved(seen)))
    await why(scene, short_of("cpu"))
    await scene.until_pod("ours", condition)
    assert not condition(await scene.api.get(f"{PODS}/theirs"))
    assert binder.metric("side_writes_total", kind="condition", result="written") == 1


async def test_conditions_events_and_observed_placements_can_be_left_out(scene: Scene) -> None:
    not_wanted = ("pod_conditions", "failed_scheduling_events", "scheduled_events", "annotations")
    binder = scene.start(**dict.fromkeys(not_wanted, False))
    made, other = await scene.api.pod("a"), await scene.api.pod("b")
    await left_waiting(scene, made)
    await why(scene, short_of("cpu"))
    await scene.observe(made)
    await scene.decide((other, "n1"))
    await scene.bound()
    await binder.stop()
    pod = await scene.api.get(f"{PODS}/a")
    assert (condition(pod), pod["metadata"].get("annotations")) == ({}, None)
    assert await scene.api.items(EVENTS) == []


async def test_long_reasons_fit_into_an_event(scene: Scene) -> None:
    scene.start()
    await left_waiting(scene, await scene.api.pod("a"))
    await why(scene, *(UntoleratedTaint(nodes=1, example="n" * 60, taint="ü" * 300) for _ in range(2)))
    (event,) = await events(scene, bool)
    assert len(event["message"].encode()) <= 1024
    assert event["message"].endswith("; `kai why default/a`)")
