"""The ordinary Kubernetes rules, as kube-scheduler's own documentation states them, in tables."""

from dataclasses import dataclass, field
from math import log

import msgspec
import numpy as np
import pytest
from kaicore.rules.engine.config import EngineConfig, PlacementStrategy
from kaicore.rules.engine.constraints.constraint_evaluator import ConstraintEvaluator, ln_fixed
from kaicore.rules.engine.placement.statement import PodCharge, Statement
from kaicore.rules.events import payloads
from kaicore.rules.model.node import Taint
from kaicore.rules.model.pod import (
    HostPort,
    Namespace,
    Pod,
    PodRules,
    PodTerm,
    PreferredNodes,
    PreferredPods,
    SpreadConstraint,
    Toleration,
)
from kaicore.rules.model.selector import PodSelector, Requirement
from msgspec.structs import replace

from tests.given.cluster.factory import Cluster, node, pod
from tests.given.work.workloads import OWNER, Workloads

ZONE, HOST = "zone", "kubernetes.io/hostname"
Labels = dict[str, str]


def app(name: str, *namespaces: str, living: bool = False) -> PodSelector:
    return PodSelector(namespaces or ("default",), labels=(Requirement("app", "In", (name,)),), living=living)


def term(name: str, key: str = ZONE) -> PodTerm:
    return PodTerm(key, app(name))


def near(name: str, key: str = ZONE) -> PodRules:
    return PodRules(affinity=(term(name, key),))


def away(name: str, key: str = ZONE) -> PodRules:
    return PodRules(anti_affinity=(term(name, key),))


def spread(key: str = ZONE, *, skew: int = 1, required: bool = True, of: str = "web", **more: object) -> PodRules:
    constraint = SpreadConstraint(skew, key, app(of, living=True), required=required, **more)  # type: ignore[arg-type]
    return PodRules(spread=(constraint,))


def zones(**members: str) -> Cluster:
    """A cluster with nodes, separated by blanks, in zones."""
    cluster = Cluster()
    for zone, names in members.items():
        for name in names.split():
            labels = {HOST: name} | ({ZONE: zone} if zone != "none" else {})
            cluster.record(f"node/{name}", payloads.NodeObserved(node(name, cpu=8, labels=labels)))
    return cluster


def running(cluster: Cluster, name: str, on: str, **more: object) -> Pod:
    more.setdefault("labels", {"app": "web"})
    return cluster.add_pod(pod(name, cpu=1, node_name=on, phase="Running", **more))  # type: ignore[arg-type]


def placed(cluster: Cluster, config: EngineConfig | None = None) -> dict[str, str]:
    return {decision.name: decision.node for decision in cluster.cycle(config).placements}


def why(cluster: Cluster) -> dict[str, tuple[int, str]]:
    (pending,) = cluster.cycle().pending
    return {reason.code: (reason.affected_nodes, msgspec.to_builtins(reason)["detail"]) for reason in pending.reasons}


@dataclass
class Case:
    """The running pods (`name: (node, labels, rules)`), the new pod, and the nodes where it may go."""

    says: str
    rules: PodRules | None
    may: str
    there: dict[str, tuple[str, Labels, PodRules | None]] = field(default_factory=dict)
    labels: Labels = field(default_factory=lambda: {"app": "web"})


WEB: Labels = {"app": "web"}
CASES = [
    Case("affinity: the domain of a pod that is selected", near("db"), "a1 a2", {"d": ("a1", {"app": "db"}, None)}),
    Case("affinity: no pod is there", near("db"), ""),
    Case("affinity: the first of its kind goes anywhere that has the label", near("web"), "a1 a2 b1 c1"),
    Case("affinity: the second goes to the first", near("web"), "b1", {"w": ("b1", WEB, None)}),
    Case(
        "affinity: all terms must be met by one kind of pods, each in its own domain",
        PodRules(affinity=(term("web"), PodTerm(HOST, PodSelector(("default",), labels=())))),
        "a1",
        {"w": ("a1", WEB, None), "d": ("b1", {"app": "db"}, None)},
    ),
    Case("anti-affinity: not in the domain", away("db"), "b1 c1 x", {"d": ("a1", {"app": "db"}, None)}),
    Case("anti-affinity by host", away("db", HOST), "a2 b1 c1 x", {"d": ("a1", {"app": "db"}, None)}),
    Case("anti-affinity: only those that it selects are meant", away("db"), "a1 a2 b1 c1 x", {"d": ("a1", {}, None)}),
    Case("anti-affinity of those that are there keeps others out", None, "b1 c1 x", {"d": ("a1", {}, away("web"))}),
    Case("but no pod that it does not select", None, "a1 a2 b1 c1 x", {"d": ("a1", {}, away("web"))}, labels={}),
    Case("a pod on a node without the label makes no domain", away("db"), "a1 a2 b1 c1 x", {"d": ("x", {}, None)}),
    Case("spread: nodes without the label are out", spread(), "a1 a2 b1 c1"),
    Case("spread: the fullest domain is out", spread(), "b1 c1", {"w": ("a1", WEB, None)}),
    Case("spread: as far as the skew allows", spread(skew=2), "a1 a2 b1 c1", {"w": ("a2", WEB, None)}),
    Case("spread: a domain with none is the least", spread(), "c1", {"v": ("a1", WEB, None), "w": ("b1", WEB, None)}),
    Case(
        "spread: with too few domains the least is 0",
        spread(min_domains=4),
        "",
        {"u": ("a1", WEB, None), "v": ("b1", WEB, None), "w": ("c1", WEB, None)},
    ),
    Case(
        "spread: with enough domains it is not",
        spread(min_domains=3),
        "a1 a2 b1 c1",
        {"u": ("a1", WEB, None), "v": ("b1", WEB, None), "w": ("c1", WEB, None)},
    ),
    Case(
        "spread: a pod that its own constraint does not select adds nothing",
        spread(),
        "a1 a2 b1 c1",
        {"w": ("a1", WEB, None)},
        labels={},
    ),
    Case(
        "host port: the same port on every address",
        PodRules(host_ports=(HostPort(80),)),
        "a2 b1 c1 x",
        {"w": ("a1", {}, PodRules(host_ports=(HostPort(80, "TCP", "10.0.0.1"),)))},
    ),
    Case(
        "host port: other addresses and protocols do not matter",
        PodRules(host_ports=(HostPort(80, "TCP", "10.0.0.2"),)),
        "a1 a2 b1 c1 x",
        {
            "v": ("a1", {}, PodRules(host_ports=(HostPort(80, "UDP"),))),
            "w": ("b1", {}, PodRules(host_ports=(HostPort(80, "TCP", "10.0.0.1"),))),
        },
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
def test_pod_rules_allow_the_expected_nodes(case: Case) -> None:
    """Each node is offered alone, so that no preference hides another node that would do as well."""
    possible = []
    for name in ("a1", "a2", "b1", "c1", "x"):
        cluster = zones(a="a1 a2", b="b1", c="c1", none="x")
        for other, (where, labels, rules) in case.there.items():
            running(cluster, other, where, labels=labels, rules=rules)
        here = ((Requirement("metadata.name", "In", (name,), field=True),),)
        rules = case.rules
        if rules is not None and rules.spread:
            # Otherwise the one node would be the only domain.
            rules = PodRules(spread=tuple(replace(one, honor_affinity=False) for one in rules.spread))
        cluster.add_pod(pod("p", cpu=1, labels=case.labels, rules=rules, node_affinity=here))
        possible += list(placed(cluster).values())
    assert " ".join(possible) == case.may


def test_spread_counts_nodes_that_the_pod_may_go_to_unless_told_otherwise() -> None:
    def cluster(rules: PodRules) -> Cluster:
        scene = zones(a="a1", b="b1", c="c1")
        running(scene, "w", "a1")
        running(scene, "v", "b1")
        not_c = ((Requirement(ZONE, "NotIn", ("c",)),),)
        scene.add_pod(pod("p", cpu=1, labels=WEB, rules=rules, node_affinity=not_c))
        return scene

    assert placed(cluster(spread())) == {"p": "a1"}
    assert placed(cluster(spread(honor_affinity=False))) == {}


def test_spread_counts_tainted_nodes_unless_told_otherwise() -> None:
    def cluster(rules: PodRules) -> Cluster:
        scene = zones(a="a1", b="b1")
        tainted = node("c1", cpu=8, labels={ZONE: "c"}, taints=(Taint("k", "NoSchedule"),))
        scene.record("node/c1", payloads.NodeObserved(tainted))
        running(scene, "w", "a1")
        running(scene, "v", "b1")
        scene.add_pod(pod("p", cpu=1, labels=WEB, rules=rules))
        return scene

    assert placed(cluster(spread())) == {}
    assert placed(cluster(spread(honor_taints=True))) == {"p": "a1"}


def test_one_cycle_spreads_keeps_apart_and_keeps_together() -> None:
    cluster = zones(a="a1 a2", b="b1", c="c1")
    for number in range(5):
        cluster.add_pod(pod(f"p{number}", cpu=1, labels=WEB, rules=spread()))
    by_zone = [name[0] for name in placed(cluster).values()]
    assert sorted(by_zone.count(zone) for zone in "abc") == [1, 2, 2]
    cluster = zones(a="a1 a2", b="b1")
    for number in range(4):
        cluster.add_pod(pod(f"p{number}", cpu=1, labels=WEB, rules=away("web", HOST)))
    result = cluster.cycle()
    assert sorted(decision.node for decision in result.placements) == ["a1", "a2", "b1"]
    assert [(reason.code, reason.nodes) for reason in result.pending[0].reasons] == [("PodAntiAffinity", 3)]
    cluster = zones(a="a1", b="b1")
    for number in range(12):
        cluster.add_pod(pod(f"p{number:02}", cpu=1, labels=WEB, rules=near("web")))
    assert set(placed(cluster).values()) == {"a1"}, "8 fit, and no other zone is theirs"


def test_host_ports_are_taken_within_a_cycle() -> None:
    cluster = zones(a="a1", b="b1")
    for number in range(3):
        cluster.add_pod(pod(f"p{number}", cpu=1, rules=PodRules(host_ports=(HostPort(80),))))
    assert sorted(placed(cluster).values()) == ["a1", "b1"]


def test_pod_placed_earlier_in_a_cycle_meets_the_affinity_of_a_later_one() -> None:
    cluster = zones(a="a1", b="b1")
    cluster.add_pod(pod("1-early", cpu=1, rules=near("db")))
    cluster.add_pod(pod("2-db", cpu=1, labels={"app": "db"}, created_at=1))
    cluster.add_pod(pod("3-late", cpu=1, rules=near("db"), created_at=2))
    before = cluster.state.revision
    assert set(placed(cluster)) == {"2-db", "3-late"}
    assert cluster.state.revision > before, "there is a reason for another cycle"
    assert set(placed(cluster)) == {"1-early"}


def test_pod_does_not_start_beside_one_for_which_room_is_only_kept() -> None:
    cluster = Workloads()
    for name in ("a1", "b1"):
        cluster.add_node(name, cpu=8, gpu=1, labels={ZONE: name})
    cluster.runs("low", "b1", 1, owner=OWNER)
    db = cluster.gang("db", 2, cpu=1, gpu=1, priority=9, labels={"app": "db"})
    decided = cluster.cycle()
    assert cluster.nominated(decided) == {"db-0": "a1", "db-1": "b1"}
    web = cluster.add_pod(pod("web", cpu=1, priority=10, rules=near("db")))
    assert placed(cluster) == {}
    cluster.go(decided)
    assert placed(cluster).keys() >= {one.name for one in db}
    assert web.uid not in cluster.state.waiting or "web" in placed(cluster)


def test_pods_that_have_ended_count_for_no_rule_and_terminating_ones_do() -> None:
    cluster = zones(a="a1", b="b1")
    db = running(cluster, "db", "a1", labels={"app": "db"})
    running(cluster, "web", "b1", deletion_at=5)
    cluster.add_pod(pod("spread", cpu=1, labels=WEB, rules=spread()))
    cluster.add_pod(pod("apart", cpu=1, created_at=1, rules=PodRules(anti_affinity=(term("web"), term("db")))))
    assert placed(cluster) == {"spread": "a1"}, "who terminates does not count for spread, but is there for affinity"
    cluster.delete_pod(db)
    assert "spread" not in placed(cluster)


def test_rules_follow_changed_labels_of_pods_and_namespaces() -> None:
    cluster = zones(a="a1", b="b1")
    running(cluster, "other", "a1", namespace="team", labels={"app": "db"})
    of_team = PodSelector((), (Requirement("team", "Exists"),), (Requirement("app", "In", ("db",)),))
    cluster.add_pod(pod("p", cpu=1, rules=PodRules(affinity=(PodTerm(ZONE, of_team),))))
    assert why(cluster) == {"PodAffinity": (2, ZONE)}
    cluster.record("namespace/team", payloads.NamespaceObserved(Namespace("u", "team", "1", {"team": "x"})))
    assert placed(cluster) == {"p": "a1"}
    cluster.add_pod(pod("q", cpu=1, rules=PodRules(affinity=(PodTerm(ZONE, of_team),))))
    running(cluster, "other", "a1", namespace="team", labels={"app": "web"})
    assert why(cluster) == {"PodAffinity": (2, ZONE)}


def test_preferences_decide_before_packing_and_never_rule_out() -> None:
    cluster = zones(a="a1", b="b1", c="c1")
    running(cluster, "w", "a1")
    cases: dict[str, PodRules | None] = {
        "node": PodRules(preferred_nodes=(PreferredNodes(1, (Requirement(ZONE, "In", ("c",)),)),)),
        "apart": PodRules(preferred_pods=(PreferredPods(-1, term("web")),)),
        "near": PodRules(preferred_pods=(PreferredPods(1, term("web")),)),
        "none": None,
        "spread": spread(required=False),
    }
    expected = {"node": "c1", "apart": "b1", "near": "a1", "none": "a1", "spread": "b1"}
    for name, rules in cases.items():
        alone = pod(name, cpu=1, rules=rules)
        cluster.add_pod(alone)
        assert placed(cluster) == {name: expected[name]}, name
        cluster.delete_pod(alone)
    only_a = ((Requirement(ZONE, "In", ("a",)),),)
    cluster.add_pod(pod("must", cpu=1, rules=cases["apart"], node_affinity=only_a))
    assert placed(cluster) == {"must": "a1"}


def test_pod_that_a_running_pod_prefers_is_placed_near_it() -> None:
    cluster = zones(a="a1", b="b1")
    running(cluster, "d", "b1", labels={}, rules=PodRules(preferred_pods=(PreferredPods(5, term("web")),)))
    cluster.delete_pod(running(cluster, "pad", "a1", labels={}))
    cluster.add_pod(pod("other", cpu=6))
    cluster.add_pod(pod("web", cpu=1, labels=WEB, created_at=1))
    assert placed(cluster) == {"other": "b1", "web": "b1"}
    cluster = zones(a="a1", b="b1")
    running(cluster, "d", "b1", labels={}, rules=near("web"))
    running(cluster, "full", "a1", labels={})
    running(cluster, "fuller", "a1", labels={})
    cluster.add_pod(pod("web", cpu=1, labels=WEB))
    assert placed(cluster) == {"web": "b1"}, "a required affinity draws as well"


def test_node_with_a_soft_taint_is_taken_last() -> None:
    cluster = Cluster()
    soft = node("a", cpu=8, taints=(Taint("spot", "PreferNoSchedule"),))
    cluster.record("node/a", payloads.NodeObserved(soft))
    cluster.record("node/b", payloads.NodeObserved(node("b", cpu=2)))
    cluster.add_pod(pod("tolerant", cpu=2, tolerations=(Toleration("spot", "Exists"),)))
    cluster.add_pod(pod("p", cpu=2, created_at=1))
    cluster.add_pod(pod("q", cpu=2, created_at=2))
    # The tolerant one fills the smaller node.
    assert placed(cluster) == {"tolerant": "b", "p": "a", "q": "a"}


def test_devices_and_cpus_are_packed_or_spread_each_on_their_own() -> None:
    def nodes_of(config: EngineConfig) -> dict[str, str]:
        cluster = Cluster()
        for name in ("g1", "g2"):
            cluster.add_node(name, cpu=64, gpu=8)
        for name in ("c1", "c2"):
            cluster.add_node(name, cpu=64)
        for number in range(2):
            cluster.add_pod(pod(f"gpu{number}", cpu=1, gpu=1))
            cluster.add_pod(pod(f"cpu{number}", cpu=1))
        return placed(cluster, config)

    packed, spread_out = PlacementStrategy.BINPACK, PlacementStrategy.SPREAD
    mixed = EngineConfig(placement_strategy=packed, cpu_placement_strategy=spread_out)
    assert nodes_of(mixed) == {"gpu0": "g1", "gpu1": "g1", "cpu0": "c1", "cpu1": "c2"}
    mixed = EngineConfig(placement_strategy=spread_out, cpu_placement_strategy=packed)
    assert nodes_of(mixed) == {"gpu0": "g1", "gpu1": "g2", "cpu0": "c1", "cpu1": "c1"}
    assert nodes_of(EngineConfig(placement_strategy=spread_out))["cpu1"] == "c2"


def test_reasons_of_pod_rules_read_as_documented() -> None:
    cluster = zones(a="a1 a2", b="b1", none="x")
    cluster.record("node/b1", payloads.NodeObserved(node("b1", ready=False, cpu=8, labels={ZONE: "b"})))
    running(cluster, "w", "a1")
    cluster.add_pod(pod("p", cpu=1, labels=WEB, rules=spread()))
    (pending,) = cluster.cycle().pending
    assert [str(reason) for reason in pending.reasons] == [
        "2 nodes where pods would not be spread by zone: skew 2 with it, 1 allowed (such as a1)",
        "1 node without the topology label zone (such as x)",
        "1 node not ready (such as b1)",
    ]


def test_pods_that_no_rule_tells_apart_are_one_class() -> None:
    cluster = zones(a="a1")
    for number in range(20):
        cluster.add_pod(pod(f"p{number}", cpu=100, labels={"app": f"app-{number}", "index": str(number)}))
    assert len(cluster.cycle().pending) == 1
    cluster.add_pod(pod("apart", cpu=100, rules=away("app-3")))
    assert len(cluster.cycle().pending) == 3, "the one that another pod's rule selects, the others, and that one"


@pytest.mark.parametrize("number", [1, 2, 3, 5, 10, 1_000, 65_536, 10_000_003])
def test_logarithm_in_whole_numbers_is_exact(number: int) -> None:
    assert abs(ln_fixed(number) - log(number) * 2**20) <= 1


def test_statement_takes_marks_back_with_the_charges() -> None:
    """Placing, evicting and putting back, as gangs and preemption do it: the rules see each, and each undone."""
    cluster = zones(a="a1 a2", b="b1")
    victim = running(cluster, "victim", "a1", rules=PodRules(host_ports=(HostPort(80),)))
    cluster.add_pod(pod("p", cpu=1, labels=WEB, rules=away("web")))
    state = cluster.state
    columns, pod_class = state.columns.copy(), state.class_of(state.pods["uid-p"])
    statement, every = Statement(columns), np.ones(len(columns.present), np.bool_)
    rules = ConstraintEvaluator(pod_class, columns, fitting=every, tolerated=every)

    def allowed() -> str:
        return " ".join(name for name, row in sorted(columns.rows.items()) if not rules.refuses(row))

    assert allowed() == "b1"
    begun = statement.savepoint()
    held = state.class_of(state.pods[victim.uid])
    pod_charge = PodCharge(victim.uid, columns.rows["a1"], held.requests, marks=held.marks)
    statement.evict(pod_charge)
    assert allowed() == "a1 a2 b1"
    evicted = statement.savepoint()
    statement.place(PodCharge("uid-p", columns.rows["b1"], pod_class.requests, marks=pod_class.marks))
    assert allowed() == "a1 a2"
    assert statement.stays_put(pod_charge)
    assert allowed() == ""
    statement.rollback(evicted)
    assert allowed() == "a1 a2 b1"
    statement.rollback(begun)
    assert allowed() == "b1"
