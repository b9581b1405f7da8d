"""Changes of the state by events: stages of a pod, charges, rejections, back-off, snapshots."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kaicore.errors import CorruptLog
from kaicore.rules.deciding.cycle_input import next_retry
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.claims.demands import ANY_FLAVOR
from kaicore.rules.events import payloads
from kaicore.rules.events.observation import annotated_placement
from kaicore.rules.model import placement as placing
from kaicore.rules.model.node import TopologyPolicy
from kaicore.rules.model.pod import ContainerKind
from kaicore.rules.model.quantity import CPU
from kaicore.rules.state import cluster_state
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import fork
from kaicore.rules.state.pods.agreement import Agreement, compare
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
from kaicore.rules.state.registries.queue_registry import QueueRegistry, queue_charge
from kaicore.rules.state.snapshot import decode_state, encode_state
from msgspec.structs import replace

from tests.given.cluster.factory import GI, GPU, Cluster, amounts, container, on_zone, pod, topology
from tests.given.recorded import read_log, recorded_logs

SECOND = 1_000_000


def used(cluster: Cluster, resource: str = "cpu", node: str = "n1") -> list[int]:
    zones = cluster.state.columns.zones
    row = cluster.state.columns.rows[node]
    return zones.used[row, : zones.zone_count[row], zones.resources[resource]].tolist()


def reject(cluster: Cluster, name: str, node: str = "n1", **spec: float) -> None:
    cluster.add_pod(pod(name, node_name=node, phase="Failed", reason="TopologyAffinityError", **spec))
    cluster.record(
        f"pod/uid-{name}",
        payloads.PodRejected(f"uid-{name}", "default", name, node, "TopologyAffinityError", "no locality"),
    )


@pytest.fixture
def cluster() -> Cluster:
    return Cluster().add_node("n1", amounts(cpu=8, memory=32, gpu=4), amounts(cpu=8, memory=32, gpu=4))


def test_pod_passes_through_the_expected_stages(cluster: Cluster) -> None:
    one = cluster.add_pod(pod("p", cpu=4))
    entry = cluster.state.pods[one.uid]
    assert entry.stage is Stage.WAITING
    cluster.cycle()
    assert (entry.stage, entry.node, used(cluster)) == (Stage.PLACED, "n1", [4000, 0])
    cluster.record(f"pod/{one.uid}", payloads.PodBound(one.uid, "default", "p", "n1"))
    assert entry.stage is Stage.BOUND
    cluster.add_pod(pod("p", cpu=4))
    assert entry.stage is Stage.BOUND, "a late fact of before the bind does not undo it"
    cluster.add_pod(pod("p", cpu=4, node_name="n1", phase="Succeeded"))
    assert (entry.stage, used(cluster)) == (Stage.FINISHED, [0, 0])
    cluster.delete_pod(one)
    assert cluster.state.pods == {}


def test_an_observation_wins_over_the_prediction(cluster: Cluster) -> None:
    cluster.add_pod(pod("p", cpu=4, gpu=1))
    cluster.cycle()
    assert used(cluster) == [4000, 0]
    cluster.report(pod("p"), on_zone("node-1", {"cpu": 4000, GPU: 1}))
    assert (used(cluster), used(cluster, GPU)) == ([0, 4000], [0, 1])
    assert cluster.state.counters.agreement == {Agreement.DIFFERENT: 1}
    cluster.report(pod("p"), on_zone("node-0", {"cpu": 4000, GPU: 1}))
    assert cluster.state.counters.agreement == {Agreement.EXACT: 1}, "counted once per pod, by the last observation"


def test_an_observation_with_an_unknown_zone_is_of_no_use(cluster: Cluster) -> None:
    cluster.add_pod(pod("p", cpu=4))
    cluster.cycle()
    cluster.report(pod("p"), on_zone("socket-7", {"cpu": 4000}))
    assert used(cluster) == [4000, 0]


def test_what_init_containers_leave_stays_with_an_observed_pod(cluster: Cluster) -> None:
    cluster.add_pod(pod("p", container("setup", ContainerKind.INIT, cpu=6), container("main", cpu=2)))
    cluster.cycle()
    assert used(cluster) == [6000, 0]
    cluster.report(pod("p"), on_zone("node-0", {"cpu": 2000}))
    assert used(cluster) == [6000, 0], "podresources does not show the four CPUs that no container took over"
    assert cluster.state.counters.agreement == {Agreement.EXACT: 1}


def test_init_containers_that_were_observed_count_as_observed(cluster: Cluster) -> None:
    one = pod("p", container("setup", ContainerKind.INIT, cpu=6, memory=2), container("main", cpu=2, memory=1))
    cluster.add_pod(one)
    cluster.cycle()
    assert used(cluster) == [6000, 0]
    main = on_zone("node-1", {"cpu": 2000})
    setup = on_zone("node-1", {"cpu": 3000}, "setup")
    cluster.report(pod("p"), main, setup, init=("setup",))
    assert used(cluster) == [0, 5000]
    assert not cluster.partly_unknown("n1")
    cluster.report(pod("p"), main, init=())
    assert used(cluster) == [0, 2000], "a record that says that nothing is kept is not one that says nothing"


def test_init_containers_as_predicted_are_exact_whatever_becomes_of_their_memory() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=8, memory=8), amounts(cpu=8, memory=8))
    one = pod("p", container("setup", ContainerKind.INIT, cpu=6, memory=4), container("main", cpu=2, memory=1))
    cluster.add_pod(one)
    cluster.cycle()
    main = on_zone("node-0", {"cpu": 2000, "memory": GI})
    for memory in (3 * GI, 0):
        held = {"cpu": 4000, "memory": memory} if memory else {"cpu": 4000}
        setup = on_zone("node-0", held, "setup")
        cluster.report(pod("p"), main, setup, init=("setup",))
        assert (used(cluster), used(cluster, "memory")) == ([6000, 0], [GI + memory, 0])
        assert cluster.state.counters.agreement == {Agreement.EXACT: 1}


def test_memory_of_several_zones_fills_them_in_order() -> None:
    cluster = Cluster()
    zone = amounts(cpu=8, memory=32)
    cluster.add_node("n1", zone, zone, policy="restricted")
    cluster.add_pod(pod("p", memory=40, cpu=10))
    cluster.cycle()
    predicted = cluster.state.pods["uid-p"].predicted
    span = placing.SpanAmount(("node-0", "node-1"), {"memory": 40 * GI})
    cpus = (placing.ZoneAmount("node-0", {"cpu": 8000}), placing.ZoneAmount("node-1", {"cpu": 2000}))
    cluster.report(pod("p"), placing.ContainerPlacement("main", zones=cpus, spans=(span,)))
    assert used(cluster, "memory") == [32 * GI, 8 * GI]
    observed = cluster.state.pods["uid-p"].observed
    assert predicted is not None
    assert observed is not None
    assert compare(predicted, observed) is Agreement.EXACT
    cluster.add_pod(pod("q", cpu=1, memory=1))
    assert cluster.cycle().placements == (), "the zones are one memory group"


@pytest.mark.parametrize("annotation", ["predicted", "observed"])
def test_our_own_annotation_read_back_keeps_the_group_of_zones(annotation: str) -> None:
    zone = amounts(cpu=8, memory=32)
    cluster = Cluster().add_node("n1", zone, zone, policy="restricted")
    cluster.add_pod(pod("p", memory=33, cpu=10))
    cluster.cycle()
    held = cluster.state.pods["uid-p"].predicted
    assert held is not None
    if annotation == "observed":
        cpus = (placing.ZoneAmount("node-0", {"cpu": 8000}), placing.ZoneAmount("node-1", {"cpu": 2000}))
        span = placing.SpanAmount(("node-0", "node-1"), {"memory": 33 * GI})
        held = placing.Placement(
            placing.Provenance.OBSERVED, (placing.ContainerPlacement("main", zones=cpus, spans=(span,)),)
        )
    text = placing.encode_annotation(held)
    again = Cluster().add_node("n1", zone, zone, policy="restricted")
    again.add_pod(pod("p", memory=33, cpu=10, node_name="n1", phase="Running", scheduler_name="other"))
    read = placing.decode_annotation(text, subject="Pod default/p", annotation="a")
    again.record(
        "pod/uid-p",
        payloads.PlacementObserved("uid-p", "default", "p", "n1", annotated_placement(read), "annotation"),
    )
    for one in (cluster, again):
        assert (used(one), used(one, "memory")) == ([8000, 2000], [32 * GI, GI])
        assert one.state.columns.zones.cells[one.state.columns.row("n1"), :2].tolist() == [0b11, 0b11]
        one.add_pod(pod("q", cpu=1, memory=1))
        assert one.cycle().placements == (), "the zones are one memory group"


def test_zones_that_appear_later_are_charged(cluster: Cluster) -> None:
    cluster.add_pod(pod("p", cpu=4, node_name="n2", phase="Running"))
    cluster.report(
        pod("p"),
        on_zone("node-1", {"cpu": 4000}),
        node="n2",
    )
    cluster.add_node("n2", amounts(cpu=8), amounts(cpu=8))
    assert used(cluster, node="n2") == [0, 4000]
    cluster.record("nrt/n2", payloads.TopologyDeleted("n2"))
    cluster.add_node("n2", amounts(cpu=6), amounts(cpu=6))
    assert used(cluster, node="n2") == [0, 4000]


def test_a_kubelets_rejection_is_not_repeated_until_something_changes(cluster: Cluster) -> None:
    running = cluster.add_pod(pod("other", cpu=1))
    cluster.cycle()
    cluster.add_pod(pod("a", cpu=4))
    cluster.cycle()
    reject(cluster, "a", cpu=4)
    assert used(cluster) == [1000, 0]
    cluster.add_pod(pod("b", cpu=4))
    (pending,) = cluster.cycle().pending
    assert [(reason.code, reason.rejection) for reason in pending.reasons] == [
        ("RejectedByKubelet", "TopologyAffinityError")
    ]
    cluster.delete_pod(running)
    (decision,) = cluster.cycle().placements
    assert decision.name == "b"
    assert cluster.state.counters.reselections == 1
    assert cluster.state.counters.rejections == {"TopologyAffinityError": 1}


def test_rejection_of_another_pod_does_not_offer_the_node_again(cluster: Cluster) -> None:
    for name, cpu in (("a", 4), ("b", 5)):
        cluster.add_pod(pod(name, cpu=cpu))
    cluster.cycle()
    reject(cluster, "a", cpu=4)
    reject(cluster, "b", cpu=5)
    cluster.add_pod(pod("a2", cpu=4))
    cluster.add_pod(pod("b2", cpu=5))
    assert cluster.cycle().placements == ()


def test_a_failed_bind_frees_zones_and_waits_longer_each_time(cluster: Cluster) -> None:
    config = EngineConfig(bind_backoff_us=SECOND, bind_backoff_max_us=3 * SECOND)
    cluster.add_pod(pod("p", cpu=4))
    waits = []
    for _ in range(4):
        assert len(cluster.cycle(config).placements) == 1
        cluster.record("pod/uid-p", payloads.BindFailed("uid-p", "default", "p", "n1", 500, "InternalError"))
        assert used(cluster) == [0, 0]
        assert cluster.cycle(config).placements == ()
        retry = next_retry(cluster.state, config, now=cluster.now)
        assert retry is not None
        waits.append((retry - cluster.state.pods["uid-p"].failed_at) // SECOND)
        cluster.now = retry
    assert waits == [1, 2, 3, 3]


@pytest.mark.parametrize(
    ("failure", "comes_back"),
    [
        ({"code": 0, "reason": "VolumeNotProvisioned", "attempts": 0}, False),
        ({"code": 422, "reason": "Invalid"}, False),
        ({"code": 503, "reason": "Timeout", "attempts": 9}, True),
    ],
)
def test_a_pod_that_a_node_could_not_serve_tries_the_others_first(
    cluster: Cluster, failure: dict[str, Any], comes_back: bool
) -> None:
    for name in ("n2", "n3"):
        cluster.add_node(name, amounts(cpu=8, gpu=4))
    cluster.add_pod(pod("p", cpu=1))
    tried = []
    for _ in range(4):
        tried.append(cluster.cycle().placements[0].node)
        cluster.record("pod/uid-p", payloads.BindFailed("uid-p", "default", "p", tried[-1], **failure))
        cluster.state = decode_state(encode_state(cluster.state))
        cluster.now += 1000 * SECOND
    assert (len(set(tried[:3])) == 1) is comes_back
    assert len(set(tried)) == (1 if comes_back else 3), "where all have failed, any will do"


def test_a_pod_that_is_gone_is_not_tried_again(cluster: Cluster) -> None:
    cluster.add_pod(pod("p", cpu=4))
    cluster.cycle()
    gone = payloads.BindFailed("uid-p", "default", "p", "n1", 404, "NotFound", gone=True)
    cluster.record("pod/uid-p", gone)
    cluster.now += 1000 * SECOND
    assert cluster.cycle().placements == ()


def test_kubernetes_knows_where_its_pods_are(cluster: Cluster) -> None:
    cluster.add_node("n2", amounts(cpu=8, gpu=4))
    cluster.add_pod(pod("p", cpu=4))
    decided = cluster.cycle().placements[0].node
    other = "n2" if decided == "n1" else "n1"
    cluster.add_pod(pod("p", cpu=4, node_name=other))
    columns = cluster.state.columns
    cpus = {name: int(columns.used[columns.rows[name], columns.resources["cpu"]]) for name in ("n1", "n2")}
    assert cpus == {decided: 0, other: 4000}


def test_a_node_that_comes_back_finds_its_pods_charged(cluster: Cluster) -> None:
    cluster.add_pod(pod("p", cpu=4))
    cluster.cycle()
    cluster.record("node/n1", payloads.NodeDeleted("uid-n1", "n1"))
    cluster.add_pod(pod("q", cpu=6))
    assert cluster.cycle().placements == ()
    cluster.add_node("n1", amounts(cpu=8), amounts(cpu=8))
    assert used(cluster) == [4000, 0]
    assert len(cluster.cycle().placements) == 1


def test_a_class_is_forgotten_with_its_last_pod(cluster: Cluster) -> None:
    one = cluster.add_pod(pod("p", cpu=100))
    cluster.cycle()
    assert len(cluster.state.classes) == len(cluster.state.reasons.by_class) == 1
    cluster.delete_pod(one)
    assert cluster.state.classes == cluster.state.reasons.by_class == {}


def test_events_must_come_in_order(cluster: Cluster) -> None:
    with pytest.raises(CorruptLog, match="event 1 of cluster test cannot follow position 2"):
        cluster.state.fold(cluster.events[0])


def test_a_snapshot_goes_on_like_the_state_that_was_saved(cluster: Cluster) -> None:
    for number in range(6):
        cluster.add_pod(pod(f"p{number}", cpu=3, gpu=1))
    cluster.cycle()
    reject(cluster, "p0", cpu=3, gpu=1)
    cluster.report(pod("p1"), on_zone("node-1", {"cpu": 3000, GPU: 1}))
    restored = decode_state(encode_state(cluster.state))
    assert encode_state(restored) == encode_state(cluster.state)
    before = len(cluster.events)
    cluster.delete_pod(pod("p2", cpu=3))
    cluster.add_pod(pod("late", cpu=2))
    cluster.cycle()
    restored.fold_all(cluster.events[before:])
    assert encode_state(restored) == encode_state(cluster.state)
    assert encode_state(ClusterState("test").fold_all(cluster.events)) == encode_state(cluster.state)


def test_pods_that_are_alike_share_their_containers_also_after_a_restore(cluster: Cluster) -> None:
    for name, cpu in (("a", 2), ("b", 2), ("c", 3)):
        cluster.add_pod(pod(name, cpu=cpu))
    for state in (cluster.state, decode_state(encode_state(cluster.state))):
        first, alike, other = (state.pods[f"uid-{name}"].pod for name in "abc")
        assert first.containers is alike.containers
        assert (first.containers[0].requests["cpu"], other.containers[0].requests["cpu"]) == (2000, 3000)


@pytest.mark.parametrize("path", recorded_logs(), ids=lambda path: path.name)
def test_status_alone_leaves_the_state_that_deriving_everything_leaves(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = read_log(path)
    seen_again = []
    monkeypatch.setattr(ClusterState, "pod_seen_again", _noting(ClusterState.pod_seen_again, seen_again))
    quick = ClusterState(events[0].cluster).fold_all(events)
    monkeypatch.setattr(cluster_state, "with_status_of", lambda before, pod: None)
    whole = ClusterState(events[0].cluster).fold_all(events)
    assert len(seen_again) > 100, "most observations of pods bring nothing but a status"
    assert encode_state(quick) == encode_state(whole)
    assert [
        quick.constraints.variant(quick.class_of(one), one.pod, ANY_FLAVOR, again=one.charged)
        for one in quick.pods.values()
    ] == [
        whole.constraints.variant(whole.class_of(one), one.pod, ANY_FLAVOR, again=one.charged)
        for one in whole.pods.values()
    ]


def _noting(method: Callable[[ClusterState, PodEntry], None], calls: list[str]) -> Callable[..., None]:
    def noting(state: ClusterState, entry: PodEntry) -> None:
        calls.append(entry.pod.uid)
        method(state, entry)

    return noting


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running", "start_time": 7},
        {"deletion_at": 9},
        {"phase": "Succeeded"},
        {"phase": "Failed", "reason": "OutOfcpu"},
        {"node_name": ""},
        {"nominated_node": "n1"},
        {"labels": {"a": "b"}},
    ],
    ids=str,
)
def test_status_of_a_bound_pod_counts_as_if_all_were_derived(
    status: dict[str, Any], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_pod(pod("p", cpu=4, node_name="n1"))
    other = fork(cluster.state)
    cluster.add_pod(replace(pod("p", cpu=4, node_name="n1"), resource_version="2", **status))
    monkeypatch.setattr(cluster_state, "with_status_of", lambda before, pod: None)
    other.fold(cluster.events[-1])
    assert encode_state(cluster.state) == encode_state(other)
    assert cluster.state.revision == other.revision


def test_usage_asked_for_after_every_event_is_as_if_asked_for_once() -> None:
    events = read_log(recorded_logs()[0])
    asked, once = ClusterState(events[0].cluster), ClusterState(events[0].cluster)
    for event in events:
        asked.fold(event)
        assert isinstance(asked.queue_registry.usages, dict)
        asked.gpu_use.record()
        once.fold(event)
    assert len({event.recorded_at for event in events}) < len(events) / 2, "many changes have one time"
    assert encode_state(asked) == encode_state(once)


@pytest.mark.parametrize(
    "change", [{}, {"uid": "u2"}, {"fingerprint": "f"}, {"policy": TopologyPolicy.NONE}, {"zones": ()}], ids=str
)
@pytest.mark.parametrize("figures", [{}, {"available": 1}, {"allocatable": 1}, {"capacity": 1}], ids=str)
def test_publication_lasts_exactly_where_nothing_but_the_free_differs(
    change: dict[str, Any], figures: dict[str, int]
) -> None:
    one = topology("n1", amounts(cpu=8, gpu=2), amounts(cpu=8, gpu=2))
    first, second = one.zones
    resources = {name: replace(resource, **figures) for name, resource in second.resources.items()}
    other = replace(replace(one, zones=(first, replace(second, resources=resources))), **change)
    assert one.lasts(other) == (one.lasting() == other.lasting())


def test_usage_that_is_asked_for_within_a_time_is_recorded_as_if_it_was_not() -> None:
    records = []
    for asked in (False, True):
        registry, one, other = QueueRegistry(), {CPU: 1000}, {CPU: 2000}
        waits, runs = (queue_charge("s", "q", "", True, running) for running in (False, True))
        registry.charge(waits, one, at_us=5_000_000)
        registry.charge(runs, one, at_us=5_000_000)
        registry.charge(runs, one, sign=-1, at_us=5_000_000)
        registry.charge(waits, one, sign=-1, at_us=9_000_000)
        if asked:
            # Nothing is left for a moment.
            assert not registry.usages
        registry.charge(waits, other, at_us=9_000_000)
        records.append(registry.record())
    assert records[0] == records[1]
