"""A process that appends to a log until its input ends, and says what was acknowledged.

Each unit has two events, one of them on a stream that all appenders share and that it names the version of: so a lost
update would show. `--at N --signal S` makes the process send itself a signal when it reads the clock for the Nth time,
which is inside a transaction, with the head of the log locked.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable

from kaicore.errors import LogUnavailable
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.envelope import Unit, UnitOutcome

from tests.new_events import new_event

SHARED = "node/shared"


def failing_clock(at: int, number: int) -> Callable[[], int]:
    reads = 0

    def clock() -> int:
        nonlocal reads
        reads += 1
        if reads == at:
            os.kill(os.getpid(), number)
        return time.time_ns() // 1000

    return clock


async def append(log: PostgresLog, cluster: str, unit: Unit) -> UnitOutcome:
    """Append a unit, however often the server goes away."""
    while True:
        try:
            (outcome,) = await log.append(cluster, [unit])
        except LogUnavailable:
            continue
        return outcome


async def work(log: PostgresLog, arguments: argparse.Namespace, stopped: asyncio.Event, name: str) -> None:
    while not stopped.is_set():
        version = (await log.stream_versions(arguments.cluster, [SHARED]))[SHARED]
        unit = Unit((new_event(f"node/{name}"), new_event(SHARED)), {SHARED: version})
        outcome = await append(log, arguments.cluster, unit)
        if outcome.stale is None:
            first, second = outcome.positions
            print("ack", unit.events[0].id, first, unit.events[1].id, second, flush=True)


async def main(arguments: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    clock = failing_clock(arguments.at, signal.Signals[arguments.signal]) if arguments.at else None
    async with await PostgresLog.open(arguments.url, application=arguments.name, clock=clock) as log:
        workers = [
            asyncio.create_task(work(log, arguments, stopped, f"{arguments.name}-{number}"))
            for number in range(arguments.workers)
        ]
        await reader.read()
        stopped.set()
        await asyncio.gather(*workers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("cluster")
    parser.add_argument("name")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--at", type=int, default=0)
    parser.add_argument("--signal", default="SIGKILL")
    asyncio.run(main(parser.parse_args()))
