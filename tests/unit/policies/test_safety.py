"""A policy that fails is left out of the cycle with a typed reason; the cycle goes on, and a replay agrees."""

from operator import setitem
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from kai_scheduler.metrics import SchedulerMetrics
from kaicore.policy import Facts, Hold, Nodes, Policy, Queue, Waiting, Work
from kaicore.rules.deciding.cycle_run import LeftOut
from kaicore.rules.engine.config import Backfill
from kaicore.rules.engine.policies.book import PolicyGuard
from kaicore.rules.events import payloads
from kaicore.runtime.policies.guard import TimeAndMemory
from prometheus_client import CollectorRegistry

from tests.given.cluster.factory import amounts, pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.policies import WithPolicies
from tests.given.work.workloads import OWNER

GPU, METRIC = "nvidia.com/gpu", "kai_cycle_left_out"


class Failing(Policy):
    """Makes of the nodes what `answer` says."""

    name = "failing"

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Any:
        return self.answer(nodes)

    def answer(self, nodes: Nodes) -> Any:
        raise NotImplementedError


class Raises(Failing):
    def answer(self, nodes: Nodes) -> Any:
        return nodes.labels("undeclared")


class Ends(Failing):
    def answer(self, nodes: Nodes) -> Any:
        raise SystemExit


class AList(Failing):
    def answer(self, nodes: Nodes) -> Any:
        return [0] * len(nodes)


class Unlocks(Failing):
    def answer(self, nodes: Nodes) -> Any:
        used = nodes.used(GPU)
        used.flags.writeable = True
        return used


class Good(Policy):
    name, node_labels = "good", ("best",)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Any:
        return np.where(nodes.labels("best") == "true", 1000, 0)


def cluster(kind: type[Policy], **options: Any) -> WithPolicies:
    made = WithPolicies(Good, kind, **options)
    made.add_node("n0", cpu=64, gpu=8)
    made.add_node("n1", cpu=64, gpu=8, labels={"best": "true"})
    made.add_pod(pod("one", cpu=1, gpu=1))
    return made


@pytest.mark.parametrize(
    ("kind", "why", "detail"),
    [
        (Raises, "Raised", "score: Undeclared"),
        (Ends, "Raised", "score: SystemExit"),
        (AList, "WrongAnswer", "score: expected 2 integers, got list"),
        (Unlocks, "ChangedInput", "score: ValueError"),
    ],
)
def test_a_failing_policy_is_left_out_and_the_others_decide(kind: type[Policy], why: str, detail: str) -> None:
    made = cluster(kind)
    proposal = made.decided()
    (left_out,) = proposal.policies_left_out
    assert (left_out.policy, left_out.why, left_out.detail) == ("failing", why, detail)
    assert made.placed(proposal.result) == {"one": "n1"}
    assert proposal.left_out == LeftOut()
    assert made.replayed().differences == []


def looped(*_: object) -> Any:
    while True:
        try:
            len(_)
        except Exception:
            continue


#: By failure, what each point does for it; the cause and the end of the detail, of which the point is the beginning.
BY_NODE, BY_GROUP = ("filter", "score"), ("order", "order_queue", "victims", "admit")
FAILURES: list[tuple[tuple[str, ...], Any, str, str]] = [
    ((*BY_NODE, *BY_GROUP), lambda *_: 1 // 0, "Raised", "ZeroDivisionError"),
    (
        BY_NODE[:1],
        lambda nodes, *_: np.ones(1, np.bool_),
        "WrongAnswer",
        "expected 2 truth values, got bool of shape (1,)",
    ),
    (
        BY_NODE[1:],
        lambda nodes, *_: np.ones(1, np.int64),
        "WrongAnswer",
        "expected 2 integers, got int64 of shape (1,)",
    ),
    (BY_NODE[1:], lambda nodes, *_: np.ones(2), "WrongAnswer", "expected 2 integers, got float64 of shape (2,)"),
    (BY_GROUP[:3], lambda *_: "first", "WrongAnswer", "expected an integer, got str"),
    (BY_GROUP[3:], lambda *_: "later", "WrongAnswer", "expected None or a Hold, got str"),
    (BY_NODE[:1], lambda nodes, *_: np.full(2, 2), "WrongAnswer", "expected 2 truth values, got int64 of shape (2,)"),
    (BY_NODE[1:], lambda nodes, *_: np.full(2, 1001), "WrongAnswer", "expected 0 to 1000, got 1001 to 1001"),
    (BY_GROUP[:2], lambda *_: 2**63, "WrongAnswer", f"expected {-(2**63)} to {2**63 - 1}, got {2**63}"),
    (BY_GROUP[2:3], lambda *_: 1001, "WrongAnswer", "expected 0 to 1000, got 1001"),
    (BY_GROUP[3:], lambda *_: Hold("x", -1), "WrongAnswer", f"until_us: expected 0 to {2**63 - 1}, got -1"),
    (BY_NODE, lambda nodes, *_: nodes.used(GPU).sort(), "ChangedInput", "ValueError"),
    (
        BY_GROUP,
        lambda one, *_: setattr(one, "used" if hasattr(one, "used") else "priority", 0),
        "ChangedInput",
        "FrozenInstanceError",
    ),
    (("order", "admit"), lambda one, *_: setitem(one.labels, "x", "y"), "ChangedInput", "TypeError"),
    ((*BY_NODE, *BY_GROUP), lambda *given: setitem(given[-1].inputs, "x", 1), "ChangedInput", "TypeError"),
    ((*BY_NODE, *BY_GROUP), looped, "TooSlow", "took longer than 0.05 s"),
    ((*BY_NODE, *BY_GROUP), lambda *_: np.ones(1 << 27, np.int64), "TooMuchMemory", ""),
]


def of_point(point: str, answer: Any) -> type[Policy]:
    return type("AtPoint", (Policy,), {"name": "failing", point: lambda self, *given: answer(*given)})


def all_points(kind: type[Policy], guard: PolicyGuard | None = None) -> WithPolicies:
    """A pod that can start, and one that has to evict another for it; so each point is asked."""
    made = WithPolicies(Good, kind, guard=guard)
    made.record("queue/team", payloads.QueueObserved(queue("team", quota=4)))
    made.add_node("n0", cpu=64, gpu=8)
    made.add_node("n1", cpu=64, gpu=1, labels={"best": "true"})
    low = made.add_pod(pod("low", cpu=1, gpu=8, priority=1, owner=OWNER))
    config = made.config
    made.config = msgspec.structs.replace(config, policies=config.policies[:1])
    made.full(low)
    made.config = config
    made.add_pod(pod("one", cpu=1, gpu=1))
    made.add_pod(pod("urgent", cpu=1, gpu=8, priority=50, owner=OWNER))
    return made


@pytest.mark.parametrize(
    ("point", "answer", "why", "detail"),
    [(point, answer, why, detail) for points, answer, why, detail in FAILURES for point in points],
)
def test_a_failure_at_any_point_leaves_the_policy_out_and_the_cycle_goes_on(
    point: str, answer: Any, why: str, detail: str
) -> None:
    kind = of_point(point, answer)
    guard = TimeAndMemory(budget_s=0.05 if why == "TooSlow" else 60.0, memory_bytes=1 << 29)
    made = all_points(kind, guard)
    proposal = made.decided()
    (left_out,) = proposal.policies_left_out
    assert (left_out.policy, left_out.why) == ("failing", why)
    assert left_out.detail.startswith(f"{point}: {detail}")
    assert made.placed(proposal.result) == {"one": "n1"}
    assert [one.name for one in proposal.result.evictions] == ["low"]
    assert proposal.left_out == LeftOut()
    registry = CollectorRegistry()
    SchedulerMetrics(registry).left_out("default", policies=len(proposal.policies_left_out))
    assert registry.get_sample_value(METRIC, {"shard": "default", "what": "policy"}) == 1
    # A replay has no guard, and would never end if it asked the policy that loops.
    assert made.replayed(WithPolicies(Good, kind).book).differences == []


def test_reference_and_alert_name_the_metric_of_policies_that_are_left_out() -> None:
    root = Path(__file__).parents[3]
    assert f"`{METRIC}{{shard,what}}`" in (root / "docs/reference/metrics.md").read_text()
    groups = yaml.safe_load((root / "deploy/alerts/kai-ledger.yaml").read_text())["groups"]
    (rule,) = (one for group in groups for one in group["rules"] if METRIC in one["expr"])
    assert (rule["alert"], rule["labels"]["severity"]) == ("KaiLeftOutOfCycles", "page")


def test_a_policy_that_overran_is_not_asked_for_a_while() -> None:
    asked: list[int] = []

    class LoopsOnce(Good):
        name = "failing"

        def score(self, nodes: Nodes, work: Work, facts: Facts) -> Any:
            asked.append(1)
            while len(asked) == 1:
                pass
            return super().score(nodes, work, facts)

    made = cluster(LoopsOnce, guard=TimeAndMemory(budget_s=0.2, rest_s=600))
    for _ in range(3):
        (left_out,) = made.decided().policies_left_out
        assert left_out.why == "TooSlow"
        made.add_pod(pod(f"p{made.now}", cpu=1, gpu=1))
    assert asked == [1]


class Wants(Policy):
    """Would have all pods on one node, and `later` before all others."""

    name, order_before_priority = "wants", True

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Any:
        return np.ones(len(nodes), np.bool_)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Any:
        return np.array([1000 if name == "wanted" else 0 for name in nodes.names])

    def order(self, group: Waiting, queue: Queue, facts: Facts) -> Any:
        return 0 if group.key.endswith("/later") else 1


@pytest.mark.parametrize(
    ("zones", "node"),
    [
        pytest.param((), {"unschedulable": True}, id="cordoned"),
        pytest.param((), {"gpu": 1}, id="room"),
        pytest.param((amounts(cpu=32, gpu=4), amounts(cpu=32, gpu=4)), {}, id="kubelet"),
    ],
)
def test_a_policy_cannot_place_what_a_fixed_rule_refuses(zones: tuple[Any, ...], node: dict[str, Any]) -> None:
    made = WithPolicies(Wants)
    made.add_node("wanted", *zones, **({} if zones else {"cpu": 64, "gpu": 8} | node))
    made.add_node("other", cpu=64, gpu=8)
    made.add_pod(pod("one", cpu=1, gpu=6))
    assert made.nodes_of() == {"one": "other"}


def test_a_policy_cannot_start_what_delays_a_promised_start() -> None:
    made = WithPolicies(Wants)
    made.config = msgspec.structs.replace(made.config, backfill=Backfill.EASY, hold_after_us=0)
    made.add_node("wanted", cpu=64, gpu=8)

    limited = pod("runs", cpu=1, gpu=4, owner=OWNER, active_deadline_s=3_600, created_at=made.now // 1_000_000)
    made.add_pod(limited)
    assert made.nodes_of() == {"runs": "wanted"}
    made.gang("gang", 2, cpu=1, gpu=4)
    assert made.nodes_of() == {}
    made.add_pod(pod("later", cpu=1, gpu=4))
    assert made.nodes_of() == {}
    made.delete_pod(limited)
    assert sorted(made.nodes_of()) == ["gang-0", "gang-1"]
