"""The continuous self check: CPU of each service's comparisons with the log, as a share of a core.

The cluster has 1,000 nodes and some hundred running pods. At rest a check compares what it compared before: an hour has
one whole check, and samples for the rest of its looks. Under load it folds the hour's events as well, so what an event
costs is measured on a log that went on by a wave of pods. The server's part is left out.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from kai_binder.projection.open_work import EVENT_TYPES, BinderProjection, decided_part, open_decisions
from kai_projector import main as projector
from kai_watcher.watcher import facts_of, recall_on, snapshot_of
from kaicore.analysis.ask.projections.building import Builder
from kaicore.analysis.ask.projections.store import ViewStore
from kaicore.analysis.replay.log_states import pages_of
from kaicore.analysis.replay.samples import SampleDifference, differing, pod_events, some
from kaicore.analysis.replay.self_check import _SAMPLES, Memory, Reporting, SelfCheck, states
from kaicore.kube.kinds.facts import Facts
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.port import Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.runtime.embedded import EmbeddedPostgres
from kaicore.runtime.service import get_logger

from tests.given.servers.servers import scratch_directory
from tests.measured.bench.cluster_life import ClusterLife
from tests.measured.bench.figures import Figure, figure

_NODES, _GANGS, _CLUSTER = 1_000, 60, "checks"
_RUNS = 5
_HOUR_S = 3600
#: Events of a pod's life, and pods that come each second under load.
_EVENTS_PER_POD, _PODS_PER_S = 11, 10


class _Checked(NamedTuple):
    """A service's memory as of a position, and as of the log's end."""

    memory: Memory[Any]
    before: Any
    here: Any


class _HalfWave(ClusterLife):
    """A log that ends amid its last wave, of which half of the pods run."""

    def end(self, waves: int) -> int:
        return super().end(waves) - self.wave_size // 2

    def events(self, waves: range) -> Iterator[Event]:
        return takewhile(lambda event: event.position <= self.end(waves.stop), super().events(waves))


def figures() -> list[Figure]:
    with scratch_directory() as directory:
        return asyncio.run(_measured(directory))


async def _measured(directory: Path) -> list[Figure]:
    step_us = 1_000_000 // (_EVENTS_PER_POD * _PODS_PER_S)
    life, found = _HalfWave(_CLUSTER, nodes=_NODES, gangs=_GANGS, step_us=step_us), list[Figure]()
    async with EmbeddedPostgres(directory) as server:
        await asyncio.to_thread(upgrade, server.url)
        await asyncio.to_thread(life.write, server.url, 2)
        async with (
            await PostgresLog.open(server.url) as log,
            await ViewStore.open(server.url, application="bench") as store,
        ):
            services = {
                "scheduler": _scheduler,
                "projector": partial(_projector, store),
                "binder": _binder,
                "watcher": _watcher,
            }
            for name, checked in services.items():
                found += await _costs(name, await checked(log, life.end(1), life.end(2)), log, life.wave_size)
    return found


async def _costs(name: str, checked: _Checked, log: PostgresLog, events: int) -> list[Figure]:
    memory, _, here = checked
    reporting = Reporting(name, log, _CLUSTER, name, lambda: 0, get_logger())
    check = SelfCheck(memory, reporting, every_s=1.0, monotonic=time.monotonic)
    check.trust(here)
    whole = [await _cpu_s(partial(check.now, here)) for _ in range(_RUNS)]
    sampled = memory.sampled
    samples = [0.0 if sampled is None else await _cpu_s(partial(sampled, here)) for _ in range(_RUNS)]
    looks = 0 if sampled is None else _SAMPLES - 1
    rest = [(one + looks * sample) / _HOUR_S * 100 for one, sample in zip(whole, samples, strict=True)]
    check.trust(checked.before)
    each_us = (await _cpu_s(partial(check.now, here)) - min(whole)) / events * 1e6
    load = each_us * _EVENTS_PER_POD * _PODS_PER_S / 1e6 * 100
    return [
        figure(f"self check, {name}: whole, without events", whole, "s of CPU"),
        figure(f"self check, {name}: a sample", [one * 1e3 for one in samples], "ms of CPU"),
        figure(f"self check, {name}: at rest", rest, "% of a core"),
        figure(f"self check, {name}: per event since the last", [each_us], "us of CPU"),
        figure(f"self check, {name}: at {_PODS_PER_S} pods/s", [one + load for one in rest], "% of a core"),
    ]


async def _cpu_s(work: Callable[[], Any]) -> float:
    began = time.process_time()
    found = await work()
    assert found is None, found
    return time.process_time() - began


async def _folded(memory: Memory[Any], empty: Callable[[], Any], *positions: int) -> _Checked:
    """Return a memory that is folded, each time from the beginning."""
    made = [empty() for _ in positions]
    for one, position in zip(made, positions, strict=True):
        await memory.fold(one, position)
    return _Checked(memory, *made)


async def _scheduler(log: PostgresLog, before: int, end: int) -> _Checked:
    return await _folded(states(log, _CLUSTER), partial(ClusterState, _CLUSTER), before, end)


async def _projector(store: ViewStore, log: PostgresLog, before: int, end: int) -> _Checked:
    builder = await Builder.resume(log, store, _CLUSTER)
    await builder.catch_up()
    assert builder.generation.position == end
    checked = await _folded(states(log, _CLUSTER), partial(ClusterState, _CLUSTER), before, end)
    return checked._replace(memory=projector._memory(log, _CLUSTER, lambda: builder, ("project",)))


async def _binder(log: PostgresLog, before: int, end: int) -> _Checked:
    where = Filter(types=EVENT_TYPES)

    async def fold(projection: BinderProjection, upto: int) -> None:
        async for page in pages_of(log, _CLUSTER, after=projection.position, upto=upto, where=where):
            for event in page:
                projection.fold(event)
        projection.position = upto

    async def sampled(projection: BinderProjection) -> SampleDifference | None:
        mine = projection.open_of_pods()
        mine = {uid: mine[uid] for uid in some(mine, projection.position)}
        events = await pod_events(log, _CLUSTER, mine, upto=projection.position)
        return differing(events, mine.__getitem__, open_decisions, projection.position)

    memory = Memory(BinderProjection.snapshot, BinderProjection.restored, fold, decided_part, sampled)
    return await _folded(memory, BinderProjection, before, end)


async def _watcher(log: PostgresLog, before: int, end: int) -> _Checked:
    memory = Memory(snapshot_of, partial(facts_of, _CLUSTER), partial(recall_on, log))
    return await _folded(memory, partial(Facts, _CLUSTER), before, end)
