"""Moving running pods so that something fits: which, how often, for what, and what is said when nothing is moved."""

from typing import Any

import msgspec
import pytest
from kaicore.rules.deciding.cycle_input import cycle_input, next_due
from kaicore.rules.deciding.why import pending_reasons
from kaicore.rules.engine.config import Action, EngineConfig
from kaicore.rules.engine.decisions import ClearReason, CycleResult, EvictionReason
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.victims.candidates import Candidates
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons.making_room import RoomKeptForOthers
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.pod import Owner, Pod, PodRules
from kaicore.rules.state.pods.pod_entry import SUCCESSOR_US
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.devices import devices, exactly, from_template
from tests.given.cluster.factory import amounts, pod
from tests.given.work.workloads import OWNER, Workloads
from tests.unit.engine.test_pod_rules import away, near, spread

MINUTE = 60_000_000
#: Of reasons that consolidation gives.
SAID = {
    "NoMoveWouldHelp",
    "PodsWithoutController",
    "GroupsThatCannotRestart",
    "MovedLately",
    "NoOtherPlaceForThem",
    "TooManyToMove",
    "NotWorthMoving",
    "LosesTooMuchWork",
}


def nodes(count: int) -> Workloads:
    cluster = Workloads()
    for number in range(count):
        cluster.add_node(f"n{number}", cpu=64, gpu=8, labels={"host": f"n{number}"})
    return cluster


def runs(cluster: Workloads, name: str, node: str, gpu: int, **kwargs: Any) -> Pod:
    kwargs.setdefault("owner", msgspec.structs.replace(OWNER, name=name, uid=f"uid-of-{name}"))
    return cluster.runs(name, node, gpu, **kwargs)


def reasons_for(cluster: Workloads, name: str) -> dict[str, Reason]:
    reasons = pending_reasons(cluster.state.pods[f"uid-{name}"], cluster.state)
    return {reason.code: reason for reason in reasons if reason.code in SAID}


def moved(cluster: Workloads, result: CycleResult) -> set[str]:
    evicted = cluster.evicted(result)
    assert set(evicted.values()) <= {EvictionReason.CONSOLIDATED}
    return set(evicted)


def halves(cluster: Workloads, **kwargs: Any) -> None:
    for node in ("n0", "n1"):
        runs(cluster, f"half-{node}", node, 4, **kwargs)
    cluster.add_pod(pod("whole", cpu=1, gpu=8))


def test_pods_without_a_controller_are_not_moved_and_that_is_said() -> None:
    cluster = nodes(2)
    halves(cluster, owner=None)
    assert not cluster.cycle().evictions
    reasons = reasons_for(cluster, "whole")
    assert set(reasons) == {"NoMoveWouldHelp", "PodsWithoutController"}
    assert str(reasons["PodsWithoutController"]) == (
        "pods without a controller are not moved: nothing would create them again (such as default/half-n0)"
    )


def test_pods_without_a_controller_are_moved_where_the_configuration_says_so() -> None:
    cluster = nodes(2)
    halves(cluster, owner=None)
    assert moved(cluster, cluster.cycle(EngineConfig(consolidate_bare_pods=True))) == {"half-n0"}


def test_group_that_fits_nowhere_else_is_named() -> None:
    cluster = nodes(2)
    for node in ("n0", "n1"):
        runs(cluster, f"half-{node}", node, 4, node_selector={"host": node})
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    assert not cluster.cycle().evictions
    (reason,) = reasons_for(cluster, "whole").values()
    assert str(reason) == (
        "no pods were moved for it: 2 groups in the way fit nowhere else (such as Pod default/half-n0)"
    )


def test_more_groups_than_may_be_moved_are_counted() -> None:
    cluster = nodes(2)
    for number in range(4):
        runs(cluster, f"small-{number}", f"n{number // 2}", 1)
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    assert not cluster.cycle(EngineConfig(consolidate_groups=1)).evictions
    (reason,) = reasons_for(cluster, "whole").values()
    assert str(reason) == "no pods were moved for it: 2 groups would have to be, 1 may be"


def test_where_there_is_not_room_enough_in_all_nothing_is_said_of_moves() -> None:
    cluster = nodes(1)
    halves_of_one = [runs(cluster, f"half-{number}", "n0", 4) for number in range(2)]
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    assert not cluster.cycle().evictions
    assert halves_of_one
    assert not reasons_for(cluster, "whole")


@pytest.mark.parametrize(
    ("sizes", "gang", "wanted", "moves"),
    [
        pytest.param([4], False, 8, True, id="a half for a whole"),
        pytest.param([2, 2], False, 8, True, id="two quarters for a whole"),
        pytest.param([4], False, 5, True, id="four for five"),
        pytest.param([4], False, 6, True, id="four for six"),
        pytest.param([2, 2, 2], False, 7, True, id="six for seven"),
        pytest.param([2, 2], True, 8, False, id="a gang of four, which counts twice, for eight"),
        pytest.param([1, 1], True, 8, True, id="a gang of two, which counts twice, for eight"),
    ],
)
def test_the_gain_must_exceed_the_cost(sizes: list[int], gang: bool, wanted: int, moves: bool) -> None:
    """Pods on n0 could go to n1; on n1 no pod is ever moved."""
    cluster = nodes(2)
    if gang:
        spec = {"node_selector": {}, "cpu": 1, "gpu": sizes[0], "phase": "Running"}
        cluster.gang("gang", len(sizes), node_name="n0", **spec)
    else:
        for number, gpu in enumerate(sizes):
            runs(cluster, f"p{number}", "n0", gpu)
    runs(cluster, "bare", "n1", 8 - sum(sizes), owner=None)
    cluster.add_pod(pod("wants", cpu=1, gpu=wanted))
    result = cluster.cycle()
    assert len(moved(cluster, result)) == (len(sizes) if moves else 0)
    assert {one.fits_on for one in result.evictions} == ({"n1"} if moves else set())
    assert cluster.nominated(result) == ({"wants": "n0"} if moves else {})
    assert ("NotWorthMoving" in reasons_for(cluster, "wants")) is not moves


def test_as_much_as_it_gains_is_too_much() -> None:
    """Two halves could go to one node each, and a whole would fit where they are: eight for eight."""
    cluster = nodes(3)
    for number in range(2):
        runs(cluster, f"p{number}", "n0", 4)
        runs(cluster, f"bare-{number}", f"n{number + 1}", 4, owner=None)
    cluster.add_pod(pod("wants", cpu=1, gpu=8))
    assert not cluster.cycle().evictions
    assert "NotWorthMoving" in reasons_for(cluster, "wants")


def test_what_a_move_would_cost_and_gain_is_said() -> None:
    cluster = nodes(2)
    cluster.gang("gang", 2, node_name="n0", cpu=1, gpu=2, phase="Running")
    runs(cluster, "bare", "n1", 4, owner=None)
    cluster.add_pod(pod("wants", cpu=1, gpu=8))
    cluster.cycle()
    assert str(reasons_for(cluster, "wants")["NotWorthMoving"]) == (
        "no pods were moved for it: that would cost as much as 100 % of the largest node, and gain 100 %"
    )


def again(cluster: Workloads, result: CycleResult, node: str, suffix: str) -> None:
    """The evicted pods are gone, and made again on a node."""
    for eviction in result.evictions:
        before = cluster.state.pods[eviction.uid].pod
        cluster.delete_pod(before)
        name = f"{before.name}{suffix}"
        born = cluster.now // 1_000_000 + 1
        cluster.add_pod(msgspec.structs.replace(before, name=name, uid=f"uid-{name}", node_name=node, created_at=born))


@pytest.mark.parametrize("in_gang", [True, False])
@pytest.mark.parametrize("restarted", [True, False])
def test_moved_group_is_not_moved_again_during_the_cool_down(in_gang: bool, restarted: bool) -> None:
    cluster = nodes(2)
    if in_gang:
        cluster.gang("g", 2, node_name="n0", cpu=1, gpu=1, phase="Running")
    else:
        runs(cluster, "p", "n0", 2)
    runs(cluster, "bare", "n1", 4, owner=None)
    cluster.add_pod(pod("first", cpu=1, gpu=8))
    result = cluster.cycle()
    assert moved(cluster, result)
    again(cluster, result, "n1", "-again")
    if restarted:
        cluster.restart()
    cluster.delete_pod(cluster.state.pods["uid-first"].pod)
    cluster.delete_pod(cluster.state.pods["uid-bare"].pod)
    runs(cluster, "bare-2", "n0", 4, owner=None)
    cluster.add_pod(pod("second", cpu=1, gpu=8))
    cluster.now += 5 * MINUTE
    waits = cluster.cycle()
    assert not waits.evictions
    assert "MovedLately" in reasons_for(cluster, "second")
    assert waits.due, "the next cycle is not later than that"
    cluster.now += 6 * MINUTE
    assert moved(cluster, cluster.cycle())


def test_other_pods_of_an_owner_may_be_moved_meanwhile() -> None:
    cluster = nodes(3)
    one = Owner("ReplicaSet", "web", "uid-web")
    for number in range(2):
        runs(cluster, f"web-{number}", f"n{number}", 2, owner=one)
    runs(cluster, "bare", "n2", 2, owner=None)
    cluster.add_pod(pod("first", cpu=1, gpu=8))
    result = cluster.cycle()
    assert moved(cluster, result) == {"web-0"}
    again(cluster, result, "n2", "-again")
    cluster.run(*(cluster.state.pods[one.uid].pod for one in cluster.cycle().placements))
    cluster.add_pod(pod("second", cpu=1, gpu=8))
    assert moved(cluster, cluster.cycle()) == {"web-1"}


def test_a_cool_down_of_none_moves_again_at_once() -> None:
    cluster = nodes(2)
    runs(cluster, "p", "n0", 2)
    runs(cluster, "bare", "n1", 4, owner=None)
    cluster.add_pod(pod("first", cpu=1, gpu=8))
    config = EngineConfig(consolidate_cooldown_us=0)
    again(cluster, cluster.cycle(config), "n1", "-again")
    cluster.delete_pod(cluster.state.pods["uid-first"].pod)
    cluster.delete_pod(cluster.state.pods["uid-bare"].pod)
    cluster.add_pod(pod("second", cpu=64, gpu=6))
    runs(cluster, "bare-2", "n0", 4, owner=None)
    assert moved(cluster, cluster.cycle(config)) == {"p-again"}


def test_pod_that_could_not_be_evicted_is_not_tried_again_at_once() -> None:
    cluster = nodes(2)
    halves(cluster)
    (eviction,) = cluster.cycle().evictions
    failed = payloads.EvictionFailed(eviction.uid, "default", eviction.name, eviction.node, 429, "TooManyRequests")
    cluster.record(f"pod/{eviction.uid}", failed)
    assert moved(cluster, cluster.cycle()) == {"half-n1"}, "the other one may be moved as well"
    cluster.restart()
    assert not cluster.cycle().evictions


HALF_AN_HOUR = EngineConfig(consolidate_win_us=30 * MINUTE)


@pytest.mark.parametrize(
    ("ages", "checkpoints", "goes"),
    [
        pytest.param((120, 120), (), set(), id="8 GPU-hours are not lost for 4"),
        pytest.param((120, 30), (), {"half-n1"}, id="2 GPU-hours are"),
        pytest.param((120, 120), (10,), {"half-n0"}, id="a checkpoint makes the move cheap"),
    ],
)
def test_move_is_made_if_it_loses_less_work_than_the_start_wins(
    ages: tuple[int, int], checkpoints: tuple[int, ...], goes: set[str]
) -> None:
    cluster = nodes(2)
    now = cluster.now // 1_000_000
    for number, age in enumerate(ages):
        runs(cluster, f"half-n{number}", f"n{number}", 4, start_time=now - age * 60)
    for number, ago in enumerate(checkpoints):
        cluster.see(cluster.state.pods[f"uid-half-n{number}"].pod, checkpoint_at=now - ago * 60)
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    result = cluster.cycle(HALF_AN_HOUR)
    assert moved(cluster, result) == goes
    assert ("LosesTooMuchWork" in reasons_for(cluster, "whole")) is not bool(goes)
    assert {eviction.won_gpu_seconds for eviction in result.evictions} == {4 * 3600 for _ in goes}


def stranded(cluster: Workloads, **light: Any) -> None:
    """One GPU is free beside too few CPUs; elsewhere many CPUs are free beside no GPU."""
    cluster.add_node("n0", cpu=20, gpu=2)
    cluster.add_node("n1", cpu=96, gpu=2)
    start = cluster.now // 1_000_000 - 600
    owner = msgspec.structs.replace(OWNER, name="o", uid="uid-o")
    rest = {"phase": "Running", "start_time": start}
    cluster.add_pod(pod("heavy", cpu=16, gpu=1, node_name="n0", owner=owner, **rest))
    for name in ("light", "other"):
        cluster.add_pod(pod(name, cpu=6, gpu=1, node_name="n1", **rest, **({"owner": owner} | light)))
    cluster.add_pod(pod("wants", cpu=8, gpu=1))


def test_two_pods_change_places_so_that_a_stranded_gpu_is_used() -> None:
    cluster = Workloads()
    stranded(cluster)
    result = cluster.cycle(msgspec.structs.replace(HALF_AN_HOUR, consolidate_from_per_cent=75))
    assert moved(cluster, result) == {"heavy", "light"}
    assert {one.name: one.fits_on for one in result.evictions} == {"heavy": "n1", "light": "n0"}
    assert cluster.nominated(result) == {"wants": "n0"}


def test_pods_change_no_places_without_a_rate_or_with_idle_gpus_or_with_pods_that_nothing_makes_again() -> None:
    idle = msgspec.structs.replace(HALF_AN_HOUR, consolidate_from_per_cent=76)
    for config, light in ((EngineConfig(), {}), (idle, {}), (HALF_AN_HOUR, {"owner": None})):
        cluster = Workloads()
        stranded(cluster, **light)
        assert not cluster.cycle(config).evictions


def test_moved_pods_come_first_among_equals_when_they_come_again() -> None:
    cluster = Workloads()
    stranded(cluster)
    cluster.cycle(HALF_AN_HOUR)
    for name in ("heavy", "light"):
        before = cluster.state.pods[f"uid-{name}"].pod
        cluster.delete_pod(before)
        comes_again(cluster, before)
    kept = {name: cluster.state.pods[f"uid-{name}-2"].nomination for name in ("heavy", "light")}
    assert {name: one.node for name, one in kept.items() if one is not None} == {"heavy": "n1", "light": "n0"}
    for number in range(4):
        cluster.add_pod(pod(f"earlier-{number}", cpu=4, gpu=1, created_at=1))
    placed = {one.name: one.node for one in cluster.cycle(HALF_AN_HOUR).placements}
    assert placed == {"wants": "n0", "heavy-2": "n1", "light-2": "n0"}


def test_a_day_has_so_many_moves_and_a_snapshot_keeps_count() -> None:
    config = msgspec.structs.replace(HALF_AN_HOUR, consolidate_pods_per_day=3, consolidate_cooldown_us=0)
    cluster = Workloads()
    stranded(cluster)
    assert len(cluster.cycle(config).evictions) == 2
    second = Workloads("test")
    second.events, second.state, second.now = cluster.events, decode_state(encode_state(cluster.state)), cluster.now
    assert second.state.moved_pods == cluster.state.moved_pods
    assert second.state.homes == cluster.state.homes != {}
    for name in ("heavy", "light", "wants"):
        second.delete_pod(second.state.pods[f"uid-{name}"].pod)
    second.add_node("n2", cpu=20, gpu=2)
    again = {"owner": OWNER, "phase": "Running", "start_time": second.now // 1_000_000 - 600}
    second.add_pod(pod("heavy-2", cpu=16, gpu=1, node_name="n0", **again))
    second.add_pod(pod("light-2", cpu=6, gpu=1, node_name="n1", **again))
    second.add_pod(pod("heavy-3", cpu=16, gpu=2, node_name="n2", **again))
    second.add_pod(pod("wants-2", cpu=8, gpu=1))
    assert not second.cycle(config).evictions, "two more would be four"
    second.now += 25 * 60 * MINUTE
    more = msgspec.structs.replace(config, consolidate_win_us=60 * 60 * MINUTE)
    assert len(second.cycle(more).evictions) == 2


@pytest.mark.parametrize("left", [1, 0])
def test_moves_that_a_day_does_not_have_are_said(left: int) -> None:
    cluster = nodes(2)
    for number in range(4):
        runs(cluster, f"small-{number}", f"n{number // 2}", 1)
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    if not left:
        cluster.state.moved_pods[cluster.now // (60 * MINUTE)] = 1
    assert not cluster.cycle(EngineConfig(consolidate_pods_per_day=1)).evictions
    said = str(reasons_for(cluster, "whole")["TooManyToMove"])
    assert said.endswith(f"{'2 pods' if left else '1 pod'} would have to be, {left} of 1 a day may be now")


def comes_again(cluster: Workloads, before: Pod) -> None:
    """The controller makes a moved pod's successor."""
    name, born = f"{before.name}-2", cluster.now // 1_000_000 + 1
    spec = {"node_name": "", "phase": "Pending", "start_time": 0, "created_at": born}
    cluster.add_pod(msgspec.structs.replace(before, name=name, uid=f"uid-{name}", **spec))


def after_moves(cluster: Workloads, steps: str, thief: Pod, config: EngineConfig | None = None) -> dict[str, str]:
    """Move pods, do steps with a cycle after each, and return who got which node then.

    Args:
        steps: of the moved pods by name, the first is A if it comes again and a once it is gone, the second B or b; t
            is the thief.
    """
    result = cluster.cycle(config)
    before = [cluster.state.pods[uid].pod for uid in sorted(one.uid for one in result.evictions)]
    nodes: dict[str, str] = {}
    for step in [*steps, "", ""]:
        if step == "t":
            cluster.add_pod(thief)
        elif step.isupper():
            comes_again(cluster, before["AB".index(step)])
        elif step:
            cluster.delete_pod(before["ab".index(step)])
        nodes |= cluster.placed(cluster.cycle(config))
    return nodes


def zoned_exchange() -> Workloads:
    """As `stranded`, in one zone of each node; the other zone of each is full, and no pod may use both."""
    cluster = Workloads()
    start, rest = cluster.now // 1_000_000 - 600, {"memory": 2, "phase": "Pending"}
    fills = (
        ("n0", 10, ("full-0", 10, 2), ("heavy", 8, 1)),
        ("n1", 48, ("full-1", 48, 2), ("light", 3, 1), ("other", 3, 1)),
    )
    for node, cpu, *pods in fills:
        zone = amounts(cpu=cpu, memory=64, gpu=2)
        cluster.add_node(node, zone, zone)
        for name, cpus, gpus in pods:
            owner = msgspec.structs.replace(OWNER, name=name, uid=f"uid-{name}") if name in ("heavy", "light") else None
            cluster.full(cluster.add_pod(pod(name, cpu=cpus, gpu=gpus, owner=owner, start_time=start, **rest)))
    cluster.add_pod(pod("wants", cpu=4, memory=2, gpu=1))
    return cluster


@pytest.mark.parametrize("steps", ["ABtab", "BAtba", "tAaBb", "BbtAa", "tBAab"])
def test_homes_of_moved_pods_are_in_the_zones_that_others_leave(steps: str) -> None:
    cluster = zoned_exchange()
    placed = after_moves(cluster, steps, pod("thief", cpu=3, memory=2, gpu=1, created_at=1), HALF_AN_HOUR)
    assert placed == {"heavy-2": "n1", "light-2": "n0", "wants": "n0"}
    zones = {entry.pod.name: {zone for zone, *_ in entry.zone_charge.split} for entry in cluster.state.pods.values()}
    assert zones["heavy-2"] == zones["other"], "the only one that is not full"
    assert zones["light-2"] == zones["wants"] != zones["full-0"]


@pytest.mark.parametrize("steps", ["ABtab", "BatAb", "aAbBt", "tBbAa"])
def test_replicas_that_were_moved_each_find_a_home_in_whichever_order_they_come(steps: str) -> None:
    cluster = nodes(3)
    one = Owner("ReplicaSet", "web", "uid-web")
    for number in range(2):
        runs(cluster, f"web-{number}", "n0", 2, owner=one)
        runs(cluster, f"bare-{number}", f"n{number + 1}", 6 - number, owner=None)
    runs(cluster, "small", "n2", 1, owner=None)
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    placed = after_moves(cluster, steps, pod("thief", cpu=1, gpu=2, created_at=1))
    assert placed.pop("whole") == "n0"
    assert sorted(placed.items(), key=lambda one: one[1]) in (
        [("web-0-2", "n1"), ("web-1-2", "n2")],
        [("web-1-2", "n1"), ("web-0-2", "n2")],
    )


@pytest.mark.parametrize("groups", [("g",), ("g", "h")])
@pytest.mark.parametrize("steps", ["AtBab", "tBAab", "aAtBb", "abAtB", "bBtaA", "abtAB"])
def test_gang_finds_its_homes_though_it_comes_one_by_one(steps: str, groups: tuple[str, ...]) -> None:
    cluster = nodes(2)
    for name in groups:
        together = {"together": tuple(f"default/{one}" for one in groups)} if len(groups) > 1 else None
        cluster.gang(name, 2 // len(groups), group=together, node_name="n0", cpu=1, gpu=1, phase="Running")
    runs(cluster, "bare", "n1", 4, owner=None)
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    # It fits beside one of the two.
    placed = after_moves(cluster, steps, pod("thief", cpu=1, gpu=3, created_at=1))
    names = ("g-0-2", "g-1-2") if len(groups) == 1 else ("g-0-2", "h-0-2")
    assert placed == {"whole": "n0"} | dict.fromkeys(names, "n1")


@pytest.mark.parametrize(
    ("phase", "late_us", "keeps"),
    [
        ("Running", SUCCESSOR_US - 1_000_000, True),
        ("Running", SUCCESSOR_US, False),
        ("Failed", 0, True),
        ("Succeeded", 0, False),
    ],
)
def test_home_of_a_pod_that_is_gone_waits_a_minute_for_its_successor(phase: str, late_us: int, keeps: bool) -> None:
    cluster = nodes(2)
    runs(cluster, "p", "n0", 4)
    runs(cluster, "bare", "n1", 4, owner=None)
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    (eviction,) = cluster.cycle().evictions
    before = cluster.state.pods[eviction.uid].pod
    cluster.add_pod(msgspec.structs.replace(before, phase=phase))
    cluster.delete_pod(before)
    cluster.restart()
    cluster.add_pod(pod("thief", cpu=1, gpu=4, created_at=1))
    gone_at = cluster.now
    started = cluster.cycle()
    assert {"whole"} <= cluster.placed(started).keys()
    if keeps:
        due = next_due(cluster.state, EngineConfig(), now=cluster.now)
        assert due is not None, "then there is room for the thief"
        assert due // 1_000_000 == (gone_at + SUCCESSOR_US) // 1_000_000
        assert RoomKeptForOthers(nodes=1, example="n1", group="Pod default/p") in started.pending[0].alone[0].reasons
    cluster.now = gone_at + late_us
    placed = cluster.placed(started) | cluster.placed(cluster.cycle())
    comes_again(cluster, before)
    placed |= cluster.placed(cluster.cycle())
    assert placed == {"whole": "n0", "p-2" if keeps else "thief": "n1"}


@pytest.mark.parametrize("rules", [near("web", "host"), away("web", "host"), spread("host")])
@pytest.mark.parametrize("steps", ["atA", "Aat", "aAt"])
def test_home_of_the_last_pod_of_a_class_is_kept_whatever_rules_it_has(rules: PodRules, steps: str) -> None:
    cluster = nodes(2)
    runs(cluster, "p", "n0", 4, labels={"app": "web"}, rules=rules)
    runs(cluster, "bare", "n1", 4, owner=None)
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    assert after_moves(cluster, steps, pod("thief", cpu=1, gpu=4, created_at=1)) == {"whole": "n0", "p-2": "n1"}


def with_claims(bare: int) -> Workloads:
    """A pod has one of two devices of `n0` by a claim of its own, bare pods those of `n1`; one more asks for two."""
    cluster = devices(Workloads(), n0=2)
    runs_on: dict[str, str] = {}
    for number in range(bare + 1):
        more = {"cpu": 3, "owner": None} if number else {"cpu": 6, "owner": OWNER}
        one = from_template(cluster, exactly(), name=f"bare-{number}" if number else "p", **more)
        runs_on |= cluster.placed(cluster.cycle())
        cluster.run(one)
        devices(cluster, n1=2)
    assert set(runs_on.values()) == {"n0", "n1"}
    for node in ("n0", "n1"):
        cluster.add_node(node, cpu=16, memory=64)
    from_template(cluster, exactly(count=2), name="whole", cpu=7)
    return cluster


@pytest.mark.parametrize(("bare", "goes"), [(1, ["p"]), (2, [])])
def test_pod_with_a_claim_of_its_own_is_moved_where_the_next_claim_gets_devices(bare: int, goes: list[str]) -> None:
    cluster = with_claims(bare)
    assert [(one.name, one.fits_on) for one in cluster.cycle().evictions] == [(name, "n1") for name in goes]


def test_home_of_a_pod_with_a_claim_is_kept_once_both_are_gone() -> None:
    cluster = with_claims(1)
    (eviction,) = cluster.cycle().evictions
    before = cluster.state.pods[eviction.uid].pod
    cluster.delete_pod(before)
    cluster.record("resourceclaim/default/p-gpu", payloads.ResourceClaimDeleted("uid-p-gpu", "default", "p-gpu"))
    cluster.restart()
    from_template(cluster, exactly(), name="thief", created_at=1)
    assert cluster.placed(cluster.cycle()) == {"whole": "n0"}
    from_template(cluster, exactly(), name="p-2", cpu=6, owner=OWNER, created_at=2)
    assert cluster.placed(cluster.cycle()) == {"p-2": "n1"}


def test_pod_is_not_moved_to_come_back_where_it_is_once_rules_about_it_are_met() -> None:
    cluster = nodes(2)
    runs(cluster, "near", "n0", 1, labels={"app": "web"})
    runs(cluster, "bare", "n1", 8, owner=None)
    cluster.add_pod(pod("wants", cpu=1, gpu=2, labels={"app": "web"}, rules=spread("host")))
    assert not cluster.cycle().evictions
    assert "NoOtherPlaceForThem" in reasons_for(cluster, "wants")


@pytest.mark.parametrize(("other", "move"), [("web", 0), ("else", 2)])
def test_pods_are_not_moved_to_where_one_keeps_the_other_away(other: str, move: int) -> None:
    cluster = nodes(3)
    runs(cluster, "alone", "n0", 3, labels={"app": "web"}, rules=away("web", "host"))
    runs(cluster, "other", "n1", 3, labels={"app": other})
    runs(cluster, "few", "n2", 1, owner=None)
    cluster.gang("g", 2, cpu=1, gpu=8)
    assert len(cluster.cycle().evictions) == move


@pytest.mark.parametrize(("late", "gets", "cleared"), [(-1, "p-2", []), (0, "thief", [ClearReason.GAVE_UP])])
def test_home_holds_for_as_long_as_nominations_do_since_the_move(late: int, gets: str, cleared: list[str]) -> None:
    cluster = nodes(2)
    runs(cluster, "p", "n0", 4)
    runs(cluster, "bare", "n1", 4, owner=None)
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    config = EngineConfig(actions=(Action.ALLOCATE,))
    (eviction,) = cluster.cycle().evictions
    before = cluster.state.pods[eviction.uid].pod
    cluster.delete_pod(before)
    started = cluster.placed(cluster.cycle(config))
    cluster.now += EngineConfig().nomination_us + late * MINUTE
    comes_again(cluster, before)
    cluster.add_pod(pod("thief", cpu=1, gpu=4, created_at=1))
    result = cluster.cycle(config)
    assert started | cluster.placed(result) == {"whole": "n0", gets: "n1"}
    assert [one.reason for one in result.cleared] == cleared


_EVICTION = {
    **dict.fromkeys(("uid", "namespace", "name", "node", "cycle", "group", "preemptor"), "another"),
    "reason": "Consolidated",
}


def test_a_pod_that_was_taken_and_put_back_loses_what_it_lost_before() -> None:
    cluster = Workloads().add_node("n0", cpu=64, gpu=8)
    for name in ("a", "b"):
        owner = msgspec.structs.replace(OWNER, name=name, uid=f"uid-of-{name}")
        cluster.add_pod(pod(name, cpu=1, gpu=2, node_name="n0", phase="Running", start_time=1, owner=owner))
    config, state = EngineConfig(), cluster.state
    session = Session(cycle_input(state, config, now=state.recorded_at), config)
    workloads = [one for one in session.cycle_input.workloads.values() if one.active]
    every = Candidates(session, workloads, protected={}).losses()[1].tolist()
    assert len(every) == 2
    assert min(every) > 0

    candidates = Candidates(session, workloads, protected={})
    (first, *_) = workloads[0].active.values()
    taken = candidates.victim_set(first)
    assert taken is not None
    candidates.take(taken)
    assert candidates.losses()[1].tolist() == every[1:]
    candidates.put_back(taken)
    # Losses are worked out anew once the cycle has decided to evict any pod.
    session.record.evicted["another"] = msgspec.convert(_EVICTION, payloads.EvictionDecided)
    assert candidates.losses()[1].tolist() == every
