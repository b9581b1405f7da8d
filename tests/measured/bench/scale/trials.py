"""Trials: something happens to one of two instances, and it is measured how long its work waits for the other one."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tests.measured.bench.scale.instances import Fault, Template

#: Seconds that a second instance is given to see, once it is ready, that the first one leads.
_SETTLES_S = 1.0

#: Seconds after which work counts as never done: a server of the bench itself is gone, most likely.
_NEVER_S = 120.0


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a measurement: faults of each kind.

    Attributes:
        measured: is called after each takeover, with its seconds.
    """

    faults: int
    kinds: tuple[Fault, ...] = tuple(Fault)
    measured: Callable[[Fault, float], None] = lambda fault, seconds: None

    @property
    def together(self) -> int:
        """All faults, and some work before them."""
        return 2 * self.faults * len(self.kinds) + 10


#: Gives work that only one of the instances does, and waits until it is done.
Work = Callable[[], Awaitable[None]]

Seconds = dict[Fault, list[float]]


async def taken_over(  # long: six keywords, each described
    module: str,
    settings: Mapping[str, str],
    work: Work,
    size: Size,
    *,
    replicas: bool = False,
    shown: Callable[[tuple[str, ...]], None] = lambda _: None,
) -> Seconds:
    """Return the seconds that each takeover took, by fault.

    Args:
        module: of the service.
        settings: of its instances.
        work: see `Work`.
        size: how many faults.
        replicas: whether each instance has a name of its own.
        shown: is called with the addresses of the instances, that first to which something is about to happen.

    Raises:
        TimeoutError: work was not done within two minutes; names module and fault.
    """
    seconds: Seconds = {fault: [] for fault in size.kinds}
    async with Template(module) as template:
        names = (dict(settings) | ({"REPLICA": f"r{number}"} if replicas else {}) for number in range(size.together))
        leader = await template.start(next(names))
        shown((leader.address,))
        await _in_time(work, f"{module}, before any fault")
        for number in range(size.faults * len(size.kinds)):
            fault = size.kinds[number % len(size.kinds)]
            next_one = await template.start(next(names))
            shown((leader.address, next_one.address))
            await asyncio.sleep(_SETTLES_S)
            # So the second one has just seen that the first one is there.
            await _in_time(work, f"{module}, before fault {number}")
            began = time.perf_counter()
            leader.strike(fault)
            await _in_time(work, f"{module}, after fault {number}, {fault}")
            seconds[fault].append(time.perf_counter() - began)
            size.measured(fault, seconds[fault][-1])
            await leader.end()
            leader = next_one
    return seconds


async def _in_time(work: Work, when: str) -> None:
    try:
        async with asyncio.timeout(_NEVER_S):
            await work()
    except TimeoutError as error:
        raise TimeoutError(f"{when}: not done within {_NEVER_S:.0f} s") from error
