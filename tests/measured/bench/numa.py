"""The NUMA verdict of one class on 10,000 nodes in use, and of one pod on one node."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.zones.numa_verdicts import NumaVerdicts
from kaicore.rules.engine.placement.statement import PodCharge, Statement
from kaicore.rules.events import payloads
from kaicore.rules.numa.kubelet.zones import ZoneCharge

from tests.given.cluster.factory import Cluster, amounts, pod
from tests.measured.bench.figures import Figure, figure

_NODES = 10_000
_ZONE = amounts(cpu=32, memory=256, gpu=2, nic=2)


def in_use(zones: int, policy: str) -> Cluster:
    """A cluster with nodes that hold pods, each in another way."""
    cluster = Cluster()
    for index in range(_NODES):
        cluster.add_node(f"n{index:05}", *[_ZONE] * zones, policy=policy)
    state = cluster.state
    for index in range(2 * _NODES):
        running = pod(f"p{index:05}", cpu=1 + index % 13, memory=1 + index % 61, gpu=index % 3)
        running = cluster.add_pod(running)
        verdicts = NumaVerdicts(state.columns, state.classes[state.pods[running.uid].class_key], EngineConfig())
        node = f"n{index % _NODES:05}"
        predicted = verdicts.predict(state.columns.rows[node])
        placement = predicted.placement if predicted else None
        placed = payloads.PodPlaced(running.uid, "default", running.name, node, "bench/1", "", placement)
        cluster.record(f"pod/{running.uid}", placed)
    return cluster


def _timed(run: Any, times: int) -> list[float]:
    durations = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        durations.append((time.perf_counter() - began) * 1e3)
    return durations


def figures() -> Iterator[Figure]:
    for zones, policy, request in (
        (4, "single-numa-node", {"cpu": 8, "memory": 64, "gpu": 1, "nic": 1}),
        (4, "restricted", {"cpu": 40, "memory": 300, "gpu": 4, "nic": 3}),
        (8, "restricted", {"cpu": 110, "memory": 800, "gpu": 8, "nic": 7}),
    ):
        cluster = in_use(zones, policy)
        state = cluster.state
        asked = cluster.add_pod(pod("asked", **request))
        pod_class = state.classes[state.pods[asked.uid].class_key]
        rows = np.arange(_NODES)
        verdicts = NumaVerdicts(state.columns, pod_class, EngineConfig())
        share = int(verdicts.may_admit(rows).mean() * 100)
        name = f"numa: {policy}, {_NODES} nodes of {zones} zones in use: one class, {share} % left"
        yield figure(name, _timed(partial(verdicts.may_admit, rows), 20), "ms")
        some = rows[:500].tolist()

        def one_by_one(columns: Any = state.columns, one: Any = pod_class, some: list[int] = some) -> None:
            fresh = NumaVerdicts(columns, one, EngineConfig())
            for row in some:
                fresh.admits(row)

        trail, tenant = Statement(state.columns.copy()), verdicts.predict(0)
        assert tenant is not None

        def simulated(trail: Statement = trail, charge: ZoneCharge = tenant.charge) -> None:
            for row in range(500):
                here = PodCharge("pod", row, {"cpu": 1000}, charge)
                savepoint = trail.savepoint()
                trail.evict(trail.place(here))
                trail.rollback(savepoint)

        steps = [duration * 1e3 / 500 for duration in _timed(simulated, 5)]
        yield figure(f"numa: {policy}, {zones} zones: place, evict and roll back", steps, "us")
        per_node = [duration * 1e3 / len(some) for duration in _timed(one_by_one, 5)]
        yield figure(f"numa: {policy}, {zones} zones: exact walk, one pod on one node", per_node, "us")
