"""Results of manifests: a table that reads as a specification of `kai simulate`."""

import asyncio
from pathlib import Path

import pytest
from kai_cli.sources.manifests import read_located
from kaicore.analysis.trial.simulation import read_world
from kaicore.analysis.trial.simulation.run import CLUSTER, Simulation
from kaicore.rules.deciding.decide import decide
from kaicore.rules.deciding.replay import KNOWN_BEFOREHAND, Replay
from kaicore.rules.engine.config import EngineConfig, PlacementStrategy
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import PodPlaced
from kaicore.rules.state.cluster_state import ClusterState

from tests.given.logs.simulating import GPU, brief, document_of, node, pod, record, world_of


def test_document_of_a_simulation_has_the_documented_fields(tmp_path: Path) -> None:
    bound: dict[str, object] = {
        "namespace": "default",
        "node": "n1",
        "phase": "Bound",
        "rank": None,
        "domains": {},
        "reasons": [],
    }
    zones = [{"zones": [{"zone": f"node-{number}", "amount": {"cpu": "1", GPU: "2"}}]} for number in (0, 1)]
    short = {
        "code": "InsufficientResource",
        "message": "1 node short of nvidia.com/gpu: 1 needed, 0 free (such as n1)",
        "nodes": 1,
        "example": "n1",
    }
    later = {
        "code": "FitsAfter",
        "message": "would become schedulable if Pod default/a ends (on n1)",
        "nodes": 0,
        "example": "n1",
    }
    assert document_of(world_of(node() + pod("a", gpus=2) + pod("b", gpus=2) + pod("c"), tmp_path)) == {
        "cycles": 2,
        "seconds": 2,
        "pods": [
            bound | {"name": "a"} | zones[0],
            bound | {"name": "b"} | zones[1],
            bound | {"name": "c", "node": None, "phase": "Pending", "zones": [], "reasons": [short, later]},
        ],
        "notes": {},
    }


ON_N1 = "nodeName: n1"
RUNNING = "{phase: Running}"
OURS = "schedulerName: kai-ledger"
JOB = "---\napiVersion: batch/v1\nkind: Job\nmetadata: {{name: j, uid: j1}}\nspec: {{parallelism: 2, template: {}}}\n"
TEMPLATE = f"{{spec: {{containers: [{{name: main, resources: {{limits: {{{GPU}: 1}}}}}}]}}}}"
BARE = "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p{:03}}}\nspec: {{containers: [{{name: c}}]}}\n"
OF_J = "ownerReferences: [{apiVersion: batch/v1, kind: Job, name: j, uid: j1, controller: true}]"

#: Title, manifests, and what becomes of the pods.
WORLDS = [
    ("no nodes", pod("a"), {"a": "Pending NoNodes"}),
    ("pods fill a zone before the next", node() + pod("a") + pod("b"), {"a": "n1 node-0", "b": "n1 node-0"}),
    (
        "a running pod without a record holds amounts, not zones",
        node() + pod("old", gpus=3, spec=ON_N1, status=RUNNING) + pod("new", gpus=2),
        {"old": "n1", "new": "Pending InsufficientResource"},
    ),
    (
        "an observed placement holds its zones",
        node()
        + pod("old", metadata=record("observed", node_0=f"{GPU}: 1"), spec=ON_N1, status=RUNNING)
        + pod("new", gpus=2),
        {"old": "n1 node-0", "new": "n1 node-1"},
    ),
    (
        "and so does a predicted one",
        node()
        + pod("old", metadata=record("predicted", node_0=f"{GPU}: 1"), spec=ON_N1, status=RUNNING)
        + pod("new", gpus=2),
        {"old": "n1 node-0", "new": "n1 node-1"},
    ),
    (
        "what ended holds nothing and is not printed",
        node()
        + pod("done", gpus=4, spec=ON_N1, status="{phase: Succeeded}")
        + pod("bad", gpus=4, spec=ON_N1, status="{phase: Failed}")
        + pod("new", gpus=2),
        {"new": "n1 node-0"},
    ),
    (
        "a pod that a kubelet refused is printed, and its like is not offered that node again",
        node()
        + pod("refused", gpus=2, spec=ON_N1, status="{phase: Failed, reason: TopologyAffinityError}")
        + pod("new", gpus=2),
        {"refused": "Rejected TopologyAffinityError", "new": "Pending RejectedByKubelet"},
    ),
    (
        "what terminates still holds what it holds",
        node()
        + pod("old", gpus=3, metadata="deletionTimestamp: '2026-01-01T00:00:00Z'", spec=ON_N1, status=RUNNING)
        + pod("new", gpus=2),
        {"old": "n1", "new": "Nominated WaitsForVictims,InsufficientResource"},
    ),
    (
        "a pod that is deleted before it was placed is left alone",
        node() + pod("a", metadata="deletionTimestamp: '2026-01-01T00:00:00Z'"),
        {"a": "Pending Terminating"},
    ),
    (
        "other schedulers' pods are left alone",
        node() + pod("a", spec="schedulerName: default-scheduler"),
        {"a": "Pending OtherScheduler"},
    ),
    (
        "but what they hold is held",
        node() + pod("old", gpus=4, spec=f"schedulerName: other, {ON_N1}", status=RUNNING) + pod("a"),
        {"old": "n1", "a": "Pending InsufficientResource"},
    ),
    ("gates hold back", node() + pod("a", spec="schedulingGates: [{name: g}]"), {"a": "Pending SchedulingGated"}),
    (
        "higher priority first",
        node(gpus=2)
        + pod("a")
        + pod("b")
        + pod("z", spec="priorityClassName: high")
        + "---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 7\n",
        {"z": "n1 node-0", "a": "n1 node-1", "b": "Pending InsufficientResource"},
    ),
    (
        "a global default is every pod's class, and older pods come first",
        node(gpus=2)
        + pod("a", spec="priority: 0")
        + pod("b", metadata="creationTimestamp: '2025-01-02T00:00:00Z'")
        + pod("c", metadata="creationTimestamp: 2025-01-01T00:00:00Z")
        + "---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\n"
        + "metadata: {name: d}\nvalue: 7\nglobalDefault: true\n",
        {"c": "n1 node-0", "b": "n1 node-1", "a": "Pending InsufficientResource"},
    ),
    (
        "a pod without a creation time is younger than all that have one",
        node(gpus=2) + pod("a") + pod("b") + pod("z", metadata="creationTimestamp: '2031-01-01T00:00:00Z'"),
        {"z": "n1 node-0", "a": "n1 node-1", "b": "Pending InsufficientResource"},
    ),
    (
        "a daemon is on each node that its pods may run on",
        node("n1", gpus=2)
        + node("n2").replace("status: {a", "spec: {taints: [{key: k, effect: NoSchedule}]}\nstatus: {a")
        + "---\napiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: d}\n"
        + "spec: {template: {spec: {containers: [{name: c}]}}}\n",
        {"d-8ntf5": "n1"},
    ),
    (
        "a node that says it is not ready is not",
        node().replace("status: {", "status: {conditions: [{type: Ready, status: 'False'}], ") + pod("a"),
        {"a": "Pending NodeNotReady"},
    ),
    (
        "a node that says nothing of pods takes 110",
        "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {capacity: {cpu: 200}}\n"
        + "".join(BARE.format(n) for n in range(111)),
        {f"p{n:03}": "n1" for n in range(110)} | {"p110": "Pending InsufficientResource"},
    ),
    (
        "an owner with pods in the input speaks through them",
        node() + JOB.format(TEMPLATE) + pod("j-abcde", metadata=OF_J),
        {"j-abcde": "n1 node-0"},
    ),
    (
        "not so one that has another uid",
        node() + JOB.format(TEMPLATE) + pod("j-abcde", metadata=OF_J.replace("uid: j1", "uid: j0")),
        {"j-abcde": "n1 node-0", "j-kwrjr": "n1 node-0", "j-vhnnh": "n1 node-1"},
    ),
    (
        "lower priority makes way, and is gone by the next cycle",
        node(gpus=2)
        + pod("low", gpus=2, spec="priority: 1, " + ON_N1 + ", " + OURS, status=RUNNING)
        + pod("high", gpus=1, spec="priority: 2"),
        {"high": "n1 node-0", "low": "Evicted Preempted"},
    ),
    (
        "what has a controller comes again and waits its turn",
        node(gpus=2, policy="none")
        + JOB.format(TEMPLATE)
        + pod(
            "low",
            gpus=2,
            metadata=f"generateName: j-, {OF_J}",
            spec="priority: 1, " + ON_N1 + ", " + OURS,
            status=RUNNING,
        )
        + pod("high", gpus=1, spec="priority: 2"),
        {"high": "n1 node-0", "low": "Evicted Preempted", "j-tn75m": "Pending InsufficientResource"},
    ),
    (
        "a generated name is always the same",
        node() + pod("a", metadata="generateName: a-").replace("name: a, ", ""),
        {"a-nrxzb": "n1 node-0"},
    ),
]


@pytest.mark.parametrize(("text", "expected"), [world[1:] for world in WORLDS], ids=[world[0] for world in WORLDS])
def test_world_gives_the_expected_placements(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    world = world_of(text, tmp_path)
    assert brief(document_of(world)) == expected
    assert not world.warnings


def test_the_order_of_objects_does_not_matter(tmp_path: Path) -> None:
    parts = [node("n1"), node("n2"), *(pod(name, gpus=2) for name in "abcde"), JOB.format(TEMPLATE)]
    documents = [document_of(world_of("".join(order), tmp_path)) for order in (parts, parts[::-1])]
    assert documents[0] == documents[1]


def test_settings_change_the_outcome(tmp_path: Path) -> None:
    text = node("n1") + node("n2") + pod("a", gpus=2) + pod("b") + pod("c", gpus=3)
    binpack = brief(document_of(world_of(text, tmp_path)))
    assert binpack == {"a": "n1 node-0", "b": "n1 node-1", "c": "Pending NumaNeverFits"}
    spread = EngineConfig(placement_strategy=PlacementStrategy.SPREAD)
    assert brief(document_of(world_of(text, tmp_path), spread))["b"] == "n2 node-0"
    assert brief(document_of(world_of(text, tmp_path), EngineConfig(numa=False)))["c"] == "n2"
    ignoring = EngineConfig(ignore_list=(GPU,))
    assert brief(document_of(world_of(text, tmp_path), ignoring))["c"] == "n2 node-0"


def test_scheduler_of_another_name_takes_what_names_none(tmp_path: Path) -> None:
    text = node() + pod("a") + pod("b", spec=OURS)
    config = EngineConfig(scheduler_name="mine")
    placements = brief(document_of(world_of(text, tmp_path, config), config))
    assert placements == {"a": "n1 node-0", "b": "Pending OtherScheduler"}


@pytest.mark.parametrize(("cycles", "expected"), [(0, "Pending NoCycle"), (1, "n1 node-0"), (None, "n1 node-0")])
def test_cycles_are_limited(tmp_path: Path, cycles: int | None, expected: str) -> None:
    document = document_of(world_of(node() + pod("a"), tmp_path), cycles=cycles)
    assert brief(document) == {"a": expected}
    assert document["cycles"] == (1 if cycles is None else cycles)


def test_between_the_eviction_and_the_bind_a_pod_is_nominated(tmp_path: Path) -> None:
    """A nomination names the node, and the zones that the pod is predicted to get there."""
    low = pod("low", gpus=2, spec=f"priority: 1, {ON_N1}, {OURS}", status=RUNNING)
    world = world_of(node(gpus=2) + low + pod("high", spec="priority: 2"), tmp_path)
    high, low_after = document_of(world, cycles=1)["pods"]
    assert (high["phase"], high["node"]) == ("Nominated", "n1")
    assert (low_after["phase"], low_after["node"]) == ("Evicted", "n1")
    assert low_after["reasons"][0]["message"] == "evicted: Preempted, for Pod/default/high"


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n---\napiVersion: v1\nkind: Service\n"
            "metadata: {name: t}\n",
            "skipped 2 Service: it says nothing to this scheduler",
        ),
        (
            "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: s}\n",
            "skipped 1 CronJob.batch: it makes its Jobs later; give those",
        ),
        # A Job of another group is another kind.
        ("apiVersion: batch.example.com/v1\nkind: Job\nmetadata: {name: s}\n", "skipped 1 Job.batch.example.com: "),
        (
            pod("a", spec="priorityClassName: gone"),
            "PriorityClass gone: there is none; priority 0 for pods that name it: 1",
        ),
        (
            pod("j-0")
            + JOB.format(TEMPLATE)
            .replace("batch/v1", "apps/v1")
            .replace("Job", "StatefulSet")
            .replace("parallelism", "replicas"),
            "StatefulSet default/j cannot make its pod j-0: one is there already, in ",
        ),
        (pod("a", spec="nodeName: gone"), "1 pod is on gone, and there is no Node of this name"),
        (node().split("---")[2], "NodeResourceTopology n1: there is no Node of this name"),
        (
            node() + pod("a", metadata=record("observed", node_7="cpu: 1"), spec=ON_N1),
            "Pod default/a: its placement names node-7, of which the NodeResourceTopology of n1 knows nothing",
        ),
        (
            node() + pod("a", metadata=record("observed", node_0="nvidia.com/gpu: 9"), spec=ON_N1),
            "Pod default/a: placement.nvidia.com/gpu: the pod's containers ask for 1 at most: '9'; the placement",
        ),
        (
            node() + pod("a", metadata=record("predicted", node_0="cpu: 400"), spec=ON_N1),
            "Pod default/a: placement.cpu: the pod's containers ask for 1 at most: '400'; the placement",
        ),
    ],
)
def test_what_is_left_out_is_said_once(tmp_path: Path, text: str, warning: str) -> None:
    world = world_of(text, tmp_path)
    document_of(world)
    (warned,) = world.warnings
    assert warning in warned


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (pod("a", gpus="x"), "Pod default/a: spec.containers[0].resources.limits[nvidia.com/gpu]: not a Kubernetes"),  # type: ignore[arg-type]
        (pod("a", spec="priority: high"), "Pod default/a: spec.priority: "),
        (pod("a", metadata="labels: {a: yes}"), "Pod default/a: metadata.labels"),
        (pod("a", metadata="creationTimestamp: yesterday"), "Pod default/a: metadata.creationTimestamp: "),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n", "Pod default/a: spec: is missing: None"),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: []}\n",
            "Pod default/a: spec.containers: a pod needs a container",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: "
            "[{name: m, resources: {requests: {cpu: 2}, limits: {cpu: 1}}}]}\n",
            "spec.containers[0].resources.requests[cpu]: is more than the limit of 1: 2",
        ),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: 7}\nspec: {}\n", "metadata.namespace: must be a"),
        ("apiVersion: v1\nkind: Node\nmetadata: {name: a}\nstatus: 5\n", "Node a: status: must be a mapping: 5"),
        (
            JOB.format(TEMPLATE.replace("1}", "-1}")),
            "Job default/j: spec.template.spec.containers[0].resources.limits[nvidia.com/gpu]: negative quantity: '-1'",
        ),
    ],
)
def test_what_is_malformed_is_named_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    problems = world_of(text, tmp_path).problems
    assert len(problems) == 1
    assert problem in str(problems[0])
    assert "m.yaml, document " in str(problems[0])


def test_two_of_one_name_are_one_too_many(tmp_path: Path) -> None:
    (problem,) = world_of(pod("a") + pod("a"), tmp_path).problems
    assert "m.yaml, document 2: Pod default/a: metadata.name: is there already, in " in str(problem)
    file = tmp_path / "m.yaml"
    file.write_text(pod("a"))
    assert len(read_world(read_located([file, file]), scheduler_name="kai-ledger").problems) == 1
    (problem,) = world_of(pod("a", metadata="uid: u") + pod("b", metadata="uid: u"), tmp_path).problems
    assert "metadata.uid: is there already, in " in str(problem)


def test_decisions_are_those_of_the_real_stack_on_the_same_facts(tmp_path: Path) -> None:
    """The log of a simulation replays without a difference, and a cycle on its facts alone decides the same."""
    observed = record("observed", node_0=f"{GPU}: 1")
    predicted = record("predicted", node_1=f"{GPU}: 1")
    text = (
        node("n1")
        + node("n2", policy="restricted")
        + pod("old", metadata=observed, spec=ON_N1, status=RUNNING)
        + pod("older", metadata=predicted, spec=ON_N1, status=RUNNING)
        + "".join(pod(f"p{number}", gpus=1 + number % 3) for number in range(8))
    )

    async def run() -> None:
        config = EngineConfig()
        simulation = Simulation(world_of(text, tmp_path), config)
        await simulation.begin()
        facts = await simulation.log.read(CLUSTER, limit=10_000)
        while await simulation.cycle():
            pass
        events = await simulation.log.read(CLUSTER, limit=10_000)
        fresh = ClusterState(CLUSTER).fold_all(facts)
        again = decide(fresh, config, shard="default", now=simulation.state.recorded_at, actor="another").result
        placed = [decode_payload(event) for event in events[len(facts) :] if event.type == "PodPlaced"]
        assert [(item.name, item.node, item.placement) for item in placed if isinstance(item, PodPlaced)] == [
            (decision.name, decision.node, decision.placement) for decision in again.placements
        ]
        assert len(placed) > 3
        replay = Replay(ClusterState(CLUSTER), [event for event in events if event.type in KNOWN_BEFOREHAND])
        for event in events:
            replay.take(event)
        report = replay.finish()
        assert report.cycles == 2
        # What stood on a pod as a prediction was decided before this log began.
        assert [difference.what for difference in report.differences] == ["default/older"]

    asyncio.run(run())
