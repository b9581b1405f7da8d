"""Two instances of a service, of which one leads, while the other and the bus come and go."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from kaicore.errors import BusUnavailable, StaleExpectation
from kaicore.ledger.bus.leases import Lease
from kaicore.runtime.service import Health, ServiceContext, get_logger
from kaicore.runtime.service.leadership import ALONE_S, BLIND_S, Leadership

from tests.given.doubles.memory_leases import MemoryLeaseStore
from tests.given.doubles.virtual_time import virtually

DURATION_S = 2.0
#: As `docs/how-to/high-availability.md` has it.
TAKES_OVER_S = 3.0


class Way:
    """One instance's way to the store, which can be cut."""

    def __init__(self, store: MemoryLeaseStore) -> None:
        self._store = store
        self.cut = False

    def __getattr__(self, name: str) -> Any:
        if self.cut:
            raise BusUnavailable("cut off")
        return getattr(self._store, name)


class Instance:
    """One instance; its work is to wait for the end."""

    def __init__(self, name: str, store: MemoryLeaseStore) -> None:
        self.context = ServiceContext("watcher", Health("log", "lists"), get_logger())
        self.context.health.met("log")
        self.leads = False
        self.turns = 0
        #: Set when the log refuses what this instance appends.
        self.refused = asyncio.Event()
        self.way = Way(store)
        clock = asyncio.get_running_loop().time
        lease = Lease(self.way, "c", "watcher", owner=name, duration_s=DURATION_S, clock=clock)
        part = Leadership(
            self.context,
            lease,
            duration_s=DURATION_S,
            notify=self._tell,
            needed=("log",),
            refused=(StaleExpectation,),
        )
        self.task = asyncio.create_task(part.lead_in_turn(self._work))

    def _tell(self, leads: bool) -> None:
        self.leads = leads

    async def _work(self) -> None:
        self.turns += 1
        self.refused.clear()
        self.context.health.met("lists")
        waits = [asyncio.ensure_future(event.wait()) for event in (self.refused, self.context.stopping)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.refused.is_set():
            raise StaleExpectation("c", "watcher", expected=1, actual=2)

    async def stop(self) -> None:
        self.context.stopping.set()
        await self.task


async def seconds_until(condition: Callable[[], bool]) -> float:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while not condition():
        await asyncio.sleep(0.01)
        assert loop.time() < begun + 10 * BLIND_S
    return loop.time() - begun


@asynccontextmanager
async def two(store: MemoryLeaseStore) -> AsyncIterator[tuple[Instance, Instance]]:
    leader = Instance("one", store)
    await seconds_until(lambda: leader.leads)
    other = Instance("two", store)
    await asyncio.sleep(DURATION_S)
    assert (leader.leads, other.leads) == (True, False)
    yield leader, other
    for instance in (leader, other):
        await instance.stop()


@virtually
async def test_one_leads_and_the_other_is_ready_without_having_worked() -> None:
    async with two(MemoryLeaseStore()) as (leader, other):
        await asyncio.sleep(60)
        assert (leader.leads, leader.turns, other.leads, other.turns) == (True, 1, False, 0)
        assert other.context.health.ready
        assert "[+]lists not needed: stands by" in other.context.health.report()
        other.context.health.unmet("log", "away")
        assert not other.context.health.ready


@virtually
async def test_a_leader_that_is_told_to_stop_hands_over_at_once() -> None:
    async with two(MemoryLeaseStore()) as (leader, other):
        await leader.stop()
        assert await seconds_until(lambda: other.leads) <= DURATION_S / 3 + 0.01


@virtually
async def test_a_leader_that_is_cut_off_is_followed_and_waits_for_the_bus_once_the_log_refuses_it() -> None:
    async with two(MemoryLeaseStore()) as (leader, other):
        leader.way.cut = True
        assert await seconds_until(lambda: other.leads) <= TAKES_OVER_S
        leader.refused.set()
        await asyncio.sleep(5 * BLIND_S)
        assert (leader.leads, other.leads) == (False, True)
        leader.way.cut = False
        await asyncio.sleep(60)
        assert (leader.turns, other.turns) == (1, 1)


@virtually
async def test_a_leader_that_the_log_refuses_while_it_has_the_lease_begins_anew() -> None:
    async with two(MemoryLeaseStore()) as (leader, other):
        leader.refused.set()
        await seconds_until(lambda: leader.turns == 2)
        assert leader.leads
        assert other.turns == 0


@virtually
async def test_without_a_bus_a_leader_goes_on_and_the_other_takes_over_late_and_once() -> None:
    store = MemoryLeaseStore()
    async with two(store) as (leader, other):
        store.disconnect()
        assert await seconds_until(lambda: other.leads) >= BLIND_S
        # The log now takes from the other alone.
        leader.refused.set()
        await asyncio.sleep(5 * BLIND_S)
        assert (leader.leads, other.leads) == (False, True)
        store.reconnect()
        await asyncio.sleep(5 * DURATION_S)
        assert leader.leads != other.leads


@virtually
async def test_an_instance_that_finds_no_bus_begins_alone_after_a_moment() -> None:
    store = MemoryLeaseStore()
    store.disconnect()
    alone = Instance("one", store)
    assert ALONE_S <= await seconds_until(lambda: alone.leads) <= ALONE_S + 1
    assert "[!]lease: which instance leads is not known: " in alone.context.health.report()
    store.reconnect()
    await asyncio.sleep(60)
    assert "lease" not in alone.context.health.report()
    assert (alone.leads, alone.turns) == (True, 1)
    await alone.stop()
