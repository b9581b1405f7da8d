"""The one heap of everything that happens later."""

import asyncio
import time

from kai_fleet.node.runtime import Timers


async def test_callbacks_come_in_order_and_a_defect_in_one_spares_the_others() -> None:
    called: list[str] = []
    rounds: list[int] = []
    done = asyncio.Event()
    timers = Timers(after=lambda: rounds.append(len(called)))
    now = time.time()

    def defect() -> None:
        raise RuntimeError("defect")

    timers.at(now + 0.02, lambda: called.append("later"))
    timers.at(now + 0.03, done.set)
    timers.at(now - 1, lambda: called.append("overdue"))
    timers.at(now + 0.01, defect)
    timers.at(now + 0.01, lambda: called.append("soon"))
    async with asyncio.timeout(60):
        await done.wait()
    assert called == ["overdue", "soon", "later"]
    assert rounds[-1] == 3
    timers.stop()


async def test_a_callback_is_never_early() -> None:
    early: list[float] = []
    done = asyncio.Event()
    timers = Timers(after=lambda: None)
    start = time.time()
    for number in range(50):
        due = start + number * 0.0013
        timers.at(due, lambda due=due: early.append(due) if time.time() < due else None)  # type: ignore[misc]
    timers.at(start + 0.1, done.set)
    async with asyncio.timeout(60):
        await done.wait()
    assert not early
    timers.stop()


async def test_a_callback_may_ask_for_more_and_stopping_ends_it() -> None:
    count = 0
    enough = asyncio.Event()
    timers = Timers(after=lambda: None)

    def tick() -> None:
        nonlocal count
        count += 1
        if count == 5:
            enough.set()
        timers.at(timers.clock(), tick)

    timers.at(timers.clock(), tick)
    async with asyncio.timeout(60):
        await enough.wait()
    timers.stop()
    stopped_at = count
    timers.at(timers.clock(), tick)
    await asyncio.sleep(0.01)
    assert count == stopped_at


async def test_a_clock_that_is_set_back_delays_nothing() -> None:
    called = asyncio.Event()
    moved = 0.0
    timers = Timers(after=lambda: None, clock=lambda: time.time() + moved)
    timers.at(timers.clock() + 0.05, called.set)
    moved = -3600.0
    async with asyncio.timeout(60):
        await called.wait()
    timers.stop()


async def test_a_clock_that_is_set_forward_hurries_nothing() -> None:
    order: list[str] = []
    last = asyncio.Event()
    moved = 0.0
    timers = Timers(after=lambda: None, clock=lambda: time.time() + moved)
    timers.at(timers.clock() + 0.05, lambda: order.append("set before"))
    moved = 3600.0
    timers.at(timers.clock() + 0.01, lambda: order.append("set after"))
    timers.at(timers.clock() + 0.1, last.set)
    async with asyncio.timeout(60):
        await last.wait()
    assert order == ["set after", "set before"]
    timers.stop()
