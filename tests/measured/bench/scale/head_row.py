"""Small units from many processes to one cluster's log: how much the cluster's head row, which all of them lock, takes.

Each process is a scheduler that decides one pod at a time from many tasks: a unit is a `PodPlaced` and a `NodeCharged`,
conditional on the versions of the pod and the node. `python -m tests.measured.bench.scale.head_row URL …` is such a
process.
"""

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import uvloop
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.envelope import Unit
from kaicore.rules.events.payloads import NodeCharged, PodPlaced

from tests.given.logs.new_events import new_event
from tests.measured.bench.figures import Figure, figure
from tests.measured.bench.scale.services import Servers, durable_servers

ROOT = Path(__file__).parents[4]


@dataclass(frozen=True, slots=True)
class Load:
    """So many processes, in each so many tasks, each of which appends so many units, one after the other."""

    processes: int
    tasks: int
    units: int


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a measurement, and its repetitions."""

    loads: tuple[Load, ...]
    runs: int


FULL = Size((Load(1, 1, 300), Load(4, 1, 100), Load(1, 64, 60), Load(4, 64, 60), Load(8, 32, 60), Load(4, 500, 10)), 3)


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of a load: units per second, and CPU microseconds per unit."""

    per_s: float
    client_us: float
    postgres_us: float


def placed(process: str, number: int) -> Unit:
    """A unit that places one pod on a node that nobody else has."""
    name = f"{process}-{number}"
    pod, node = f"pod/{name}", f"node/{name}"
    decision = PodPlaced(cycle="default/1", uid=name, namespace="default", name=name, node=name, pod_class="class")
    charged = NodeCharged(node=name, cycle="default/1", pods=(name,))
    return Unit(
        (new_event(pod, payload=decision, subject=f"default/{name}"), new_event(node, payload=charged, subject=name)),
        {pod: 0, node: 0},
    )


async def appended(url: str, cluster: str, *, tasks: int, units: int) -> None:
    """Be one of the processes: make the units, wait for the signal, append them one by one from some tasks."""
    process = uuid4().hex[:8]
    made = [[placed(process, number * units + one) for one in range(units)] for number in range(tasks)]

    async def task(mine: list[Unit]) -> None:
        for unit in mine:
            (outcome,) = await log.append(cluster, [unit])
            assert outcome.stale is None

    async with await PostgresLog.open(url) as log:
        await log.head(cluster)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        began = time.process_time()
        await asyncio.gather(*map(task, made))
        print(time.process_time() - began, flush=True)


async def appending(servers: Servers, cluster: str, load: Load) -> Appended:
    """Append from several processes at once."""
    command = (sys.executable, "-m", "tests.measured.bench.scale.head_row", servers.database_url, cluster)
    started = [
        await asyncio.create_subprocess_exec(
            *command,
            str(load.tasks),
            str(load.units),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        for _ in range(load.processes)
    ]
    await _lines(started)
    began, postgres_s = time.perf_counter(), servers.postgres_cpu_s
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    cpu_s = sum(map(float, await _lines(started)))
    seconds = time.perf_counter() - began
    for process in started:
        assert await process.wait() == 0
    units = load.processes * load.tasks * load.units
    postgres_s = servers.postgres_cpu_s - postgres_s
    return Appended(units / seconds, cpu_s * 1e6 / units, postgres_s * 1e6 / units)


async def _lines(processes: Sequence[asyncio.subprocess.Process]) -> list[str]:
    lines = []
    for process in processes:
        assert process.stdout is not None
        lines.append((await process.stdout.readline()).decode())
    return lines


async def _measured(size: Size) -> list[list[Appended]]:
    async with durable_servers() as servers:
        return [[await appending(servers, f"run-{number}", load) for number in range(size.runs)] for load in size.loads]


def figures(size: Size = FULL) -> Iterator[Figure]:
    for load, runs in zip(size.loads, uvloop.run(_measured(size)), strict=True):
        what = f"scale: head row, {load.processes} processes, {load.tasks} units of 2 events at once in each"
        yield figure(f"{what}: appended", [run.per_s for run in runs], "units/s")
        yield figure(f"{what}: CPU of the processes", [run.client_us for run in runs], "us per unit")
        yield figure(f"{what}: CPU of Postgres", [run.postgres_us for run in runs], "us per unit")


if __name__ == "__main__":
    uvloop.run(appended(sys.argv[1], sys.argv[2], tasks=int(sys.argv[3]), units=int(sys.argv[4])))
