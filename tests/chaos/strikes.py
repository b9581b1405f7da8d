"""The effect of each kind of fault on a world; each returns the number of faults really injected.

A rule of the API server that met no request, or a signal to a process that was down already, is none.
"""

import asyncio
import json
import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from kaicore.errors import ApiStatus, ClusterError
from kaicore.kube.api.client import KubeClient

from tests.chaos.load import QUEUE
from tests.chaos.world import World

LEADERS = ("relay-a", "watcher-a", "scheduler-a", "binder-a", "projector-a")


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


# --- processes ----------------------------------------------------------------------------------------------------


async def kill(world: World, step: Step) -> int:
    return int(world.send(step.target, signal.SIGKILL))


async def freeze(world: World, step: Step) -> int:
    names = LEADERS if step.target == "leaders" else (step.target,)
    pids = [pid for name in names if (pid := world.pid_of(name)) is not None and world.send(name, signal.SIGSTOP)]
    try:
        await asyncio.sleep(step.seconds)
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    return len(pids)


async def wipe_nats(world: World, step: Step) -> int:
    """The store goes under the live server; it is killed a little later."""
    world.wipe_nats()
    await asyncio.sleep(step.seconds)
    world.send("nats", signal.SIGKILL)
    world.wipe_nats()
    return 1


async def delete_caches(world: World, _: Step) -> int:
    """Caches are deleted under live services: snapshots and the trail of states."""
    with suppress(psycopg.Error):
        async with await psycopg.AsyncConnection.connect(
            world.postgres.url, autocommit=True, connect_timeout=5
        ) as session:
            await session.execute("DELETE FROM snapshot")
            await session.execute("DELETE FROM state_trail")
            return 1
    return 0


async def end_sessions(world: World, step: Step) -> int:
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


async def fill(world: World, step: Step) -> int:
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


async def set_clock(world: World, step: Step) -> int:
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


async def cut(world: World, step: Step) -> int:
    links = [link for (_, server), link in world.links.items() if server == step.target]
    return int(random.Random(step.at).choice(links).cut() > 0)


async def half_open(world: World, step: Step) -> int:
    links = [link for (client, _), link in world.links.items() if client == step.target]
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


async def pull_cable(world: World, step: Step) -> int:
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


def api(kind: str, **options: Any) -> Strike:
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


async def restart_kubelet(world: World, step: Step) -> int:
    return await _for_a_while(world, step, "kubelet", "running", struck=False)


async def black_hole(world: World, step: Step) -> int:
    return await _for_a_while(world, step, "pods", "fail", struck=True)


async def _for_a_while(world: World, step: Step, what: str, field: str, *, struck: bool) -> int:
    done = await world.control_fleet(step.target, what, {field: struck})
    await asyncio.sleep(step.seconds)
    for _ in range(20):
        if await world.control_fleet(step.target, what, {field: not struck}):
            break
        await asyncio.sleep(0.5)
    return int(done)


async def lose_topologies(world: World, step: Step) -> int:
    return int(await world.control_fleet(step.target, "publisher", {"lose": 2, "lagSeconds": 1}))


async def lag(world: World, step: Step) -> int:
    chance = random.Random(step.at)
    lag = {"statusSeconds": chance.uniform(0, 2), "syncSeconds": chance.uniform(0, 0.5)}
    return int(await world.control_fleet(step.target, "lag", lag))


# --- plans --------------------------------------------------------------------------------------------------------

_RESERVATIONS = "/apis/kai.scheduler/v1alpha1/reservations"
#: Seconds from a reservation to its window.
_AHEAD_S = 3.0
_DAY_S = 86_400.0


async def reserve(world: World, step: Step) -> int:
    """A node is reserved; its window begins and ends, and the object goes.

    If `number` is 2, it is for a queue, chosen by its label, and the window is today's one of a daily reservation.
    """
    begins, ends = _AHEAD_S, _AHEAD_S + step.seconds
    if step.number == 1:
        return await _planned(world, step, begins, ends, stays_s=ends)
    daily = {"recurrence": "FREQ=DAILY", "timeZone": "Europe/Berlin", "for": {"queue": QUEUE}}
    chosen = {"nodes": [], "nodeSelector": {"kubernetes.io/hostname": step.target}}
    return await _planned(world, step, begins - _DAY_S, ends - _DAY_S, stays_s=ends, **daily, **chosen)


async def drain(world: World, step: Step) -> int:
    """A node is drained by half of the time; the drain is stopped before that if `number` is 1, else undone at last."""
    stays_s = step.seconds / (4 if step.number == 1 else 1)
    return await _planned(world, step, 0.0, 3600.0, stays_s=stays_s, drainBy=_time(step.seconds / 2))


async def _planned(world: World, step: Step, start_s: float, end_s: float, *, stays_s: float, **spec: Any) -> int:
    name = f"{step.kind}-{round(step.at * 100)}"
    manifest = {
        "apiVersion": "kai.scheduler/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": name},
        "spec": {"nodes": [step.target], "start": _time(start_s), "end": _time(end_s), **spec},
    }
    if not await _insists(world, 409, lambda client: client.post(_RESERVATIONS, manifest)):
        return 0
    await asyncio.sleep(stays_s)
    await _insists(world, 404, lambda client: client.delete(f"{_RESERVATIONS}/{name}"))
    return 1


async def _insists(world: World, done: int, ask: Callable[[KubeClient], Awaitable[Any]]) -> bool:
    """Ask until it is done, while the API server fails; `done` is the status that says that it was done before."""
    for _ in range(60):
        try:
            async with asyncio.timeout(10), world.client() as client:
                await ask(client)
                return True
        except ApiStatus as error:
            if error.code == done:
                return True
        except (ClusterError, TimeoutError):
            pass
        await asyncio.sleep(0.5)
    return False


def _time(ahead_s: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=ahead_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
