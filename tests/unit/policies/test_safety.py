"""A policy that fails is left out of the cycle with a typed reason; the cycle goes on, and a replay agrees."""

from typing import Any

import msgspec
import numpy as np
import pytest
from kaicore.policy import Facts, Nodes, Policy, Queue, Waiting, Work
from kaicore.rules.deciding.cycle_run import LeftOut
from kaicore.rules.engine.config import Backfill
from kaicore.runtime.policy_guard import TimeAndMemory

from tests.given.cluster.factory import amounts, pod
from tests.given.work.policies import WithPolicies
from tests.given.work.workloads import OWNER

GPU = "nvidia.com/gpu"


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


class TooShort(Failing):
    def answer(self, nodes: Nodes) -> Any:
        return np.zeros(1, np.int64)


class Fractions(Failing):
    def answer(self, nodes: Nodes) -> Any:
        return np.full(len(nodes), 0.5)


class TooHigh(Failing):
    def answer(self, nodes: Nodes) -> Any:
        return np.full(len(nodes), 1001)


class AList(Failing):
    def answer(self, nodes: Nodes) -> Any:
        return [0] * len(nodes)


class Writes(Failing):
    def answer(self, nodes: Nodes) -> Any:
        used = nodes.used(GPU)
        used[:] = 0
        return used


class Unlocks(Failing):
    def answer(self, nodes: Nodes) -> Any:
        used = nodes.used(GPU)
        used.flags.writeable = True
        return used


class Loops(Failing):
    def answer(self, nodes: Nodes) -> Any:
        while True:
            try:
                len(nodes)
            except Exception:
                continue


class Hoards(Failing):
    def answer(self, nodes: Nodes) -> Any:
        kept = []
        while True:
            kept.append(np.ones(1 << 24, np.int64))


class OrdersByText(Policy):
    name = "failing"

    def order(self, group: Waiting, queue: Queue, facts: Facts) -> Any:
        return group.key


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
        (TooShort, "WrongAnswer", "score: expected 2 integers, got int64 of shape (1,)"),
        (Fractions, "WrongAnswer", "score: expected 2 integers, got float64 of shape (2,)"),
        (TooHigh, "WrongAnswer", "score: expected 0 to 1000, got 1001 to 1001"),
        (AList, "WrongAnswer", "score: expected 2 integers, got list"),
        (Writes, "ChangedInput", "score: ValueError"),
        (Unlocks, "ChangedInput", "score: ValueError"),
        (OrdersByText, "WrongAnswer", "order: expected an integer, got str"),
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


@pytest.mark.parametrize(("kind", "why"), [(Loops, "TooSlow"), (Hoards, "TooMuchMemory")])
def test_a_policy_without_bounds_is_ended_and_a_replay_follows_the_record(kind: type[Policy], why: str) -> None:
    made = cluster(kind, guard=TimeAndMemory(budget_s=0.2 if kind is Loops else 60.0, memory_bytes=1 << 29))
    proposal = made.decided()
    (left_out,) = proposal.policies_left_out
    assert (left_out.policy, left_out.why) == ("failing", why)
    assert made.placed(proposal.result) == {"one": "n1"}
    # A replay has no guard, and would never end if it asked the policy.
    assert made.replayed(WithPolicies(Good, kind).book).differences == []


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
