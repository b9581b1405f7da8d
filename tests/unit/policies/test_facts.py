"""Facts that policies see beside the cluster: inputs from outside, past use, and an order of queues that goes by it."""

from typing import Any, ClassVar

import numpy as np
import pytest
from kaicore.errors import InvalidObject
from kaicore.policy import Facts, Flags, Hold, Ints, Nodes, PastUse, Policy, Queue, Running, Waiting, Work
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.events import payloads
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.registries import policy_inputs
from kaicore.rules.state.registries.policy_inputs import PolicyInputs, check_input
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import GPU, pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.policies import WithPolicies
from tests.given.work.workloads import OWNER

HOUR_US = 3_600_000_000


class Cheap(Policy):
    """No GPUs where power costs more than the cluster's bound."""

    name, inputs, reason = "cheap", ("price", "bound"), "power is dear there"

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        return nodes.inputs("price") <= int(facts.inputs.get("bound", 100))


class Spared(Policy):
    """Looks at everything that there is of the past, and keeps what it saw."""

    name, history = "spared", (PastUse.OWNER, PastUse.NAMESPACE, PastUse.QUEUE)
    inputs = ("other",)
    seen: ClassVar[list[tuple[Waiting, Queue, Facts]]] = []

    def order(self, group: Waiting, queue: Queue, facts: Facts) -> int:
        self.seen.append((group, queue, facts))
        return group.used_gpu_seconds


class Blind(Policy):
    name = "blind"
    seen: ClassVar[list[tuple[Waiting, Queue, Facts]]] = []

    def order(self, group: Waiting, queue: Queue, facts: Facts) -> int:
        self.seen.append((group, queue, facts))
        return 0


class LeastUsed(Policy):
    """The queue that the input names comes first."""

    name, inputs = "least-used", ("first",)

    def order_queue(self, queue: Queue, facts: Facts) -> int:
        return 0 if queue.name == facts.inputs.get("first", "") else 1


def recorded(made: WithPolicies, name: str, value: int | str | None, node: str = "") -> None:
    made.record(f"policy-input/{name}", payloads.PolicyInputRecorded(name, node, value, "test"))


def test_inputs_of_nodes_and_of_the_cluster_decide_and_replay_has_them() -> None:
    made = WithPolicies(Cheap)
    for name in ("n0", "n1"):
        made.add_node(name, cpu=64, gpu=8)
    recorded(made, "price", 300, "n0")
    made.add_pod(pod("a", cpu=1, gpu=8))
    made.add_pod(pod("b", cpu=1, gpu=8))
    assert list(made.nodes_of().values()) == ["n1"]
    # Text where a number is asked for is the default, and no value takes the fact away.
    recorded(made, "price", "unknown", "n0")
    assert list(made.nodes_of().values()) == ["n0"]
    recorded(made, "bound", -1)
    recorded(made, "price", None, "n0")
    made.add_node("n2", cpu=64, gpu=8)
    made.add_pod(pod("c", cpu=1, gpu=8))
    assert made.nodes_of() == {}
    recorded(made, "bound", 0)
    assert made.nodes_of() == {"c": "n2"}
    assert made.replayed().differences == []


def test_only_a_changed_input_has_the_scheduler_look_again() -> None:
    made = WithPolicies(Cheap)
    revisions = []
    for value in (1, 1, 2, None, None):
        recorded(made, "price", value)
        revisions.append(made.state.revision)
    assert np.diff(revisions).tolist() == [0, 1, 1, 0]


def test_history_counts_pods_that_ended_and_is_seen_by_whoever_declares_it() -> None:
    made = WithPolicies(Spared, Blind)
    made.record("queue/team", payloads.QueueObserved(queue("team", shares={GPU: share(8)})))
    made.add_node("n0", cpu=64, gpu=8)
    recorded(made, "other", 7)
    ran = made.gang("g", 1, cpu=1, gpu=4, labels={KAI_QUEUE_LABEL: "team"})
    made.full(ran)
    made.now += 2 * HOUR_US
    made.see(ran[0], phase="Failed")
    made.delete_pod(ran[0])
    made.members("g", [1], cpu=1, gpu=4, labels={KAI_QUEUE_LABEL: "team"})
    Spared.seen.clear()
    Blind.seen.clear()
    made.decided()
    (group, its_queue, facts), (blind, its_blind, no_facts) = Spared.seen[-1], Blind.seen[-1]
    # Four GPUs for two hours, half of what the cluster had to give since its log began.
    assert group.used_gpu_seconds == pytest.approx(4 * 7_200, rel=0.01)
    assert group.namespace_use == its_queue.past_use == pytest.approx(500_000, rel=0.01)
    assert (blind.used_gpu_seconds, blind.namespace_use, its_blind.past_use) == (0, 0, 0)
    assert (dict(facts.inputs), dict(no_facts.inputs)) == ({"other": 7}, {})
    assert made.replayed().differences == []


def test_snapshot_has_inputs_and_past_use_and_goes_on_as_the_log_does() -> None:
    made = WithPolicies(Cheap, Spared)
    made.add_node("n0", cpu=64, gpu=8)
    recorded(made, "price", 3, "n0")
    first = made.add_pod(pod("a", cpu=1, gpu=3, owner=OWNER))
    made.full(first)
    half = len(made.events)
    made.now += HOUR_US
    made.delete_pod(first)
    recorded(made, "bound", "none")
    made.full(made.add_pod(pod("b", cpu=1, gpu=2, owner=OWNER)))
    state = decode_state(encode_state(ClusterState(made.state.cluster).fold_all(made.events[:half])))
    assert encode_state(state.fold_all(made.events[half:])) == encode_state(made.state)
    assert [one.value for one in state.policy_inputs.record()] == ["none", 3]
    assert state.gpu_use.seconds_of("ReplicaSet/default/rs/uid-rs") == pytest.approx(3 * 3_600, rel=0.01)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"name": "Price"}, "policy input Price: name: must be 1 to 63"),
        ({"name": "price", "node": "n 1"}, "policy input price: node: is no name of a node"),
        ({"name": "price", "value": "x" * 201}, "policy input price: value: a text has 1 to 200"),
        ({"name": "price", "value": 2**63}, "policy input price: value: a number is whole and has 64 bits"),
        ({"name": "price", "value": 1}, "policy input price: value: there are 2 inputs already"),
    ],
)
def test_input_beyond_a_bound_is_refused_by_field(
    given: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_inputs, "MOST_INPUTS", 2)
    known = PolicyInputs()
    for name in ("a", "b", "c"):
        known.take(payloads.PolicyInputRecorded(name, "", 1), at=0)
    assert [one.name for one in known.record()] == ["a", "b"]
    with pytest.raises(InvalidObject) as refused:
        check_input(payloads.PolicyInputRecorded(**given), known)
    assert problem in str(refused.value).replace("'", "")
    check_input(payloads.PolicyInputRecorded("a", "", "other"), known)
    check_input(payloads.PolicyInputRecorded("price", "", None), known)


def two_queues(**quotas: int) -> WithPolicies:
    made = WithPolicies(LeastUsed)
    for name, quota in quotas.items():
        made.record(f"queue/{name}", payloads.QueueObserved(queue(name, shares={GPU: share(quota)})))
    return made


def share(quota: int) -> Any:
    return queue("x", quota=quota, limit=8).shares["gpu"]


def waits(made: WithPolicies, name: str, of: str, gpu: int) -> None:
    made.add_pod(pod(name, cpu=1, gpu=gpu, labels={KAI_QUEUE_LABEL: of}, owner=OWNER))


@pytest.mark.parametrize(("first", "starts"), [("", "a"), ("a", "a"), ("b", "b")])
def test_order_of_queues_decides_among_equals(first: str, starts: str) -> None:
    made = two_queues(a=4, b=4)
    made.add_node("n0", cpu=64, gpu=4)
    recorded(made, "first", first)
    waits(made, "of-a", "a", 4)
    waits(made, "of-b", "b", 4)
    assert made.nodes_of() == {f"of-{starts}": "n0"}
    assert made.replayed().differences == []


def test_order_of_queues_breaks_no_quota_share_or_limit() -> None:
    made = two_queues(a=2, b=6)
    made.add_node("n0", cpu=64, gpu=8)
    recorded(made, "first", "a")
    for number in range(8):
        waits(made, f"a{number}", "a", 1)
        waits(made, f"b{number}", "b", 1)
    names = sorted(made.nodes_of())
    # The queue that the policy wants first has its quota and no more, as the other one wants its own.
    assert [sum(name.startswith(letter) for name in names) for letter in "ab"] == [2, 6]
    assert made.replayed().differences == []


class Filtered(Cheap):
    name = "filtered"


class Scored(Policy):
    name, inputs = "scored", ("price",)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        return np.array(1000 - np.clip(nodes.inputs("price"), 0, 1000), np.int64)


class Ordered(Policy):
    name, history = "ordered", (PastUse.OWNER, PastUse.NAMESPACE, PastUse.QUEUE)

    def order(self, group: Waiting, queue: Queue, facts: Facts) -> int:
        return group.used_gpu_seconds + group.namespace_use

    def order_queue(self, queue: Queue, facts: Facts) -> int:
        return -queue.past_use


class Chosen(Policy):
    name, history, inputs = "chosen", (PastUse.OWNER,), ("closed",)

    def victims(self, running: Running, facts: Facts) -> int:
        return min(running.used_gpu_seconds // 100, 1000)

    def admit(self, group: Waiting, queue: Queue, facts: Facts) -> Hold | None:
        return Hold("closed", facts.now_us + HOUR_US) if facts.inputs.get("closed") == group.namespace else None


def test_all_points_with_inputs_and_history_replay_without_a_difference() -> None:
    made = WithPolicies(Filtered, Scored, Ordered, Chosen)
    for name in ("a", "b"):
        made.record(f"queue/{name}", payloads.QueueObserved(queue(name, shares={GPU: share(8)})))
    for number in range(3):
        made.add_node(f"n{number}", cpu=64, gpu=4)
        recorded(made, "price", 40 * number, f"n{number}")
    recorded(made, "closed", "shut")
    kept, evicted = 0, list[payloads.EvictionDecided]()
    for number in range(12):
        made.now += HOUR_US // 2
        recorded(made, "bound", 30 + 30 * (number % 3))
        for name in ("a", "b"):
            namespace = "shut" if number % 4 == 3 else "default"
            labels = {KAI_QUEUE_LABEL: name}
            spec: dict[str, Any] = {"namespace": namespace, "priority": 50 * (number % 2), "owner": OWNER}
            made.add_pod(pod(f"{name}{number}", cpu=1, gpu=1 + number % 3, labels=labels, **spec))
        result = made.decided().result
        evicted += result.evictions
        started = [made.state.pods[one.uid].pod for one in result.placements]
        made.run(*started)
        made.go(result)
        kept += len(made.placed(result))
        if number % 5 == 4:
            made.delete_pod(started[0] if started else next(iter(made.state.pods.values())).pod)
    assert kept >= 8
    assert {one.reason for one in evicted} <= set(EvictionReason)
    assert evicted
    report = made.replayed()
    assert (report.differences, report.cycles) == ([], 12)
