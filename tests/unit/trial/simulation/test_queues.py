"""Queues among the manifests of a simulation."""

import asyncio
from pathlib import Path

from kaicore.analysis.trial.simulation.run import Simulation
from kaicore.rules.engine.config import EngineConfig

from tests.given.logs.simulating import node, pod, world_of

QUEUES = """
---
{apiVersion: scheduling.run.ai/v2, kind: Queue, metadata: {name: team-a}, spec: {parentQueue: research}}
---
{apiVersion: scheduling.run.ai/v2, kind: Queue, metadata: {name: research}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: lq, namespace: ml}
spec: {clusterQueue: c}
"""


def test_queues_of_manifests_are_those_of_the_state(tmp_path: Path) -> None:
    world = world_of(node() + pod("a") + QUEUES, tmp_path)
    assert (world.problems, world.warnings) == ([], [])
    simulation = Simulation(world, EngineConfig())
    asyncio.run(simulation.begin())
    assert sorted(simulation.state.queues) == ["ml/lq", "research", "team-a"]
    assert [one.name for one in simulation.state.queue_registry.tree.queues] == ["default", "research", "team-a"]


def test_what_is_wrong_with_a_queue_is_a_problem(tmp_path: Path) -> None:
    text = "\n---\n{apiVersion: kueue.x-k8s.io/v1beta1, kind: LocalQueue, metadata: {name: lq}, spec: {}}\n"
    world = world_of(node() + pod("a") + text, tmp_path)
    assert [(problem.field, problem.problem) for problem in world.problems] == [("spec.clusterQueue", "is missing")]
