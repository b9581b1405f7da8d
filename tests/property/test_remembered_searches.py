"""Cycles that remember what earlier ones found of victims and of nodes decide as cycles that remember nothing.

The clusters are full. Between cycles pods come and end, are observed on other zones, nodes, queues and settings change,
time passes; evicted pods go, or stay. A state that was restored from bytes remembers nothing.
"""

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.rules.model.quantity import CPU
from kaicore.rules.numa.scoring import NumaScoring, ScoringStrategy
from kaicore.rules.queues.division import FairShareConfig
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import amounts, pod
from tests.given.cluster.hierarchy import queue
from tests.given.examples import examples
from tests.given.work.workloads import OWNER, Workloads

_MINUTE_US = 60_000_000


class _Full(Workloads):
    """A cluster that has more pods than room."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.count = 0
        for name in ("a", "b"):
            self.set_queue(name)
        for number in range(random.randint(2, 5)):
            self.set_node(f"n{number}")

    def set_queue(self, name: str) -> None:
        quota = self.random.randint(0, 8)
        self.record(f"queue/{name}", payloads.QueueObserved(queue(name, quota=quota, weight=self.random.randint(1, 3))))

    def set_node(self, name: str) -> None:
        zone = amounts(cpu=self.random.choice((16, 32)), memory=64, gpu=self.random.choice((2, 4)))
        policy = self.random.choice(("single-numa-node", "restricted", "best-effort"))
        often = self.random.random() < 0.75
        facts = {"labels": {"zone": self.random.choice("ab")}, "ready": often or self.random.random() < 0.7}
        self.add_node(name, zone, zone, policy=policy, unschedulable=not often and self.random.random() < 0.3, **facts)

    def arrive(self) -> None:
        self.count += 1
        random = self.random
        spec = {
            "cpu": random.randint(1, 8),
            "memory": random.choice((4, 24)),
            "gpu": random.choice((1, 1, 2, 4)),
            "labels": {KAI_QUEUE_LABEL: random.choice("ab")},
            "priority": random.choice((0, 0, 10)),
            "created_at": self.now // 1_000_000,
            "node_selector": random.choice(({}, {}, {"zone": "a"})),
        }
        if random.random() < 0.25:
            least = random.choice((1, 3))
            self.gang(f"gang-{self.count}", 3, least=least, **spec)
        else:
            self.add_pod(pod(f"pod-{self.count}", owner=OWNER, **spec))

    def change(self) -> None:
        """One thing changes that a search may look at."""
        random = self.random
        running = [entry for uid, entry in sorted(self.state.pods.items()) if entry.charged]
        match random.randrange(7):
            case 0 | 1 if running:
                self.see(random.choice(running).pod, phase="Succeeded")
            case 2 if running:
                self.observe_elsewhere(random.choice(running))
            case 3:
                self.set_node(f"n{random.randrange(3)}")
            case 4:
                self.set_queue(random.choice("ab"))
            case 5:
                self.now += random.choice((1, 40, 700)) * _MINUTE_US // 20
            case _:
                self.arrive()

    def observe_elsewhere(self, entry: PodEntry) -> None:
        """An exporter sees a pod's GPUs and CPUs on the other zone."""
        if entry.predicted is None:
            return
        text = msgspec.json.encode(entry.predicted)
        swapped = text.replace(b"node-0", b"node-x").replace(b"node-1", b"node-0").replace(b"node-x", b"node-1")
        observed = msgspec.json.decode(swapped.replace(b'"predicted"', b'"observed"'), type=type(entry.predicted))
        who = entry.pod.uid, entry.pod.namespace, entry.pod.name, entry.node
        self.record(f"pod/{entry.pod.uid}", payloads.PlacementObserved(*who, observed))


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 2**32))
def test_cycles_after_any_changes_decide_as_a_state_that_remembers_nothing(seed: int) -> None:
    random = Random(seed)
    cluster = _Full(random)
    config = EngineConfig(
        search_steps=random.choice((7, 60, 200_000)),
        numa_scoring=NumaScoring(strategy=random.choice((ScoringStrategy.OFF, ScoringStrategy.LEAST_NUMA_NODES))),
        consolidate_bare_pods=random.random() < 0.5,
        fair_share=FairShareConfig(preempt_min_runtime_us=random.choice((0, _MINUTE_US))),
    )
    for _ in range(14):
        cluster.arrive()
    for _ in range(12):
        fresh = decode_state(encode_state(cluster.state))
        used = msgspec.structs.replace(config, ignore_list=random.choice(((), (), (CPU,))))
        made = [
            decide(state, used, shard="default", now=cluster.now, actor="scheduler") for state in (cluster.state, fresh)
        ]
        assert made[0].units == made[1].units
        cluster.append(made[0].units)
        for decision in made[0].result.placements:
            if (entry := cluster.state.pods[decision.uid]).node:
                cluster.run(entry.pod)
        for eviction in made[0].result.evictions:
            if random.random() < 0.7:
                cluster.delete_pod(cluster.state.pods[eviction.uid].pod)
        for _ in range(random.randint(0, 4)):
            cluster.change()
