"""A process that appends to a log until its input ends, and says what was acknowledged.

Each unit has two events, one of them on a stream that all appenders share and that it names the version of: so a lost
update would show. `--at N --signal S` makes the process send itself a signal when it reads the clock for the Nth time,
which is inside a transaction, with the head of the log locked. `--history FILE` has each call and each answer written
down, for `tools/checker`; `--pause` and `--cluster-s` keep a history as long as it can be checked.
"""

import argparse
import asyncio
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kaicore.errors import LogUnavailable
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.envelope import Unit, UnitOutcome

from tests.given.logs.new_events import new_event

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


class History:
    """Calls and answers of one process, a line each; a call is on the way to the disk before it is made."""

    def __init__(self, path: Path | None, client: str) -> None:
        self._file = path.open("a") if path is not None else None
        self._client = f"{client}-{os.getpid()}"
        self._numbers = itertools.count(1)

    def note(self, phase: str, number: int, cluster: str, **what: Any) -> int:
        """Write a line; return the call's number."""
        number = number or next(self._numbers)
        if self._file is not None:
            # Each call is a client of its own: calls of one process overlap.
            line = {"cluster": cluster, "client": f"{self._client}-{number}", "number": number, "phase": phase}
            self._file.write(json.dumps({**line, "at": time.monotonic_ns(), **what}) + "\n")
            self._file.flush()
        return number


async def append(log: PostgresLog, cluster: str, unit: Unit, history: History) -> UnitOutcome:
    """Append a unit, however often the server goes away."""
    what = {
        "operation": "append",
        "ids": [str(event.id) for event in unit.events],
        "streams": [event.stream for event in unit.events],
        "expect": dict(unit.expect),
    }
    while True:
        number = history.note("call", 0, cluster, **what)
        try:
            (outcome,) = await log.append(cluster, [unit])
        except LogUnavailable:
            history.note("return", number, cluster, unknown=True)
            continue
        stale = outcome.stale
        shown = {"stream": stale.stream, "expected": stale.expected, "actual": stale.actual} if stale else None
        history.note(
            "return", number, cluster, positions=list(outcome.positions), duplicate=outcome.duplicate, stale=shown
        )
        return outcome


async def work(
    log: PostgresLog, arguments: argparse.Namespace, stopped: asyncio.Event, name: str, history: History
) -> None:
    while not stopped.is_set():
        cluster = arguments.cluster
        if arguments.cluster_s:
            cluster = f"{cluster}-{int(time.monotonic() / arguments.cluster_s)}"
        number = history.note("call", 0, cluster, operation="versions")
        try:
            version = (await log.stream_versions(cluster, [SHARED]))[SHARED]
        except LogUnavailable:
            history.note("return", number, cluster, unknown=True)
            continue
        history.note("return", number, cluster, operation="versions", versions={SHARED: version})
        unit = Unit((new_event(f"node/{name}"), new_event(SHARED)), {SHARED: version})
        outcome = await append(log, cluster, unit, history)
        if outcome.stale is None:
            first, second = outcome.positions
            print("ack", unit.events[0].id, first, unit.events[1].id, second, flush=True)
        if arguments.pause:
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), arguments.pause)


async def _append(arguments: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    clock = failing_clock(arguments.at, signal.Signals[arguments.signal]) if arguments.at else None
    history = History(arguments.history, arguments.name)
    opened: PostgresLog | None = None
    while opened is None:
        with suppress(LogUnavailable):
            opened = await PostgresLog.open(arguments.url, application=arguments.name, clock=clock)
    async with opened as log:
        workers = [
            asyncio.create_task(work(log, arguments, stopped, f"{arguments.name}-{number}", history))
            for number in range(arguments.workers)
        ]
        await reader.read()
        stopped.set()
        await asyncio.gather(*workers)


def main() -> None:
    """Run with the process's arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("cluster")
    parser.add_argument("name")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--at", type=int, default=0)
    parser.add_argument("--signal", default="SIGKILL")
    parser.add_argument("--history", type=Path)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two units of a worker")
    parser.add_argument("--cluster-s", type=float, default=0.0, help="seconds after which another cluster begins")
    asyncio.run(_append(parser.parse_args()))
