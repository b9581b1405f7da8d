"""The holders of a queue's GPUs: their standing, what the queue may take, another rule, and what a caller may see."""

import msgspec
import pytest
from kai_cli.asking import questions as who
from kaicore.analysis.ask.answers import HolderStanding as Standing
from kaicore.analysis.ask.standings import UNSEEN, gpu_holders
from kaicore.analysis.trial.history.alternative import other_rule
from kaicore.errors import UnknownSubject
from kaicore.rules.events import payloads
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.rules.model.quantity import CPU
from kaicore.rules.model.queue import QueueShare

from tests.given.cluster.factory import pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.workloads import Workloads

_HOUR_US = 3_600_000_000


@pytest.fixture
def made() -> Workloads:
    """Eight GPUs: team b, which is owed four, took six while nobody asked, c two by right; now a waits."""
    made = Workloads("c1").add_node("n", cpu=64, memory=256, gpu=8)
    for name, quota in (("a", 2), ("b", 2), ("c", 2)):
        made.record(f"queue/{name}", payloads.QueueObserved(queue(name, quota=quota, weight=1)))
    for team, count in (("b", 3), ("c", 1)):
        for number in range(count):
            labels = {KAI_QUEUE_LABEL: team, "user": f"{team}-lead"}
            started = made.now // 1_000_000
            spec = {"namespace": f"team-{team}", "labels": labels, "created_at": started, "start_time": started}
            made.add_pod(
                pod(f"{team}{number}", cpu=1, memory=1, gpu=2, active_deadline_s=7200, uid=f"{team}{number}", **spec)
            )
    made.full(*[entry.pod for entry in made.state.pods.values()])
    for number in range(2):
        labels = {KAI_QUEUE_LABEL: "a"}
        made.add_pod(pod(f"a{number}", namespace="team-a", cpu=1, memory=1, gpu=2, labels=labels))
    return made


def test_a_queue_sees_who_has_what_it_is_owed_by_which_rule_since_when_and_until_when(made: Workloads) -> None:
    answer = gpu_holders(made.state, "a")
    assert answer.claim.owed == "3"
    assert (answer.claim.quota, answer.claim.holds, answer.claim.asks, answer.claim.may_take) == ("2", "0", "4", "6")
    assert answer.verdict.startswith("a holds 0 GPUs, asks for 4 and deserves 3")
    assert [(one.standing, one.namespace, one.gpus) for one in answer.holders] == [
        *[(Standing.RECLAIMABLE, "team-b", "2")] * 3,
        (Standing.BY_RIGHT, "team-c", "2"),
    ]
    first = answer.holders[0]
    assert (first.queue, first.user) == ("b", "b-lead")
    assert first.rule.startswith("b holds 6, quota 2, fair share 3: holds more than it may keep")
    assert first.since < first.ends
    assert gpu_holders(made.state, "team-a/a0").queue == "a"
    mine = gpu_holders(made.state, "b")
    assert {one.standing for one in mine.holders if one.queue == "b"} == {Standing.OWN}
    assert mine.verdict.endswith("it has all that it is owed")
    with pytest.raises(UnknownSubject, match="did you mean"):
        gpu_holders(made.state, "aa")


def test_another_rule_is_compared_and_a_least_run_time_protects(made: Workloads) -> None:
    made.record("queue/b", payloads.QueueObserved(queue("b", quota=2, weight=1, reclaim_min_runtime_us=_HOUR_US)))
    settings = ("fair_share.reclaim_margin_milli=2000",)
    answer = gpu_holders(made.state, "a", settings=settings, change=other_rule(settings))
    assert {one.standing for one in answer.holders if one.queue == "b"} == {Standing.PROTECTED}
    assert all(one.protected_until > answer.recorded_at for one in answer.holders if one.queue == "b")
    assert (answer.claim.may_take, answer.moved, answer.settings) == ("0", {}, list(settings))
    assert answer.other == answer.claim
    table = who._text(answer).splitlines()
    assert table[0] == answer.verdict
    assert table[4].split()[:7] == [*settings, "2", "3", "0", "4", "3", "0"]
    assert table[5] == "no queue deserves anything else by the other rule"
    assert table[8].split()[:3] == ["2", "protected", "Pod/team-b/b0"]


def test_who_sees_one_namespace_gets_amounts_of_the_others_and_no_names(made: Workloads) -> None:
    answer = gpu_holders(made.state, "a", namespaces={"team-a"})
    assert [(one.standing, one.gpus, one.group, one.user) for one in answer.holders] == [
        (Standing.RECLAIMABLE, "6", UNSEEN, ""),
        (Standing.BY_RIGHT, "2", UNSEEN, ""),
    ]
    shown = msgspec.json.encode(answer).decode()
    assert not [name for name in ("team-b", "team-c", "b-lead", '"b"', "b0") if name in shown]
    for other in ("b", "team-b/b0", "no-queue"):
        with pytest.raises(UnknownSubject):
            gpu_holders(made.state, other, namespaces={"team-a"})


def test_where_no_queue_counts_gpus_a_queue_asks_for_those_of_its_own_pods() -> None:
    made = Workloads("c1")
    made.add_node("n", cpu=64, memory=256, gpu=2)
    for name in ("a", "b"):
        made.record(f"queue/{name}", payloads.QueueObserved(queue(name, shares={CPU: QueueShare(quota=9000)})))
    made.full([made.add_pod(pod("held", cpu=1, memory=1, gpu=2, labels={KAI_QUEUE_LABEL: "a"}))])
    for name, gpus in (("a", 1), ("b", 4)):
        made.add_pod(pod(f"{name}-waits", cpu=1, memory=1, gpu=gpus, labels={KAI_QUEUE_LABEL: name}))
    claims = [gpu_holders(made.state, name).claim for name in ("a", "b")]
    assert [(one.quota, one.holds, one.asks) for one in claims] == [("unlimited", "2", "3"), ("unlimited", "0", "4")]
