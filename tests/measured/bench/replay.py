"""Replay: cycles and events per second, and what a log takes per pod that comes, runs and goes.

The log is that of a busy cluster: nodes of 8 GPUs on two zones, pods of a few classes and gangs that come, run for a
while and go, exporters that report. Of its GPUs a share is used; with 100 % there is always a line of pods that wait,
and every cycle looks for victims and for pods to move. `python -m tests.measured.bench.replay NODES CYCLES PERCENT`
measures one size; 1000 nodes and 20,000 cycles are a day.
"""

import asyncio
import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import psycopg
from kai_cli.history.replaying import replay_in_processes
from kai_cli.sources.source import LogSource
from kaicore.analysis.replay.moments import Range
from kaicore.analysis.replay.replay import halves, replay_log
from kaicore.ledger.log.files.log import FileLog
from kaicore.ledger.log.files.reader import LogFile
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import Event, Unit
from kaicore.rules.model.placement import Provenance
from kaicore.rules.model.pod import Pod
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.runtime.embedded import EmbeddedPostgres

from tests.given.cluster.factory import GPU, amounts, pod
from tests.given.logs.exported import import_to, write_file
from tests.given.logs.new_events import as_new
from tests.given.recorded import read_log, recorded_logs
from tests.given.servers.servers import scratch_directory
from tests.given.work.workloads import OWNER, Workloads
from tests.measured.bench.figures import Figure, figure

_CLUSTER = "bench"
#: Nodes, recorded cycles once the cluster has filled, and how much of it is used, in per cent.
SIZES = ((100, 400, 90), (1000, 300, 90), (1000, 40, 100))
#: A day of a cluster of 1000 nodes.
_DAY_CYCLES = 20_000
#: Pods that come in one cycle, for each 1000 nodes: a hundred events with all that becomes of them.
_ARRIVALS = 9
#: Clusters that come to a log, each with the same events, and how many events at a time.
_MORE_CLUSTERS, _AT_ONCE = 8, 20


class BusyCluster(Workloads):
    """A cluster that fills to some part of its GPUs, and stays so."""

    def __init__(self, nodes: int, percent: int) -> None:
        super().__init__(_CLUSTER, hashes=True)
        self._random = random.Random(1)
        self._running: deque[Pod] = deque()
        #: Pods that are gone with the next turn.
        self._evicted: list[Pod] = []
        self._count = self._used = 0
        self._most = nodes * 8 * percent // 100 if percent < 100 else sys.maxsize
        zone = amounts(cpu=64, memory=512, gpu=4)
        for number in range(nodes):
            self.add_node(f"n{number:04}", zone, zone, policy="restricted")

    def arrive(self, count: int) -> None:
        """Pods come: alone, and one in five in a gang of four."""
        while count > 0:
            self._count += 1
            spec = {"cpu": 1 + self._count % 6, "memory": 8 + self._count % 3, "created_at": self._count // 50}
            if self._count % 17 == 0:
                self.gang(f"gang-{self._count:06}", 4, gpu=2, **spec)
                count -= 4
            else:
                self.add_pod(pod(f"run-{self._count:06}", gpu=1 + self._count % 2, owner=OWNER, **spec))
                count -= 1

    def turn(self, arrivals: int) -> None:
        """Pods come, a cycle runs, what it placed starts and is reported, and as many pods end."""
        self.arrive(arrivals)
        for one in self._evicted:
            if one.uid in self.state.pods:
                self._end(one)
                self._succeed(one)
        result = self.cycle()
        self._evicted = [self.state.pods[eviction.uid].pod for eviction in result.evictions]
        for decision in result.placements:
            entry = self.state.pods[decision.uid]
            self.record(f"pod/{decision.uid}", payloads.PodBound(decision.uid, "default", decision.name, decision.node))
            self.see(entry.pod, node_name=decision.node)
            self.see(entry.pod, phase="Running")
            if entry.predicted is not None:
                observed = msgspec.structs.replace(entry.predicted, provenance=Provenance.OBSERVED)
                who = decision.uid, "default", decision.name, decision.node
                self.record(f"pod/{decision.uid}", payloads.PlacementObserved(*who, observed))
            self._running.append(entry.pod)
            self._used += _gpus(entry.pod)
        leaving = arrivals if result.pending else 0
        while self._running and (leaving > 0 or self._used > self._most):
            leaving -= 1
            # Most go in the order in which they came.
            one = self._running[self._random.randrange(len(self._running) // 4 + 1)]
            self.see(one, phase="Succeeded")
            self._end(one)

    def _end(self, one: Pod) -> None:
        self._running.remove(next(other for other in self._running if other.uid == one.uid))
        self._used -= _gpus(one)
        self.delete_pod(self.state.pods[one.uid].pod)

    def _succeed(self, one: Pod) -> None:
        """The owner of a pod that is gone makes another one."""
        self._count += 1
        changed = {
            "uid": f"{one.uid}-{self._count}",
            "name": f"{one.name}-{self._count}",
            "node_name": "",
            "phase": "Pending",
        }
        self.add_pod(msgspec.structs.replace(one, **changed))

    @property
    def filled(self) -> bool:
        return bool(self.state.waiting) or self._used >= self._most * 99 // 100


def _gpus(one: Pod) -> int:
    return sum(container.requests.get(GPU, 0) for container in one.containers)


def busy(nodes: int, cycles: int, percent: int) -> BusyCluster:
    """Return a cluster that was filled, and then went on for so many cycles."""
    cluster = BusyCluster(nodes, percent)
    while not cluster.filled:
        cluster.turn(nodes)
    for _ in range(cycles):
        cluster.turn(max(nodes * _ARRIVALS // 1000, 1))
    return cluster


def measured(nodes: int, cycles: int, percent: int) -> Iterator[Figure]:
    """Replay the last cycles of a cluster that is full."""
    began = time.process_time()
    cluster = busy(nodes, cycles, percent)
    events = cluster.events
    sys.stderr.write(f"made {len(events)} events in {time.process_time() - began:.0f} s of CPU\n")
    records = [event.position for event in events if event.type == "CycleCompleted"]
    wanted = Range(records[-cycles], len(events))
    state = cluster.state
    what = f"{nodes} nodes, {percent} % used, {len(state.pods)} pods, {len(state.waiting)} waiting"
    with TemporaryDirectory() as directory:
        path = write_file(Path(directory) / "log.gz", events)
        yield _fold(what, events)
        cpu = asyncio.run(_replay(path, wanted))
        count = wanted.last - wanted.first + 1
        yield figure(f"replay: {what}: {count} events, {cycles} cycles: cycles", [cycles / cpu], "cycles/s of CPU")
        yield figure(f"replay: {what}: events", [count / cpu], "events/s of CPU")
        if nodes == 1000:
            minutes = _DAY_CYCLES / (cycles / cpu) / 60
            yield figure(
                f"replay: a day of {nodes} nodes, {percent} % used, {_DAY_CYCLES} cycles, by one CPU", [minutes], "min"
            )
        one, two = (_clocked(path, wanted, count) for count in (1, 2))
        yield figure(f"replay: {what}: time in two processes of that in one, start included", [100 * two / one], "%")


def _fold(what: str, events: list[Event]) -> Figure:
    began = time.process_time()
    ClusterState(_CLUSTER).fold_all(events)
    return figure(f"replay: {what}: folded alone", [len(events) / (time.process_time() - began)], "events/s of CPU")


async def _replay(path: Path, wanted: Range) -> float:
    """CPU seconds from the state before the range on."""
    async with FileLog(path) as log:
        began = time.process_time()
        await replay_log(log, _CLUSTER, Range(wanted.first, wanted.first))
        before = time.process_time() - began
        report = await replay_log(log, _CLUSTER, wanted)
        assert report.differences == [], report.differences[0]
        return time.process_time() - began - 2 * before


def _clocked(path: Path, wanted: Range, processes: int) -> float:
    began = time.perf_counter()
    parts = halves(wanted, processes)
    report = replay_in_processes(LogSource(file=path), _CLUSTER, parts, progress=lambda _, __: None)
    assert report.differences == []
    return time.perf_counter() - began


def sizes() -> Iterator[Figure]:
    """The size of a real run's log, with every service at work: bytes for each pod that came."""
    events = read_log(recorded_logs()[0])
    pods = len({event.stream for event in events if event.type == "PodObserved"})
    yield figure("log: events per pod lifetime, all events of a demonstration", [len(events) / pods], "events")
    with TemporaryDirectory() as directory:
        path = write_file(Path(directory) / "log.gz", events)
        yield figure("log: exported, per pod lifetime", [path.stat().st_size / pods], "bytes")
        with LogFile(path) as file:
            plain = sum(len(file.lines(bundle)) for bundle in range(len(file.footer.bundles)))
        yield figure("log: exported, unpacked, per pod lifetime", [plain / pods], "bytes")
        with scratch_directory() as scratch:
            size = asyncio.run(_in_postgres(scratch, path, events))
        yield figure("log: in Postgres with all indexes, per pod lifetime, as a log grows", [size / pods], "bytes")


async def _in_postgres(directory: Path, path: Path, events: list[Event]) -> float:
    """Return what the log takes more for one cluster more: empty tables have pages, too."""
    async with EmbeddedPostgres(directory) as server:
        await asyncio.to_thread(upgrade, server.url)
        await import_to(server.url, path)
        before = _size(server.url)
        async with await PostgresLog.open(server.url) as log:
            for number in range(_MORE_CLUSTERS):
                for start in range(0, len(events), _AT_ONCE):
                    units = [Unit((as_new(event),)) for event in events[start : start + _AT_ONCE]]
                    await log.append(f"more-{number}", units)
        return (_size(server.url) - before) / _MORE_CLUSTERS


def _size(url: str) -> int:
    with psycopg.connect(url) as connection:
        ((size,),) = connection.execute(
            "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class "
            "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        ).fetchall()
    return int(size)


def figures() -> Iterator[Figure]:
    yield from sizes()
    for size in SIZES:
        yield from measured(*size)


if __name__ == "__main__":
    wanted_size = [int(argument) for argument in sys.argv[1:4]]
    for one in measured(*wanted_size) if wanted_size else figures():
        print(one.line(), flush=True)
