"""For each reason that the engine can give: the sentence names what is short, where and by how much; what is said to
help makes the pod start."""

import typing

import pytest
from kaicore.analysis.ask.counterfactuals.asked import Amendment, Asked, details
from kaicore.analysis.ask.counterfactuals.checking import Rehearsal, amendments, check
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons.base import CodedReason
from kaicore.rules.events.reasons.group import FilteredByPolicy, HeldByPolicy
from kaicore.rules.events.reasons.making_room import FitsAfter, FitsIf
from kaicore.rules.events.reasons.queue import VictimWithinShare
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.groups.kai_topology import REQUIRED_ANNOTATION, TOPOLOGY_ANNOTATION
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.rules.state.snapshot import encode_state

from tests.given.cluster.factory import pod
from tests.given.cluster.hierarchy import queue
from tests.given.cluster.racks import Racks
from tests.given.work.workloads import Workloads
from tests.simulation.situations import Situation
from tests.simulation.situations.every import SITUATIONS

#: Shown beside the reasons, and none of them.
REMEDIES = {FitsAfter, FitsIf}
#: Leads a search to other victims, and is left with no pod.
NEVER_GIVEN = {VictimWithinShare}
#: Whoever answers has no code of policies.
OF_POLICIES = (FilteredByPolicy, HeldByPolicy)


def test_every_reason_has_a_situation() -> None:
    assert set(SITUATIONS) == set(typing.get_args(Reason)) - REMEDIES - NEVER_GIVEN


def explained(reason: type[CodedReason]) -> tuple[Situation, Asked]:
    """A situation of a reason, with that reason shown in the words that it should have."""
    situation = SITUATIONS[reason]()
    state = situation.cluster.state
    asked = Asked(state, situation.config, state.pods[situation.pod.uid])
    (given,) = [one for one in asked.reasons if type(one) is reason][:1]
    text = "; ".join((str(given), *details(asked, given)))
    assert [word for word in situation.words if word not in text] == [], text
    return situation, asked


@pytest.mark.parametrize("reason", OF_POLICIES, ids=lambda one: one.__name__)
def test_reasons_of_policies_are_found_and_no_change_is_tried_without_their_code(reason: type[CodedReason]) -> None:
    _, asked = explained(reason)
    assert check(asked).tried == 0


@pytest.mark.parametrize("reason", [one for one in SITUATIONS if one not in OF_POLICIES], ids=lambda one: one.__name__)
def test_what_is_said_to_help_makes_the_pod_start(reason: type[CodedReason]) -> None:
    """A change that helps does the same on a copy on which others were tried before, and on a new one."""
    situation, asked = explained(reason)
    state = situation.cluster.state
    before = encode_state(state)
    checked = check(asked)
    assert encode_state(state) == before, "nothing is changed by asking"
    assert checked.as_it_is is None
    uid = situation.pod.uid
    tried = {one.message: Rehearsal(state, situation.config).start_of(uid, one) for one in amendments(asked)}
    alone = {message: start for message, start in tried.items() if start is not None}
    helpful = {one.amendment.message: one.start for one in checked.helpful}
    assert {message: alone.get(message) for message in helpful} == helpful
    assert len(alone) - len(helpful) <= checked.untried
    first = checked.helpful[0]
    make(situation, first.amendment)
    assert starts(situation), first.amendment.message


def make(situation: Situation, amendment: Amendment) -> None:
    cluster = situation.cluster
    assert amendment.message
    for fact in amendment.facts:
        cluster.record("done", fact)
    cluster.now = max(cluster.now, amendment.until)


def starts(situation: Situation) -> bool:
    """True if a cycle places the pod, or evicts others and the next one does."""
    cluster = situation.cluster
    for _ in range(3):
        result = cluster.cycle(situation.config)
        if situation.pod.uid in {one.uid for one in result.placements}:
            return True
        for eviction in result.evictions:
            cluster.delete_pod(cluster.state.pods[eviction.uid].pod)
    return False


def test_a_constraint_that_stands_on_the_pod_itself_is_taken_off_it() -> None:
    cluster = Racks(nodes=2)
    annotations = {TOPOLOGY_ANNOTATION: "dc", REQUIRED_ANNOTATION: "row"}
    one = cluster.add_pod(pod("one", cpu=1, gpu=4, annotations=annotations))
    cluster.cycle()
    asked = Asked(cluster.state, EngineConfig(), cluster.state.pods[one.uid])
    assert [reason.code for reason in asked.reasons] == ["TopologyLevelNotFound"]
    (first, *_) = check(asked).helpful
    keys = f"{TOPOLOGY_ANNOTATION}, {REQUIRED_ANNOTATION}"
    assert first.amendment.message == f"take the annotation {keys} off pod default/one"


def test_of_a_node_that_several_pods_fill_all_of_them_are_named() -> None:
    cluster = Workloads().add_node("n1", cpu=64, gpu=8)
    cluster.full(*[cluster.add_pod(pod(f"half-{number}", cpu=1, gpu=4)) for number in range(2)])
    one = cluster.add_pod(pod("one", cpu=1, gpu=8))
    cluster.cycle()
    checked = check(Asked(cluster.state, EngineConfig(), cluster.state.pods[one.uid]))
    (ends,) = [one for one in checked.helpful if one.amendment.kind == "end-work"]
    assert ends.amendment.message == (
        "end 2 pods on n1 (default/half-0, default/half-1), which frees 2 cpu, 8 nvidia.com/gpu"
    )


def test_where_no_single_change_helps_none_is_said_to() -> None:
    """The pod is gated, and its queue does not exist."""
    cluster = Workloads().add_node("n1", cpu=64, gpu=8)
    cluster.record("queue/a", payloads.QueueObserved(queue("a")))
    labels = {KAI_QUEUE_LABEL: "gone"}
    one = cluster.add_pod(pod("one", cpu=1, gpu=8, labels=labels, scheduling_gates=("example.com/held",)))
    cluster.cycle()
    checked = check(Asked(cluster.state, EngineConfig(), cluster.state.pods[one.uid]))
    assert (checked.as_it_is, checked.helpful) == (None, ())
    assert checked.tried
