"""Counts of pods by row that are kept from one group to the next of its class."""

from typing import Any

import numpy as np
import pytest
from kaicore.rules.engine.placement.placer import Placer
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.model.pod import Container, QosClass
from kaicore.rules.model.quantity import CPU
from kaicore.rules.numa.columns import Ints

from tests.given.cluster.racks import Racks, asks

NODES = 40
UNALIGNED = {"gpu": 0, "containers": (Container(name="main", requests={CPU: 100}),), "qos": QosClass.BURSTABLE}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of counted rows, time after time; kept counts are compared with new ones."""
    rows: list[int] = []
    count, of = Placer.counts, Placer.kept_counts

    def counting(placer: Placer, *args: Any, among: Ints | None = None, **options: Any) -> Ints:
        rows.append(NODES if among is None else len(among))
        return count(placer, *args, among=among, **options)

    def compared(placer: Placer, sample: Member) -> Ints:
        counts = of(placer, sample)
        anew = count(placer, placer.class_of(sample), most=2**31, created_at=sample.pod.created_at)
        assert np.array_equal(counts, anew)
        return counts

    monkeypatch.setattr(Placer, "counts", counting)
    monkeypatch.setattr(Placer, "kept_counts", compared)
    return rows


def _gangs(count: int, **spec: Any) -> Racks:
    """Groups of two pods within a rack, each group created later than the one before."""
    cluster = Racks(NODES)
    for number in range(count):
        cluster.group(f"g{number}", topology=asks("rack"), least=2)
        cluster.pods_of(f"g{number}", range(2 * number, 2 * number + 2), **spec)
    return cluster


def test_groups_of_one_class_count_all_rows_once_and_then_those_that_changed(counted: list[int]) -> None:
    cluster = _gangs(6, **UNALIGNED)
    assert len(cluster.placed(cluster.cycle())) == 12
    assert counted[0] == NODES
    assert len(counted) == 6
    assert max(counted[1:]) <= 2


def test_groups_whose_trials_are_taken_back_count_only_rows_that_changed(counted: list[int]) -> None:
    cluster = Racks(NODES)
    for number in range(4):
        cluster.group(f"g{number}", topology=asks("rack"), least=1)
        cluster.pods_of(f"g{number}", range(3 * number, 3 * number + 3), **UNALIGNED)
    assert len(cluster.placed(cluster.cycle())) == 12
    assert counted.count(NODES) == 1


def test_time_of_creation_counts_for_pods_whose_kubelets_align_something(counted: list[int]) -> None:
    cluster = _gangs(3)
    # An exporter reports, so what it has not seen yet is open.
    cluster.state.counters.reported = 1
    assert len(cluster.placed(cluster.cycle())) == 6
    assert counted.count(NODES) == 3
