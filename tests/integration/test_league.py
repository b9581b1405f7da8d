"""A small league, exact: what the engine makes of a public trace may not fall."""

from kaicore.rules.engine.config import EngineConfig

from tests.league import ours
from tests.league.baselines import Fgd, allocated, best_fit
from tests.league.openb import MILLI, Nodes, Task, arrivals, nodes, tasks
from tests.shared_data import require_shared


def _tenth(listed: str = "default", percent: int = 130) -> tuple[Nodes, list[Task], int]:
    """Every tenth of OpenB's nodes, tasks that share no GPU until so many GPUs are asked for, and the GPUs."""
    require_shared("data/traces/fgd")
    some = nodes()
    some = Nodes(some.cpu[::10], some.memory[::10], some.gpus[::10], some.model[::10])
    total = int(some.gpus.sum())
    return some, arrivals(tasks(listed, whole=True), total=total, percent=percent, seed=42), total


def test_engine_allocates_more_gpus_of_a_public_trace_than_published_policies() -> None:
    some, arriving, total = _tenth()
    held = [holding for _, holding in ours.allocated(some, arriving, EngineConfig())][-1]
    policies = best_fit, Fgd(tasks("default", whole=True))
    baselines = [[holding for _, holding in allocated(some, arriving, policy)][-1] for policy in policies]
    assert held >= max(baselines)
    assert held * 1000 // (total * MILLI) == 984


def test_engine_keeps_scarce_gpu_models_for_tasks_that_name_them() -> None:
    some, arriving, total = _tenth("gpuspec33", percent=100)
    held, alone = (
        [holding for _, holding in ours.allocated(some, arriving, config)][-1] * 1000 // (total * MILLI)
        for config in (EngineConfig(), EngineConfig(recent_work_days=0))
    )
    assert (held, alone) == (845, 819)


def test_gpus_of_claims_are_allocated_as_those_of_kubelets_are() -> None:
    some, arriving, _ = _tenth(percent=30)
    by_claims, by_kubelets = (list(ours.allocated(some, arriving, EngineConfig(), claims=one)) for one in (True, False))
    assert by_claims == by_kubelets
