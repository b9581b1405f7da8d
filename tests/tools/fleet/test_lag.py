"""The lag of the API and podresources behind a simulated kubelet's managers."""

from typing import Any

import pytest
from kai_fleet.node.agent import Agent, DeletePod, Instruction, Lag, PatchStatus, WakeAt
from kai_fleet.node.checkpoint import restore, snapshot
from kai_fleet.node.podresources_server import list_pods
from kai_fleet.node.tracked_pod import Stage
from kai_fleet.profiles.nodes import expand
from kai_fleet.profiles.profile import load_profile, parse_profile
from kaicore.errors import ConfigurationError

from tests.tools.fleet.objects import pod_object, small_fleet

NOW = 1_800_000_000.0
WHOLE = {"cpu": "8", "memory": "1Gi", "nvidia.com/gpu": "4"}


def agent(lag: str, **fleet: Any) -> Agent:
    return Agent(small_fleet(lag=lag, **fleet)[0])


def wakes(instructions: list[Instruction]) -> list[float]:
    return [instruction.when - NOW for instruction in instructions if isinstance(instruction, WakeAt)]


def phases(instructions: list[Instruction]) -> list[str]:
    return [i.pod.metadata.name for i in instructions if isinstance(i, PatchStatus)]


def of_podresources(node: Agent, name: str) -> list[tuple[str, int, int, int]]:
    """The rows of List: container, CPUs, devices, memory blocks."""
    (pod,) = [pod for pod in list_pods(node.kubelet, node.half_way).pod_resources if pod.name == name]
    return [(c.name, len(c.cpu_ids), len(c.devices), len(c.memory)) for c in pod.containers]


# --- statuses ---------------------------------------------------------------------------------------------------------


def test_the_managers_free_at_once_what_the_api_hears_of_up_to_two_seconds_later() -> None:
    node = agent("{status: 2s, podresources: 0, sync: 0}", timing="runSeconds: 10")
    first, second = pod_object("a", amounts=WHOLE), pod_object("b", amounts=WHOLE)
    node.pod_seen(first, NOW)
    ended = node.due(NOW + 10)
    (told_at,) = wakes(ended)
    assert not phases(ended)
    assert 10 < told_at <= 12
    assert not node.kubelet.pods, "nothing is held any more"
    # Another pod gets the same CPUs and devices before the API says that the first has ended.
    node.pod_seen(second, NOW + 10)
    assert node.pods["uid-b"].stage is Stage.RUNNING
    assert phases(node.due(NOW + told_at)) == ["a"]
    assert not node.due(NOW + 12)


def test_a_status_that_is_told_later_says_when_the_containers_ended() -> None:
    node = agent("{status: 2s, podresources: 0, sync: 0}", timing="runSeconds: 10")
    node.pod_seen(pod_object("a"), NOW)
    node.due(NOW + 10)
    (patch,) = node.due(NOW + 12)
    assert isinstance(patch, PatchStatus)
    assert b'"finishedAt":"2027-01-15T08:00:10Z"' in patch.body


def test_a_deleted_pod_holds_nothing_for_a_while_before_the_api_forgets_it() -> None:
    node = agent("{status: 2s, podresources: 0, sync: 0}")
    node.pod_seen(pod_object("a", amounts=WHOLE), NOW)
    deleting = pod_object(
        "a", amounts=WHOLE, metadata={"deletionTimestamp": "2027-01-15T08:00:00Z", "deletionGracePeriodSeconds": 30}
    )
    stopped = node.pod_seen(deleting, NOW)
    assert not node.kubelet.pods
    (told_at,) = wakes(stopped)
    (done,) = node.due(NOW + told_at)
    assert isinstance(done, DeletePod)
    assert not snapshot(node).pods


def test_a_relist_in_between_does_not_tell_earlier() -> None:
    node = agent("{status: 2s, podresources: 0, sync: 0}", timing="runSeconds: 10")
    node.pod_seen(pod_object("a"), NOW)
    node.due(NOW + 10)
    assert not node.synced([pod_object("a", status={"phase": "Running"})], NOW + 10)


@pytest.mark.parametrize("deleted", [False, True])
def test_a_kubelet_that_restarts_before_the_api_has_heard_tells_it_then(*, deleted: bool) -> None:
    node = agent("{status: 2s, podresources: 0, sync: 0}", timing="runSeconds: 10")
    node.pod_seen(pod_object("a", amounts=WHOLE), NOW)
    more = {"metadata": {"deletionTimestamp": "2027-01-15T08:00:00Z"}} if deleted else {}
    seen = pod_object("a", amounts=WHOLE, status={"phase": "Running"}, **more)
    node.pod_seen(seen, NOW + 9)
    node.due(NOW + 10)
    again = Agent(node.spec)
    restore(again, snapshot(node))
    assert not again.kubelet.pods
    assert [wake.when for wake in again.wakes(NOW + 10)] == [node.pods["uid-a"].next_at]
    again.synced([seen], NOW + 11)
    (done,) = again.due(NOW + 13)
    assert isinstance(done, DeletePod if deleted else PatchStatus)
    assert not again.kubelet.pods


def test_lags_depend_on_the_seed_and_the_pods_name_alone() -> None:
    pods = [pod_object(f"p{number}") for number in range(200)]
    lags = [Lag(2.0, 0.4, 0.1, seed=1).of_status(pod) for pod in pods]
    assert lags == [Lag(2.0, 9.9, 9.9, seed=1).of_status(pod) for pod in pods]
    assert lags != [Lag(2.0, 0.4, 0.1, seed=2).of_status(pod) for pod in pods]
    assert 0 <= min(lags) < 0.2
    assert 1.8 < max(lags) <= 2
    assert [Lag(0.0, 0.4, 0.0, seed=1).of_status(pod) for pod in pods] == [0.0] * 200


# --- podresources -----------------------------------------------------------------------------------------------------


def test_podresources_in_the_middle_of_an_admission_shows_cpus_and_devices_and_no_memory() -> None:
    node = agent("{status: 0, podresources: 400ms, sync: 0}")
    done = node.pod_seen(pod_object("a", amounts=WHOLE), NOW)
    assert of_podresources(node, "a") == [("main", 8, 4, 0)]
    assert not phases(done), "no container starts in the middle of an admission"
    (whole_at, *_) = wakes(done)
    assert whole_at <= 0.4
    assert phases(node.due(NOW + whole_at)) == ["a"]
    assert of_podresources(node, "a") == [("main", 8, 4, 1)]


def test_of_several_containers_those_after_the_middle_one_have_nothing_yet() -> None:
    node = agent("{status: 0, podresources: 400ms, sync: 0}")
    resources = {name: {"cpu": "2", "memory": "1Gi"} for name in ("requests", "limits")}
    containers = [{"name": name, "image": "i", "resources": resources} for name in ("x", "y", "z")]
    node.pod_seen(pod_object("a", containers=containers), NOW)
    assert of_podresources(node, "a") == [("x", 2, 0, 1), ("y", 2, 0, 0), ("z", 0, 0, 0)]
    node.due(NOW + 1)
    assert of_podresources(node, "a") == [("x", 2, 0, 1), ("y", 2, 0, 1), ("z", 2, 0, 1)]


def test_a_pod_that_is_gone_in_the_middle_of_its_admission_is_forgotten() -> None:
    node = agent("{status: 0, podresources: 400ms, sync: 0}")
    node.pod_seen(pod_object("a"), NOW)
    node.pod_gone("uid-a")
    assert not node.half_way


# --- order ------------------------------------------------------------------------------------------------------------


def test_pods_that_come_in_one_sync_are_admitted_oldest_first() -> None:
    node = agent("{status: 0, podresources: 0, sync: 100ms}", policy="single-numa-node")
    young = pod_object("young", amounts=WHOLE, metadata={"creationTimestamp": "2027-01-15T08:00:02Z"})
    old = pod_object("old", amounts=WHOLE, metadata={"creationTimestamp": "2027-01-15T08:00:01Z"})
    assert wakes(node.pod_seen(young, NOW)) == [pytest.approx(0.1)]
    assert wakes(node.pod_seen(old, NOW + 0.05)) == []
    node.due(NOW + 0.1)
    assert list(node.kubelet.pods) == ["uid-old"], "one of them fits"
    assert node.pods["uid-young"].stage is Stage.REJECTED
    # What comes later is another sync.
    node.pod_gone("uid-old")
    older = pod_object("older", amounts={"cpu": "100m"}, metadata={"creationTimestamp": "2027-01-15T08:00:00Z"})
    assert wakes(node.pod_seen(older, NOW + 0.2)) == [pytest.approx(0.3)]


def test_pods_created_in_one_second_stay_in_the_order_in_which_they_came() -> None:
    node = agent("{status: 0, podresources: 0, sync: 100ms}")
    for name in ("z", "a", "m"):
        node.pod_seen(
            pod_object(name, amounts={"cpu": "1"}, metadata={"creationTimestamp": "2027-01-15T08:00:01Z"}), NOW
        )
    node.due(NOW + 1)
    assert list(node.kubelet.pods) == ["uid-z", "uid-a", "uid-m"]


def test_a_pod_deleted_before_its_sync_is_just_deleted() -> None:
    node = agent("{status: 0, podresources: 0, sync: 100ms}")
    node.pod_seen(pod_object("a"), NOW)
    (done,) = node.pod_seen(pod_object("a", metadata={"deletionTimestamp": "2027-01-15T08:00:00Z"}), NOW)
    assert isinstance(done, DeletePod)
    node.pod_seen(pod_object("b"), NOW)
    node.pod_gone("uid-b")
    assert not [i for i in node.due(NOW + 1) if not isinstance(i, WakeAt)]


# --- profile ----------------------------------------------------------------------------------------------------------


def test_every_node_lags_a_little_unless_the_profile_says_otherwise() -> None:
    lag = Agent(expand(load_profile("mini"))[0]).lag
    assert (lag.status_s, lag.podresources_s, lag.sync_s) == (0.5, 0.1, 0.05)
    for spec in expand(load_profile("demo24")):
        assert (spec.group.lag.status, spec.group.lag.podresources) == (2, 0.4), "as on real kubelets"


def test_a_lag_that_makes_no_sense_is_named() -> None:
    text = "groups: [{name: a, zones: 1, perZone: {cpus: 1, memory: 1Gi}, lag: {status: -1, podresource: 1}}]"
    with pytest.raises(ConfigurationError, match=r"groups.0.lag.status: .*; groups.0.lag.podresource: "):
        parse_profile(text, source="x")
