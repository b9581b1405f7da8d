"""One node's loop: what it says to which pod, in which order, at which time."""

from typing import Any

import msgspec
from kai_fleet.node.agent import Agent, Complaint, DeletePod, Instruction, PatchStatus, RecordEvent, WakeAt
from kai_fleet.node.checkpoint import restore, snapshot
from kai_fleet.node.tracked_pod import Stage

from tests.tools.fleet.objects import pod_object, small_fleet

NOW = 1_800_000_000.0


def agent(**fleet: Any) -> Agent:
    return Agent(small_fleet(**fleet)[0])


def phases(instructions: list[Instruction]) -> list[tuple[str, str]]:
    """The pods with a written status, with the phase."""
    return [
        (i.pod.metadata.name, msgspec.json.decode(i.body)["status"]["phase"])
        for i in instructions
        if isinstance(i, PatchStatus)
    ]


def status(instructions: list[Instruction]) -> dict[str, Any]:
    written: dict[str, Any] = msgspec.json.decode([i for i in instructions if isinstance(i, PatchStatus)][-1].body)
    return dict(written["status"])


def wakes(instructions: list[Instruction]) -> list[float]:
    return [i.when - NOW for i in instructions if isinstance(i, WakeAt)]


def test_an_admitted_pod_runs_at_once_and_forever() -> None:
    node = agent()
    done = node.pod_seen(pod_object("a"), NOW)
    assert phases(done) == [("a", "Running")]
    written = status(done)
    assert written["podIP"] == "10.0.0.2"
    assert written["hostIP"] == "172.16.0.0"
    assert written["startTime"] == "2027-01-15T08:00:00Z"
    assert {c["type"]: c["status"] for c in written["conditions"]} == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": "True",
        "ContainersReady": "True",
    }
    assert written["containerStatuses"][0]["state"] == {"running": {"startedAt": "2027-01-15T08:00:00Z"}}
    assert not wakes(done)
    assert node.allocations_changed


def test_a_patch_is_bound_to_the_pods_uid() -> None:
    (patch,) = [i for i in agent().pod_seen(pod_object("a", uid="u-7"), NOW) if isinstance(i, PatchStatus)]
    assert msgspec.json.decode(patch.body)["metadata"] == {"uid": "u-7"}


def test_a_pod_runs_for_as_long_as_it_says_and_exits_as_it_says() -> None:
    node = agent()
    annotations = {"simulator.kai.scheduler/run-seconds": "2.5", "simulator.kai.scheduler/exit-code": "3"}
    done = node.pod_seen(pod_object("a", metadata={"annotations": annotations}, restartPolicy="Always"), NOW)
    assert wakes(done) == [2.5]
    assert not phases(node.due(NOW + 2))
    ended = node.due(NOW + 2.5)
    assert phases(ended) == [("a", "Failed")]
    assert status(ended)["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert not node.kubelet.pods


def test_without_annotation_the_profile_says_how_long_a_job_runs() -> None:
    node = agent(timing="runSeconds: 4")
    assert wakes(node.pod_seen(pod_object("job"), NOW)) == [4.0]
    assert wakes(node.pod_seen(pod_object("server", restartPolicy="Always"), NOW)) == []
    assert phases(node.due(NOW + 4)) == [("job", "Succeeded")]


def test_nonsense_in_an_annotation_is_named_and_ignored() -> None:
    annotations = {"simulator.kai.scheduler/run-seconds": "nan", "simulator.kai.scheduler/exit-code": "-1"}
    done = agent().pod_seen(pod_object("a", metadata={"annotations": annotations}), NOW)
    complaints = [str(i.error) for i in done if isinstance(i, Complaint)]
    assert complaints == [
        "pod default/a: simulator.kai.scheduler/run-seconds: not a number of seconds: 'nan'",
        "pod default/a: simulator.kai.scheduler/exit-code: not an exit code from 0 to 255: '-1'",
    ]
    assert phases(done) == [("a", "Running")]


def test_a_rejected_pod_fails_with_reason_and_warning_and_is_not_looked_at_again() -> None:
    node = agent(policy="single-numa-node")
    big = pod_object("a", amounts={"cpu": "9", "memory": "1Gi"})
    done = node.pod_seen(big, NOW)
    assert phases(done) == [("a", "Failed")]
    assert status(done)["reason"] == "TopologyAffinityError"
    assert status(done)["message"] == "Pod was rejected: Resources cannot be allocated with Topology locality"
    (event,) = [msgspec.json.decode(i.body) for i in done if isinstance(i, RecordEvent)]
    assert (event["type"], event["reason"], event["involvedObject"]["uid"]) == (
        "Warning",
        "TopologyAffinityError",
        "uid-a",
    )
    assert node.pod_seen(big, NOW + 1) == []


def test_a_malformed_pod_is_rejected_and_the_next_one_is_admitted() -> None:
    node = agent()
    done = node.pod_seen(pod_object("a", amounts={"cpu": "lots"}), NOW)
    assert phases(done) == [("a", "Failed")]
    assert "spec.containers[0].resources.requests[cpu]" in status(done)["message"]
    assert phases(node.pod_seen(pod_object("b"), NOW)) == [("b", "Running")]


def test_pods_are_decided_on_in_the_order_in_which_they_came() -> None:
    node = agent(timing="admissionLatency: 1")
    node.pod_seen(pod_object("a"), NOW)
    node.pod_seen(pod_object("b"), NOW + 0.1)
    assert not node.kubelet.pods
    assert phases(node.due(NOW + 2)) == [("a", "Running"), ("b", "Running")]


def test_a_list_is_taken_oldest_first() -> None:
    node = agent()
    young = pod_object("a", metadata={"creationTimestamp": "2026-01-02T00:00:00Z"})
    old = pod_object("b", metadata={"creationTimestamp": "2026-01-01T00:00:00Z"})
    assert phases(node.synced([young, old], NOW)) == [("b", "Running"), ("a", "Running")]


def test_init_containers_run_first_one_after_the_other() -> None:
    node = agent(timing="initSeconds: 2, startupDelay: 1")
    init = [{"name": "i0"}, {"name": "side", "restartPolicy": "Always"}, {"name": "i1"}]
    assert phases(node.pod_seen(pod_object("a", initContainers=init), NOW)) == []
    first = node.due(NOW + 1)
    assert phases(first) == [("a", "Pending")]
    assert [next(iter(c["state"])) for c in status(first)["initContainerStatuses"]] == ["running", "waiting", "waiting"]
    assert next(iter(status(node.due(NOW + 3))["initContainerStatuses"][0]["state"])) == "terminated"
    running = node.due(NOW + 5)
    assert phases(running) == [("a", "Running")]
    assert [next(iter(c["state"])) for c in status(running)["initContainerStatuses"]] == [
        "terminated",
        "running",
        "terminated",
    ]


def deleting(name: str, **more: Any) -> Any:
    return pod_object(
        name, metadata={"deletionTimestamp": "2027-01-15T08:00:30Z", "deletionGracePeriodSeconds": 30}, **more
    )


def test_a_deleted_pod_holds_what_it_has_until_it_has_stopped() -> None:
    node = Agent(small_fleet()[0])
    node._timing = node._timing.model_copy(update={"termination_seconds": 5.0})
    node.pod_seen(pod_object("a"), NOW)
    assert wakes(node.pod_seen(deleting("a"), NOW)) == [5.0]
    assert "uid-a" in node.kubelet.pods
    assert node.pod_seen(deleting("a"), NOW + 1) == []
    (done,) = node.due(NOW + 5)
    assert isinstance(done, DeletePod)
    assert not node.kubelet.pods
    node.pod_gone("uid-a")
    assert not node.pods


def test_the_grace_period_bounds_how_long_stopping_takes() -> None:
    node = agent()
    node._timing = node._timing.model_copy(update={"termination_seconds": 100.0})
    node.pod_seen(pod_object("a"), NOW)
    assert wakes(node.pod_seen(deleting("a"), NOW)) == [30.0]


def test_a_pod_that_a_finalizer_keeps_is_told_to_have_failed() -> None:
    node = agent()
    node.pod_seen(pod_object("a"), NOW)
    kept = deleting("a")
    kept.metadata.finalizers = ["example.com/keeps"]
    shown = node.pod_seen(kept, NOW)
    assert [phase for _, phase in phases(shown)] == ["Failed"]
    assert isinstance(shown[-1], DeletePod)
    assert not node.kubelet.pods


def test_a_pod_deleted_before_it_was_decided_on_is_just_deleted() -> None:
    node = agent(timing="admissionLatency: 1")
    assert isinstance(node.pod_seen(deleting("new"), NOW)[0], DeletePod)
    node.pod_seen(pod_object("a"), NOW)
    assert isinstance(node.pod_seen(deleting("a"), NOW + 0.5)[0], DeletePod)
    assert node.due(NOW + 1) == []
    assert not node.kubelet.pods


def test_a_force_deleted_pod_holds_nothing_any_more() -> None:
    node = agent()
    node.pod_seen(pod_object("a"), NOW)
    node.pod_gone("uid-a")
    assert not node.kubelet.pods
    node.pod_gone("uid-a")


def test_a_pod_that_has_ended_elsewhere_is_none_of_its_business() -> None:
    node = agent()
    assert node.pod_seen(pod_object("a", status={"phase": "Succeeded"}), NOW) == []
    assert not node.pods


def test_a_status_that_got_lost_is_written_again_on_the_next_list() -> None:
    node = agent(policy="single-numa-node")
    runs, fails = pod_object("a"), pod_object("b", amounts={"cpu": "9", "memory": "1Gi"})
    node.synced([runs, fails], NOW)
    assert phases(node.synced([runs, fails], NOW + 1)) == [("a", "Running"), ("b", "Failed")]
    seen = [pod_object("a", status={"phase": "Running"}), pod_object("b", status={"phase": "Failed"})]
    assert phases(node.synced(seen, NOW + 2)) == []
    assert node.synced([], NOW + 3) == []
    assert not node.pods


# --- restart ----------------------------------------------------------------------------------------------------------


def restarted(node: Agent) -> Agent:
    again = Agent(node.spec)
    restore(again, snapshot(node))
    return again


def assignments(node: Agent) -> tuple[object, ...]:
    managers = node.kubelet.managers
    return (
        managers.cpus.assigned,
        managers.cpus.shared,
        managers.devices.assigned,
        {resource: held for resource, held in managers.devices.in_use.items() if held},
        managers.memory.assigned,
        managers.memory.zones,
        node.kubelet.affinities,
        node.kubelet.used,
        list(node.kubelet.pods),
    )


def test_after_a_restart_every_pod_holds_what_it_held() -> None:
    node = agent()
    amounts = {"cpu": "3", "memory": "20Gi", "nvidia.com/gpu": "2"}
    init = [{"name": "i0", "resources": {"requests": amounts, "limits": amounts}}]
    node.pod_seen(pod_object("wide", amounts={"cpu": "10", "memory": "40Gi", "nvidia.com/gpu": "6"}), NOW)
    node.pod_gone("uid-wide")
    node.pod_seen(pod_object("a", amounts=amounts), NOW)
    node.pod_seen(pod_object("b", amounts=amounts, initContainers=init), NOW + 1)
    node.kubelet.set_device_health("nvidia.com/gpu", "gpu-07", healthy=False)
    again = restarted(node)
    assert assignments(again) == assignments(node)
    assert again.kubelet.allocatable == node.kubelet.allocatable
    listed = [pod_object(name, status={"phase": "Running"}) for name in ("a", "b")]
    assert again.synced(listed, NOW + 9) == []
    assert {tracked.stage for tracked in again.pods.values()} == {Stage.RUNNING}


def test_pods_deleted_while_the_kubelet_was_away_are_released() -> None:
    node = agent()
    node.pod_seen(pod_object("a"), NOW)
    again = restarted(node)
    again.synced([], NOW + 5)
    assert not again.kubelet.pods
    again.kubelet.sweep()
    assert not again.kubelet.managers.holders()


def test_a_pod_whose_status_was_never_written_is_reported_after_the_restart() -> None:
    node = agent()
    node.pod_seen(pod_object("a"), NOW)
    done = restarted(node).synced([pod_object("a")], NOW + 5)
    assert phases(done) == [("a", "Running")]
    assert status(done)["startTime"] == "2027-01-15T08:00:00Z"
    assert status(done)["containerStatuses"][0]["image"] == "pause"


def test_a_pod_that_ended_does_not_start_again() -> None:
    node = agent(timing="runSeconds: 4")
    node.pod_seen(pod_object("a"), NOW)
    node.due(NOW + 4)
    again = restarted(node)
    done = again.synced([pod_object("a", status={"phase": "Running"})], NOW + 9)
    assert phases(done) == [("a", "Succeeded")]
    # Once the API says so, there is nothing to remember.
    again.pod_seen(pod_object("a", status={"phase": "Succeeded"}), NOW + 10)
    assert not snapshot(again).pods


def test_a_rejection_stands_over_a_restart() -> None:
    node = agent(policy="single-numa-node")
    whole = {"cpu": "8", "memory": "1Gi"}
    node.pod_seen(pod_object("a", amounts=whole), NOW)
    node.pod_seen(pod_object("b", amounts=whole), NOW)
    again = restarted(node)
    # By now there is room, and the API has not heard of the rejection; it stands nevertheless.
    done = again.synced([pod_object("b", amounts=whole)], NOW + 5)
    assert phases(done) == [("b", "Failed")]
    assert status(done)["reason"] == "TopologyAffinityError"
    again.pod_seen(pod_object("b", status={"phase": "Failed"}), NOW + 6)
    assert not snapshot(again).pods


def test_a_run_goes_on_where_it_was() -> None:
    node = agent(timing="runSeconds: 10")
    node.pod_seen(pod_object("a"), NOW)
    again = restarted(node)
    assert [wake.when for wake in again.wakes(NOW + 3)] == [NOW + 10]
    assert again.synced([pod_object("a", status={"phase": "Running"})], NOW + 3) == []
    assert phases(again.due(NOW + 10)) == [("a", "Succeeded")]


def test_a_run_that_began_while_the_clock_was_ahead_is_no_longer_after_a_restart() -> None:
    node = agent(timing="runSeconds: 10")
    node.pod_seen(pod_object("a"), NOW + 420)
    again = restarted(node)
    assert [wake.when for wake in again.wakes(NOW + 3)] == [NOW + 13]
    once_more = restarted(again)
    assert [wake.when for wake in once_more.wakes(NOW + 5)] == [NOW + 13]


def test_a_pod_stopping_while_the_kubelet_went_away_is_deleted_in_the_end() -> None:
    node = agent()
    node._timing = node._timing.model_copy(update={"termination_seconds": 5.0})
    node.pod_seen(pod_object("a"), NOW)
    node.pod_seen(deleting("a"), NOW)
    again = restarted(node)
    again.synced([deleting("a")], NOW + 6)
    (done,) = again.due(NOW + 6)
    assert isinstance(done, DeletePod)
    assert not restarted(again).pods
