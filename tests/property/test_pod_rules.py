"""The ordinary rules against an oracle that is slow and obvious, on random clusters; and counts that come and go."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.engine.constraints.constraint_evaluator import ConstraintEvaluator
from kaicore.rules.engine.constraints.node_matching import affine, selected, tolerates
from kaicore.rules.engine.constraints.pod_marks import PodMarks
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.events import payloads
from kaicore.rules.model.node import Node, Taint
from kaicore.rules.model.pod import HostPort, Pod, PodRules, PodTerm, PreferredPods, SpreadConstraint, Toleration
from kaicore.rules.model.selector import PodSelector, Requirement, meets
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import Cluster, node, pod
from tests.given.examples import examples

KEYS = ("zone", "host")

requirements = st.one_of(
    st.builds(Requirement, st.just("app"), st.sampled_from(["In", "NotIn"]), st.sampled_from([("x",), ("x", "y")])),
    st.builds(Requirement, st.just("tier"), st.sampled_from(["Exists", "DoesNotExist"])),
)
label_selectors = st.one_of(st.none(), st.lists(requirements, max_size=2).map(tuple))


@st.composite
def selectors(draw: st.DrawFn, *, living: bool = False) -> PodSelector:
    return PodSelector(draw(st.sampled_from([("default",), ("default", "other")])), None, draw(label_selectors), living)


terms = st.builds(PodTerm, st.sampled_from(KEYS), selectors())
spreads = st.builds(
    SpreadConstraint,
    st.integers(1, 2),
    st.sampled_from(KEYS),
    selectors(living=True),
    required=st.booleans(),
    min_domains=st.integers(1, 3),
    honor_affinity=st.booleans(),
    honor_taints=st.booleans(),
)
rules_of = st.one_of(
    st.none(),
    st.builds(
        PodRules,
        affinity=st.lists(terms, max_size=2).map(tuple),
        anti_affinity=st.lists(terms, max_size=2).map(tuple),
        preferred_pods=st.lists(st.builds(PreferredPods, st.sampled_from([-3, 2]), terms), max_size=1).map(tuple),
        spread=st.lists(spreads, max_size=2).map(tuple),
        host_ports=st.sets(st.builds(HostPort, st.just(80), ip=st.sampled_from(["0.0.0.0", "1.1.1.1"])), max_size=1)
        .map(sorted)
        .map(tuple),
    ),
)


@st.composite
def pods(draw: st.DrawFn, name: str, nodes: list[str]) -> Pod:
    labels = {"app": draw(st.sampled_from(["x", "y"]))} if draw(st.booleans()) else {}
    if draw(st.booleans()):
        labels["tier"] = "t"
    where = draw(st.sampled_from(["", "", *nodes]))
    return pod(
        name,
        cpu=1,
        namespace=draw(st.sampled_from(["default", "other"])),
        labels=labels,
        rules=draw(rules_of),
        node_name=where,
        phase="Running" if where else "Pending",
        deletion_at=draw(st.sampled_from([None, None, 5])) if where else None,
        node_selector=draw(st.sampled_from([{}, {}, {"zone": "a"}])),
        tolerations=draw(st.sampled_from([(), (Toleration("k", "Exists"),)])),
    )


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Node], list[Pod], list[int]]:
    nodes = []
    for index in range(draw(st.integers(1, 5))):
        zone = draw(st.sampled_from(["a", "b", None]))
        labels = {"host": f"n{index}"} | ({"zone": zone} if zone else {})
        taints = draw(st.sampled_from([(), (), (Taint("k", "NoSchedule"),), (Taint("k", "PreferNoSchedule"),)]))
        nodes.append(node(f"n{index}", cpu=100, labels=labels, taints=taints))
    names = [one.name for one in nodes]
    drawn = [draw(pods(f"p{index}", names)) for index in range(draw(st.integers(1, 8)))]
    return nodes, drawn, draw(st.lists(st.integers(0, 7), max_size=3))


@dataclass
class Oracle:
    """The nodes that a pod may go to, straight from the words of the documentation."""

    nodes: dict[str, Node]
    there: list[tuple[Pod, str]]

    def selects(self, selector: PodSelector, one: Pod) -> bool:
        if selector.labels is None or one.namespace not in selector.namespaces:
            return False
        return meets(one.labels, selector.labels) and not (selector.living and one.deletion_at is not None)

    def neighbours(self, name: str, key: str) -> list[Pod]:
        """Pods in the node's domain; none where it has no such label."""
        value = self.nodes[name].labels.get(key)
        return [one for one, at in self.there if value is not None and self.nodes[at].labels.get(key) == value]

    def allows(self, new: Pod, name: str) -> bool:
        rules, labels = new.rules or PodRules(), self.nodes[name].labels
        for term in rules.anti_affinity:
            if any(self.selects(term.selector, one) for one in self.neighbours(name, term.topology_key)):
                return False
        for one, _ in self.there:
            for term in (one.rules or PodRules()).anti_affinity:
                if self.selects(term.selector, new) and one in self.neighbours(name, term.topology_key):
                    return False
        if rules.affinity and not self.affinity(new, rules, name):
            return False
        required = [constraint for constraint in rules.spread if constraint.required]
        if any(constraint.topology_key not in labels for constraint in required):
            return False
        if any(self.skew(new, constraint, required, name) > constraint.max_skew for constraint in required):
            return False
        held = [port for one, at in self.there if at == name for port in (one.rules or PodRules()).host_ports]
        return not any(
            a.port == b.port and a.protocol == b.protocol and (a.ip == b.ip or "0.0.0.0" in (a.ip, b.ip))
            for a in rules.host_ports
            for b in held
        )

    def affinity(self, new: Pod, rules: PodRules, name: str) -> bool:
        keys = {term.topology_key for term in rules.affinity}
        if any(key not in self.nodes[name].labels for key in keys):
            return False

        def of_all(one: Pod) -> bool:
            return all(self.selects(term.selector, one) for term in rules.affinity)

        if all(any(of_all(one) for one in self.neighbours(name, key)) for key in keys):
            return True
        anywhere = any(of_all(one) and keys & set(self.nodes[at].labels) for one, at in self.there)
        return not anywhere and of_all(new)

    def skew(self, new: Pod, constraint: SpreadConstraint, required: list[SpreadConstraint], name: str) -> int:
        def counts(one: Node) -> bool:
            if any(other.topology_key not in one.labels for other in required):
                return False
            if constraint.honor_affinity and not all(one.labels.get(k) == v for k, v in new.node_selector.items()):
                return False
            return not constraint.honor_taints or all(tolerates(new.tolerations, taint) for taint in one.taints)

        domains: dict[str, int] = {one.labels[constraint.topology_key]: 0 for one in self.nodes.values() if counts(one)}
        for one, at in self.there:
            if counts(self.nodes[at]) and self.selects(constraint.selector, one):
                domains[self.nodes[at].labels[constraint.topology_key]] += 1
        least = 0 if len(domains) < constraint.min_domains else min(domains.values(), default=0)
        here = domains.get(self.nodes[name].labels[constraint.topology_key], 0)
        return here + self.selects(constraint.selector, new) - least


def of(nodes: list[Node], all_pods: list[Pod], gone: list[int]) -> tuple[Cluster, Oracle]:
    cluster = Cluster()
    for one in nodes:
        cluster.record(f"node/{one.name}", payloads.NodeObserved(one))
    for each in all_pods:
        cluster.add_pod(each)
    left = list(all_pods)
    for index in sorted(set(gone), reverse=True):
        if index < len(left):
            cluster.delete_pod(left.pop(index))
    return cluster, Oracle(
        {one.name: one for one in nodes}, [(each, each.node_name) for each in left if each.node_name]
    )


def verdicts(state: ClusterState, new: Pod) -> set[str]:
    pod_class, columns = state.class_of(state.pods[new.uid]), state.columns.copy()
    fitting = selected(columns, pod_class.node_selector) & affine(columns, pod_class.node_affinity)
    tolerated = columns.taints_where(lambda taint: tolerates(pod_class.tolerations, taint))[0]
    rules = ConstraintEvaluator(pod_class, columns, fitting=fitting, tolerated=tolerated)
    return {name for name, row in columns.rows.items() if not rules.refuses(row)}


@settings(max_examples=examples(300), deadline=None)
@given(clusters())
def test_pod_rules_give_the_verdicts_of_the_oracle(given_: tuple[list[Node], list[Pod], list[int]]) -> None:
    cluster, oracle = of(*given_)
    restored = decode_state(encode_state(cluster.state))
    for uid in cluster.state.waiting:
        new = cluster.state.pods[uid].pod
        expected = {name for name in oracle.nodes if oracle.allows(new, name)}
        assert verdicts(cluster.state, new) == expected
        assert verdicts(restored, new) == expected
        assert restored.class_of(restored.pods[uid]) == cluster.state.class_of(cluster.state.pods[uid])


@settings(max_examples=examples(150), deadline=None)
@given(clusters())
def test_every_decision_of_a_cycle_is_allowed_when_it_is_taken(given_: tuple[list[Node], list[Pod], list[int]]) -> None:
    cluster, oracle = of(*given_)
    by_uid = {uid: entry.pod for uid, entry in cluster.state.pods.items()}
    result = cluster.cycle()
    for decision in result.placements:
        new = by_uid[decision.uid]
        assert oracle.allows(new, decision.node)
        oracle.there.append((new, decision.node))
    assert _marks(cluster.state.columns) == _marks(ClusterState("test").fold_all(cluster.events).columns)
    for uid in list(cluster.state.pods):
        cluster.delete_pod(by_uid[uid])
    assert _marks(cluster.state.columns) == {}, "nothing stays of pods that are gone"


def _marks(columns: NodeColumns) -> dict[str, dict[int, int]]:
    marks: Any = columns.marks
    return {mark: dict(counts) for mark, counts in marks._counts.items() if counts}


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["m", "n", "o"]), st.booleans()), max_size=30))
def test_marks_of_a_copy_come_and_go_and_sums_keep_up(steps: list[tuple[int, str, bool]]) -> None:
    columns = NodeColumns()
    for index in range(5):
        columns.set_node(node(f"n{index}", labels={"zone": "ab"[index % 2]}), columns.row(f"n{index}"))
    columns.marks.charge(0, ("m", "n"))
    columns.marks.charge(3, ("m",))
    before = _marks(columns)
    copy = columns.copy()
    values = copy.label_values("zone")
    sums = {mark: copy.marks.sums(mark, "zone", values) for mark in ("m", "n", "o")}
    undo = []
    for row, mark, charge in steps:
        if charge:
            copy.marks.charge(row, (mark,))
            undo.append((row, mark))
        elif undo:
            last, name = undo.pop()
            copy.marks.charge(last, (name,), sign=-1)
    for mark, counted in sums.items():
        recount = [0, 0]
        for row, count in copy.marks.counts(mark).items():
            recount[row % 2] += count
        assert counted.sums.tolist() == recount
    for row, mark in reversed(undo):
        copy.marks.charge(row, (mark,), sign=-1)
    assert _marks(copy) == before == _marks(columns)
    assert isinstance(copy.marks, PodMarks)
