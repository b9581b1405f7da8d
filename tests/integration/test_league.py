"""A small league, exact: what the engine makes of a public trace may not fall."""

from kaicore.rules.engine.config import EngineConfig

from tests.league import ours
from tests.league.baselines import Fgd, allocated, best_fit
from tests.league.openb import MILLI, Nodes, Task, arrivals, nodes, tasks
from tests.shared_data import require_shared


def _tenth() -> tuple[Nodes, list[Task], int]:
    """Every tenth of OpenB's nodes, tasks that share no GPU until 130 % of the GPUs are asked for, and the GPUs."""
    require_shared("data/traces/fgd")
    some = nodes()
    some = Nodes(some.cpu[::10], some.memory[::10], some.gpus[::10], some.model[::10])
    total = int(some.gpus.sum())
    return some, arrivals(tasks("default", whole=True), total=total, percent=130, seed=42), total


def test_engine_allocates_more_gpus_of_a_public_trace_than_published_policies() -> None:
    some, arriving, total = _tenth()
    held = [holding for _, holding in ours.allocated(some, arriving, EngineConfig())][-1]
    policies = best_fit, Fgd(tasks("default", whole=True))
    baselines = [[holding for _, holding in allocated(some, arriving, policy)][-1] for policy in policies]
    assert held >= max(baselines)
    assert held * 1000 // (total * MILLI) == 984
