"""The demonstration's verdict: what it takes for all checks to pass, and that anything less is reported."""

from dataclasses import replace
from typing import Any

import pytest
from kai_cli.demonstration.report import (
    NEVER_FITS,
    ClusterReport,
    DemoReport,
    ExpectedGroup,
    GangDomains,
    ListedPod,
    PlacedDomains,
    groups_of,
    has_caught_up,
    render,
)
from kaicore.rules.deciding.replay import Difference, ReplayReport

from tests.given.cluster.factory import Cluster, pod
from tests.given.cluster.racks import Racks, asks

CLUSTER = ClusterReport(
    name="demo",
    seconds=30.0,
    settled=True,
    events=900,
    nodes=24,
    pods=13,
    bound=12,
    succeeded=12,
    running=0,
    rejected={},
    evicted={},
    reselected=0,
    pending={"default/never": ["8 nodes can never align it: nvidia.com/gpu: 5 needed, 4 in the largest zone"]},
    agreement={"exact": 11, "same-zones": 0, "different": 1},
    misses={},
    surprises=[],
    unobserved=[],
    groups=[ExpectedGroup("Job default/train", 12, 12), ExpectedGroup("Pod default/never", 0, 0)],
    gangs=[GangDomains("default/gang", 4, {"example.com/block": 1, "example.com/rack": 1}, "example.com/rack")],
    cycles=20,
)
GOOD = DemoReport(
    sighted=CLUSTER,
    blind=replace(CLUSTER, name="demo-blind", rejected={"TopologyAffinityError": 17}, agreement={}),
    replays=[ReplayReport("demo", cycles=20), ReplayReport("demo-blind", cycles=20)],
    audits=[True, True],
)
DIFFERENCE = Difference(position=7, cycle="c", what="pod p", recorded="a", replayed="b")


def test_when_all_is_as_wanted_all_checks_pass() -> None:
    assert GOOD.good
    assert render(GOOD).endswith("\nall checks passed\n")
    assert "failed" not in render(GOOD)


def test_placements_are_told_apart_by_cause() -> None:
    misses = {"zones": 1, "amounts": 2, "ReleasedEarlier": 3, "HalfRead": 4, "Other": 5}
    agreement = {"exact": 11, "same-zones": 7, "different": 10}
    report = render(replace(GOOD, sighted=replace(CLUSTER, misses=misses, agreement=agreement)))
    start = report.index("placements of 28 pods, as observed:")
    assert report[start:].splitlines()[1:8] == [
        "    11 as predicted, to the amount",
        "     2 as predicted, except for amounts that it left open",
        "     1 on other zones",
        "     2 with other amounts on the predicted zones",
        "     3 on other zones: the kubelet released pods before the API reported their end",
        "     4 half of an admission was read first; the whole is as predicted",
        "     5 Other",
    ]


def test_a_kubelet_ahead_of_the_api_is_no_complaint() -> None:
    misses = {"ReleasedEarlier": 3, "HalfRead": 1, "OldestFirst": 2}
    assert replace(GOOD, sighted=replace(CLUSTER, misses=misses)).good


def test_a_kubelets_rejection_is_counted_as_that_and_not_as_a_placement() -> None:
    state = Cluster().state
    state.counters.rejections = {"TopologyAffinityError": 1}
    state.counters.misses = {
        "n1": {"restricted/TopologyAffinityError": 1, "restricted/zones": 1},
        "n2": {"single-numa-node/zones": 2},
    }
    report = ClusterReport.of(state, [], [], seconds=1, settled=True)
    assert (report.misses, report.rejected) == ({"zones": 3}, {"TopologyAffinityError": 1})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"settled": False}, "not done after 30 s"),
        ({"groups": [ExpectedGroup("Job default/train", 12, 11)]}, "Job default/train: 11 of 12 ran"),
        (
            # Fifty pods that would fit, each with some reason to wait.
            {
                "groups": [ExpectedGroup("Job default/train", 50, 0)],
                "pending": {f"default/train-{number}": ["the moon is full"] for number in range(50)},
            },
            "Job default/train: 0 of 50 ran",
        ),
        ({"groups": [ExpectedGroup("Pod default/never", 0, 1)]}, "Pod default/never: ran, and could not"),
        ({"pending": {"default/never": []}}, "default/never waits without a reason"),
        ({"rejected": {"TopologyAffinityError": 2}}, "2 rejected by kubelets: TopologyAffinityError"),
        ({"misses": {"zones": 3}}, "3 placed by kubelets otherwise than predicted: on other zones"),
        ({"misses": {"Unheard": 1}}, "1 placed by kubelets otherwise than predicted: Unheard"),
        ({"unobserved": ["default/p"]}, "1 not observed by any exporter, such as default/p"),
    ],
)
def test_what_is_wrong_with_the_cluster_is_told(changes: dict[str, Any], complaint: str) -> None:
    report = replace(GOOD, sighted=replace(CLUSTER, **changes))
    assert not report.good
    assert f"checks that failed:\n  - {complaint}" in render(report)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"audits": [True, False]}, "cluster demo-blind: the hash chain is broken"),
        (
            {"replays": [ReplayReport("demo", cycles=1, differences=[DIFFERENCE]), *GOOD.replays[1:]]},
            "cluster demo: 1 differences in replay",
        ),
        ({"replays": [ReplayReport("demo"), *GOOD.replays[1:]]}, "cluster demo: no cycle was replayed"),
    ],
)
def test_what_is_wrong_with_the_log_is_told(changes: dict[str, Any], complaint: str) -> None:
    report = replace(GOOD, **changes)
    assert not report.good
    assert complaint in render(report)


def test_what_ran_is_held_against_what_was_asked_for() -> None:
    cluster = Cluster()
    cluster.add_pod(pod("alone", phase="Running"))
    template = {"template": {"spec": {"schedulerName": "kai-ledger"}}}
    ours = {"schedulerName": "kai-ledger"}
    manifests: list[dict[str, Any]] = [
        {"kind": "Job", "metadata": {"name": "train"}, "spec": {"completions": 3, **template}},
        {"kind": "Job", "metadata": {"name": "gone"}, "spec": {"parallelism": 2, **template}},
        {"kind": "Job", "metadata": {"name": "others"}, "spec": {"completions": 3}},
        {"kind": "Pod", "metadata": {"name": "alone"}, "spec": ours},
        {"kind": "Pod", "metadata": {"name": "alone", "namespace": "elsewhere"}, "spec": ours},
        {"kind": "Pod", "metadata": {"name": "never", "annotations": {NEVER_FITS: "true"}}, "spec": ours},
        {"kind": "ConfigMap", "metadata": {"name": "c"}},
    ]
    # A pod of the Job may be gone: what the Job tells counts.
    groups = groups_of(manifests, cluster.state, succeeded={("default", "train"): 2, ("default", "others"): 3})
    assert groups == [
        ExpectedGroup("Job default/train", 3, 2),
        ExpectedGroup("Job default/gone", 2, 0),
        ExpectedGroup("Pod default/alone", 1, 1),
        ExpectedGroup("Pod elsewhere/alone", 1, 0),
        ExpectedGroup("Pod default/never", 0, 0),
    ]
    assert [group.as_expected for group in groups] == [False, False, True, False, True]


def test_a_state_has_caught_up_when_it_has_each_pod_as_the_api_server_has_it() -> None:
    cluster = Cluster()
    cluster.add_pod(pod("a", phase="Succeeded", node_name="n"))
    gone = cluster.add_pod(pod("b"))
    there = ListedPod("uid-a", "n", "Succeeded"), ListedPod("uid-b", "", "Pending")
    assert has_caught_up(cluster.state, there)
    assert not has_caught_up(cluster.state, there[:1]), "a pod was deleted"
    assert not has_caught_up(cluster.state, [*there, ListedPod("uid-c", "", "Pending")]), "a pod was created"
    assert not has_caught_up(cluster.state, [there[0], ListedPod("uid-b", "", "Failed")]), "a pod has ended"
    assert not has_caught_up(cluster.state, [there[0], ListedPod("uid-b", "n", "Pending")]), "a pod was bound"
    cluster.delete_pod(gone)
    assert has_caught_up(cluster.state, there[:1])


def test_domains_of_gangs_are_told_side_by_side() -> None:
    blind = replace(
        GOOD.blind, gangs=[replace(CLUSTER.gangs[0], domains={"example.com/block": 1, "example.com/rack": 3})]
    )
    lines = render(replace(GOOD, blind=blind)).splitlines()
    assert f"{'  gang: block / rack*':50}{'1 / 1':>12}{'1 / 3':>12}" in lines
    assert not replace(GOOD, blind=blind).good
    assert "  - default/gang: its pods are in 3 domains of example.com/rack, one is required" in lines


def test_domains_of_a_gang_are_those_of_its_pods_that_are_there() -> None:
    cluster = Racks()
    pods = cluster.group("g", 5, asks(preferred="rack"))
    cluster.cycle()
    cluster.group("h", 2, asks("rack"))
    cluster.group("never", 3, asks("rack"))
    cluster.group("anywhere", 1)
    cluster.cycle()
    placed = PlacedDomains()
    placed.see(cluster.events)
    # Five nodes are two blocks of four; the pod that is alone in the second fails.
    blocks = [int(cluster.state.pods[one.uid].node[1:]) // 4 for one in pods]
    cluster.see(pods[[blocks.count(block) for block in blocks].index(1)], phase="Failed")
    assert placed.of_gangs(cluster.state) == [
        GangDomains("default/g", 4, {"block": 1, "rack": 2, "node": 4}),
        GangDomains("default/h", 2, {"block": 1, "rack": 1, "node": 2}, "rack"),
        GangDomains("default/never", 0, {"block": 0, "rack": 0, "node": 0}, "rack"),
    ]


def test_pod_placed_after_the_others_ended_need_not_share_their_rack() -> None:
    cluster = Racks()
    pods = cluster.group("g", 2, asks("rack"), gpu=4)
    cluster.cycle()
    for one in pods:
        cluster.see(cluster.state.pods[one.uid].pod, phase="Succeeded")
    cluster.group("in-their-rack", 2, asks("rack"), gpu=4)
    cluster.cycle()
    pods += cluster.pods_of("g", [2], gpu=4)
    cluster.cycle()
    racks = {int(cluster.state.pods[one.uid].node[1:]) // 2 for one in pods}
    placed = PlacedDomains()
    placed.see(cluster.events)
    assert len(racks) == 2
    assert placed.of_gangs(cluster.state)[0] == GangDomains("default/g", 3, {"block": 1, "rack": 1, "node": 2}, "rack")
