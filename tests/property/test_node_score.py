"""The score of a node: its bands in one integer, taken apart again; one row by itself scored as many at once."""

from array import array

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig, PlacementStrategy
from kaicore.rules.engine.placement import placer
from kaicore.rules.engine.placement.feasible_nodes import FeasibleNodes
from kaicore.rules.engine.placement.node_score import BANDS, NEVER, parts_of
from kaicore.rules.events import payloads
from kaicore.rules.model.gpu_share import GpuShare
from kaicore.rules.model.placement import Placement, Provenance
from kaicore.rules.model.pod import QosClass
from kaicore.rules.state.indexes.past_runs import LEAST_PODS

from tests.given.cluster.factory import amounts, pod
from tests.given.examples import examples
from tests.given.work.workloads import Workloads

PARTS = st.fixed_dictionaries({band.name: st.integers(band.least, band.most) for band in BANDS.values()})
RUNNING = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 0, 1, 2]), st.sampled_from([1, 3, 8])), max_size=12)
#: Pods that came lately: enough for the room that they need to matter, or none.
SEEN = st.sampled_from([0, LEAST_PODS])


def _rank(parts: dict[str, int]) -> int:
    return sum(parts[band.name] * band.step for band in BANDS.values())


@given(PARTS, PARTS)
def test_ranks_of_two_nodes_differ_as_the_first_band_in_which_they_differ(
    one: dict[str, int], other: dict[str, int]
) -> None:
    assert parts_of(_rank(one)) == one
    assert (_rank(one) < _rank(other)) == ([one[name] for name in BANDS] < [other[name] for name in BANDS])


def _add_nodes(cluster: Workloads, running: list[tuple[int, int, int]], *, of_each: int = 1) -> None:
    """Add nodes of several kinds, so many with zones of each, with pods that run there."""
    for number, policy in enumerate(["restricted", "none", "best-effort", "single-numa-node"] * of_each):
        zone = amounts(cpu=16, memory=64, gpu=2)
        cluster.add_node(f"n{number}", zone, zone, policy=policy)
    # Most CPUs are away from most GPUs.
    cluster.add_node("lopsided", amounts(cpu=4, memory=64, gpu=3), amounts(cpu=24, memory=64, gpu=1))
    cluster.add_node("plain", cpu=32, memory=128)
    cluster.add_node("unzoned", cpu=32, memory=128, gpu=4)
    names = sorted(cluster.state.columns.rows)
    for number, (row, gpus, cpu) in enumerate(running):
        cluster.add_pod(
            pod(f"held-{number}", cpu=cpu, memory=4, gpu=gpus or None, node_name=names[row], phase="Running")
        )


@settings(max_examples=examples(40))
@example([(1, 1, 3)], 1, PlacementStrategy.BINPACK, QosClass.GUARANTEED, LEAST_PODS)
@example([], 300, PlacementStrategy.BINPACK, QosClass.BURSTABLE, LEAST_PODS)
@example([], 500, PlacementStrategy.SPREAD, QosClass.GUARANTEED, 0)
@given(
    RUNNING,
    st.sampled_from([0, 1, 300]),
    st.sampled_from(list(PlacementStrategy)),
    st.sampled_from(list(QosClass)),
    SEEN,
)
def test_row_by_itself_is_ranked_as_many_at_once_are(
    running: list[tuple[int, int, int]], gpu: int, strategy: PlacementStrategy, qos: QosClass, seen: int
) -> None:
    cluster = Workloads()
    for number in range(seen):
        held = {"gpu_share": GpuShare(milli=gpu)} if gpu > 1 and number % 2 else {"gpu": 1}
        cluster.delete_pod(cluster.add_pod(pod(f"seen-{number}", cpu=4, memory=8, qos=qos, **held)))
    _add_nodes(cluster, running)
    config = EngineConfig(placement_strategy=strategy, gpu_sharing=True)
    if gpu > 1:
        # Several, so that some GPUs are open.
        for number in range(5):
            share = GpuShare(milli=100 + 170 * number, devices=1 + number % 2)
            cluster.add_pod(pod(f"open-{number}", cpu=1, memory=4, gpu_share=share, qos=qos))
        cluster.cycle(config)
        cluster.add_pod(pod("asks", cpu=6, memory=4, gpu_share=GpuShare(milli=gpu), qos=qos))
    cluster.add_pod(pod("asks-whole", cpu=2, memory=4, gpu=min(gpu, 1) or None, qos=qos))

    compared = []

    class Compared(FeasibleNodes):
        def _look_at_all(self) -> None:
            rows = np.flatnonzero(self.eligible)
            compared.append((self._evaluated(rows).tolist(), [self._score(row) for row in rows.tolist()]))
            super()._look_at_all()
            together = self._ranking.by_row.copy()
            for row in rows.tolist():
                self._look_again(array("q", [row]))
            assert self._ranking.by_row.tolist() == together.tolist()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placer, "FeasibleNodes", Compared)
        cluster.cycle(config)
    assert compared
    for together, alone in compared:
        # What is refused only by the exact walk is not yet refused when many are looked at.
        assert [one for one, other in zip(together, alone, strict=True) if other != NEVER] == [
            one for one in alone if one != NEVER
        ]


#: As an exporter reports a pod of which nothing is bound to zones.
OBSERVED = Placement(Provenance.OBSERVED, ())
#: Gangs: how many pods, of which some do not fit at once, their CPUs and GPUs, and of which quality.
GANGS = st.lists(
    st.tuples(
        st.sampled_from([1, 3, 8, 16, 60]),
        st.integers(2, 3),
        st.sampled_from([0, 1, 1, 2]),
        st.sampled_from(list(QosClass)),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=examples(40))
@example([], [(200, 2, 1, QosClass.GUARANTEED), (6, 2, 1, QosClass.GUARANTEED)], PlacementStrategy.SPREAD, 0, False)
@example([], [(16, 2, 1, QosClass.GUARANTEED)] * 3, PlacementStrategy.BINPACK, LEAST_PODS, False)
@example(
    [(0, 1, 3)], [(6, 3, 0, QosClass.GUARANTEED), (6, 1, 1, QosClass.BURSTABLE)], PlacementStrategy.SPREAD, 0, True
)
@given(RUNNING, GANGS, st.sampled_from(list(PlacementStrategy)), SEEN, st.booleans())
def test_pods_of_one_class_go_together_where_they_go_one_by_one(
    running: list[tuple[int, int, int]],
    gangs: list[tuple[int, int, int, QosClass]],
    strategy: PlacementStrategy,
    seen: int,
    observed: bool,
) -> None:
    cluster = Workloads()
    for number in range(seen):
        cluster.delete_pod(cluster.add_pod(pod(f"seen-{number}", cpu=4, memory=8, gpu=1)))
    _add_nodes(cluster, running, of_each=3)
    if observed:
        # From then on doubts are looked at: about one pod, and about those that come out of turn, below.
        for name in ("observed", "not-observed"):
            cluster.add_pod(pod(name, cpu=2, memory=4, gpu=1))
        node = next(one.node for one in cluster.cycle().placements if one.name == "observed")
        seen_there = payloads.PlacementObserved("uid-observed", "default", "observed", node, OBSERVED)
        cluster.record("pod/uid-observed", seen_there)
    for number, (size, cpu, gpu, qos) in enumerate(gangs):
        spec = {"cpu": cpu, "memory": 4, "gpu": gpu or None, "qos": qos, "priority": number % 3}
        cluster.gang(f"gang-{number}", size, created_at=number // 2, **spec)
    config = EngineConfig(placement_strategy=strategy)
    decided = []
    # The last time with what was learned the second time.
    for foresees in (False, True, True):
        with pytest.MonkeyPatch.context() as patch:
            if not foresees:
                patch.setattr(FeasibleNodes, "foresees", False)
            result = decide(cluster.state, config, shard="default", now=cluster.now, actor="test").result
        decided.append(result.batches)
    assert decided[0] == decided[1] == decided[2]
