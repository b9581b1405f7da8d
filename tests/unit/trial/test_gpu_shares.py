"""Shares of GPUs in everything that is tried: submissions, forecasts, the hub, shadows, simulations."""

import json
from typing import Any

import pytest
from kai_cli.trials.before_submitting import group_text
from kai_cli.trials.simulate import render_table
from kaicore.analysis.trial.dispatching import TriedDispatch, named_dispatch, queue_sums, try_dispatches
from kaicore.analysis.trial.simulation import Located, read_world, simulate
from kaicore.analysis.trial.simulation.manifest_text import Reading, read_text
from kaicore.analysis.trial.submission.submit import submit
from kaicore.rules.deciding.forecast.start import StartForecast, forecast_starts
from kaicore.rules.deciding.shadow import decide_in_shadow, shadow_config
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.hub.choosing import choose, over_bound, rescored, scored
from kaicore.rules.hub.hub_state import HubState
from kaicore.rules.model.gpu_share import GPU_MEMORY_LABEL, SHARED_GPU, GpuShare
from kaicore.rules.state.fork import fork
from kaicore.rules.state.indexes.past_runs import Basis

from tests.given.cluster.factory import amounts, pod
from tests.given.cluster.hierarchy import queue
from tests.given.cluster.sharing_cluster import ON, SharingCluster
from tests.given.work.groups import job
from tests.given.work.past_runs import SECOND, PastRuns


def manifests(*fractions: str) -> list[Located]:
    reading = Reading()
    text = "---".join(
        f"""
apiVersion: v1
kind: Pod
metadata: {{name: p{number}, annotations: {{{fraction}}}, labels: {{kai.scheduler/queue: team}}}}
spec:
  schedulerName: kai-ledger
  containers: [{{name: main, image: x}}]
"""
        for number, fraction in enumerate(fractions)
    )
    read_text(reading, "manifests", text.encode(), is_json=False, named=True)
    assert not reading.problems
    return list(reading.objects)


def trial(*fractions: str) -> TriedDispatch:
    submitted = named_dispatch(manifests(*fractions), "d", clusters=[], data=[])
    return TriedDispatch("d", json.loads(submitted.manifests), submitted.queue, submitted.demand)


@pytest.fixture
def shared() -> SharingCluster:
    """A node on which GPU 2 has 0.3 left, and a queue."""
    made = SharingCluster("on")
    made.record("queue/team", payloads.QueueObserved(queue("team", quota=4)))
    made.share("there", 700, labels={"kai.scheduler/queue": "team"})
    made.turn()
    return made


def test_submitted_shares_are_tried_and_their_gpus_named(shared: SharingCluster) -> None:
    answer = submit(
        fork(shared.state),
        manifests('gpu-fraction: "0.3"', 'gpu-fraction: "0.5"'),
        PastRuns("past").history(),
        now=shared.now,
    )
    first, second = map(group_text, answer.groups)
    assert "it would start now" in first
    assert "0.3 of GPU 2" in first
    assert "0.5 of a GPU that is opened for it" in second
    assert not shared.state.pods.keys() - {uid for uid in shared.state.pods if "/" not in uid}


@pytest.mark.parametrize("waiting", [{"gpu_share": GpuShare(milli=500)}, {"gpu": 1}], ids=["share", "whole"])
def test_work_that_waits_for_a_shared_gpu_is_forecast_to_start_once_its_parts_are_free(waiting: dict[str, Any]) -> None:
    made = PastRuns()
    made.have_run("train", [300.0] * 20, cpu=1, gpu_share=GpuShare(milli=800))
    made.add_node("n0", amounts(cpu=16, memory=64, gpu=1))
    now = made.now // SECOND
    one = made.add_pod(pod("train-100", cpu=1, gpu_share=GpuShare(milli=800), owner=job(made, "train-100")))
    made.cycle(ON)
    made.see(one, node_name="n0", phase="Running", start_time=now)
    made.after(60)
    made.add_pod(pod("waits", cpu=1, **waiting))
    made.cycle(ON)
    key = made.state.pods["uid-waits"].group
    start = forecast_starts(made.state, ON, made.history(), [key], now=made.now)[key]
    assert isinstance(start, StartForecast), start
    assert start.p50_us == pytest.approx(240 * SECOND, abs=12 * SECOND)
    # The reservation pod is no run that ends by itself.
    assert start.bases == {Basis.OWNER: 1}


def test_dispatch_of_a_share_counts_in_thousandths_and_goes_to_no_cluster_without_sharing(
    shared: SharingCluster,
) -> None:
    off = SharingCluster("off")
    off.record("queue/team", payloads.QueueObserved(queue("team", quota=4)))
    off.add_pod(pod("whole", cpu=1, gpu=1, labels={"kai.scheduler/queue": "team"}))
    off.cycle()
    one = trial('gpu-fraction: "0.25"', 'gpu-fraction: "0.25", gpu-fraction-num-devices: "2"')
    assert one.demand[SHARED_GPU] == 250 + 2 * 250
    one = trial('gpu-fraction: "0.25"')
    offers, rooms = [], {}
    for made in (shared, off):
        tried, rooms[made.cluster] = try_dispatches(fork(made.state), [], [one], now=made.now)
        offers.append(tried["d"])
    best = choose(scored(rescored(offers, rooms, "team", one.demand), {}, {"capacity": 1}))
    assert best is not None
    assert (best.cluster, best.prospect) == ("on", "StartsNow")
    assert "a share of a GPU" in offers[1].why
    sums = queue_sums(HubState(), [shared.state, off.state], now=shared.now)
    assert sums.held["team"]["gpu"] == 700 + 1000
    sums.charge("team", one.demand, "on")
    assert sums.held["team"]["gpu"] == 700 + 1000 + 250


@pytest.mark.parametrize(
    ("memories", "bound", "held"), [([16_000, 40_000], 0, 250), ([40_000, 0], 0, 100), ([0, 0], 1, 1000)]
)
def test_dispatch_of_memory_counts_as_a_part_of_the_smallest_gpu_of_its_cluster(
    memories: list[int], bound: int, held: int
) -> None:
    clusters, one = [SharingCluster(name) for name in ("given", "other")], trial('gpu-memory: "4000"')
    for cluster, memory in zip(clusters, memories, strict=True):
        labels = {GPU_MEMORY_LABEL: str(memory)} if memory else {}
        cluster.add_node("n0", amounts(cpu=16, memory=64, gpu=4), labels=labels)
    sums = queue_sums(HubState(), [cluster.state for cluster in clusters], now=clusters[0].now)
    refusal = over_bound(("team",), {"team": {"gpu": bound}}, sums.held, one.demand, memory=sums.memory())
    assert bool(refusal) == (not bound)
    sums.charge("team", one.demand, "given")
    assert sums.held["team"]["gpu"] == held
    _, room = try_dispatches(fork(clusters[0].state), [], [one], now=clusters[0].now)
    room.charge("team", one.demand)
    assert room.given["gpu"] == held


def test_shadow_says_where_a_share_would_go_and_opens_no_gpu() -> None:
    made = SharingCluster()
    made.add_pod(pod("theirs", cpu=1, gpu_share=GpuShare(milli=500), scheduler_name="other"))
    decided = decide_in_shadow(made.state, shadow_config(ON, "other"), now=made.now)
    assert decided is not None
    assert [(one.name, one.node, one.gpus[0].milli) for one in decided.placed] == [("theirs", "n0", 500)]
    made.record("shadow/other", decided)
    assert not made.state.shared_gpus.groups
    assert made.state.columns.used[0, made.state.columns.resources["nvidia.com/gpu"]] == 0
    # The same choice is no news.
    assert decide_in_shadow(made.state, shadow_config(ON, "other"), now=made.now) is None


async def test_simulation_prints_the_part_of_each_pod_and_of_no_other() -> None:
    node = """
apiVersion: v1
kind: Node
metadata: {name: n0}
status:
  conditions: [{type: Ready, status: "True"}]
  allocatable: {cpu: "8", memory: 32Gi, pods: "110", nvidia.com/gpu: "1"}
"""
    reading = Reading()
    read_text(reading, "node", node.encode(), is_json=False, named=True)
    for config, expected in ((ON, "0.3 of GPU group "), (EngineConfig(), "(gpu-fraction)")):
        world = read_world([*reading.objects, *manifests('gpu-fraction: "0.3"')], scheduler_name="kai-ledger")
        table = render_table(await simulate(world, config))
        assert expected in table
        assert ("GPUS" in table) == config.gpu_sharing
