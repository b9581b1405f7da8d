"""All kinds of faults, in one list: what each does, how often it comes, and what it must not break.

Rows of `docs/reliability.md` are made of this list. A kind's `strike` returns how many faults were really injected: a
rule of the API server that met no request, or a signal to a process that was down already, is none.
"""

import asyncio
import json
import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from kaicore.errors import ClusterError

from tests.chaos.world import World

PROCESSES = (
    *("relay-a", "relay-b", "watcher", "scheduler-a", "scheduler-b", "binder-a", "binder-b"),
    *("ingest", "exporter", "fleet", "apiserver"),
)
LEADERS = ("relay-a", "scheduler-a", "binder-a")
NODES = tuple(f"{name}-{number}" for name in ("single", "restricted") for number in range(3))

#: What no fault may break, in the words of the record.
KEPT, ONCE, REPLAYED, GOES_ON = (
    "what was acknowledged is in the log, once, without gaps",
    "no zone, no queue limit is promised twice; no pod is bound twice",
    "every recorded cycle replays",
    "everything that can run runs in the end",
)


@dataclass(frozen=True, slots=True)
class Step:
    """One fault of a schedule.

    Attributes:
        at: seconds after the start.
        kind: name of its kind.
        target: whom it strikes.
        seconds: how long it lasts; 0 where it is over at once.
        number: how much of it: rules struck, connections, seconds that a clock jumps.
    """

    at: float
    kind: str
    target: str
    seconds: float = 0.0
    number: int = 1

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        return (
            f"{self.at:8.2f} s  {self.kind:<22} {self.target}{lasting}{f' ({self.number})' if self.number > 1 else ''}"
        )


Strike = Callable[[World, Step], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    Attributes:
        name: in schedules, summaries and the record.
        text: what happens.
        keeps: what it must not break.
        rate: how often it comes, per minute.
        strike: does it; returns how many faults that was.
        targets: whom it may strike.
        seconds: least and most that it lasts.
        numbers: least and most of `Step.number`.
        needs: what it takes: `disks`, `clocks`, `machines`; empty for nothing.
    """

    name: str
    text: str
    keeps: str
    rate: float
    strike: Strike
    targets: tuple[str, ...]
    seconds: tuple[float, float] = (0.0, 0.0)
    numbers: tuple[int, int] = (1, 1)
    needs: str = ""

    def step(self, at: float, chance: random.Random) -> Step:
        """Draw one of this kind."""
        seconds = round(chance.uniform(*self.seconds), 2)
        return Step(round(at, 2), self.name, chance.choice(self.targets), seconds, chance.randint(*self.numbers))


# --- processes ----------------------------------------------------------------------------------------------------


async def _kill(world: World, step: Step) -> int:
    return int(world.send(step.target, signal.SIGKILL))


async def _freeze(world: World, step: Step) -> int:
    names = LEADERS if step.target == "leaders" else (step.target,)
    pids = [pid for name in names if (pid := world.pid_of(name)) is not None and world.send(name, signal.SIGSTOP)]
    try:
        await asyncio.sleep(step.seconds)
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    return len(pids)


async def _wipe_nats(world: World, step: Step) -> int:
    """The store goes under the live server; it is killed a little later."""
    world.wipe_nats()
    await asyncio.sleep(step.seconds)
    world.send("nats", signal.SIGKILL)
    world.wipe_nats()
    return 1


async def _delete_caches(world: World, _: Step) -> int:
    """What is only a cache is deleted under live services: snapshots and the trail of states."""
    with suppress(psycopg.Error):
        async with await psycopg.AsyncConnection.connect(
            world.postgres.url, autocommit=True, connect_timeout=5
        ) as session:
            await session.execute("DELETE FROM snapshot")
            await session.execute("DELETE FROM state_trail")
            return 1
    return 0


async def _end_sessions(world: World, step: Step) -> int:
    with suppress(psycopg.Error):
        async with await psycopg.AsyncConnection.connect(
            world.postgres.url, autocommit=True, connect_timeout=5
        ) as session:
            cursor = await session.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE datname = 'kai' "
                "AND usename <> 'kai' ORDER BY md5(pid::text || %s) LIMIT %s) AS chosen",
                [str(step.at), step.number],
            )
            (ended,) = await cursor.fetchone() or (0,)
            return int(ended)
    return 0


# --- disks and clocks ---------------------------------------------------------------------------------------------


async def _fill(world: World, step: Step) -> int:
    """The disk of a server is full for a while."""
    ballast = world.root / step.target / "ballast"
    try:
        with ballast.open("wb") as file:
            for size in (16 << 20, 1 << 20, 1 << 16, 4096):
                with suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
        await asyncio.sleep(step.seconds)
        return 1
    except OSError:
        return 0
    finally:
        ballast.unlink(missing_ok=True)


async def _set_clock(world: World, step: Step) -> int:
    """A clock is set forward, and set right again later; the machine's takes Postgres' with it."""
    clocks = list(world.clocks.values()) if step.target == "machine" else [world.clocks[step.target]]
    for clock in clocks:
        clock.set(step.number)
    try:
        await asyncio.sleep(step.seconds)
    finally:
        for clock in clocks:
            clock.set(0)
    return 2


# --- connections --------------------------------------------------------------------------------------------------


async def _cut(world: World, step: Step) -> int:
    links = [link for (_, server), link in world.links.items() if server == step.target]
    chosen = random.Random(step.at).choice(links)
    return int(chosen.cut() > 0)


def _held(world: World, step: Step) -> list[Any]:
    if step.target == "all":
        return list(world.links.values())
    return [link for (client, _), link in world.links.items() if client == step.target]


async def _half_open(world: World, step: Step) -> int:
    links = _held(world, step)
    for link in links:
        link.hold(only_answers=step.number > 1)
    try:
        await asyncio.sleep(step.seconds)
    finally:
        for link in links:
            if random.Random(step.at).random() < 0.5:
                link.cut()
            link.release()
    return int(bool(links))


async def _pull_cable(world: World, step: Step) -> int:
    machine = world.machines[step.target]
    machine.pull()
    try:
        await asyncio.sleep(step.seconds)
    finally:
        machine.plug()
    return 1


# --- the API server and the kubelets --------------------------------------------------------------------------------

_RULES: dict[str, list[dict[str, Any]]] = {
    "bindings": [{"verb": "create", "resource": "pods", "subresource": "binding"}],
    "writes": [{"verb": verb} for verb in ("create", "update", "patch", "delete")],
    "lists": [{"verb": "list"}],
    "watches": [{"verb": "watch"}],
    "pods": [{"resource": "pods"}],
    "all": [{}],
}


def _api(kind: str, **options: Any) -> Strike:
    async def strike(world: World, step: Step) -> int:
        fault = {"kind": kind, "times": step.number, **options}
        hits = 0
        with suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(step.seconds + 5), world.client() as client:
                rules = json.loads(
                    await client.post(
                        "/simulator/faults", [{"match": match, "fault": fault} for match in _RULES[step.target]]
                    )
                )
                numbers = {rule["id"] for rule in _items(rules)}
                await asyncio.sleep(step.seconds)
                for rule in _items(json.loads(await client.get("/simulator/faults"))):
                    if rule["id"] in numbers:
                        hits += rule["hits"]
                        await client.delete(f"/simulator/faults/{rule['id']}")
        return hits

    return strike


def _items(answer: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = answer if isinstance(answer, list) else answer.get("items", answer.get("rules", []))
    return items


async def _restart_kubelet(world: World, step: Step) -> int:
    stopped = await world.control_fleet(step.target, "kubelet", {"running": False})
    await asyncio.sleep(step.seconds)
    for _ in range(20):
        if await world.control_fleet(step.target, "kubelet", {"running": True}):
            break
        await asyncio.sleep(0.5)
    return int(stopped)


async def _lose_topologies(world: World, step: Step) -> int:
    return int(await world.control_fleet(step.target, "publisher", {"lose": 2, "lagSeconds": 1}))


async def _lag(world: World, step: Step) -> int:
    chance = random.Random(step.at)
    lag = {"statusSeconds": chance.uniform(0, 2), "syncSeconds": chance.uniform(0, 0.5)}
    return int(await world.control_fleet(step.target, "lag", lag))


KINDS: tuple[Kind, ...] = (
    Kind("kill", "a process is killed (kill -9)", f"{KEPT}; {ONCE}", 8, _kill, PROCESSES),
    Kind(
        "freeze",
        "a process stands still (SIGSTOP, then SIGCONT)",
        f"{ONCE}; {GOES_ON}",
        6,
        _freeze,
        PROCESSES,
        (0.5, 8),
    ),
    Kind(
        "split-brain",
        "the leading relay, scheduler and binder stand still until others lead, and wake as leaders",
        ONCE,
        1,
        _freeze,
        ("leaders",),
        (4, 12),
    ),
    Kind("postgres-kill", "Postgres is killed", KEPT, 0.7, _kill, ("postgres",)),
    Kind("postgres-freeze", "Postgres stands still", GOES_ON, 0.5, _freeze, ("postgres",), (1, 6)),
    Kind("nats-kill", "NATS is killed", GOES_ON, 0.7, _kill, ("nats",)),
    Kind("nats-freeze", "NATS stands still", GOES_ON, 0.5, _freeze, ("nats",), (1, 6)),
    Kind(
        "nats-wipe",
        "NATS' store is deleted under the live server, which is killed then",
        KEPT,
        0.5,
        _wipe_nats,
        ("nats",),
        (0.5, 3),
    ),
    Kind(
        "caches-deleted",
        "snapshots and the trail of states are deleted under live services",
        REPLAYED,
        1,
        _delete_caches,
        ("postgres",),
    ),
    Kind("session-end", "sessions of Postgres are ended", KEPT, 30, _end_sessions, ("postgres",), numbers=(1, 4)),
    Kind(
        "disk-full",
        "a server's disk is full for a while",
        f"{KEPT}; {GOES_ON}",
        0.5,
        _fill,
        ("postgres", "nats"),
        (2, 6),
        needs="disks",
    ),
    Kind(
        "clock-forward",
        "the clock of Postgres, or of all processes, is set forward and right again",
        f"{KEPT}; {REPLAYED}",
        0.7,
        _set_clock,
        ("postgres", "machine"),
        (3, 10),
        (2, 600),
        needs="clocks",
    ),
    Kind("cut", "a connection is cut (RST)", f"{KEPT}; {ONCE}", 90, _cut, ("postgres", "nats", "api")),
    Kind(
        "half-open",
        "a process reaches no server, or hears no answer, and its connections live",
        f"{KEPT}; {ONCE}",
        4,
        _half_open,
        (*PROCESSES[:8], "fleet"),
        (0.5, 8),
        (1, 2),
    ),
    Kind(
        "partition",
        "a machine's cable is pulled: packets vanish",
        f"{ONCE}; {GOES_ON}",
        1,
        _pull_cable,
        ("a", "b"),
        (2, 10),
        needs="machines",
    ),
    Kind(
        "api-429",
        "the API server answers 429",
        GOES_ON,
        15,
        _api("too-many-requests", seconds=1),
        ("writes", "all"),
        (2, 4),
        (1, 10),
    ),
    Kind(
        "api-500",
        "the API server answers 500",
        GOES_ON,
        20,
        _api("internal-error"),
        ("bindings", "writes", "all"),
        (2, 4),
        (1, 10),
    ),
    Kind("api-409", "the API server answers 409", ONCE, 10, _api("conflict"), ("bindings", "writes"), (2, 4), (1, 5)),
    Kind(
        "api-reset",
        "the API server cuts a request off, undone",
        GOES_ON,
        15,
        _api("reset"),
        ("bindings", "writes", "all"),
        (2, 4),
        (1, 5),
    ),
    Kind(
        "api-lost-answer",
        "a write is done and its answer lost",
        ONCE,
        15,
        _api("lost-answer"),
        ("bindings", "writes"),
        (2, 4),
        (1, 5),
    ),
    Kind(
        "api-half-answer",
        "an answer breaks off half way",
        ONCE,
        15,
        _api("half-answer"),
        ("bindings", "writes", "lists"),
        (2, 4),
        (1, 5),
    ),
    Kind(
        "api-slow",
        "answers take half a second longer",
        GOES_ON,
        10,
        _api("latency", seconds=0.5),
        ("pods", "writes"),
        (2, 4),
        (1, 20),
    ),
    Kind("api-410", "a list or watch is too old", GOES_ON, 4, _api("gone"), ("lists", "watches"), (2, 4), (1, 3)),
    Kind("watch-drop", "a watch is cut", GOES_ON, 15, _api("drop-watch"), ("pods", "watches"), (2, 4), (1, 4)),
    Kind(
        "watch-half",
        "a watch is cut in the middle of an event",
        GOES_ON,
        15,
        _api("half-event"),
        ("pods", "watches"),
        (2, 4),
        (1, 4),
    ),
    Kind(
        "watch-twice",
        "an event of a watch comes twice",
        REPLAYED,
        10,
        _api("duplicate-event"),
        ("pods", "watches"),
        (2, 4),
        (1, 8),
    ),
    Kind(
        "watch-late",
        "a watch stands still for a second",
        GOES_ON,
        6,
        _api("delay-event", seconds=1.0),
        ("pods", "watches"),
        (2, 4),
        (1, 2),
    ),
    Kind("kubelet-restart", "a kubelet is down for a moment", GOES_ON, 3, _restart_kubelet, NODES, (0.2, 1)),
    Kind("topologies-lost", "a node's publications of its zones are lost and late", ONCE, 3, _lose_topologies, NODES),
    Kind("kubelet-lag", "a kubelet tells later than it did what it does", ONCE, 3, _lag, NODES),
)


def schedule(seed: int, seconds: float, kinds: tuple[Kind, ...], *, scale: float = 1.0) -> list[Step]:
    """Draw the faults of a run; the same arguments give the same."""
    steps = []
    for kind in kinds:
        chance = random.Random(f"{seed}/{kind.name}")
        at = 0.0
        while (at := at + chance.expovariate(kind.rate * scale / 60)) < seconds:
            steps.append(kind.step(at, chance))
    return sorted(steps, key=lambda step: (step.at, step.kind))
