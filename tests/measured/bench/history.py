"""The past: folding, `kai why` and `kai get --at` on a long log, and moving a time slider along it.

`python -m tests.measured.bench.history 10000000` makes a log of so many events (by default 200,000) and runs it alone.
"""

import asyncio
import gc
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import psycopg
from kaicore.analysis.replay.past_states import PastStates
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.snapshots import SPACING, Trail, take_state
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA
from kaicore.runtime.embedded import EmbeddedPostgres

from tests.given.processes.service_process import ready, service_process
from tests.given.servers.servers import scratch_directory
from tests.measured.bench.cluster_life import ClusterLife
from tests.measured.bench.figures import Figure, figure
from tests.measured.bench.questions import cpu_seconds

SIZE = 200_000
RUNS = 5
_NODES, _GANGS = 200, 40
_FOLDED = 30_000


def make_log(url: str, life: ClusterLife, size: int) -> int:
    """Write a log of at least so many events into an empty database, with what following it leaves; return its end."""
    upgrade(url)
    waves = life.waves_for(size)
    life.write(url, waves)
    asyncio.run(_leave_snapshots(url, life, waves))
    return life.end(waves)


async def _leave_snapshots(url: str, life: ClusterLife, waves: int) -> None:
    """Leave the trail around the middle and at the end, and a snapshot as old as a scheduler's at most."""
    span = 50_000 // life.wave_size + 1
    async with await PostgresLog.open(url) as log:
        for first in sorted({max(1, waves // 2 - span), max(1, waves - span)}):
            state, trail = life.state_after(first), Trail(log, life.cluster, schema=SNAPSHOT_SCHEMA)
            await log.save_snapshot(life.cluster, take_state(state))
            await trail.passed(state.position, lambda state=state: take_state(state))  # type: ignore[misc]
            for event in life.events(range(first, min(waves, first + span))):
                state.fold(event)
                if event.position % 1000 == 0:
                    await trail.passed(state.position, lambda state=state: take_state(state))  # type: ignore[misc]


def figures() -> Iterator[Figure]:
    yield from _measured(SIZE)


def _measured(size: int) -> Iterator[Figure]:
    life = ClusterLife("long", nodes=_NODES, gangs=_GANGS, step_us=1_500_000)
    yield from _folding(life)
    with scratch_directory() as directory:
        yield from asyncio.run(_with_server(directory, life, size))


def _folding(life: ClusterLife) -> Iterator[Figure]:
    events = list(islice(life.events(range(life.waves_for(_FOLDED))), _FOLDED))
    runs = [_rate(lambda: [decode_payload(event) for event in events], len(events)) for _ in range(RUNS)]
    yield figure("payloads decoded: CPU", runs, "events/s")
    threshold = gc.get_threshold()
    gc.set_threshold(200_000, 5, 100)
    runs = [_rate(lambda: ClusterState(life.cluster).fold_all(events), len(events)) for _ in range(RUNS)]
    gc.set_threshold(*threshold)
    yield figure("events decoded and folded: CPU", runs, "events/s")


def _rate(work: Callable[[], object], events: int) -> float:
    began = time.process_time()
    work()
    return events / (time.process_time() - began)


async def _with_server(directory: Path, life: ClusterLife, size: int) -> list[Figure]:
    async with EmbeddedPostgres(directory) as server:
        began = time.perf_counter()
        end = await asyncio.to_thread(make_log, server.url, life, size)
        print(f"# {end} events made in {time.perf_counter() - began:.0f} s", file=sys.stderr)
        return [
            *_sizes(server.url, end),
            *await _slider(server.url, life, end),
            *await _commands(server.url, life, end),
        ]


def _sizes(url: str, end: int) -> Iterator[Figure]:
    with psycopg.connect(url) as connection:
        (events,) = connection.execute(
            "SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = 'event'::regclass"
        ).fetchone() or (0,)
        (places, trail) = connection.execute("SELECT count(*), sum(size) FROM state_trail").fetchone() or (0, 0)
    yield figure(f"log of {end} events, indexes included", [int(events) / end], "bytes/event")
    yield figure("trail, a place", [int(trail) / places], "bytes")
    yield figure("trail, of the log it is along", [int(trail) / places / SPACING * end / int(events) * 100], "%")


async def _commands(url: str, life: ClusterLife, end: int) -> list[Figure]:
    middle = end // 2
    wave = life.waves_for(middle) - 2
    questions = {
        "kai why, a pod that waits": ("why", "never"),
        "kai why --at, a pod in the middle": ("why", f"w{wave:08}-0-0", "--at", str(middle)),
        "kai get pods --at the middle": ("get", "pods", "--at", str(middle)),
        "kai diff, 5,000 events in the middle": ("diff", str(middle - 5000), str(middle)),
    }
    measured = []
    for name, question in questions.items():
        runs = [await asyncio.to_thread(_first_asked, question, url) for _ in range(RUNS)]
        measured += [
            figure(f"{name}, {end} events, no API: CPU", [cpu for cpu, _ in runs], "s"),
            figure(f"{name}, {end} events, no API: wall", [wall for _, wall in runs], "s"),
        ]
    async with service_process("kai_api.main", {"KAI_DATABASE_URL": url, "KAI_ANONYMOUS": "loopback"}) as address:
        await ready(address)
        root = f"http://{address}/v1/clusters/{life.cluster}"
        for name, path in {
            "GET …/why of a pod that waits": f"{root}/why/Pod/never?namespace=default",
            "GET …/why?at= of a pod in the middle": f"{root}/why/Pod/w{wave:08}-0-0?namespace=default&at={middle}",
            "GET …/nodes?at= the middle": f"{root}/nodes?at={middle}",
        }.items():
            took = [await asyncio.to_thread(_get, path) for _ in range(RUNS)]
            measured += [
                figure(f"{name}, {end} events, first", took[:1], "ms"),
                figure(f"{name}, {end} events, again", took[1:], "ms"),
            ]
    return measured


def _first_asked(question: Sequence[str], url: str) -> tuple[float, float]:
    """CPU and wall seconds of a question before which none was asked: only the trail is there."""
    with psycopg.connect(url) as connection:
        connection.execute("DELETE FROM snapshot")
    began = time.perf_counter()
    return cpu_seconds(*question, "--database-url", url), time.perf_counter() - began


def _get(url: str) -> float:
    began = time.perf_counter()
    with urllib.request.urlopen(url) as response:
        response.read()
    return (time.perf_counter() - began) * 1000


async def _slider(url: str, life: ClusterLife, end: int) -> list[Figure]:
    """Move along the middle of the log, to and fro."""
    middle = end // 2
    async with await PostgresLog.open(url) as log:
        past = PastStates(log, life.cluster)
        first = [await _took(past.at, middle - 2000)]
        forward = [await _took(past.at, middle - 2000 + 100 * step) for step in range(1, 40)]
        back = [await _took(past.at, middle + 2000 - 100 * step) for step in range(1, 40)]
        far = [await _took(past.at, middle + place) for place in _jumps()]
    return [
        figure("slider, first place", first, "ms"),
        figure("slider, 100 events forward", forward, "ms"),
        figure("slider, 100 events back", back, "ms"),
        figure("slider, to any place of 20,000 events", far, "ms"),
    ]


def _jumps() -> Sequence[int]:
    return [(number * 7919) % 20_000 - 10_000 for number in range(20)]


async def _took(work: Callable[[int], Awaitable[object]], position: int) -> float:
    began = time.perf_counter()
    await work(position)
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    for one in _measured(int(sys.argv[1]) if len(sys.argv) > 1 else SIZE):
        print(one.line(), flush=True)
