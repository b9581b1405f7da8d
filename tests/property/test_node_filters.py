"""The filters of a class of pods: a node that passes all can take a pod, and one that does not has one reason."""

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.deciding.cycle_input import cycle_input
from kaicore.rules.engine.config import EngineConfig, Evaluator
from kaicore.rules.engine.placement.feasible_nodes import FeasibleNodes
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.session.session import Session
from kaicore.rules.events import payloads
from kaicore.rules.model.node import Taint
from kaicore.rules.model.pod import Container, HostPort, Pod, PodRules, PodTerm, QosClass, SpreadConstraint, Toleration
from kaicore.rules.model.selector import PodSelector, Requirement

from tests.given.cluster.factory import Cluster, amounts, container, pod
from tests.given.examples import examples

POLICIES = ("single-numa-node", "restricted", "best-effort", "none")
SELECTED = PodSelector(("default",), None, (Requirement("app", "In", ("x",)),))
LABELS = ({}, {"zone": "a", "host": "h"}, {"zone": "a", "host": "h"}, {"zone": "b", "host": "h"})
TAINTS = ((), (), (), (), (Taint("k", "NoSchedule"),), (Taint("k", "NoExecute", "v"), Taint("l", "NoSchedule")))
RULES = (
    None,
    None,
    PodRules(anti_affinity=(PodTerm("zone", SELECTED),)),
    PodRules(affinity=(PodTerm("zone", SELECTED),)),
    PodRules(spread=(SpreadConstraint(1, "zone", SELECTED),)),
    PodRules(host_ports=(HostPort(80),)),
)
CONFIGS = (
    EngineConfig(),
    EngineConfig(),
    EngineConfig(wait_for_observation=True),
    EngineConfig(evaluator=Evaluator.COUNTING),
    EngineConfig(numa=False),
)


def add_nodes(cluster: Cluster, random: Random) -> list[str]:
    names = [f"n{number}" for number in range(random.randint(1, 6))]
    kinds = []
    for _ in range(random.randint(1, len(names))):
        held = [
            amounts(cpu=random.randint(4, 12), memory=random.randint(8, 32), gpu=random.randint(0, 6))
            for _ in range(random.choice((0, 1, 2, 2, 3)))
        ]
        facts = {} if held else {"cpu": random.randint(2, 16), "memory": 32, "gpu": random.randint(0, 4)}
        scope = {"scope": random.choice(("container", "pod"))} if held else {}
        kinds.append((held, random.choice(POLICIES), {**facts, **scope}))
    for name in names:
        held, policy, others = random.choice(kinds)
        cluster.add_node(
            name,
            *held,
            policy=policy,
            ready=random.random() < 0.95,
            unschedulable=random.random() < 0.05,
            labels=random.choice(LABELS),
            taints=random.choice(TAINTS),
            **others,
        )
    return names


def any_pod(name: str, random: Random) -> Pod:
    containers: list[Container] = []
    for number in range(random.randint(1, 2)):
        gpu = random.choice((None, None, 1, 2, 5))
        held = {"cpu": random.choice((0.5, 1, 2, 3, 6)), "memory": random.choice((0, 1, 4, 12))}
        containers.append(container(f"c{number}", **held, **({} if gpu is None else {"gpu": gpu})))
    policy = random.choice(("", "", "single-numa-node", "restricted", "best-effort"))
    return pod(
        name,
        *containers,
        qos=random.choice((QosClass.GUARANTEED, QosClass.GUARANTEED, QosClass.BURSTABLE)),
        labels=random.choice(({}, {"app": "x"})),
        annotations={"kai.scheduler/numa-policy": policy} if policy else {},
        node_selector=random.choice(({}, {}, {}, {}, {"zone": "a"})),
        node_affinity=random.choice(((), (), (), ((Requirement("host", "Exists"),),))),
        tolerations=random.choice(((), (), (Toleration("k", "Exists"),))),
        rules=random.choice(RULES),
    )


def any_cluster(random: Random) -> Cluster:
    """Nodes of all kinds, pods that run there, of which some end or were placed by others, and pods that wait."""
    cluster = Cluster()
    names = add_nodes(cluster, random)
    kinds = [any_pod("kind", random) for _ in range(3)]

    def named(name: str, **changed: object) -> Pod:
        one = random.choice(kinds)
        values = {field: getattr(one, field) for field in one.__struct_fields__}
        return cluster.add_pod(Pod(**(values | {"uid": f"uid-{name}", "name": name} | changed)))

    for number in range(random.randint(0, 8)):
        named(
            f"r{number}",
            node_name=random.choice(names),
            phase="Running",
            scheduler_name=random.choice(("kai-ledger", "other")),
            deletion_at=random.choice((None, None, 5)),
        )
    for number in range(random.randint(1, 5)):
        named(f"w{number}")
    if random.random() < 0.5:
        for decision in cluster.cycle().decisions:
            if random.random() < 0.4:
                rejected = payloads.PodRejected(
                    decision.uid, decision.namespace, decision.name, decision.node, "TopologyAffinityError"
                )
                cluster.record(f"pod/{decision.uid}", rejected)
        for number in range(random.randint(1, 5)):
            named(f"v{number}")
    return cluster


def check(feasible: FeasibleNodes, columns: NodeColumns) -> None:
    rows = np.flatnonzero(columns.present)
    filters = list(feasible.filters.in_order())
    failing = np.array([[bool(one.failing(np.array([row]))[0]) for one in filters] for row in rows])
    fails_any = failing.any(axis=1)
    assert [feasible.takes(row) for row in rows.tolist()] == (~fails_any).tolist()
    assert sum(reason.affected_nodes for reason in feasible.reasons()) == fails_any.sum()
    codes: dict[str, int] = {}
    for reason in feasible.reasons():
        codes[reason.code] = codes.get(reason.code, 0) + reason.affected_nodes
    for place, one in enumerate(filters):
        first = rows[failing[:, place] & ~failing[:, :place].any(axis=1)]
        if len(first):
            reasons = list(one.reasons(first))
            assert sum(reason.nodes for reason in reasons) == len(first)
            for reason in reasons:
                codes[reason.code] -= reason.nodes
    assert not any(codes.values()), "each node is counted for the first filter that it fails"


@settings(max_examples=examples(250), deadline=None)
@given(random=st.randoms(use_true_random=False), config=st.sampled_from(CONFIGS))
def test_node_can_take_a_pod_exactly_if_it_fails_no_filter_and_else_is_counted_once(
    random: Random, config: EngineConfig
) -> None:
    cluster = any_cluster(random)
    session = Session(cycle_input(cluster.state, config, now=cluster.now), config)
    columns, placer = session.nodes.now.statement.columns, session.nodes.now
    waiting = [member for group in session.pending_groups.values() for member in group.workload.waiting.values()]
    for member in waiting:
        check(placer.feasible_nodes(session.pods.class_of(member)), columns)
    for member in waiting:
        placer.place(member)
        for other in waiting:
            check(placer.feasible_nodes(session.pods.class_of(other)), columns)


@settings(max_examples=examples(250), deadline=None)
@given(random=st.randoms(use_true_random=False), config=st.sampled_from(CONFIGS), most=st.sampled_from((1, 3, 200)))
def test_counts_are_what_each_node_takes_when_pods_are_put_there_one_by_one(
    random: Random, config: EngineConfig, most: int
) -> None:
    cluster = any_cluster(random)
    session = Session(cycle_input(cluster.state, config, now=cluster.now), config)
    placer = session.nodes.now
    waiting = [member for group in session.pending_groups.values() for member in group.workload.waiting.values()]
    for member in waiting:
        pod_class, created_at = session.pods.class_of(member), member.pod.created_at
        counts = placer.counts(pod_class, most=most, created_at=created_at).tolist()
        taken = []
        for row in range(len(counts)):
            savepoint = placer.statement.savepoint()
            taken.append(next((n for n in range(most) if placer.place_on(member, row) is None), most))
            placer.statement.rollback(savepoint)
        if pod_class.rules is not None and pod_class.rules.spread:
            assert all(count >= there for count, there in zip(counts, taken, strict=True))
        else:
            assert counts == taken
        placer.place(member)
