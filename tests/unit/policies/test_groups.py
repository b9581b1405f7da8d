"""Policies of groups: their order in a queue, holds with a time, and the choice of victims."""

import pytest
from kaicore.policy import Facts, Hold, Policy, Queue, Running, Waiting
from kaicore.rules.events.reasons.group import HeldByPolicy

from tests.given.cluster.factory import pod
from tests.given.work.policies import WithPolicies
from tests.given.work.workloads import OWNER

HOUR_US = 3_600_000_000


class Deadline(Policy):
    name, pod_labels = "deadline", ("due",)

    def order(self, group: Waiting, queue: Queue, facts: Facts) -> int:
        return int(group.labels.get("due", "999"))


class DeadlineFirst(Deadline):
    name, order_before_priority = "deadline-first", True


class Later(Policy):
    """Large groups start an hour after they came."""

    name = "later"

    def admit(self, group: Waiting, queue: Queue, facts: Facts) -> Hold | None:
        until = group.created_us + HOUR_US
        return Hold("large work starts later", until) if group.gpus >= 8000 and facts.now_us < until else None


class KeepLabelled(Policy):
    name, pod_labels = "keep-labelled", ("keep",)

    def victims(self, running: Running, facts: Facts) -> int:
        return 1000 if running.labels.get("keep") == "true" else 0


def cluster(kind: type[Policy], nodes: int = 1) -> WithPolicies:
    made = WithPolicies(kind)
    made.add_nodes(nodes, cpu=64, gpu=8)
    return made


def test_order_decides_among_groups_of_one_priority() -> None:
    made = cluster(Deadline)
    for name, due, priority in (("a", "9", 1), ("b", "3", 1), ("c", "7", 1), ("urgent", "50", 2)):
        made.add_pod(pod(name, cpu=1, gpu=3, labels={"due": due}, priority=priority))
    assert set(made.nodes_of()) == {"urgent", "b"}
    assert made.replayed().differences == []


@pytest.mark.parametrize("ages", [(5, 5), (5, 9), (9, 5)])
def test_labels_of_a_group_are_those_of_its_first_pod_by_name_whatever_its_age(ages: tuple[int, int]) -> None:
    made = cluster(Deadline)
    for name, dues in (("late", ("9", "1")), ("early", ("3", "8"))):
        made.gang(name, 2, cpu=1, gpu=3)
        for number in (1, 0):
            made.see(made.state.pods[f"uid-{name}-{number}"].pod, created_at=ages[number])
            labels = made.state.pods[f"uid-{name}-{number}"].pod.labels | {"due": dues[number]}
            made.see(made.state.pods[f"uid-{name}-{number}"].pod, labels=labels)
    assert set(made.nodes_of()) == {"early-0", "early-1"}


def test_order_before_priority_decides_before_it() -> None:
    made = cluster(DeadlineFirst)
    for name, due, priority in (("a", "9", 1), ("b", "3", 1), ("urgent", "50", 2)):
        made.add_pod(pod(name, cpu=1, gpu=4, labels={"due": due}, priority=priority))
    assert set(made.nodes_of()) == {"a", "b"}
    assert made.replayed().differences == []


def test_a_held_group_has_a_reason_and_is_looked_at_again_when_its_time_has_come() -> None:
    made = cluster(Later)
    created_at = made.now // 1_000_000
    made.add_pod(pod("large", cpu=1, gpu=8, created_at=created_at))
    made.add_pod(pod("small", cpu=1, gpu=1, created_at=created_at))
    result = made.decided().result
    assert set(made.placed(result)) == {"small"}
    reasons = [reason for one in (*result.pending, *result.groups) for reason in getattr(one, "reasons", ())]
    reasons += [reason for one in result.pending for alone in one.alone for reason in alone.reasons]
    (held,) = [reason for reason in reasons if isinstance(reason, HeldByPolicy)]
    assert held.until_us == (created_at * 1_000_000) + HOUR_US == result.due
    assert "held by policy later until" in str(held)
    made.delete_pod(made.state.pods[next(uid for uid, one in made.state.pods.items() if one.pod.name == "small")].pod)
    made.now += 2 * HOUR_US
    assert set(made.nodes_of()) == {"large"}
    assert made.replayed().differences == []


def test_victims_of_one_priority_are_those_without_extra_cost() -> None:
    made = cluster(KeepLabelled, nodes=2)
    # The kept one came later and loses less work: without the policy it would be the victim.
    for name, keep in (("other", "false"), ("kept", "true")):
        made.now += HOUR_US
        one = made.add_pod(pod(name, cpu=1, gpu=8, labels={"keep": keep}, priority=1, owner=OWNER))
        made.decided()
        made.run(one)
    made.now += HOUR_US
    made.add_pod(pod("urgent", cpu=1, gpu=8, priority=50, owner=OWNER))
    (eviction,) = made.decided().result.evictions
    assert eviction.name == "other"
    assert eviction.runner_up_cost is not None
    assert eviction.runner_up_cost.policies == 1000
    assert made.replayed().differences == []
