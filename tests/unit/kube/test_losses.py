"""Of an object that makes no sense in parts, those parts are lost, and said: the rest is taken as it is.

Each case: an object, what is said of it, and what of it is left.
"""

from typing import Any

import pytest
from kaicore.errors import AbsurdQuantity, InvalidObject
from kaicore.kube.kinds.table import queue_kind
from kaicore.kube.normalize.node import normalize_node, normalize_priority_class, normalize_topology
from kaicore.kube.normalize.pod import normalize_pod
from kaicore.kube.normalize.storage import normalize_budget, normalize_volume
from kaicore.kube.wire.resources import BUDGETS, NODES, PODS, PRIORITY_CLASSES, TOPOLOGIES, VOLUMES
from kaicore.rules.model.node import NodeTopology, TopologyPolicy, TopologyScope
from kaicore.rules.model.pod import QosClass
from kaicore.rules.model.quantity import MAX_AMOUNT, MAX_STORAGE
from kaicore.rules.model.queue import QueueShare

from tests.given.cluster import wire
from tests.given.work.groups import documents, source_of

GI = 2**30


def topology(document: wire.Wire) -> tuple[NodeTopology, list[str]]:
    losses: list[InvalidObject] = []
    nrt = normalize_topology(TOPOLOGIES.at("v1alpha2").decode(wire.encode(document)), losses.append)
    return nrt, [f"{error.field}: {error.value!r}" for error in losses]


def attributes(*pairs: tuple[str, Any]) -> list[wire.Wire]:
    return [{"name": name, "value": value} for name, value in pairs]


POLICY, SCOPE = "topologyManagerPolicy", "topologyManagerScope"
NONE, SINGLE, RESTRICTED = TopologyPolicy.NONE, TopologyPolicy.SINGLE_NUMA_NODE, TopologyPolicy.RESTRICTED
CONTAINER, POD = TopologyScope.CONTAINER, TopologyScope.POD


@pytest.mark.parametrize(
    ("given", "loss", "policy", "scope"),
    [
        (
            {"attributes": attributes((POLICY, "strict"), (SCOPE, "pod"))},
            "attributes[topologyManagerPolicy]: 'strict'",
            NONE,
            POD,
        ),
        (
            {"attributes": attributes((POLICY, "restricted"), (SCOPE, "node"))},
            "attributes[topologyManagerScope]: 'node'",
            RESTRICTED,
            CONTAINER,
        ),
        # What the deprecated field says takes its place, as where the attribute is missing.
        (
            {"attributes": attributes((POLICY, "strict")), "topologyPolicies": ["RestrictedPodLevel"]},
            "attributes[topologyManagerPolicy]: 'strict'",
            RESTRICTED,
            POD,
        ),
        ({"attributes": [], "topologyPolicies": ["Odd"]}, "topologyPolicies[0]: 'Odd'", NONE, CONTAINER),
        ({"attributes": [], "topologyPolicies": [7]}, "topologyPolicies[0]: 7", NONE, CONTAINER),
        ({"attributes": [*attributes((POLICY, "restricted")), 7]}, "attributes[1]: 7", RESTRICTED, CONTAINER),
        (
            {"attributes": [{"name": "cpu_core", "value": 8}, *attributes((POLICY, "restricted"))]},
            "attributes[0].value: 8",
            RESTRICTED,
            CONTAINER,
        ),
    ],
)
def test_a_bad_attribute_policy_or_scope_costs_itself_only(
    given: wire.Wire, loss: str, policy: TopologyPolicy, scope: TopologyScope
) -> None:
    nrt, lost = topology(wire.topology(**given))
    assert lost == [loss]
    assert (nrt.policy, nrt.scope, len(nrt.zones)) == (policy, scope, 2)


@pytest.mark.parametrize(
    ("bad", "loss"),
    [
        ({"name": "numa1", "type": "Node"}, "zones[1].name: 'numa1'"),
        ({"type": "Node"}, "zones[1].name: ''"),
        ({"name": "node--1", "type": "Node"}, "zones[1].name: 'node--1'"),
        ({"name": "node-\u0661", "type": "Node"}, "zones[1].name: 'node-\u0661'"),
        (wire.zone(63), "zones[1].name: 'node-63'"),
        (wire.zone(0), "zones[1].name: 'node-0'"),
        ("node-1", "zones[1]: 'node-1'"),
        (wire.zone(1) | {"name": 1}, "zones[1].name: 1"),
        (wire.zone(1) | {"resources": {}}, "zones[1].resources: {}"),
    ],
)
def test_a_bad_zone_costs_that_zone(bad: Any, loss: str) -> None:
    nrt, lost = topology(wire.topology(zones=[wire.zone(0), bad, wire.zone(2)]))
    assert lost == [loss]
    assert [zone.numa_id for zone in nrt.zones] == [0, 2]
    assert nrt.policy is SINGLE


CPU = {"name": "cpu", "capacity": "4", "allocatable": "3", "available": "2"}


@pytest.mark.parametrize(
    ("cpu", "loss", "left"),
    [
        (CPU | {"capacity": "-4"}, "capacity: '-4'", (3000, 3000, 2000)),
        (CPU | {"allocatable": "four"}, "allocatable: 'four'", (4000, 0, 2000)),
        (CPU | {"available": "2 cores"}, "available: '2 cores'", (4000, 3000, 3000)),
        (CPU | {"allocatable": "99"}, "allocatable: '99'", (4000, 4000, 2000)),
        ({"name": "cpu", "available": "4"}, "capacity: None", (0, 0, 4000)),
        (CPU | {"capacity": "9" * 20}, f"capacity: '{'9' * 20}'", (MAX_AMOUNT, 3000, 2000)),
    ],
)
def test_a_zone_has_nothing_to_give_of_a_resource_whose_figures_are_none(
    cpu: wire.Wire, loss: str, left: tuple[int, ...]
) -> None:
    zone = {"name": "node-0", "type": "Node", "resources": [{"name": "memory", "capacity": "1Gi"}, cpu]}
    nrt, lost = topology(wire.topology(zones=[zone, wire.zone(1)]))
    assert lost == [f"zones[0].resources[1].{loss}"]
    resources = nrt.zones[0].resources
    assert (resources["cpu"].capacity, resources["cpu"].allocatable, resources["cpu"].available) == left
    assert resources["memory"].allocatable == GI
    assert nrt.zones[1].resources["cpu"].allocatable == 4000


@pytest.mark.parametrize(
    ("resources", "loss"),
    [
        ([CPU, CPU], "zones[0].resources[1].name: 'cpu'"),
        ([CPU, {"capacity": "1"}], "zones[0].resources[1].name: ''"),
        ([CPU, {"name": "x.io/y", "capacity": {}}], "zones[0].resources[1].capacity: {}"),
    ],
)
def test_a_bad_resource_of_a_zone_costs_that_resource(resources: list[wire.Wire], loss: str) -> None:
    nrt, lost = topology(wire.topology(zones=[{"name": "node-0", "type": "Node", "resources": resources}]))
    assert lost == [loss]
    assert list(nrt.zones[0].resources) == ["cpu"]


@pytest.mark.parametrize(
    "bad",
    [
        {"name": "node-1", "value": -1},
        {"name": "node-1", "value": "far"},
        {"name": "node-0", "value": 20},
        {"value": 12},
    ],
)
def test_a_bad_distance_costs_that_distance(bad: wire.Wire) -> None:
    costs = [{"name": "node-0", "value": 10}, bad]
    nrt, lost = topology(wire.topology(zones=[wire.zone(0) | {"costs": costs}]))
    assert len(lost) == 1
    assert lost[0].startswith("zones[0].costs[1]")
    assert nrt.zones[0].costs == {"node-0": 10}


# Pods.


def pod(**spec: Any) -> tuple[Any, list[InvalidObject]]:
    losses: list[InvalidObject] = []
    return normalize_pod(PODS.decode(wire.encode(wire.pod(**spec))), losses.append), losses


def limited(requests: wire.Wire, limits: wire.Wire) -> list[wire.Wire]:
    return [{"name": "c", "resources": {"requests": requests, "limits": limits}}]


@pytest.mark.parametrize(
    ("amount", "field", "value"),
    [
        ({"cpu": "-1"}, "cpu", "'-1'"),
        ({"cpu": "four"}, "cpu", "'four'"),
        ({"memory": "1Zi"}, "memory", "'1Zi'"),
        ({"memory": ""}, "memory", "''"),
    ],
)
def test_a_pod_with_an_amount_that_is_none_waits_and_counts_as_all_else_that_it_asks_for(
    amount: wire.Wire, field: str, value: str
) -> None:
    model, _ = pod(containers=limited({"nvidia.com/gpu": "2"} | amount, {}), nodeName="n1")
    assert model.containers[0].requests == {"nvidia.com/gpu": 2}
    assert model.malformed.startswith(f"spec.containers[0].resources.requests[{field}]: ")
    assert model.malformed.endswith(f": {value}")


@pytest.mark.parametrize("spec", [{"overhead": {"cpu": "x"}}, {"resources": {"requests": {"cpu": "x"}}}])
def test_amounts_of_the_whole_pod_are_no_exception(spec: wire.Wire) -> None:
    model, _ = pod(**spec)
    assert "[cpu]: not a Kubernetes quantity: 'x'" in model.malformed


@pytest.mark.parametrize("text", ["9223372036854775807", "8Ei", "9e999", "1e30"])
def test_a_limit_beyond_belief_is_said_and_does_not_keep_the_pod_from_counting(text: str) -> None:
    model, losses = pod(containers=limited({"memory": "1Gi"}, {"memory": text}), nodeName="n1")
    assert [(type(error), error.field) for error in losses] == [
        (AbsurdQuantity, "spec.containers[0].resources.limits[memory]")
    ]
    assert losses[0].subject == "Pod default/p"
    assert (model.malformed, model.qos) == ("", QosClass.BURSTABLE)
    assert model.containers[0].requests == {"memory": GI}
    assert model.containers[0].limits == {"memory": MAX_AMOUNT}


def test_a_priority_of_more_than_32_bits_is_the_highest_there_is() -> None:
    model, losses = pod(priority=10**30)
    assert (model.priority, [error.field for error in losses]) == (2**31 - 1, ["spec.priority"])


# All other kinds.


def test_a_node_has_nothing_of_a_resource_whose_amount_is_none() -> None:
    losses: list[InvalidObject] = []
    document = wire.node(allocatable={"cpu": "lots", "memory": "9e99", "pods": "110"})
    node = normalize_node(NODES.decode(wire.encode(document)), losses.append)
    assert node.allocatable == {"memory": MAX_AMOUNT, "pods": 110}
    assert [error.field for error in losses if error.field.startswith("status.allocatable")] == [
        "status.allocatable[cpu]",
        "status.allocatable[memory]",
    ]


@pytest.mark.parametrize(("value", "left"), [(10**30, 2**31 - 1), (-(10**30), -(2**31))])
def test_a_priority_class_beyond_32_bits_is_the_nearest_there_is(value: int, left: int) -> None:
    losses: list[InvalidObject] = []
    document = {"metadata": wire.metadata("high"), "value": value}
    assert normalize_priority_class(PRIORITY_CLASSES.decode(wire.encode(document)), losses.append).value == left
    assert [(error.subject, error.field, error.value) for error in losses] == [("PriorityClass high", "value", value)]


def test_a_budget_that_allows_more_disruptions_than_there_are_numbers_allows_the_most() -> None:
    losses: list[InvalidObject] = []
    document = {
        "metadata": wire.metadata("b", namespace="default"),
        "spec": {"selector": {}},
        "status": {"disruptionsAllowed": 10**30},
    }
    budget = normalize_budget(BUDGETS.decode(wire.encode(document)), losses.append)
    assert budget.disruptions_allowed == 2**31 - 1
    assert [(error.subject, error.field) for error in losses] == [
        ("PodDisruptionBudget default/b", "status.disruptionsAllowed")
    ]


def test_a_volume_may_be_as_large_as_file_systems_without_an_end_say_that_they_are() -> None:
    losses: list[InvalidObject] = []
    document = {"metadata": wire.metadata("efs"), "spec": {"capacity": {"storage": "8Ei"}}}
    assert normalize_volume(VOLUMES.decode(wire.encode(document)), losses.append).capacity == MAX_STORAGE
    document = {"metadata": wire.metadata("lustre"), "spec": {"capacity": {"storage": "2Pi"}}}
    assert normalize_volume(VOLUMES.decode(wire.encode(document)), losses.append).capacity == 2**51
    assert len(losses) == 1


KAI = "apiVersion: scheduling.run.ai/v2\nkind: Queue\nmetadata: {name: q}\nspec: "


@pytest.mark.parametrize(
    ("cpu", "field", "share"),
    [
        ("{quota: -2, limit: -1, overQuotaWeight: 1}", "quota", QueueShare(quota=0, limit=None, weight=1000)),
        ("{quota: 5, limit: -7, overQuotaWeight: 1}", "limit", QueueShare(quota=5, limit=0, weight=1000)),
        ("{quota: 5, limit: -1, overQuotaWeight: -1}", "overQuotaWeight", QueueShare(quota=5, limit=None, weight=0)),
        ("{quota: 1.0e+99, limit: -1}", "quota", QueueShare(quota=MAX_AMOUNT, limit=None, weight=0)),
    ],
)
def test_a_bound_of_a_queue_that_is_none_costs_that_bound(cpu: str, field: str, share: QueueShare) -> None:
    losses: list[InvalidObject] = []
    (document,) = documents(KAI + f"{{parentQueue: top, priority: 7, resources: {{cpu: {cpu}}}}}")
    kind = queue_kind("scheduling.run.ai/v2", "Queue")
    assert kind is not None
    queue: Any = kind.normalize(kind.decode(wire.encode(document)), losses.append)
    assert (queue.parent, queue.priority, queue.shares["cpu"]) == ("top", 7, share)
    assert [error.field for error in losses] == [f"spec.resources.cpu.{field}"]


def test_a_flavor_without_a_name_costs_that_flavor() -> None:
    losses: list[InvalidObject] = []
    (document,) = documents(
        "apiVersion: kueue.x-k8s.io/v1beta1\nkind: ClusterQueue\nmetadata: {name: q}\nspec:\n"
        "  resourceGroups:\n    - coveredResources: [cpu]\n      flavors:\n"
        "        - {resources: [{name: cpu, nominalQuota: 4}]}\n"
        "        - {name: f, resources: [{name: cpu, nominalQuota: 2, borrowingLimit: much}, {nominalQuota: 1}]}\n"
    )
    kind = queue_kind("kueue.x-k8s.io/v1beta1", "ClusterQueue")
    assert kind is not None
    queue: Any = kind.normalize(kind.resource.at("v1beta1").decode(wire.encode(document)), losses.append)
    assert [flavor.flavor for flavor in queue.flavors] == ["f"]
    assert queue.shares["cpu"].quota == 2000
    assert [error.field for error in losses] == [
        "spec.resourceGroups[0].flavors[0].name",
        "spec.resourceGroups[0].flavors[1].resources[0].borrowingLimit",
        "spec.resourceGroups[0].flavors[1].resources[1].name",
    ]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ("{minMember: 4, preemptibility: maybe}", "spec.preemptibility"),
        ("{minMember: 4, preemptionDelay: soon}", "spec.preemptionDelay"),
        ("{minMember: 4, stalenessGracePeriod: later}", "spec.stalenessGracePeriod"),
    ],
)
def test_what_a_group_says_besides_its_size_costs_itself_only(spec: str, field: str) -> None:
    losses: list[InvalidObject] = []
    (document,) = documents(
        f"apiVersion: scheduling.run.ai/v2alpha2\nkind: PodGroup\nmetadata: {{name: g}}\nspec: {spec}"
    )
    source = source_of(document, losses.append)
    assert source.templates[0].sets[0].min_pods == 4
    assert (source.preemptible, source.preemption_delay_us, source.staleness_grace_us) == (None, None, None)
    assert [error.field for error in losses] == [field]
