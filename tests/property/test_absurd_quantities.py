"""Whatever amounts objects name, the accounts are those that whole numbers without an end would give.

The whole path: manifests, facts, the fold, cycles, a snapshot and back. What NumPy holds in 64 bits is compared with
sums of Python's own numbers.
"""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.analysis.trial.simulation import Located, read_world
from kaicore.analysis.trial.simulation.run import Simulation
from kaicore.errors import InvalidObject
from kaicore.kube.api.reflector_core import ObjectSeen
from kaicore.kube.kinds import table
from kaicore.kube.kinds.facts import Facts
from kaicore.kube.kinds.table import QUEUE_KINDS
from kaicore.kube.wire.resources import (
    BUDGETS,
    CLAIMS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    TOPOLOGIES,
    VOLUMES,
)
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import node_requests
from kaicore.rules.events.codec import encode_payload
from kaicore.rules.model.quantity import MAX_AMOUNT, exact_amount, format_amount, parse_amount, readable_amount
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.registries.queue_registry import ready_amounts
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster import wire
from tests.given.cluster.factory import node as node_of
from tests.given.examples import examples
from tests.given.work.spoiling import places, spoiled

GPU = "nvidia.com/gpu"
ABSURD = [str(2**63 - 1), str(2**62), "8Ei", "9e999", "1e30", "16Ei", str(2**53), "7999P", str(MAX_AMOUNT)]
SANE = ["0", "1", "4", "100m", "1Gi"]
quantities = st.sampled_from([*ABSURD, *SANE])
whole = st.sampled_from([*ABSURD, "0", "1", "4"])
numbers = st.sampled_from([0, 1, 2**31, 2**63, 10**30, -(10**30)])


def resources(limits: Any, requests: Any) -> dict[str, Any]:
    return {"resources": {"limits": limits, "requests": requests}}


@st.composite
def containers(draw: st.DrawFn) -> list[dict[str, Any]]:
    wires = []
    for index in range(draw(st.sampled_from([1, 2, 40]))):
        cpu, memory, gpu = draw(quantities), draw(quantities), draw(whole)
        amounts = {"cpu": cpu, "memory": memory, GPU: gpu}
        requests = amounts if draw(st.booleans()) else {GPU: gpu, "memory": "1Gi", "cpu": "1"}
        limits = amounts if requests is amounts else {GPU: gpu}
        wires.append({"name": f"c{index}", **resources(limits, requests)})
    return wires


@st.composite
def objects(draw: st.DrawFn) -> list[dict[str, Any]]:  # long: one entry for each kind
    wires: list[dict[str, Any]] = []
    for name in ("n0", "n1"):
        allocatable = {"cpu": draw(quantities), "memory": draw(quantities), GPU: draw(whole), "pods": draw(whole)}
        wires.append(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name},
                "status": {"allocatable": allocatable, "capacity": allocatable},
            }
        )
        zones = [
            {
                "name": f"node-{zone}",
                "type": "Node",
                "costs": [{"name": f"node-{zone}", "value": draw(numbers)}],
                "resources": [
                    {"name": resource, "capacity": draw(whole), "allocatable": draw(whole), "available": draw(whole)}
                    for resource in ("cpu", "memory", GPU)
                ],
            }
            for zone in range(2)
        ]
        wires.append(
            {
                "apiVersion": "topology.node.k8s.io/v1alpha2",
                "kind": "NodeResourceTopology",
                "metadata": {"name": name},
                "attributes": [
                    {"name": "topologyManagerPolicy", "value": draw(st.sampled_from(["restricted", "none"]))}
                ],
                "zones": zones,
            }
        )
    shares = {
        name: {"quota": draw(numbers), "limit": draw(numbers), "overQuotaWeight": draw(numbers)}
        for name in ("cpu", "gpu")
    }
    wires.append(
        {
            "apiVersion": "scheduling.run.ai/v2",
            "kind": "Queue",
            "metadata": {"name": "q"},
            "spec": {"priority": draw(numbers), "resources": shares},
        }
    )
    wires.append(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "b", "namespace": "default"},
            "spec": {"selector": {}, "minAvailable": 1},
            "status": {"disruptionsAllowed": draw(numbers)},
        }
    )
    for index in range(draw(st.integers(1, 5))):
        pod: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"p{index}", "labels": {"kai.scheduler/queue": "q"}},
            "spec": {"containers": draw(containers()), "priority": draw(st.sampled_from([0, 5, 2**31 - 1, -(2**31)]))},
        }
        if draw(st.booleans()):
            pod["spec"]["nodeName"] = draw(st.sampled_from(["n0", "n1"]))
            pod["status"] = {"phase": "Running"}
        wires.append(pod)
    return wires


def exactly(state: ClusterState, node: str) -> dict[str, int]:
    """The amounts that the pods of a node take of it, by whole numbers without an end."""
    sums: dict[str, int] = {}
    for uid in state.charges.on_node.get(node, ()):
        for resource, amount in node_requests(state.pods[uid].pod).items():
            sums[resource] = sums.get(resource, 0) + amount
    return sums


@settings(max_examples=examples(60), deadline=None)
@given(wires=objects())
def test_no_account_overflows_and_no_node_is_given_more_than_it_has(wires: list[dict[str, Any]]) -> None:
    world = read_world([Located("m.yaml", one) for one in wires], scheduler_name="kai-ledger")
    assert not world.problems, [str(problem) for problem in world.problems]
    before = {pod.wire.metadata.uid for pod in world.pods if pod.wire.spec.node_name}

    async def run() -> ClusterState:
        simulation = Simulation(world, EngineConfig())
        await simulation.begin()
        for _ in range(3):
            await simulation.cycle()
        return simulation.state

    state = asyncio.run(run())
    columns = state.columns
    for name, row in columns.rows.items():
        sums = exactly(state, name)
        used = {resource: int(columns.used[row, column]) for resource, column in columns.resources.items()}
        assert {resource: amount for resource, amount in used.items() if amount} == sums
        ours = [state.pods[uid].pod for uid in state.charges.on_node.get(name, ()) if uid not in before]
        for resource in {resource for pod in ours for resource in node_requests(pod)}:
            assert sums[resource] <= int(columns.allocatable[row, columns.resources[resource]])
    assert (columns.zones.used >= 0).all()
    assert encode_state(decode_state(encode_state(state))) == encode_state(state)


@pytest.mark.parametrize("nodes", [1, 40_000])
def test_what_all_nodes_have_is_summed_without_an_overflow(nodes: int) -> None:
    columns = NodeColumns()
    for index in range(nodes):
        columns.set_node(node_of(f"n{index}", allocatable={"memory": MAX_AMOUNT, "cpu": 7}), columns.row(f"n{index}"))
    assert ready_amounts(columns) == {"memory": MAX_AMOUNT * nodes, "cpu": 7 * nodes}


SPREAD = {"maxSkew": 1, "minDomains": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
NEAR = {"weight": 5, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {}}}
QUEUES = {kind.name: (kind, kind.resource.at(kind.resource.versions[-1])) for kind in QUEUE_KINDS}
FLAVOR = {
    "name": "f",
    "resources": [{"name": "cpu", "nominalQuota": 1, "borrowingLimit": "2", "lendingLimit": 0}],
}
EVERY: list[tuple[Any, Any, dict[str, Any]]] = [
    (table.NODE, NODES, wire.node()),
    (table.PRIORITY_CLASS, PRIORITY_CLASSES, {"metadata": wire.metadata("c"), "value": 5}),
    (table.TOPOLOGY, TOPOLOGIES.at("v1alpha2"), wire.topology()),
    (
        table.POD,
        PODS,
        wire.pod(
            priority=5,
            overhead={"cpu": "1m"},
            topologySpreadConstraints=[SPREAD],
            affinity={"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [NEAR]}},
            containers=[{"name": "c", "resources": {"limits": {"cpu": 1}}, "ports": [{"hostPort": 80}]}],
        ),
    ),
    (
        table.BUDGET,
        BUDGETS,
        {
            "metadata": wire.metadata("b", namespace="default"),
            "spec": {"selector": {}, "minAvailable": 1, "maxUnavailable": 1},
            "status": {"disruptionsAllowed": 1},
        },
    ),
    (table.VOLUME, VOLUMES, {"metadata": wire.metadata("v"), "spec": {"capacity": {"storage": 1}}}),
    (
        table.CLAIM,
        CLAIMS,
        {
            "metadata": wire.metadata("c", namespace="default"),
            "spec": {"resources": {"requests": {"storage": 1}}},
        },
    ),
    (
        *QUEUES["Queue.scheduling.run.ai"],
        {
            "metadata": wire.metadata("q"),
            "spec": {"priority": 1, "resources": {"cpu": {"quota": 1, "limit": 1.5, "overQuotaWeight": 1}}},
        },
    ),
    (
        *QUEUES["ClusterQueue.kueue.x-k8s.io"],
        {
            "metadata": wire.metadata("q"),
            "spec": {
                "fairSharing": {"weight": 1},
                "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [FLAVOR]}],
            },
        },
    ),
]


@pytest.mark.parametrize(("kind", "resource", "document"), EVERY, ids=lambda value: getattr(value, "name", ""))
def test_whatever_number_stands_anywhere_the_fact_can_be_recorded_or_is_refused(
    kind: Any, resource: Any, document: dict[str, Any]
) -> None:
    for path in places(document):
        for number in (10**30, -(10**30), 2**63, 2**64, 2**31, "9" * 400, "1e99"):
            facts = Facts("c")
            try:
                decoded = resource.decode(wire.encode(spoiled(document, path, number)))
                unit = facts.translate(kind, ObjectSeen(decoded), now=0)
            except InvalidObject:
                continue
            assert unit is not None
            for event in unit.events:
                assert encode_payload(event.payload)


@given(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.integers(0, 2**48))
def test_an_amount_of_an_answer_is_exact_and_reads_as_a_person_would_write_it(resource: str, amount: int) -> None:
    text = exact_amount(resource, amount)
    assert parse_amount(text, resource=resource, subject="answer", field=resource) == amount
    assert readable_amount(resource, text) == format_amount(resource, amount)
