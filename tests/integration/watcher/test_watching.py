"""The records of a watcher on a cluster."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from kai_watcher.watcher import STREAM
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.envelope import NewEvent, Unit
from kaicore.rules.events.payloads import BindFailed, Payload, PodObserved, PodPlaced, PodRejected

from tests.given.cluster import wire
from tests.given.processes.waiting import eventually
from tests.given.servers.kube import (
    BUDGETS,
    CLAIMS,
    DEFINITIONS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    STORAGE_CLASSES,
    TOPOLOGIES,
    VOLUMES,
    simulated,
)
from tests.integration.watcher.conftest import World

STAMPED = ("NodeObserved", "TopologyObserved")


async def populate(world: World) -> None:
    await world.api.install_topologies()
    for number in range(3):
        await world.api.node(f"n{number}", zone="a")
        await world.api.post(TOPOLOGIES, topology(f"n{number}"))
    await world.api.post(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 1000})
    await world.api.post(
        STORAGE_CLASSES,
        {"metadata": {"name": "fast"}, "provisioner": "x.io", "volumeBindingMode": "WaitForFirstConsumer"},
    )
    modes = {"accessModes": ["ReadWriteOnce"]}
    volume = {**modes, "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}}
    await world.api.post(VOLUMES, {"metadata": {"name": "v"}, "spec": volume})
    claim = {**modes, "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "fast"}
    await world.api.post(CLAIMS, {"metadata": {"name": "c"}, "spec": claim})
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}
    await world.api.post(BUDGETS, {"metadata": {"name": "b"}, "spec": budget})
    for number in range(20):
        await world.api.pod(f"p{number}", node="n0" if number % 2 else "")


def topology(name: str, **more: Any) -> wire.Wire:
    document = wire.topology(name, **more)
    del document["metadata"]["uid"], document["metadata"]["resourceVersion"]
    return document


async def test_everything_that_is_there_is_recorded(world: World) -> None:
    await populate(world)
    await world.settled()
    events = await world.events()
    assert (events[0].type, events[0].stream, events[0].actor) == ("WatcherStarted", STREAM, "watcher")
    by_subject = {event.subject: event for event in events}
    uid = (await world.api.get(f"{PODS}/p3"))["metadata"]["uid"]
    assert by_subject["default/p3"].stream == f"pod/{uid}"
    assert by_subject["high"].stream == "priorityclass/high"
    assert by_subject["fast"].stream == "storageclass/fast"
    assert by_subject["v"].stream == "pv/v"
    assert by_subject["default/c"].stream == "pvc/default/c"
    assert by_subject["default/b"].stream == "pdb/default/b"
    assert by_subject["default"].stream == "namespace/default"
    assert {event.stream for event in events if event.subject == "n1"} == {"node/n1", "nrt/n1"}


async def test_everything_that_happens_is_recorded(world: World) -> None:
    await populate(world)
    watcher = await world.start().ready()
    await world.api.merge(f"{NODES}/n0", {"spec": {"unschedulable": True}})
    await world.api.merge(f"{TOPOLOGIES}/n1", topology("n1", zones=[wire.zone(0, cpu="2"), wire.zone(1)]))
    await world.api.delete_pod("p0")
    await world.api.client.delete(f"{TOPOLOGIES}/n2")
    await world.api.client.delete(f"{NODES}/n2")
    await world.api.client.delete(f"{PRIORITY_CLASSES}/high")
    await world.api.client.delete(f"{STORAGE_CLASSES}/fast")
    await world.api.client.delete(f"{CLAIMS}/c")
    await world.api.client.delete(f"{BUDGETS}/b")
    await world.api.merge(f"{VOLUMES}/v", {"spec": {"capacity": {"storage": "2Gi"}}})
    await world.api.pod("late", labels={"app": "x"})
    await world.converged()
    assert watcher.metric("facts_total", type="PodDeleted") == 1
    assert watcher.metric("facts_total", type="TopologyDeleted") == 1
    assert watcher.metric("objects", kind="Pod") == 20


async def test_only_what_is_material_is_recorded(world: World) -> None:
    await world.api.pod("p")
    await world.start().ready()
    await world.until(lambda events: any(event.subject == "default/p" for event in events))
    start = await world.head()
    for number in range(5):
        await world.api.merge(f"{PODS}/p", {"metadata": {"annotations": {"prometheus.io/scrape": str(number)}}})
    await world.api.merge(f"{PODS}/p", {"metadata": {"annotations": {"kai.scheduler/queue": "a"}}})
    await world.converged()
    (observed,) = await world.payloads(after=start)
    assert observed.pod.annotations == {"kai.scheduler/queue": "a"}


async def test_pods_that_wait_are_recorded_after_all_else(world: World) -> None:
    await populate(world)
    await world.settled(batch=3)
    payloads = await world.payloads()
    waiting = [isinstance(payload, PodObserved) and not payload.pod.node_name for payload in payloads]
    assert waiting == sorted(waiting)
    assert any(waiting)


async def test_a_refusal_is_recorded_with_the_pod_and_once(world: World) -> None:
    await world.api.pod("p", node="n0")
    watcher = await world.settled()
    await world.api.reject("p")
    await world.converged()
    observed, rejected = (await world.events())[-2:]
    assert (observed.type, rejected.type) == ("PodObserved", "PodRejected")
    assert (rejected.position, rejected.cause) == (observed.position + 1, observed.id)
    (payload,) = await world.payloads("PodRejected")
    assert payload == PodRejected(
        uid=observed.stream.removeprefix("pod/"),
        namespace="default",
        name="p",
        node="n0",
        reason="TopologyAffinityError",
        message="Pod was rejected: Resources cannot be allocated with Topology locality",
    )
    assert watcher.metric("kubelet_rejections_total", reason="TopologyAffinityError") == 1
    await world.api.merge(f"{PODS}/p", {"metadata": {"labels": {"seen": "yes"}}})
    await world.converged()
    await watcher.stop()
    await world.api.merge(f"{PODS}/p", {"metadata": {"labels": {"seen": "again"}}})
    await world.settled()
    assert len(await world.events("PodRejected")) == 1


async def test_what_is_bad_of_a_topology_is_left_out_told_once_and_counted(world: World) -> None:
    await world.api.install_topologies()
    watcher = await world.start().ready()
    spoiled = topology("n1", zones=[wire.zone(0), wire.zone(1) | {"name": "cores"}])
    spoiled["attributes"] = [{"name": "topologyManagerPolicy", "value": "strict"}]
    await world.api.post(TOPOLOGIES, spoiled)
    await world.converged()
    assert watcher.metric("lost_parts_total", kind="NodeResourceTopology") == 2
    # Exporters write again and again.
    await world.api.merge(f"{TOPOLOGIES}/n1", {"zones": [wire.zone(0, cpu="3"), wire.zone(1) | {"name": "cores"}]})
    await world.converged()
    observed = await world.payloads("TopologyObserved")
    assert [[zone.name for zone in payload.topology.zones] for payload in observed] == [["node-0"], ["node-0"]]
    assert watcher.metric("lost_parts_total", kind="NodeResourceTopology") == 2
    assert watcher.health.ready
    await world.api.merge(f"{TOPOLOGIES}/n1", topology("n1"))
    await world.converged()
    assert len((await world.payloads("TopologyObserved"))[-1].topology.zones) == 2
    assert watcher.metric("lost_parts_total", kind="NodeResourceTopology") == 2


async def test_topologies_may_come_later_go_come_back_and_be_gone_after_a_restart(world: World) -> None:
    await world.api.node("n1")
    watcher = await world.settled()
    await world.api.install_topologies("v1alpha1")
    await world.api.post(TOPOLOGIES.replace("v1alpha2", "v1alpha1"), topology("n1", topologyPolicies=["Restricted"]))
    await world.converged()
    assert len(await world.events("TopologyObserved")) == 1
    definition = f"{DEFINITIONS}/noderesourcetopologies.topology.node.k8s.io"
    await world.api.client.delete(definition)
    await world.until(lambda events: any(event.type == "TopologyDeleted" for event in events))
    await world.api.install_topologies()
    await world.api.post(TOPOLOGIES, topology("n1"))
    await world.converged()
    assert len(await world.events("TopologyObserved")) == 2
    await watcher.stop()
    await world.api.client.delete(definition)
    await world.start().ready()
    await world.until(lambda events: sum(event.type == "TopologyDeleted" for event in events) == 2)


class Clock:
    """An API server's clock, an hour behind ours."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)

    def __call__(self) -> datetime:
        return self.now

    def later(self) -> int:
        """Ten minutes pass; microseconds since the epoch."""
        self.now += timedelta(minutes=10)
        return int(self.now.timestamp()) * 1_000_000


async def test_a_change_carries_the_api_servers_time_and_the_objects_age_is_since_then(
    log: PostgresLog, cluster_name: str
) -> None:
    clock = Clock()
    async with simulated(clock=clock) as api, World(api, log, cluster_name) as world:
        await api.install_topologies()
        await api.node("n1")
        await api.pod("p")
        await api.post(TOPOLOGIES, topology("n1"))
        listed = clock.later()
        await api.merge(f"{NODES}/n1", {"spec": {"unschedulable": True}})
        watcher = await world.settled()
        watched = clock.later()
        await api.merge(f"{NODES}/n1", {"spec": {"unschedulable": False}})
        await api.merge(f"{TOPOLOGIES}/n1", {"attributes": [{"name": "topologyManagerPolicy", "value": "restricted"}]})
        await world.converged()
        await api.post(f"{PODS}/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}})
        await world.converged()
        events = await world.events("NodeObserved", "TopologyObserved", "PodObserved")
        times = {name: [event.occurred_at for event in events if event.type == name] for name in STAMPED}
        assert times["NodeObserved"] == [listed, watched]
        assert times["TopologyObserved"][1] == watched
        bound = [event for event in events if event.type == "PodObserved"][1]
        assert bound.occurred_at > watched + 1_000_000_000, "a binding is not stamped: our clock tells"
        age = watcher.metric("topology_age_seconds", quantile="1.0")
        assert 2400 <= age < 3000, "since it changed, not since it was made"


async def test_a_topology_is_behind_until_it_tells_of_the_pods_that_came(world: World) -> None:
    await world.api.install_topologies()
    await world.api.node("n1")
    await world.api.post(TOPOLOGIES, topology("n1"))
    await world.api.pod("before", node="n1")
    watcher = await world.settled()
    assert watcher.metric("topology_lag_seconds", quantile="1.0") == 0.0
    await world.api.pod("p", node="n1")
    await world.converged()
    assert watcher.metric("topology_lag_seconds", quantile="1.0") > 0.0
    await world.api.merge(f"{TOPOLOGIES}/n1", {"metadata": {"annotations": {"k8stopoawareschedwg/rte-update": "x"}}})
    await eventually(lambda: watcher.metric("topology_lag_seconds", quantile="1.0") == 0)


async def test_what_an_api_server_takes_and_makes_no_sense_is_recorded_as_far_as_it_does_and_told(world: World) -> None:
    """A comparison with what is no number, a limit near 2^63, and more disruptions than there are numbers."""
    term = {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["b"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    await world.api.pod("p", affinity={"nodeAffinity": required})
    resources = {"requests": {"memory": "1Gi"}, "limits": {"memory": str(2**63 - 1)}}
    await world.api.pod("q", node="n1", containers=[{"name": "main", "image": "i", "resources": resources}])
    await world.api.post(BUDGETS, {"metadata": {"name": "b"}, "spec": {"selector": {}, "minAvailable": 1}})
    watcher = await world.start().ready()
    await world.api.merge(f"{BUDGETS}/b/status", {"status": {"disruptionsAllowed": 10**30}})
    await world.converged()
    pods = {payload.pod.name: payload.pod for payload in await world.payloads("PodObserved")}
    assert pods["p"].malformed.endswith("matchExpressions[0].values: not values of Gt: ('b',)")
    assert pods["q"].containers[0].requests == {"memory": 2**30}
    assert watcher.metric("refused_objects_total", kind="Pod") == 1
    assert watcher.metric("lost_parts_total", kind="Pod") == 1
    assert (await world.payloads("PodDisruptionBudgetObserved"))[-1].budget.disruptions_allowed == 2**31 - 1
    assert watcher.health.ready


async def test_a_pod_without_a_decision_moves_its_nodes_stream_and_a_decided_one_does_not(world: World) -> None:
    """Otherwise what a node holds by another scheduler's doing would be promised once more by a cycle under way."""
    for number in range(3):
        await world.api.node(f"n{number}")
    await world.start().ready()
    for name in ("decided", "elsewhere", "given-up", "foreign"):
        await world.api.pod(name)
    await world.converged()
    uids = {event.subject: event.stream for event in await world.events("PodObserved")}
    for name, node in (("decided", "n0"), ("elsewhere", "n0"), ("given-up", "n1")):
        stream = uids[f"default/{name}"]
        pod = (stream.removeprefix("pod/"), "default", name, node)
        facts: list[Payload] = [PodPlaced(*pod, "c/1", "class")]
        facts += [BindFailed(*pod, 504, "Timeout")] if name == "given-up" else []
        events = [NewEvent(uuid4(), stream, fact, "test", 0) for fact in facts]
        await world.log.append(world.cluster, [Unit((event,)) for event in events])
    before = await world.log.stream_versions(world.cluster, ["node/n0", "node/n1", "node/n2"])
    for name, node in (("decided", "n0"), ("elsewhere", "n1"), ("given-up", "n1"), ("foreign", "n2")):
        await world.api.bind(name, node)
    await world.converged()
    after = await world.log.stream_versions(world.cluster, list(before))
    assert {stream: after[stream] - before[stream] for stream in before} == {"node/n0": 0, "node/n1": 2, "node/n2": 1}
    (charged,) = [payload for payload in await world.payloads("NodeCharged") if payload.node == "n2"]
    assert charged.pods == (uids["default/foreign"].removeprefix("pod/"),)


async def test_a_topology_that_is_published_again_moves_its_nodes_stream_only_with_another_shape(world: World) -> None:
    await world.api.install_topologies()
    await world.api.node("n1")
    await world.api.post(TOPOLOGIES, topology("n1"))
    await world.settled()
    versions = [(await world.log.stream_versions(world.cluster, ["node/n1"]))["node/n1"]]
    for zones in ([wire.zone(0, free_cpu="1"), wire.zone(1)], [wire.zone(0, cpu="2"), wire.zone(1)]):
        await world.api.merge(f"{TOPOLOGIES}/n1", topology("n1", zones=zones))
        await world.converged()
        versions.append((await world.log.stream_versions(world.cluster, ["node/n1"]))["node/n1"])
    await world.api.client.delete(f"{TOPOLOGIES}/n1")
    await world.converged()
    versions.append((await world.log.stream_versions(world.cluster, ["node/n1"]))["node/n1"])
    first = versions[0]
    assert versions == [first, first, first + 1, first + 2]
