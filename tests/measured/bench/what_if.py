"""A what-if over history: 1,000 nodes and 20,000 events of pods that come, run and go, simulated as they were."""

import asyncio
import time
from collections.abc import Iterator

from kai_fleet.offline import OfflineKubelets
from kaicore.analysis.replay.moments import state_at
from kaicore.analysis.trial.history.alternative import Patch, changes_of
from kaicore.analysis.trial.history.reading import History, read_history
from kaicore.analysis.trial.history.rerun import Rerun

from tests.given.logs.recorded_history import log_of
from tests.measured.bench.cluster_life import ClusterLife
from tests.measured.bench.figures import Figure, figure

_NODES, _GANGS, _EVENTS, _RUNS = 1000, 40, 20_000, 3


async def _read() -> tuple[History, float]:
    life = ClusterLife("bench", nodes=_NODES, gangs=_GANGS, step_us=100_000)
    waves = life.waves_for(_EVENTS)
    log = await log_of(list(life.events(range(waves))))
    state = await state_at(log, "bench", life.end(0))
    began = time.process_time()
    history = await read_history(log, state, life.end(waves))
    return history, time.process_time() - began


def figures() -> Iterator[Figure]:
    """Measure; seconds are of the process, so that what else runs counts little."""
    history, took = asyncio.run(_read())
    yield figure(f"what-if: {_NODES} nodes, events read", [history.events / took], "events/s")
    events, cycles = [], []
    for _ in range(_RUNS):
        rerun = Rerun(history, changes_of(Patch(name="same"), history, lambda _: []), OfflineKubelets())
        began = time.process_time()
        rerun.run()
        took = time.process_time() - began
        events.append(rerun.events / took)
        cycles.append(rerun.cycles / took)
    yield figure(f"what-if: {_NODES} nodes, events simulated", events, "events/s")
    yield figure(f"what-if: {_NODES} nodes, cycles simulated, one pod in each", cycles, "cycles/s")
