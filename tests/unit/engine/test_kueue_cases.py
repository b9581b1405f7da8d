"""Cases of Kueue's own tests of preemption, restated: one node as large as all quotas together.

Source: Kueue, pkg/scheduler/preemption, August and September 2026 (for 0.20): preemption_test.go, without the cases of
several flavors; preemption_configurable_test.go and config/evaluator_test.go, those of a PreemptionConfig.
"""

from typing import Any, NamedTuple

import msgspec
import pytest
from kaicore.kube.normalize.queue import normalize_preemption_config
from kaicore.rules.deciding.why import story_of
from kaicore.rules.events import payloads
from kaicore.rules.model.queue import Queue, QueueShare
from kaicore.rules.objects.wire import PlainObject

from tests.given.cluster.factory import pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.workloads import Workloads
from tests.measured.digest.engine import replayed


def cluster_queue(
    name: str, quota: int, cohort: str = "", *, borrows: int | None = None, lends: int | None = None, **policies: Any
) -> Queue:
    """A ClusterQueue with what it borrows and lends at most; None for as much as there is."""
    share = QueueShare(quota=quota, borrowing=borrows, lendable=lends)
    return queue(f"ClusterQueue/{name}", cohort and f"Cohort/{cohort}", share=share, **policies)


#: Work may borrow what priorities up to 0 hold.
LENT: dict[str, Any] = {"borrows_from_lower": True, "most_priority_lent": 0, "reclaims_lower": True}

#: As in Kueue: `c1` may have lower priorities evicted, also in its cohort, `c2` only what others owe its cohort.
QUEUES = {
    "s": [cluster_queue("s", 6, may_reclaim=False)],
    "c": [
        cluster_queue("c1", 6, "c", borrows=6, reclaims_lower=True),
        cluster_queue("c2", 6, "c", borrows=6, may_preempt=False),
    ],
    "d": [cluster_queue("c1", 6, "d", reclaims_lower=True), cluster_queue("c2", 6, "d", may_preempt=False)],
    "l": [cluster_queue("c1", 6, "l", borrows=12, reclaims_lower=True)],
    "lend": [
        cluster_queue("c1", 6, "lend", lends=4, reclaims_lower=True),
        cluster_queue("c2", 6, "lend", lends=2, reclaims_lower=True),
    ],
    "three": [
        cluster_queue("a", 2, "three"),
        cluster_queue("b", 2, "three", may_preempt=False, may_reclaim=False),
        cluster_queue("c", 2, "three", may_preempt=False, may_reclaim=False),
    ],
    "shared": [
        cluster_queue("as", 1, "shared", borrows=12, may_preempt=False, **LENT),
        cluster_queue("bs", 1, "shared", borrows=12, borrows_from_lower=True, most_priority_lent=0),
        cluster_queue("ab", 1, "shared", borrows=12, may_preempt=False, **LENT),
        cluster_queue("bb", 0, "shared", borrows=13, may_preempt=False, **LENT),
        cluster_queue("shared", 10, "shared", may_preempt=False, may_reclaim=False),
    ],
}


class Case(NamedTuple):
    """What runs, each as its name, queue, size and priority; what comes, likewise; who goes in Kueue.

    Attributes:
        ours: who goes here, where that is not the same: work takes back up to its fair share, which may be more than
            its quota.
    """

    about: str
    queues: str
    running: str
    comes: str
    goes: str = ""
    ours: str | None = None


THREE = "b1 b 1 0, b2 b 1 0, b3 b 1 0"
CASES = [
    Case("the lowest priority", "s", "low s 2 -1, mid s 2 0, high s 2 1", "s 2 1", "low"),
    Case("several", "s", "low s 2 -1, mid s 2 0, high s 2 1", "s 3 1", "low mid"),
    Case("none for a low priority", "s", "low s 3 -1, mid s 3 0", "s 1 -1"),
    Case("too few of lower priority", "s", "low s 3 -1, mid s 3 0", "s 4 0"),
    Case("some quota is free", "s", "low s 1 -1, mid s 1 0, high s 3 1", "s 2 1", "low"),
    Case("the fewest, not the lowest", "s", "low s 1 -1, mid s 2 0, high s 3 1", "s 2 1", "mid"),
    Case("from who borrows", "c", "low c1 3 -1, mid c2 3 0, high c2 6 1", "c1 3 1", "mid"),
    Case("nobody borrows", "c", "high c1 4 1, low c2 4 -1", "c1 4 1"),
    Case("too little is borrowed", "c", "high c1 4 1, low1 c2 4 -1, low2 c2 4 -1", "c1 4 1"),
    Case("from its own, and what it borrows stays", "c", "med c1 4 0, low c1 4 -1, other c2 4 -1", "c1 4 1", "low"),
    Case("the same without limits", "d", "med c1 4 0, low c1 4 -1, other c2 4 -1", "c1 4 1", "low"),
    Case("a cohort of one", "l", "med c1 4 0, low c1 2 -1", "c1 4 1", "med"),
    Case("only lower priorities are taken back", "c", "one c1 2 0, two c2 4 0, three c2 4 0", "c1 4 0"),
    Case("any priorities are taken back", "c", "one c1 4 0, two c1 4 1, three c2 2 0", "c2 4 0", "one"),
    Case(
        "from all queues of a cohort", "c", "low c1 3 -1, mid c1 2 0, low2 c2 3 -1, mid2 c2 4 0", "c1 4 0", "low low2"
    ),
    Case("none of its own where it may not", "c", "low c2 3 -1", "c2 4 1"),
    Case("from who was lent to", "lend", "low c1 3 -1, mid c2 3 0, high c2 4 1", "c1 3 1", "mid"),
    Case(
        "from both of two lenders", "lend", "low c1 3 -1, mid c1 2 0, low2 c2 3 -1, mid2 c2 4 0", "c1 4 0", "low low2"
    ),
    Case("more than may be lent", "lend", "low c2 10 -1", "c1 9 0"),
    Case(
        "its own go where it has all of its quota",
        "three",
        f"a1 a 1 -2, a2 a 1 -2, a3 a 1 -1, {THREE}",
        "a 2 0",
        "a1 a2",
    ),
    Case(
        "others' go where it has not",
        "three",
        f"a1 a 1 -1, {THREE}, b4 b 1 0, b5 b 1 -1",
        "a 2 0",
        "a1 b5",
        ours="b1 b5",
    ),
    Case("lower priority of others for what it borrows", "shared", "low ab 10 -1, low2 bb 1 -1", "as 10 0", "low"),
    Case("not above the threshold, where it still borrows", "shared", "mid bs 10 1", "as 10 2", ours="mid"),
    Case("above the threshold, where it borrows nothing", "shared", "mid bs 13 1", "as 1 2", "mid"),
    Case("not of its own queue", "shared", "own as 13 1", "as 1 2"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.about)
def test_who_goes_for_a_workload_is_as_in_kueue_or_the_case_says_otherwise(case: Case) -> None:
    cluster = Workloads()
    queues = QUEUES[case.queues]
    cluster.add_node("n0", cpu=64, gpu=sum(one.shares["gpu"].quota for one in queues))
    for one in queues:
        cluster.record(f"queue/{one.name}", payloads.QueueObserved(one))
    for text in filter(None, case.running.split(", ")):
        name, of_queue, size, priority = text.split()
        _add(cluster, name, of_queue, int(size), priority=int(priority), node_name="n0", phase="Running")
    of_queue, size, priority = case.comes.split()
    _add(cluster, "new", of_queue, int(size), priority=int(priority), created_at=9)
    gone = " ".join(sorted(cluster.evicted(cluster.cycle())))
    assert gone == (case.goes if case.ours is None else case.ours)
    assert case.goes != case.ours


def selector(scope: str, **asked: Any) -> dict[str, Any]:
    return {"scope": scope, **asked}


def rule(trigger: str, *selectors: dict[str, Any], **asked: Any) -> dict[str, Any]:
    return {"name": "r", "activationPolicy": {"trigger": trigger}, "candidateSelectors": list(selectors), **asked}


OWN, COHORT = "WithinClusterQueue", "WithinParentCohort"
TIER = {"numericLabels": [{"key": "tier", "comparison": "LessThan"}]}
LOWER = {"priority": {"mode": "Base", "comparison": "LessThan"}}
ALL = rule("Always", selector(OWN))
MORE = rule("InsufficientQuota", selector(OWN))
PLACE = rule("QuotaFeasibleAndInsufficientTopology", selector(OWN))
STAY = {"may_preempt": False, "may_reclaim": False}
LOWER_OWED = {"reclaims_lower": True}


class RuleCase(NamedTuple):
    """Rules, queues by quota, what runs, each as its name, queue, size, priority and tier, and what comes; who goes.

    A tier is a label, and the name of its priority class.

    Attributes:
        goes: names, with `*` what its own queue lets go and with `+` what another one owes; else by a rule.
        node: how many GPUs there are; by default as many as all quotas together.
        named: the rules that are named, where it is not the only one.
    """

    about: str
    rules: list[dict[str, Any]]
    running: str
    comes: str
    goes: str
    queues: str = "a 2 all"
    policies: dict[str, Any] = STAY
    node: int = 0
    named: str = "rules rule r/0"


TWO = "a1 a 1 0 -, a2 a 1 0 -"
RULES = [
    RuleCase("no rule", [], TWO, "a 1 0 -", ""),
    RuleCase("a rule that selects nothing", [rule("Always")], TWO, "a 1 0 -", ""),
    RuleCase("one", [ALL], TWO, "a 1 0 -", "a1"),
    RuleCase("several", [ALL], TWO, "a 2 0 -", "a1 a2"),
    RuleCase(
        "none, for the work is not the rule's",
        [rule("Always", selector(OWN), preemptorSelector={"matchLabels": {"tier": "9"}})],
        TWO,
        "a 1 0 5",
        "",
    ),
    RuleCase("too few", [rule("Always", selector(OWN, **TIER))], "a1 a 1 0 9, a2 a 1 0 1", "a 2 0 5", ""),
    RuleCase(
        "lower priorities alone",
        [rule("Always", selector(OWN, **LOWER))],
        "a1 a 1 20 -, a2 a 1 120 -",
        "a 1 100 -",
        "a1",
    ),
    RuleCase(
        "the queue's own victims first",
        [rule("Always", selector(OWN, **TIER))],
        "a1 a 1 10 -, a2 a 1 20 1, a3 a 1 200 2",
        "a 2 100 5",
        "a1* a2*",
        queues="a 3 all",
        policies={},
    ),
    RuleCase(
        "and with the rule's where those are too few",
        [rule("Always", selector(OWN, **TIER))],
        "a1 a 1 10 -, a2 a 1 20 1, a3 a 1 200 2",
        "a 3 100 5",
        "a1* a2* a3",
        queues="a 3 all",
        policies={},
    ),
    RuleCase(
        "of another queue within its quota",
        [rule("Always", selector(COHORT))],
        "a1 a 1 5 -, b1 b 1 0 -",
        "a 1 0 -",
        "b1",
        queues="a 1 all, b 1 all",
    ),
    RuleCase(
        "what is given back is not taken",
        [rule("Always", selector(COHORT, **TIER))],
        "s1 a 1 50 -, c1 b 2 10 1",
        "a 2 100 5",
        "c1",
        queues="a 1 all, b 2 all",
    ),
    RuleCase(
        "another cohort is no help",
        [rule("Always", selector("AnyClusterQueue"))],
        "a1 a 1 0 -, b1 b 1 0 -",
        "a 1 0 -",
        "a1",
        queues="a 1 one, b 1 two",
    ),
    RuleCase(
        "more for quota", [rule("Always", selector(OWN, **TIER)), MORE], "a1 a 1 100 1, a2 a 1 10 -", "a 2 0 5", "a1 a2"
    ),
    RuleCase(
        "no more for quota, where it suffices",
        [rule("Always", selector(OWN, **TIER)), MORE],
        "a1 a 1 100 1, a2 a 1 10 -",
        "a 1 0 5",
        "a1",
    ),
    RuleCase("for a place, where quota suffices", [PLACE], TWO, "a 1 0 -", "a1", queues="a 4 all", node=2),
    RuleCase("not for a place, where quota lacks", [PLACE], TWO, "a 1 0 -", "", queues="a 2 all", node=2),
    RuleCase(
        "not of a queue that a label protects",
        [rule("Always", selector(COHORT, clusterQueueSelector={"matchLabels": {"named": "a"}}))],
        "b1 b 1 0 -, a1 a 1 5 -",
        "a 1 0 -",
        "a1",
        queues="a 1 all, b 1 all",
    ),
    RuleCase(
        "what is owed comes first",
        [rule("Always", selector(COHORT, **TIER))],
        "b1 b 1 0 -, b2 b 1 0 1",
        "a 1 0 5",
        "b1+",
        queues="a 1 all, b 1 all",
        policies={},
    ),
    RuleCase(
        "what is owed, and by a rule what is of a higher priority",
        [rule("Always", selector(COHORT, **TIER))],
        "b1 b 1 0 -, b2 b 1 200 1",
        "a 2 100 5",
        "b1+ b2",
        queues="a 2 all, b 0 all",
        policies=LOWER_OWED,
    ),
    RuleCase(
        "the same where the rule's comes first by name, beside its own queue's",
        [rule("Always", selector(COHORT, **TIER))],
        "a1 a 1 0 -, b1 b 2 200 1, b2 b 1 0 -",
        "a 4 100 5",
        "a1* b1 b2+",
        queues="a 4 all, b 0 all",
        policies=LOWER_OWED,
    ),
    RuleCase(
        "not what is within the other's quota",
        [rule("Always", selector(COHORT, **TIER))],
        "b1 b 1 0 -, b2 b 1 0 1",
        "a 2 0 5",
        "",
        queues="a 1 all, b 1 all",
        policies={},
    ),
    RuleCase(
        "all rules of the first trigger by which any selects are named",
        [ALL | {"candidateSelectors": [selector(OWN), selector(COHORT)]}, MORE | {"name": "m"}, ALL | {"name": "s"}],
        TWO,
        "a 1 0 -",
        "a1",
        named="rules rule r/0,1; s/0",
    ),
    RuleCase(
        "by names of classes",
        [rule("Always", selector(OWN, priority={"matchNames": ["5", "9"], "notMatchNames": ["9"]}))],
        "a1 a 1 0 9, a2 a 1 0 5",
        "a 1 0 -",
        "a2",
    ),
    RuleCase(
        "not for another class", [ALL | {"preemptorPriorityClassSelector": {"matchNames": ["9"]}}], TWO, "a 1 0 5", ""
    ),
    RuleCase(
        "not by boosted priority",
        [rule("Always", selector(OWN, priority={"mode": "Boosted", "comparison": "LessThan"}))],
        TWO,
        "a 1 9 -",
        "",
    ),
]


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.about)
def test_rules_of_preemption_let_go_what_they_do_in_kueue(case: RuleCase) -> None:
    queues = [one.split() for one in case.queues.split(", ")]
    cluster = Workloads().add_node("n0", cpu=64, gpu=case.node or sum(int(quota) for _, quota, _ in queues))
    wire = {"metadata": {"name": "rules", "uid": "u"}, "spec": {"rules": case.rules}}
    configs = [normalize_preemption_config(msgspec.convert(wire, PlainObject))]
    named = [
        cluster_queue(
            name, int(quota), cohort, rules_in="PreemptionConfig/rules", labels={"named": name}, **case.policies
        )
        for name, quota, cohort in queues
    ]
    for one in (*configs, *named):
        cluster.record(f"queue/{one.name}", payloads.QueueObserved(one))
    for text in case.running.split(", "):
        name, of_queue, size, priority, tier = text.split()
        _add(cluster, name, of_queue, int(size), tier, priority=int(priority), node_name="n0", phase="Running")
    of_queue, size, priority, tier = case.comes.split()
    _add(cluster, "new", of_queue, int(size), tier, priority=int(priority), created_at=9)
    result = cluster.cycle()
    marks = {"Preempted": "*", "Reclaimed": "+", "ConfigurablePreemption": ""}
    assert " ".join(sorted(one.name + marks[one.reason] for one in result.evictions)) == case.goes
    for one in result.evictions:
        assert one.rule == ("" if marks[one.reason] else case.named)
        story = story_of([event for event in cluster.events if event.stream == f"pod/{one.uid}"])[-1].text
        by_rule = f" by preemption config {one.rule}" if one.rule else ""
        assert f"{one.reason}{by_rule} to make way for Pod/default/new" in story
    assert replayed(cluster.events)[3] == []
    said = {reason.code for one in result.pending for alone in one.alone for reason in alone.reasons}
    assert ("PreemptionRuleUnsupported" in said) == ("boosted" in case.about)


def _add(cluster: Workloads, name: str, of_queue: str, size: int, tier: str = "-", **fields: object) -> None:
    labels = {"kai.scheduler/queue": f"ClusterQueue/{of_queue}", "kai.scheduler/preemptibility": "preemptible"}
    labels |= {} if tier == "-" else {"tier": tier}
    cluster.add_pod(pod(name, cpu=1, gpu=size, labels=labels, priority_class=tier.strip("-"), **fields))
