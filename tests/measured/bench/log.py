"""The log on a durable Postgres: appending, reading, verifying, and the time until a reader knows.

`python -m tests.measured.bench.log` runs it alone. Each event records a pod as the watcher does, on a stream of its
own.
"""

import asyncio
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.audit import verify
from kaicore.rules.events.codec import encode_payload
from kaicore.rules.events.envelope import NewEvent, Unit
from kaicore.rules.events.payloads import PodObserved
from kaicore.runtime.embedded import EmbeddedPostgres

from tests.given.cluster.factory import pod
from tests.given.logs.new_events import new_event
from tests.given.servers.servers import scratch_directory
from tests.measured.bench.figures import Figure, figure

ROOT = Path(__file__).parents[3]
RUNS = 5

_numbers = count()


def observed() -> NewEvent:
    number = next(_numbers)
    payload = PodObserved(pod(f"train-{number}", cpu=8, memory=64, gpu=1))
    return new_event(f"pod/{payload.pod.uid}", payload=payload, subject=f"default/train-{number}")


def batch(size: int) -> list[Unit]:
    return [Unit((observed(),)) for _ in range(size)]


async def append_rate(log: PostgresLog, *, size: int, batches: int) -> float:
    """Append batches one after another; return events per second."""
    made = [batch(size) for _ in range(batches)]
    began = time.perf_counter()
    for units in made:
        await log.append("bench", units)
    return size * batches / (time.perf_counter() - began)


async def merged_rate(log: PostgresLog, *, callers: int, calls: int) -> float:
    """Append single events from many tasks at once; return events per second."""
    made = [[batch(1) for _ in range(calls)] for _ in range(callers)]

    async def caller(mine: list[list[Unit]]) -> None:
        for units in mine:
            await log.append("bench", units)

    began = time.perf_counter()
    await asyncio.gather(*(caller(mine) for mine in made))
    return callers * calls / (time.perf_counter() - began)


async def processes_rate(url: str, *, processes: int, size: int, batches: int) -> float:
    """Append from several processes at once; return events per second of all together."""
    started = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.measured.bench.log",
            url,
            str(size),
            str(batches),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        for _ in range(processes)
    ]
    for process in started:
        assert process.stdout is not None
        await process.stdout.readline()
    began = time.perf_counter()
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    for process in started:
        assert process.stdout is not None
        await process.stdout.readline()
    rate = processes * size * batches / (time.perf_counter() - began)
    for process in started:
        assert await process.wait() == 0
    return rate


async def worker(url: str, size: int, batches: int) -> None:
    """Be one of the processes: make the batches, wait for the signal, append."""
    made = [batch(size) for _ in range(batches)]
    async with await PostgresLog.open(url) as log:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for units in made:
            await log.append("bench", units)
        print("done", flush=True)


async def read_rate(log: PostgresLog) -> float:
    after = 0
    began = time.perf_counter()
    while events := await log.read("bench", after=after, limit=2000):
        after = events[-1].position
    return after / (time.perf_counter() - began)


async def verify_rate(log: PostgresLog) -> float:
    began = time.perf_counter()
    report = await verify(log, "bench")
    assert report.ok
    return report.events / (time.perf_counter() - began)


async def notify_latencies(url: str, *, rounds: int) -> list[float]:
    """Return the milliseconds from an append's end in one session to the wake of a waiter in another, in order."""
    latencies = []
    async with await PostgresLog.open(url) as writer, await PostgresLog.open(url) as reader:
        for position in range(rounds):
            waiting = asyncio.create_task(reader.wait_beyond("waits", position, timeout_s=60))
            await reader.head("waits")
            began = time.perf_counter()
            await writer.append("waits", batch(1))
            await waiting
            latencies.append((time.perf_counter() - began) * 1000)
    return sorted(latencies[len(latencies) // 10 :])


async def measure(url: str) -> list[Figure]:
    measured = []
    async with await PostgresLog.open(url) as log:
        await append_rate(log, size=50, batches=20)
        for size, batches in ((1, 200), (50, 60), (500, 10)):
            rates = [await append_rate(log, size=size, batches=batches) for _ in range(RUNS)]
            measured.append(figure(f"log: append, 1 process, {size} at a time", rates, "events/s"))
        rates = [await merged_rate(log, callers=50, calls=20) for _ in range(RUNS)]
        measured.append(figure("log: append, 50 tasks of 1 process, 1 at a time", rates, "events/s"))
        rates = [await processes_rate(url, processes=4, size=50, batches=40) for _ in range(3)]
        measured.append(figure("log: append, 4 processes, 50 at a time", rates, "events/s"))
        measured.append(figure("log: read", [await read_rate(log) for _ in range(RUNS)], "events/s"))
        measured.append(figure("log: verify", [await verify_rate(log) for _ in range(RUNS)], "events/s"))
    runs = [await notify_latencies(url, rounds=200) for _ in range(3)]
    for name, share in (("p50", 50), ("p99", 99)):
        values = [run[len(run) * share // 100] for run in runs]
        measured.append(figure(f"log: append until a waiter elsewhere wakes, {name}", values, "ms"))
    return measured


def figures() -> Iterator[Figure]:
    yield figure("log: body of the events below", [len(encode_payload(observed().payload))], "bytes")
    with scratch_directory() as directory:
        server = EmbeddedPostgres(directory)
        asyncio.run(server.start())
        try:
            upgrade(server.url)
            yield from asyncio.run(measure(server.url))
        finally:
            asyncio.run(server.stop())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(worker(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
    else:
        for one in figures():
            print(one.line(), flush=True)
