"""Suspect nodes: which nodes fail what is put on them, and which work fails by itself."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from kaicore.analysis.ask.explanations import why_node, why_pod
from kaicore.analysis.life.pod_history import PodEvidence
from kaicore.rules.deciding.cycle_input import idle, next_due
from kaicore.rules.deciding.replay import KNOWN_BEFOREHAND, Replay
from kaicore.rules.deciding.suspects import probe_text, suspect_text
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import (
    NodeCleared,
    NodeDeleted,
    NodeObserved,
    NodeSuspected,
    PodBound,
    PodObserved,
    PodRejected,
)
from kaicore.rules.events.reasons.base import time_text
from kaicore.rules.events.reasons.node import NodeSuspect
from kaicore.rules.model.pod import Owner, Pod, is_kubelet_rejection
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import decode_state, encode_state
from msgspec.structs import replace

from tests.given.cluster.devices import DRIVER, Document, add_slice, add_taint_rule, gpu, slice_document
from tests.given.cluster.factory import node, pod
from tests.given.work.workloads import Workloads
from tests.measured.digest.engine import replayed

_SECOND_US = 1_000_000
CONFIG = EngineConfig()


class Ended(NamedTuple):
    """The end of a pod: how it was seen last, empty for deleted; `late_s` after its kubelet took it."""

    phase: str
    started: bool = True
    reason: str = ""
    after_s: int = 5
    deletion_at: int | None = None
    late_s: int = 0


class Fleet(Workloads):
    """Nodes `n0`, `n1`, … of one GPU; pods end one after the other before the next comes, first on `n0`.

    Attributes:
        bad: nodes that kill each pod within five seconds.
        broken: works that fail likewise wherever they are.
    """

    def __init__(self, nodes: int = 5, *, bad: Sequence[str] = (), broken: Sequence[str] = ()) -> None:
        super().__init__()
        self.bad, self.broken, self._pods = set(bad), set(broken), 0
        for number in range(nodes):
            self.add_node(f"n{number}", cpu=8, gpu=1)

    def start(self, work: str, config: EngineConfig = CONFIG, **spec: Any) -> str:
        """A pod of a work comes and starts; returns its node, empty where it gets none."""
        self._pods += 1
        spec = {"cpu": 1, "gpu": 1, "created_at": self.now // _SECOND_US} | spec
        self.last = self.add_pod(pod(f"{work}-{self._pods}", owner=Owner("Job", work, f"uid-{work}"), **spec))
        self.cycle(config)
        where = self.state.pods[self.last.uid].node
        if where:
            self.run(self.last)
        return where

    def end(self, *, failed: bool, after_s: int) -> None:
        self.now += after_s * _SECOND_US
        self.see(self.last, phase="Failed" if failed else "Succeeded")
        self.delete_pod(self.last)

    def try_one(self, work: str, config: EngineConfig = CONFIG, **spec: Any) -> str:
        """A pod of a work comes, and ends if it starts; returns its node."""
        where = self.start(work, config, **spec)
        failed = where in self.bad or work in self.broken
        if where:
            self.end(failed=failed, after_s=5 if failed else 90)
        else:
            self.delete_pod(self.last)
        return where

    def seen(self, name: str, **changed: Any) -> None:
        """The watcher sees a node changed."""
        self.record(f"node/{name}", NodeObserved(replace(node(name, cpu=8, gpu=1), **changed)))

    def suspects(self) -> dict[str, tuple[str, ...]]:
        """The works for which nodes are suspect; none named where all of the kind are kept off."""
        return {one.suspected.node: one.suspected.works for one in self.state.node_trials.suspects.values()}

    def news(self) -> list[str]:
        """What was recorded of suspect nodes, in order."""
        found = []
        for one in map(decode_payload, self.events):
            if isinstance(one, NodeSuspected):
                found.append(f"{one.node} suspect")
            elif isinstance(one, NodeCleared):
                found.append(f"{one.node} {one.reason}")
        return found


def known(fleet: Fleet) -> None:
    """The work `a` has run on `n1`."""
    fleet.seen("n0", unschedulable=True)
    assert fleet.start("a") == "n1"
    fleet.end(failed=False, after_s=90)
    fleet.seen("n0")


@pytest.mark.parametrize(
    ("bad", "broken", "works", "where", "suspects"),
    [
        pytest.param("n0", "", "known a a a a b", "n0 n0 n0 n1 n1", {"n0": ()}, id="work that ran elsewhere"),
        pytest.param("n0", "", "a b c a d", "n0 n0 n0 n1 n1", {"n0": ()}, id="three works"),
        pytest.param("n0", "", "a a a b", "n0 n0 n0 n0", {"n0": ("a", "b")}, id="work that was tried nowhere else"),
        pytest.param("n0", "", "a a a a b", "n0 n0 n0 n1 n1", {"n0": ()}, id="then it ran elsewhere"),
        pytest.param("", "a", "a a a b", "n0 n0 n0 n0", {"n0": ("a",)}, id="broken work, before it shows"),
        pytest.param("", "a", "a a a a a a a b", "n0 n0 n0 n1 n1 n1 n2 n0", {}, id="broken work"),
        pytest.param("", "a", "known a a a a a b", "n0 n0 n0 n1 n1 n1", {}, id="work that broke later"),
        pytest.param("", "a", "a b a b a b a b", "n0 n0 n0 n0 n0 n0 n0 n0", {}, id="others last in between"),
        pytest.param(
            "n0 n1",
            "",
            "known a a a a b c d",
            "n0 n0 n0 n1 n1 n1 n1",
            {"n0": (), "n1": ("a", "b", "c", "d")},
            id="no more than a part",
        ),
    ],
)
def test_node_is_suspect_after_failures_in_a_row_that_do_not_follow_the_work(
    bad: str, broken: str, works: str, where: str, suspects: dict[str, tuple[str, ...]]
) -> None:
    fleet = Fleet(bad=bad.split(), broken=broken.split())
    todo = works.split()
    if todo[0] == "known":
        known(fleet)
        todo = todo[1:]
    got = " ".join(fleet.try_one(work) for work in todo)
    assert got == where, fleet.news()
    fleet.try_one("last")
    assert {name: tuple(one.split("/")[-1] for one in some) for name, some in fleet.suspects().items()} == suspects


def black_hole(nodes: int = 5) -> Fleet:
    """`n0` kills pods, and three works have shown it."""
    fleet = Fleet(nodes, bad=("n0",))
    assert [fleet.try_one(work) for work in ("a", "b", "c", "d")] == ["n0", "n0", "n0", "n1"]
    assert fleet.suspects() == {"n0": ()}
    return fleet


def wait(fleet: Fleet, minutes: int) -> None:
    fleet.now += minutes * 60 * _SECOND_US


def test_black_hole_takes_three_pods_in_106_minutes() -> None:
    fleet = Fleet(bad=("n0",))
    began, nodes = fleet.now, list[str]()
    while fleet.now - began < 106 * 60 * _SECOND_US:
        nodes.append(fleet.try_one(f"w{len(nodes) % 7}"))
    assert nodes.count("n0") == 3
    assert len(nodes) > 50
    assert fleet.start("other", gpu=0) == "n0", "of work without devices nothing is known"


def test_second_black_hole_of_an_hour_takes_no_more_pods_of_a_work_that_ran_in_between() -> None:
    fleet = Fleet(bad=("n0",))
    assert [fleet.try_one("a") for _ in range(4)] == ["n0", "n0", "n0", "n1"]
    fleet.bad.clear()
    fleet.seen("n0", unschedulable=True)
    fleet.seen("n0")
    assert fleet.try_one("b") == "n0", "other work lasts where the work failed"
    fleet.seen("n0", unschedulable=True)
    assert fleet.try_one("a") == "n1"
    fleet.seen("n1", unschedulable=True)
    fleet.bad.add("n2")
    assert [fleet.try_one("a") for _ in range(5)] == ["n2", "n2", "n2", "n3", "n3"]


def test_waiting_pod_names_the_evidence_and_the_next_probe() -> None:
    fleet = black_hole(3)
    for name in ("n1", "n2"):
        fleet.seen(name, unschedulable=True)
    assert not fleet.start("e")
    (pending,) = fleet.cycle(CONFIG).pending
    (reason,) = (one for one in pending.reasons if isinstance(one, NodeSuspect))
    (found,) = (one for one in map(decode_payload, fleet.events) if isinstance(one, NodeSuspected))
    shown = [decode_payload(fleet.events[position - 1]) for position in found.failures]
    assert [one.pod.name for one in shown if isinstance(one, PodObserved)] == ["a-1", "b-2", "c-3"]
    assert str(reason).startswith("1 node set aside as suspect: for devices since 20")
    assert f"events {', '.join(map(str, found.failures))}); next probe from " in str(reason)
    why = why_node(fleet.state, "n0")
    assert why is not None
    assert any(one.startswith("is suspect for devices since 20") and "; next probe from " in one for one in why.notes)


@pytest.mark.parametrize(
    ("mended", "nodes", "news"),
    [
        (True, "n1 n0 n0", ["n0 suspect", "n0 Probed"]),
        (False, "n1 n0 n1", ["n0 suspect"]),
    ],
)
def test_probe_comes_once_it_is_due(mended: bool, nodes: str, news: list[str]) -> None:
    fleet = black_hole()
    fleet.bad -= {"n0"} if mended else set()
    wait(fleet, 110)
    seen = [fleet.try_one("e")]
    wait(fleet, 20)
    seen += [fleet.try_one("f"), fleet.try_one("g")]
    assert (" ".join(seen), fleet.news()) == (nodes, news)
    wait(fleet, 3 * 60)
    assert (fleet.try_one("h") == "n0") is mended, "each probe that fails doubles the time to the next"
    wait(fleet, 2 * 60)
    assert fleet.try_one("i") == "n0"


def test_pod_that_is_a_probe_says_so_and_of_which_node() -> None:
    fleet = black_hole()
    wait(fleet, 125)
    others = []
    while fleet.start("e") != "n0":
        others.append(fleet.last.uid)
    (suspect,) = fleet.state.node_trials.suspects.values()
    since = f"suspect since {time_text(suspect.since)}, event {suspect.position}"
    assert probe_text(fleet.state, fleet.state.pods[fleet.last.uid]) == f"probe of node n0, {since}"
    why = why_pod(fleet.state, fleet.last.namespace, fleet.last.name, PodEvidence((), fleet.last.uid))
    assert why is not None
    assert f"probe of node n0, {since}" in why.notes
    assert {probe_text(fleet.state, fleet.state.pods[uid]) for uid in others} <= {""}


def test_probe_is_one_pod_at_a_time_and_clears_the_node_once_it_has_run_for_a_minute() -> None:
    fleet = black_hole()
    fleet.seen("n0", allocatable=node("n0", cpu=8, gpu=4).allocatable)
    wait(fleet, 121)
    pods = {f"p{number}": fleet.add_pod(pod(f"p{number}", gpu=1, created_at=number)) for number in range(8)}
    placed = fleet.placed(fleet.cycle(CONFIG))
    assert sorted(placed.values()) == ["n0", "n1", "n2", "n3", "n4"]
    fleet.run([pods[name] for name in placed])
    assert not fleet.start("e"), "the probe has just begun"
    fleet.delete_pod(fleet.last)
    for name in pods.keys() - placed.keys():
        fleet.delete_pod(pods[name])
    wait(fleet, 1)
    assert fleet.start("f") == "n0"
    assert fleet.news() == ["n0 suspect", "n0 Probed"]


@pytest.mark.parametrize("ends", [True, False])
def test_node_is_cleared_once_its_probe_has_lasted_although_no_pod_waits(ends: bool) -> None:
    fleet = black_hole()
    fleet.bad.clear()
    wait(fleet, 121)
    assert idle(fleet.state), "nobody waits for the probe"
    probe = fleet.last = fleet.add_pod(pod("e", gpu=1, owner=Owner("Job", "e", "uid-e")))
    assert fleet.placed(fleet.cycle(CONFIG)) == {"e": "n0"}
    # That it runs is no reason for a cycle.
    assert next_due(fleet.state, CONFIG, now=fleet.now) == fleet.now + CONFIG.recheck_us
    fleet.run(probe)
    assert why_notes(fleet) == ["a probe is on it"]
    due = next_due(fleet.state, CONFIG, now=fleet.now)
    assert due == fleet.state.pods[fleet.last.uid].started_at + 60 * _SECOND_US
    if ends:
        fleet.end(failed=False, after_s=5)
        assert why_notes(fleet) == ["its probe succeeded"]
    else:
        fleet.now = due
    assert not idle(fleet.state)
    fleet.cycle(CONFIG)
    assert (fleet.suspects(), idle(fleet.state), fleet.news()) == ({}, True, ["n0 suspect", "n0 Probed"])


def why_notes(fleet: Fleet) -> list[str]:
    """The last remark about the suspect node."""
    why = why_node(fleet.state, "n0")
    assert why is not None
    return [one.rpartition("; ")[2] for one in why.notes if one.startswith("is suspect")]


def test_gang_is_a_probe_only_where_no_other_pod_came_for_as_long_again() -> None:
    fleet = Fleet(3, bad=("n0",))
    for work in ("a", "b", "c", "d"):
        fleet.try_one(work)
    fleet.gang("g", 3, gpu=1)
    wait(fleet, 121)
    assert not fleet.cycle(CONFIG).placements
    wait(fleet, 121)
    assert set(fleet.placed(fleet.cycle(CONFIG)).values()) == {"n0", "n1", "n2"}


def gang_that_needs_a_suspect_node(gpus: int = 4) -> tuple[Fleet, list[Pod]]:
    """A gang that fits with four or more of its pods on the suspect node only, as of when a gang may be its probe."""
    fleet = black_hole()
    for name, count in (("n0", gpus), ("n1", 4)):
        fleet.seen(name, allocatable=node(name, cpu=8, gpu=count).allocatable)
    gang = fleet.gang("g", 11, gpu=1, created_at=fleet.now // _SECOND_US)
    wait(fleet, 235)
    (pending,) = fleet.cycle(CONFIG).pending
    assert {entry.node for entry in fleet.state.pods.values()} == {""}, "it waits for another pod's probe"
    (reason,) = (one for one in pending.reasons if isinstance(one, NodeSuspect))
    (suspect,) = fleet.state.node_trials.suspects.values()
    assert suspect.gang_probe_at == suspect.since + 4 * 3600 * _SECOND_US
    assert f", by a gang from {time_text(suspect.gang_probe_at)} on" in str(reason)
    wait(fleet, 10)
    return fleet, gang


def test_gang_that_needs_several_pods_on_a_suspect_node_is_its_probe_and_nothing_else_comes() -> None:
    fleet, _ = gang_that_needs_a_suspect_node(gpus=8)
    fleet.gang("h", 2, gpu=1, created_at=fleet.now // _SECOND_US)
    for number in range(8):
        fleet.add_pod(pod(f"p{number}", gpu=1, created_at=fleet.now // _SECOND_US))
    placed = fleet.placed(fleet.cycle(CONFIG))
    assert sum(name.startswith("g-") for name in placed) == 11
    assert {name.partition("-")[0] for name, one in placed.items() if one == "n0"} == {"g"}
    assert len(placed) < 15, "all would have had room"


@pytest.mark.parametrize("fails", [True, False])
def test_gang_as_a_probe_clears_a_node_unless_one_of_its_pods_failed_there(fails: bool) -> None:
    fleet, gang = gang_that_needs_a_suspect_node()
    placed = fleet.placed(fleet.cycle(CONFIG))
    here = [one for one in gang if placed[one.name] == "n0"]
    assert len(here) == 4
    fleet.run(gang)
    fleet.now += 5 * _SECOND_US
    for one in here[:2] if fails else ():
        fleet.see(one, phase="Failed")
        fleet.delete_pod(one)
    wait(fleet, 2)
    fleet.cycle(CONFIG)
    # The others wait for the one that failed: that they are there for a minute proves nothing.
    assert fleet.news() == ["n0 suspect"] + ([] if fails else ["n0 Probed"])
    if fails:
        (suspect,) = fleet.state.node_trials.suspects.values()
        assert suspect.probes == 1, "a gang is one probe"
    assert replayed(fleet.events)[3] == []


def test_node_that_waited_for_its_probe_as_long_again_takes_one_start_of_a_cycle() -> None:
    fleet = black_hole()
    for name in ("n0", "n1"):
        fleet.seen(name, allocatable=node(name, cpu=8, gpu=4).allocatable)
    wait(fleet, 241)
    for number in range(16):
        fleet.add_pod(pod(f"p{number}", gpu=1, created_at=number))
    fleet.add_pod(pod("other", cpu=1, created_at=1))
    placed = fleet.placed(fleet.cycle(CONFIG))
    assert sorted(one for name, one in placed.items() if name != "other") == ["n0", *["n1"] * 4, "n2", "n3", "n4"]
    assert "other" in placed


@pytest.mark.parametrize("promised", [True, False])
def test_nothing_starts_beside_a_probe_that_is_promised_its_room(promised: bool) -> None:
    fleet = black_hole()
    for name in ("n1", "n2", "n3", "n4"):
        fleet.seen(name, unschedulable=True)
    fleet.seen("n0", allocatable=node("n0", cpu=8, gpu=8).allocatable)
    wait(fleet, 241)
    now = fleet.now // _SECOND_US
    fleet.add_pod(pod("leaves", cpu=7, node_name="n0", phase="Running", created_at=1, deletion_at=now))
    fleet.add_pod(pod("comes", cpu=4, gpu=1, created_at=1, nominated_node="n0" if promised else ""))
    fleet.add_pod(pod("late", cpu=0, gpu=1, created_at=now))
    assert fleet.placed(fleet.cycle(CONFIG)) == ({} if promised else {"late": "n0"})


def test_gang_with_a_bad_node_starts_elsewhere_after_three_failures() -> None:
    fleet = Fleet(4, bad=("n0",))
    starts = []
    for number in range(4):
        pods = fleet.gang(f"g{number}", 3, gpu=1, owner=Owner("Job", "train", f"uid-{number}"))
        starts.append("n0" in fleet.placed(fleet.cycle(CONFIG)).values())
        fleet.run(pods)
        fleet.now += 5 * _SECOND_US
        for one in pods:
            if fleet.state.pods[one.uid].node == "n0":
                fleet.see(one, phase="Failed")
            fleet.delete_pod(one)
    assert starts == [True, True, True, False]


@pytest.mark.parametrize("how", ["cordon", "problem", "deleted"])
def test_node_that_was_mended_is_suspect_no_more(how: str) -> None:
    fleet = black_hole()
    if how == "cordon":
        fleet.seen("n0", unschedulable=True)
    elif how == "problem":
        fleet.seen("n0", problems=("GpuXidError",))
    else:
        fleet.record("node/n0", NodeDeleted("uid-n0", "n0"))
    fleet.seen("n0")
    assert fleet.suspects() == {}
    assert fleet.start("e") == "n0"


def test_one_failure_is_enough_on_a_node_that_reports_a_problem() -> None:
    fleet = Fleet(bad=("n0",))
    fleet.seen("n0", problems=("GpuXidError",))
    assert [fleet.try_one("a"), fleet.try_one("a")] == ["n0", "n1"]
    assert fleet.suspects() == {"n0": ()}


def publish(fleet: Fleet, **taints: Sequence[Document]) -> None:
    """The driver of each node publishes two devices, of which the second has taints."""
    for number in range(5):
        second = gpu("gpu-1", taints=list(taints.get(f"n{number}", ())))
        add_slice(fleet, slice_document(f"n{number}", gpu("gpu-0"), second))


@pytest.mark.parametrize(
    ("key", "value", "effect", "counts"),
    [
        ("gpu.nvidia.com/xid", "79", "NoSchedule", True),
        ("gpu.nvidia.com/xid", "43", "None", False),
        ("gpu.nvidia.com/gpu-lost", "", "NoSchedule", True),
        ("gpu.nvidia.com/unmonitored", "", "None", False),
        ("health-xpumd-gpu.wedged", "", "NoSchedule", True),
        ("gpu.intel.com/core-thermal", "Critical", "NoExecute", True),
        ("gpu.intel.com/core-thermal", "Warning", "NoSchedule", False),
        ("dra.example.com/unhealthy", "Broken", "NoExecute", True),
        ("example.com/maintenance", "faulty-fan", "NoExecute", False),
        ("example.com/drain", "", "NoExecute", False),
        ("failed.example.com/team", "a", "NoSchedule", False),
    ],
)
def test_one_failure_is_enough_on_a_node_with_a_device_that_a_taint_calls_failed(
    key: str, value: str, effect: str, counts: bool
) -> None:
    for by_rule in (False, True):
        fleet = Fleet(bad=("n0",))
        taint = {"key": key, "value": value, "effect": effect}
        publish(fleet, n0=() if by_rule else [taint])
        if by_rule:
            add_taint_rule(fleet, deviceSelector={"driver": DRIVER, "pool": "n0", "device": "gpu-1"}, taint=taint)
        assert fleet.start("plain", gpu=0) == "n0"
        fleet.end(failed=True, after_s=5)
        assert fleet.start("plain", gpu=0) == "n0", "devices are not for work without"
        fleet.end(failed=True, after_s=5)
        assert [fleet.try_one("a"), fleet.try_one("a")] == ["n0", "n1" if counts else "n0"]
        if counts:
            (found,) = (one for one in map(decode_payload, fleet.events) if isinstance(one, NodeSuspected))
            assert found.problems == (f"gpu-1 {key}{'=' if value else ''}{value}:{effect}",)
            (suspect,) = fleet.state.node_trials.suspects.values()
            assert f"; it reports gpu-1 {key}" in suspect_text(suspect)
        assert replayed(fleet.events)[3] == []


def test_taint_of_devices_of_several_nodes_says_nothing_about_one_of_them() -> None:
    for selector in ({"driver": DRIVER}, {}, {"device": "gpu-0"}):
        fleet = Fleet(bad=("n0",))
        publish(fleet)
        broken = gpu("nic", taints=[{"key": "broken", "effect": "NoSchedule"}])
        add_slice(fleet, slice_document("fabric", broken, name="fabric", allNodes=True))
        add_taint_rule(fleet, deviceSelector=selector)
        assert [fleet.try_one("a") for _ in range(4)] == ["n0", "n0", "n0", "n1"]


def test_work_that_fails_everywhere_is_at_fault_where_a_device_is_tainted_too_and_the_taints_end_is_no_repair() -> None:
    fleet = Fleet(broken=("a",))
    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
    publish(fleet, n0=[taint])
    assert fleet.try_one("a") == "n0"
    assert fleet.start("b") == "n1"
    assert fleet.suspects() == {"n0": ()}
    fleet.end(failed=False, after_s=90)
    publish(fleet)
    assert [fleet.try_one("b"), fleet.news()] == ["n1", ["n0 suspect"]], "a driver that starts anew ends it"
    assert [fleet.try_one("a"), fleet.try_one("b")] == ["n1", "n0"]
    assert fleet.news() == ["n0 suspect", "n0 FollowsWork"]


@pytest.mark.parametrize(
    ("end", "counts"),
    [
        (Ended("Failed"), True),
        (Ended("Failed", started=False), True),
        (Ended("Failed", reason="UnexpectedAdmissionError", started=False), True),
        (Ended("Failed", reason="TopologyAffinityError", started=False), False),
        (Ended("Failed", reason="OutOfcpu", started=False), False),
        (Ended("Failed", after_s=61), False),
        (Ended("Failed", deletion_at=1), False),
        (Ended("Failed", late_s=3600), False),
        (Ended("Succeeded"), False),
        (Ended(""), False),
    ],
)
def test_end_that_its_node_may_have_caused_is_a_failure(end: "Ended", counts: bool) -> None:
    fleet = Fleet()
    one = fleet.add_pod(pod("one", gpu=1, created_at=fleet.now // _SECOND_US))
    fleet.cycle(CONFIG)
    where, start = fleet.state.pods[one.uid].node, fleet.now // _SECOND_US - end.late_s
    fleet.record(f"pod/{one.uid}", PodBound(one.uid, one.namespace, one.name, where))
    if end.started:
        fleet.see(one, node_name=where, phase="Running", start_time=start)
    fleet.now += end.after_s * _SECOND_US
    if end.phase:
        fleet.see(one, node_name=where, phase=end.phase, reason=end.reason, deletion_at=end.deletion_at)
        if is_kubelet_rejection(fleet.state.pods[one.uid].pod):
            fleet.record(f"pod/{one.uid}", PodRejected(one.uid, one.namespace, one.name, where, end.reason))
    fleet.delete_pod(one)
    assert bool(fleet.state.node_trials.failures) is counts


def test_log_with_suspects_replays_bit_for_bit_and_survives_a_snapshot() -> None:
    fleet = black_hole()
    wait(fleet, 125)
    fleet.bad.clear()
    for work in ("e", "f", "g"):
        fleet.try_one(work)
    assert fleet.news() == ["n0 suspect", "n0 Probed"]
    replay = Replay(ClusterState("test"), [one for one in fleet.events if one.type in KNOWN_BEFOREHAND])
    for event in fleet.events:
        replay.take(event)
        body = encode_state(replay.state)
        assert encode_state(decode_state(body)) == body
    report = replay.finish()
    assert report.cycles > 6
    assert not report.kinds


def test_nothing_is_suspect_where_that_is_switched_off_or_there_are_too_few_nodes() -> None:
    off = replace(CONFIG, suspect_after=0)
    for fleet, config in ((Fleet(bad=("n0",)), off), (Fleet(2, bad=("n0",)), CONFIG)):
        assert [fleet.try_one(work, config) for work in "abcde"] == ["n0"] * 5
        assert not fleet.news()
    assert "suspect_after" not in off.document(), "a configuration that does not say so means what it meant"
