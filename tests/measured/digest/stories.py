"""Random stories of clusters: the shapes of the property tests, made by a generator of our own.

A story keeps its own books, from the events that cycles append, so that it asks the engine nothing but to decide.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from tests.given.cluster.factory import amounts, pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.groups import job
from tests.given.work.workloads import OWNER
from tests.measured.digest.engine import (
    EngineConfig,
    FairShareConfig,
    HostPort,
    NumaScoring,
    Owner,
    PlacementStrategy,
    Pod,
    PodDisruptionBudget,
    PodRules,
    PodSelector,
    PodTerm,
    PreferredPods,
    Recorder,
    Requirement,
    ScoringStrategy,
    SpreadConstraint,
    Taint,
    Toleration,
    payloads,
)

POLICIES = ("single-numa-node", "restricted", "best-effort", "none")
QUEUE_LABEL = "kai.scheduler/queue"
#: Queues by path: none, two teams, two teams of a department and one beside it.
HIERARCHIES: tuple[tuple[str, ...], ...] = ((), ("a", "b"), ("d", "d/a", "d/b", "c"))


class Story:
    """A cluster, what runs and waits in it, and random numbers."""

    def __init__(self, recorder: Recorder, random: Random, config: EngineConfig | None = None) -> None:
        self.cluster = recorder
        self.random = random
        self.config = config or EngineConfig()
        self.pods: dict[str, Pod] = {}
        #: Where pods are that were placed but not yet bound, by uid.
        self.placed: dict[str, str] = {}
        #: Where pods are that were bound, by uid.
        self.bound: dict[str, str] = {}
        #: Uids of pods that are being evicted.
        self.leaving: list[str] = []
        self.count = 0

    def pick(self, uids: Any) -> str | None:
        ordered = sorted(uids)
        return self.random.choice(ordered) if ordered else None

    def add(self, one: Pod) -> Pod:
        self.pods[one.uid] = self.cluster.add_pod(one)
        return one

    def cycle(self, *, run: bool = True, meanwhile: Callable[[], None] | None = None) -> int:
        """Run a cycle; have what was placed run, unless `run` is false. Returns how many events it appended."""
        appended = self.cluster.decide(self.config, meanwhile=meanwhile)
        for kind, body in appended:
            if kind == "PodPlaced":
                self.placed[body["uid"]] = body["node"]
            elif kind == "EvictionDecided":
                self.leaving.append(body["uid"])
        if run:
            for uid in sorted(self.placed):
                self.bind(uid)
        return len(appended)

    def bind(self, uid: str) -> None:
        one, node = self.pods[uid], self.placed.pop(uid)
        self.bound[uid] = node
        self.cluster.record(f"pod/{uid}", payloads.PodBound(uid, one.namespace, one.name, node))
        self.change(uid, node_name=node, phase="Running")

    def change(self, uid: str, **changed: Any) -> None:
        self.pods[uid] = self.cluster.change(self.pods[uid], **changed)

    def bind_fails(self, uid: str, reason: str = "InternalError") -> None:
        one, node = self.pods[uid], self.placed.pop(uid)
        failed = payloads.BindFailed(uid, one.namespace, one.name, node, 500, reason)
        self.cluster.record(f"pod/{uid}", failed)

    def delete(self, uid: str) -> Pod:
        one = self.pods.pop(uid)
        self.placed.pop(uid, None)
        self.bound.pop(uid, None)
        self.leaving = [other for other in self.leaving if other != uid]
        self.cluster.delete_pod(one)
        return one

    def recreate(self, uid: str) -> None:
        """A pod is gone and comes back under another name, as its controller makes it."""
        one = self.delete(uid)
        self.count += 1
        again = {"uid": f"uid-r{self.count}", "name": f"r{self.count}", "node_name": "", "phase": "Pending"}
        fields = {name: getattr(one, name) for name in one.__struct_fields__}
        self.add(Pod(**(fields | again)))

    def eviction_fails(self, uid: str) -> None:
        one = self.pods[uid]
        self.leaving.remove(uid)
        failed = payloads.EvictionFailed(uid, one.namespace, one.name, self.bound[uid], 429, "TooMany")
        self.cluster.record(f"pod/{uid}", failed)

    def rest(self, rounds: int = 6) -> None:
        """Leaving pods are gone, cycle after cycle, until nothing changes."""
        for _ in range(rounds):
            for uid in sorted(set(self.leaving)):
                self.recreate(uid) if self.random.random() < 0.3 else self.delete(uid)
            before = self.cluster.decisions
            self.cycle()
            if self.cluster.decisions - before <= 1 and not self.leaving:
                return


def config(random: Random) -> EngineConfig:
    """Settings, the defaults more often than others."""
    if random.random() < 0.5:
        return EngineConfig()
    return EngineConfig(
        placement_strategy=random.choice(list(PlacementStrategy)),
        cpu_placement_strategy=random.choice([None, *PlacementStrategy]),
        numa_scoring=NumaScoring(random.choice(list(ScoringStrategy))),
        consolidate_groups=random.choice((0, 2, 16)),
        consolidate_cooldown_us=random.choice((0, 60_000_000)),
        consolidate_bare_pods=random.random() < 0.5,
        staleness_grace_us=random.choice((0, 30_000_000, -1)),
        wait_for_observation=random.random() < 0.2,
        search_steps=random.choice((5, 50, 200_000)),
        fair_share=FairShareConfig(
            k_milli=random.choice((0, 1000)),
            reclaim_margin_milli=random.choice((1000, 1500)),
            reclaim_min_runtime_us=random.choice((0, 45_000_000)),
            report_every_us=random.choice((0, 10_000_000)),
        ),
    )


def _nodes(story: Story, *, most: int) -> list[str]:
    random = story.random
    names = []
    for number in range(random.randint(1, most)):
        held = amounts(cpu=random.randint(4, 12), memory=random.randint(8, 32), gpu=random.randint(0, 4))
        zones = [held] + [held if random.random() < 0.7 else amounts(cpu=6, memory=12, gpu=2)] * random.randint(0, 3)
        taints = (Taint("k", random.choice(("NoSchedule", "PreferNoSchedule"))),) if random.random() < 0.15 else ()
        story.cluster.add_node(
            f"n{number}",
            *zones,
            policy=random.choice(POLICIES),
            scope=random.choice(("container", "pod")),
            costs=tuple(
                tuple(10 if one == other else 20 + abs(one - other) for other in range(len(zones)))
                for one in range(len(zones))
            )
            if random.random() < 0.5
            else (),
            labels={"host": f"n{number}", "row": f"r{number % 2}"},
            taints=taints,
        )
        names.append(f"n{number}")
    return names


def _queues(story: Story) -> list[str]:
    """Make queues, and return the names of those that take work."""
    random = story.random
    paths = random.choice(HIERARCHIES)
    runtime = random.choice((0, 0, 45_000_000))
    for path in paths:
        share = {
            "quota": random.randint(0, 8),
            "limit": random.choice((None, None, random.randint(2, 8))),
            "weight": random.randint(0, 2),
        }
        times = dict.fromkeys(("preempt_min_runtime_us", "reclaim_min_runtime_us"), runtime)
        above, _, _ = path.rpartition("/")
        story.cluster.record(f"queue/{path}", payloads.QueueObserved(queue(path, above, **share, **times)))
    return [path for path in paths if not any(other.startswith(f"{path}/") for other in paths)]


def _near(random: Random) -> PodTerm:
    selector = PodSelector(("default",), None, (Requirement("app", "In", (random.choice("ab"),)),))
    return PodTerm(random.choice(("host", "row")), selector)


def _rules(random: Random) -> PodRules | None:
    near = _near(random)
    spread = SpreadConstraint(
        random.randint(1, 2), near.topology_key, near.selector, required=random.random() < 0.7, min_domains=1
    )
    return random.choice(
        (
            None,
            None,
            None,
            PodRules(anti_affinity=(near,)),
            PodRules(affinity=(near,)),
            PodRules(spread=(spread,)),
            PodRules(preferred_pods=(PreferredPods(random.choice((-3, 2)), near),)),
            PodRules(host_ports=(HostPort(80),)),
        )
    )


def _spec(random: Random) -> dict[str, Any]:
    return {
        "cpu": random.randint(1, 4),
        "memory": random.randint(1, 8),
        "gpu": random.randint(0, 4),
        "priority": random.randint(0, 3),
        "labels": {"app": random.choice(("", "a", "b"))},
        "rules": _rules(random),
        "node_selector": {"row": "r0"} if random.random() < 0.1 else {},
        "node_affinity": ((Requirement("host", "NotIn", ("n0",)),),) if random.random() < 0.1 else (),
        "tolerations": (Toleration("k", "Exists"),) if random.random() < 0.3 else (),
        "preemption_policy": "Never" if random.random() < 0.1 else "PreemptLowerPriority",
    }


def _gang(story: Story, leaves: list[str]) -> None:
    """A gang, which may have to start together with those before it."""
    random = story.random
    story.count += 1
    number, count = story.count, random.randint(1, 4)
    spec = _spec(random)
    if leaves:
        spec["labels"] = {**spec["labels"], QUEUE_LABEL: leaves[number % len(leaves)]}
    owner: Owner = OWNER
    if number % 2:
        owner = job(story.cluster, f"j{number}", spec={"backoffLimit": number % 3})
    others = random.choice((0, 0, 0, 1, 2))
    before = tuple(f"default/g{number - back}" for back in range(1, others + 1) if back < number)
    made = story.cluster.gang(
        f"g{number}",
        count,
        least=min(random.randint(0, 4), count),
        group={"together": before},
        created_at=number,
        owner=owner,
        **spec,
    )
    story.pods.update((one.uid, one) for one in made)


def _step(story: Story, nodes: list[str]) -> None:
    random = story.random
    what = random.choice(("go", "go", "fail", "delete", "finish", "time", "recreate", "restart", "nominate", "cordon"))
    if what == "go":
        for uid in sorted(set(story.leaving)):
            story.delete(uid)
    elif what == "time":
        story.cluster.now += 30_000_000
    elif what == "restart":
        story.cluster.restart()
    elif what == "cordon":
        name = random.choice(nodes)
        labels = {"host": name, "row": f"r{int(name[1:]) % 2}"}
        story.cluster.add_node(name, cpu=16, memory=32, gpu=4, labels=labels, unschedulable=random.random() < 0.7)
    elif what == "fail" and (uid := story.pick(set(story.leaving) & story.bound.keys())):
        story.eviction_fails(uid)
    elif what == "recreate" and (uid := story.pick(story.leaving)):
        story.recreate(uid)
    elif what == "delete" and (uid := story.pick(story.pods)):
        story.delete(uid)
    elif what == "finish" and (uid := story.pick(story.bound)):
        story.change(uid, phase="Succeeded")
        story.bound.pop(uid)
        story.leaving = [other for other in story.leaving if other != uid]
    elif what == "nominate" and (uid := story.pick(story.pods.keys() - story.bound.keys() - story.placed.keys())):
        story.change(
            uid,
            nominated_node=random.choice(["", *nodes]),
            scheduler_name=random.choice(("kai-ledger", "other")),
        )


def gangs(recorder: Recorder, random: Random) -> None:
    """Gangs, queues, evictions of every reason, constraints, budgets, nominations."""
    story = Story(recorder, random, config(random))
    leaves = _queues(story)
    if random.random() < 0.5:
        chosen = PodSelector(("default",), None, (Requirement("app", "In", ("a",)),))
        budget = PodDisruptionBudget("uid-budget", "default", "budget", "1", chosen, random.randint(0, 1))
        recorder.record("budget/default/budget", payloads.PodDisruptionBudgetObserved(budget))
    nodes = _nodes(story, most=5)
    for _ in range(random.randint(2, 5)):
        for _ in range(random.randint(1, 4)):
            _gang(story, leaves)
        story.cycle()
        for _ in range(random.randint(0, 4)):
            _step(story, nodes)
            story.cycle()
    story.rest()


def moving(recorder: Recorder, random: Random) -> None:
    """Fragmented nodes, in which what waits would fit if others moved."""
    story = Story(recorder, random)
    nodes, gpus = 4, 8
    for number in range(nodes):
        zones = [amounts(cpu=16, memory=128, gpu=gpus // 2)] * 2 if random.random() < 0.3 else []
        if zones:
            recorder.add_node(f"n{number}", *zones, policy="restricted", labels={"host": f"n{number}"})
        else:
            recorder.add_node(f"n{number}", cpu=32, memory=256, gpu=gpus, labels={"host": f"n{number}"})
    free = [gpus] * nodes
    for number in range(random.randint(3, 9)):
        node, gpu = random.randrange(nodes), random.randint(1, 4)
        count = min(random.randint(1, 3), free[node] // gpu)
        if not count:
            continue
        free[node] -= gpu * count
        owner = random.choice((OWNER, OWNER, "job", None))
        if owner == "job":
            owner = job(recorder, f"r{number}", spec={"backoffLimit": 1})
        spec = {"cpu": 1, "gpu": gpu, "node_name": f"n{node}", "owner": owner, "phase": "Running"}
        if count > 1:
            made = recorder.gang(f"r{number}", count, **spec)
        else:
            made = [recorder.add_pod(pod(f"r{number}", **spec))]
        story.pods.update((one.uid, one) for one in made)
        story.bound.update((one.uid, f"n{node}") for one in made)
    for _ in range(random.randint(1, 3)):
        for _ in range(random.randint(1, 3)):
            story.count += 1
            spec = {"cpu": 1, "memory": 1, "gpu": random.randint(4, 8), "priority": random.randint(0, 2)}
            (one,) = recorder.gang(f"large{story.count}", 1, created_at=story.count, **spec)
            story.pods[one.uid] = one
        story.cycle()
        for _ in range(random.randint(0, 4)):
            _step(story, [f"n{number}" for number in range(nodes)])
            story.cycle()
    story.rest()


def fair(recorder: Recorder, random: Random) -> None:
    """A hierarchy of queues with teams that ask for more or less than they are due, one after the other."""
    story = Story(recorder, random, EngineConfig(fair_share=FairShareConfig(k_milli=random.choice((0, 1000)))))
    recorder.add_nodes(2, cpu=64, gpu=8)
    leaves = {"d1": "d", "d2": "d", "e1": "e", "f": ""}
    for name in ("d", "e", *leaves):
        share = {
            "quota": random.randint(0, 4),
            "weight": random.randint(1, 3),
            "limit": random.choice((None, random.randint(4, 10))),
        }
        recorder.record(f"queue/{name}", payloads.QueueObserved(queue(name, leaves.get(name, ""), **share)))
    for _ in range(random.randint(3, 5)):
        name = random.choice(sorted(leaves))
        for _ in range(random.randint(1, 9)):
            story.count += 1
            labels = {QUEUE_LABEL: name}
            story.add(
                pod(
                    f"p{story.count}",
                    cpu=1,
                    gpu=1,
                    labels=labels,
                    owner=OWNER,
                    created_at=story.count,
                    priority=random.choice((0, 0, 0, 50, 120)),
                )
            )
        story.cycle()
        story.rest(4)
        recorder.now += random.choice((0, 3_600_000_000))
