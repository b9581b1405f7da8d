"""Groups that are alike share the outcome of an attempt: decisions and reasons are those of a cycle that tries each."""

from random import Random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from kaicore.rules.deciding.cycle_run import CycleRun, run_on
from kaicore.rules.deciding.decide import waiting_reports
from kaicore.rules.deciding.share import Share
from kaicore.rules.engine.config import Backfill, EngineConfig
from kaicore.rules.engine.work.workload import LonePod
from kaicore.rules.events import payloads
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.rules.model.pod import PodDisruptionBudget
from kaicore.rules.model.selector import PodSelector, Requirement
from kaicore.rules.queues.tree import UNLIMITED
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.indexes.workload_index import RestingGroups

from tests.given.cluster.factory import amounts, pod
from tests.given.cluster.hierarchy import queue
from tests.given.examples import examples
from tests.given.work.workloads import OWNER, Workloads

SECOND_US = 1_000_000


class Watcher:
    """Looks on: so every attempt of a cycle is made."""

    def begins(self, action: str) -> None: ...

    def takes_up(self, group: str) -> None: ...

    def placing(self, member: Any, row: int, feasible: Any) -> None: ...


class CrowdedCluster(Workloads):
    """A few nodes, and many pods of a few kinds, of which most wait."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random, self.count = random, 0
        policies = ("single-numa-node", "restricted", "none")
        for number in range(random.randint(1, 2)):
            zone = amounts(cpu=random.randint(4, 12), memory=32, gpu=random.randint(0, 4))
            self.add_node(f"n{number}", zone, zone, policy=random.choice(policies))
        self.queues = random.choice(((), ("a",), ("a", "b", "c")))
        for name in self.queues:
            share: dict[str, Any] = {"quota": random.randint(0, 4), "limit": random.choice((UNLIMITED, 3)), "weight": 1}
            shares = queue(name, preempt_min_runtime_us=random.choice((0, 30)) * SECOND_US, **share)
            self.record(f"queue/{name}", payloads.QueueObserved(shares))
        if random.random() < 0.3:
            chosen = PodSelector(("default",), None, (Requirement("app", "In", ("a",)),))
            budget = PodDisruptionBudget("uid-some", "default", "some", "1", chosen, random.randint(0, 1))
            self.record("pdb/default/some", payloads.PodDisruptionBudgetObserved(budget))

    def comes(self) -> None:
        """Pods are created, alone or in a gang."""
        random = self.random
        self.count += 1
        labels = {"app": random.choice("ab")} | ({KAI_QUEUE_LABEL: random.choice(self.queues)} if self.queues else {})
        spec: dict[str, Any] = {
            "cpu": random.choice((1, 3, 6)),
            "memory": 2,
            "gpu": random.choice((0, 0, 1, 2)),
            "priority": random.choice((0, 0, 1, 5)),
            "created_at": self.now // SECOND_US - random.randint(-2, 9),
            "labels": labels,
            "owner": OWNER if random.random() < 0.8 else None,
        }
        if random.random() < 0.15:
            self.gang(f"g{self.count}", random.randint(2, 3), least=random.randint(0, 2), **spec)
        else:
            never: dict[str, Any] = {"preemption_policy": "Never"} if random.random() < 0.1 else {}
            self.add_pod(pod(f"p{self.count}", **spec, **never))

    def happens(self) -> None:
        """A pod starts, leaves its node, ends, or cannot be bound; or time passes."""
        random, state = self.random, self.state
        one = state.pods[random.choice(sorted(state.pods))].pod
        entry = state.pods[one.uid]
        match random.choice(("start", "start", "delete", "leave", "leave", "fail", "time")):
            case "start" if entry.node and not entry.pod.node_name:
                self.run(one)
            case "fail" if entry.node and not entry.pod.node_name:
                failed = payloads.BindFailed(one.uid, one.namespace, one.name, entry.node, 500, "no")
                self.record(f"pod/{one.uid}", failed)
            case "leave" if entry.node:
                self.see(one, node_name=entry.node, deletion_at=self.now // SECOND_US)
            case "delete":
                self.delete_pod(one)
            case _:
                self.now += random.choice((1, 20, 120)) * SECOND_US


def _reports(cluster: CrowdedCluster, config: EngineConfig, run: CycleRun) -> list[payloads.PodsLeftWaiting]:
    placed = {decision.uid for decision in run.result.placements}
    share = Share(cluster.state, "default", config)
    return waiting_reports(cluster.state, config, shard="default", given=run.given, share=share, placed=placed)


def _at_rest(resting: RestingGroups, state: ClusterState) -> dict[tuple[str, str], LonePod]:
    lines = resting.lines(state.workload_index.workloads, state.workload_index.pending, state.pods)
    return {(line.class_key, key): lone for line in lines for key, lone in line.lones.items()}


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32))
@example(8480)  # room of a pod that leaves, where no move helps
@example(10185)  # another group's victims leave more room than it takes
def test_cycles_of_crowded_clusters_decide_as_if_each_group_was_tried(seed: int) -> None:
    random = Random(seed)
    cluster = CrowdedCluster(random)
    config = EngineConfig(
        backfill=random.choice((Backfill.OFF, Backfill.EASY)),
        consolidate_bare_pods=random.random() < 0.5,
        consolidate_win_us=random.choice((0, 3_600 * SECOND_US)),
        promise_alone_after_us=random.choice((0, 60 * SECOND_US)),
    )
    for _ in range(4):
        for _ in range(random.randint(1, 12)):
            cluster.comes()
        each, shared = (run_on(cluster.state, config, now=cluster.now, observer=one) for one in (Watcher(), None))
        assert shared.result == each.result
        assert _reports(cluster, config, shared) == _reports(cluster, config, each)
        assert _at_rest(cluster.state.resting, cluster.state) == _at_rest(RestingGroups(), cluster.state)
        cluster.go(cluster.cycle(config))
        for _ in range(random.randint(0, 6)):
            if cluster.state.pods:
                cluster.happens()
