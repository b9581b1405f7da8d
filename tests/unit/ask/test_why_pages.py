"""Answers about one pod or group: wait, tries, lacks, and the reason for its place."""

import msgspec
import pytest
from kai_cli.asking.why_page import why_text
from kaicore.analysis.ask import listing
from kaicore.analysis.ask.answers import RowSelection, Why
from kaicore.analysis.ask.audits.audit_answers import Span
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.life.why_answers import PlacementAnswer
from kaicore.analysis.replay import past_states
from kaicore.rules.events import payloads
from kaicore.rules.model.group import PodSet
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount
from kaicore.rules.model.pod import GPU_SHARE, Pod

from tests.given.cluster.factory import amounts, pod
from tests.given.cluster.hierarchy import queue
from tests.given.cluster.racks import Racks, asks
from tests.given.logs.stored import stored
from tests.given.work.workloads import OWNER, Workloads
from tests.unit.state.test_doubts import beside_an_unobserved_pod

ZONE = amounts(cpu=16, gpu=4)
GPU = "nvidia.com/gpu"


def fleet(nodes: int = 3, *, quota_of_b: int = 8) -> Workloads:
    made = Workloads("c")
    for name, quota in (("a", 8), ("b", quota_of_b)):
        made.record(f"queue/{name}", payloads.QueueObserved(queue(name, quota=quota)))
    made.add_nodes(nodes, ZONE, ZONE)
    return made


def comes(made: Workloads, name: str, gpu: int, of: str = "a", **spec: object) -> Pod:
    fields: dict[str, object] = {"cpu": 3, "gpu": gpu, "owner": OWNER, "labels": {"kai.scheduler/queue": of}} | spec
    return made.add_pod(pod(name, created_at=made.now // 1_000_000, **fields))  # type: ignore[arg-type]


async def why(made: Workloads, name: str, kind: str = "Pod", *, at: str = "") -> Why:
    answer = await Inquiry(await stored(made)).why(made.cluster, kind, "default", name, at=at)
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Why) == answer, "it is the same over the API"
    return answer


async def placement_of(made: Workloads, name: str) -> PlacementAnswer:
    placed = (await why(made, name)).placement
    assert placed is not None
    return placed


async def test_attempts_tell_cycles_that_tried_it_from_those_that_might_not_and_how_reasons_changed() -> None:
    made = fleet(1)
    made.full(comes(made, "there", 4))
    one = comes(made, "one", 5, scheduling_gates=("example.com/held",))
    for _ in range(2):
        made.cycle()
    made.see(one, scheduling_gates=())
    for _ in range(3):
        made.cycle()
    attempts = (await why(made, "one")).attempts
    assert attempts is not None
    assert (attempts.cycles, attempts.tried, attempts.skipped) == (5, 3, 2)
    assert attempts.last_cycle == "default/6"
    assert attempts.text == "tried in 3 of 5 cycles since; in 2 it was not allowed to start"
    # Of a long wait only the last cycles are looked at, so nothing is said of the others.
    longer = msgspec.structs.replace(attempts, cycles=900, looked_from=42, skipped=0)
    assert longer.text == "tried in 3 of the last 3 cycles, from position 42 on, of 900 cycles since"
    assert [(change.cycles, change.skipped, change.reasons) for change in attempts.changes] == [
        (2, True, ["SchedulingGated"]),
        (3, False, ["NumaNeverFits"]),
    ]


async def test_a_waiting_pods_page_names_what_each_zone_lacks_and_who_is_in_the_way() -> None:
    made = fleet(2)
    made.full(comes(made, "small", 2), *[comes(made, f"large-{n}", 4) for n in range(3)])
    comes(made, "one", 4)
    made.cycle()
    answer = await why(made, "one")
    first = answer.nodes[0]
    assert (first.node, first.missing) == ("n1", {GPU: "2"})
    assert {zone.zone: zone.missing for zone in first.zones} == {"node-0": {GPU: "4"}, "node-1": {GPU: "2"}}
    blockers = {one.group: one for one in answer.blockers}
    assert blockers["Pod default/small"].suffices
    assert blockers["Pod default/small"].frees == f"3 cpu, 2 {GPU}"
    assert blockers["Pod default/small"].because == ["its priority 0 is not below 0"]
    assert answer.starts_if is not None
    ends = [one.message for one in answer.starts_if.remedies if one.kind == "end-work"]
    assert ends[0] == f"end Pod default/large-0 (on n0), which frees 3 cpu, 4 {GPU}"
    text = why_text(answer)
    order = [
        text.index(words)
        for words in ("pending, since", "tried in 1 of 1", "closest nodes", "in the way", "would make")
    ]
    assert order == sorted(order)


async def test_a_placed_pod_is_told_against_the_runners_up_as_the_cycle_saw_them() -> None:
    made = fleet()
    made.full(comes(made, "first", 4))
    made.add_node("tiny", cpu=2)
    made.full(comes(made, "one", 3))
    # What came later is not what the cycle saw.
    made.full(comes(made, "later", 4), comes(made, "latest", 4))
    placed = await placement_of(made, "one")
    assert [(one.node, one.chosen, one.full) for one in placed.nodes] == [
        ("n0", True, 875),
        ("n1", False, 375),
        ("n2", False, 375),
    ]
    assert placed.because == "how full it gets: 87.5 % against 37.5 % on n1, the next of 3 nodes"
    assert placed.ruled_out == ["1 node too small: cpu: 3 needed, 2 in all (such as tiny)"]
    assert placed.predicted == f"node-1 (cpu 3, {GPU} 3)"


async def test_a_pod_that_went_where_it_fits_for_certain_is_said_to() -> None:
    made, _, late = beside_an_unobserved_pod(beside=amounts(cpu=64, gpu=4))
    assert made.state.pods[late.uid].node == "n2"
    answer = await Inquiry(await stored(made)).why(made.cluster, "Pod", "default", "late")
    assert answer.placement is not None
    assert answer.placement.because == (
        "it fits here in every open case; n1 ranked higher, but may refuse such a pod, because pods "
        "there are just starting or ending"
    )


async def test_a_placement_whose_cycle_is_far_from_any_state_is_told_without_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = fleet()
    made.full(comes(made, "one", 3))
    monkeypatch.setattr(past_states, "_NEAR", 2)
    placed = await placement_of(made, "one")
    assert placed.nodes == []
    assert "is too far from any snapshot; `kai replay" in placed.not_ranked


async def test_a_placement_that_no_cycle_decided_names_no_cycles_record() -> None:
    made = fleet()
    made.full(comes(made, "one", 3))
    record = next(event for event in made.events if event.type == payloads.CycleCompleted.__name__)
    forged = comes(made, "forged", 2)
    placed = next(event for event in made.events if event.type == payloads.PodPlaced.__name__)
    decision = msgspec.structs.replace(made.decoded(placed), uid=forged.uid, name="forged")
    event = made.record(f"pod/{forged.uid}", decision, subject=forged.subject)
    made.events[-1] = msgspec.structs.replace(event, cause=record.id, correlation=placed.correlation)
    answer = await why(made, "forged")
    assert answer.placement is not None
    assert (answer.placement.cycle, answer.placement.nodes) == ("", [])
    assert answer.placement.not_ranked.startswith(f"no cycle decided it: event {event.position} was not appended")
    text = why_text(answer)
    assert "placed on n0 by no cycle" in text
    assert f"{event.position}  not decided by a cycle, though the event says so" in text
    audit = await Inquiry(await stored(made)).audit_node(made.cluster, "n0", Span())
    by_pod = {one.pod: one.decided for one in audit.holdings}
    assert by_pod["default/one"] is not None
    assert by_pod["default/one"].cycle_position == record.position
    assert by_pod.get("default/forged") is None or not by_pod["default/forged"].cycle_position


async def test_a_moment_within_a_cycles_decisions_stands_for_their_end() -> None:
    made = fleet()
    comes(made, "one", 3)
    comes(made, "two", 3)
    made.cycle()
    record = next(event for event in made.events if event.type == payloads.CycleCompleted.__name__)
    within = await why(made, "two", at=str(record.position))
    assert within.verdict == "placed on n0, being bound"
    assert within.position == len(made.events)
    assert within.placement is not None
    assert within.placement.cycle == "default/1"


async def test_reasons_name_the_position_of_the_state_that_the_cycle_knew() -> None:
    made = fleet(1)
    made.full(comes(made, "there", 4), comes(made, "other", 4))
    comes(made, "one", 4)
    made.cycle()
    known = made.decoded(
        next(event for event in reversed(made.events) if event.type == payloads.CycleCompleted.__name__)
    )
    made.see(made.state.pods["uid-there"].pod, phase="Succeeded", node_name="n0")
    answer = await why(made, "one")
    assert (answer.reasons_position, answer.position) == (known.input_position, len(made.events))
    text = why_text(answer)
    assert f"the last cycle found, at position {known.input_position}, when its turn came:" in text


async def test_observed_zones_are_compared_with_the_predicted_ones() -> None:
    made = fleet()
    one = comes(made, "one", 3)
    made.full(one)
    held = (ContainerPlacement("main", zones=(ZoneAmount("node-1", one.containers[0].requests),)),)
    seen = payloads.PlacementObserved(one.uid, "default", "one", "n0", Placement(Provenance.OBSERVED, held, ()))
    made.record(f"pod/{one.uid}", seen, subject=one.subject)
    placed = await placement_of(made, "one")
    assert (placed.predicted, placed.observed) == (f"node-0 (cpu 3, {GPU} 3)", f"node-1 (cpu 3, {GPU} 3)")
    assert placed.agreement == "not as predicted"


async def test_an_evicted_pod_is_told_for_whom_it_went_and_where_its_successor_is() -> None:
    made = fleet(1, quota_of_b=0)
    low = [comes(made, f"low-{number}", 4, "b") for number in range(2)]
    made.full(*low)
    comes(made, "one", 4, owner=None)
    made.now += 5_000_000
    result = made.cycle()
    (evicted, *_) = result.evictions
    made.now += 2_000_000
    made.go(result)
    comes(made, f"{evicted.name}-again", 4, "b")
    made.cycle()
    (eviction,) = (await why(made, evicted.name)).evictions
    assert (eviction.reason, eviction.made_way_for, eviction.for_queue) == ("Reclaimed", "Pod default/one", "a")
    assert eviction.successors == [f"default/{evicted.name}-again, which waits"]


async def test_a_rejection_tells_what_was_predicted_and_what_was_learned() -> None:
    made = fleet(1)
    one = comes(made, "one", 3)
    made.full(one)
    rejected = payloads.PodRejected(one.uid, "default", "one", "n0", "TopologyAffinityError", "cannot be allocated")
    made.record(f"pod/{one.uid}", rejected, subject=one.subject)
    (shown,) = (await why(made, "one")).rejections
    assert (shown.node, shown.reason, shown.predicted) == ("n0", "TopologyAffinityError", f"node-0 (cpu 3, {GPU} 3)")
    assert shown.learned == "its kubelet has rejected 1 such pod; none is offered to it until something changes there"


async def test_a_group_is_told_by_its_sets_and_the_domains_they_are_in() -> None:
    made = Racks()
    made.cluster = made.state.cluster
    sets = [PodSet(topology=asks("block")), PodSet("a", "", 2, topology=asks("rack")), PodSet("b", "", 1)]
    made.group("g", sets=sets)
    made.pods_of("g", range(2), subgroup="a")
    made.pods_of("g", range(1), subgroup="b")
    made.cycle()
    members = {one.name: one for one in (await why(made, "g", "PodGroup")).sub_groups}
    assert (members["a"].minimum, members["a"].running, members["b"].running) == (2, 2, 1)
    assert members["a"].domains == {"block": {"b0": 2}, "rack": {"b0/r0": 2}}
    assert members[""].constraint == "requires one block of topology dc"


async def test_of_the_past_only_what_was_recorded_then_is_told() -> None:
    made = fleet(1)
    comes(made, "one", 9)
    made.cycle()
    then = len(made.events)
    made.cycle()
    made.add_node("n9", cpu=64, gpu=16)
    made.cycle()
    answer = await why(made, "one", at=str(then))
    assert answer.attempts is not None
    assert (answer.attempts.cycles, answer.placement) == (1, None)
    assert (await placement_of(made, "one")).node == "n9"


async def test_the_decisive_reason_of_several_pods_comes_first_and_says_that_it_is() -> None:
    made = fleet(0)
    made.record("queue/a", payloads.QueueObserved(queue("a", quota=8, limit=64)))
    made.add_nodes(3, cpu=64, gpu=8)
    made.full(*[comes(made, f"theirs-{number}", 8, of="b") for number in range(3)])
    made.gang("large", 16, cpu=1, gpu=8, labels={"kai.scheduler/queue": "a"})
    comes(made, "like-it", 8, cpu=1)
    made.cycle()
    never = "queue a never takes it: 128 gpu needed at once, and its limit is 64"
    of_all = await why(made, "large", "PodGroup")
    assert of_all.reasons[0].message == never
    assert (await why(made, "large-0")).reasons[0].message == never


async def test_a_node_without_any_of_what_is_asked_for_is_not_close_and_a_group_is_not_in_its_own_way() -> None:
    made = fleet(0)
    made.add_nodes(2, cpu=64, gpu=8)
    made.add_node("without", cpu=64)
    made.full(made.gang("one", 2, cpu=8, gpu=8, labels={"kai.scheduler/queue": "b"}))
    made.members("one", [2], cpu=8, gpu=8, labels={"kai.scheduler/queue": "b"})
    made.cycle()
    answer = await why(made, "one-2")
    assert [near.node for near in answer.nodes] == ["n0", "n1"]
    assert answer.blockers == []


async def test_a_share_of_a_gpu_is_remedied_by_a_whole_one() -> None:
    made = fleet(1)
    made.add_node("without", cpu=64)
    comes(made, "share", 0, unsupported=(f"{GPU_SHARE} (gpu-fraction)",))
    made.cycle()
    starts = (await why(made, "share")).starts_if
    assert starts is not None
    assert [(one.message, one.node) for one in starts.remedies] == [
        ("request a whole GPU (nvidia.com/gpu: 1) instead of a share of one in default/share", "n0")
    ]


async def test_work_for_one_kind_of_node_waits_for_what_these_lack_not_for_the_labels_of_all_others() -> None:
    made, product = fleet(0), "nvidia.com/gpu.product"
    for number in range(5):
        made.add_node(f"other{number}", cpu=64, gpu=8, labels={product: "H100", "pool": "b"})
    made.add_node("right", cpu=64, gpu=8, labels={product: "A100", "pool": "a"})
    made.add_node("unlabelled", cpu=64, gpu=8, labels={"pool": "a"})
    made.full(comes(made, "there", 8, of="b", node_selector={product: "A100"}))
    comes(made, "waits", 8, node_selector={product: "A100"})
    comes(made, "in-pool", 8, node_selector={"pool": "c"})
    made.cycle()
    answer = await why(made, "waits")
    assert answer.nodes[0].node == "right", "all others have one obstacle as well"
    (row,) = listing.list_pods(made.state, RowSelection(name="waits"))
    assert "1 node short of nvidia.com/gpu: 8 needed, 0 free" in row.message
    assert labelled(answer) == {"unlabelled"}, "what others are labelled says which hardware they have"
    assert labelled(await why(made, "in-pool")) >= {"other0", "other1"}


def labelled(answer: Why) -> set[str]:
    assert answer.starts_if is not None
    messages = [one.message.split() for one in answer.starts_if.remedies]
    return {words[2] for words in messages if words[:2] == ["label", "node"]}


@pytest.mark.parametrize(
    ("resource", "spec", "asked"),
    [("nvidia.com/gpu", {"gpu": 2**48}, f"{2**48} or more"), ("memory", {"gpu": 0, "memory": 2**18}, "256Ti or more")],
)
async def test_an_amount_cut_to_the_most_that_is_believed_is_said_to_be_that_or_more(
    resource: str, spec: dict[str, int], asked: str
) -> None:
    made = fleet(1)
    made.add_pod(pod("absurd", cpu=1, **spec))
    made.cycle()
    text = why_text(await why(made, "absurd"))
    assert f"{resource}: {asked} needed" in text, text
