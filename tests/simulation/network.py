"""The network between processes and servers: late, lossy, cut in two; all of it drawn from the run's seed.

A request is carried out by the server whatever becomes of the one who asked. So a call with a cut connection may have
been carried out, or not, or will be later: the caller only learns that there was no answer.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from tests.simulation.loop import Process, SimulatedLoop

T = TypeVar("T")

#: Seconds that a packet takes at least, and mostly at most.
_FASTEST_S, _SLOWEST_S = 0.0002, 0.003

#: Of the calls that fail, how many fail in which way.
_REFUSED, _UNANSWERED = 0.34, 0.7

#: How much later a request may be carried out of which the caller believes that it was lost, seconds.
_LATE_S = 4.0


class Fate(StrEnum):
    """The fate of a call.

    Attributes:
        GOOD: it is answered.
        REFUSED: it never reaches the server.
        UNANSWERED: it is carried out, and the answer is lost.
        LATE: the caller learns that the connection is gone, and it is carried out afterwards.
        TWICE: the transport sends it again, and it is carried out twice.
    """

    GOOD = "good"
    REFUSED = "refused"
    UNANSWERED = "unanswered"
    LATE = "late"
    TWICE = "twice"


class Link:
    """The link between a process's role and a server.

    Attributes:
        role: of the process.
        cut: probability that a call fails.
        twice: probability that the transport sends a call again.
        lossy: probability that a message of a subscription is lost, or comes twice.
        extra_s: what a packet takes longer, at most.
        heals_at: nothing passes before that time.
    """

    def __init__(self, loop: SimulatedLoop, role: str, chance: random.Random) -> None:
        self.role = role
        self.chance = chance
        self.cut = 0.0
        self.twice = 0.0
        self.lossy = 0.0
        self.extra_s = 0.0
        self.heals_at = 0.0
        self._loop = loop

    def delay(self) -> float:
        """The delay of a packet that is sent now; it waits until the link is whole."""
        draw = self.chance.random
        seconds = _FASTEST_S + (_SLOWEST_S - _FASTEST_S) * draw()
        if self.extra_s:
            seconds += self.extra_s * draw()
        return seconds + max(0.0, self.heals_at - self._loop.time())

    @property
    def whole(self) -> bool:
        return self.heals_at <= self._loop.time()

    def fate(self) -> Fate:
        """Draw what becomes of a call."""
        if self.cut and self.chance.random() < self.cut:
            kind = self.chance.random()
            return Fate.REFUSED if kind < _REFUSED else Fate.UNANSWERED if kind < _UNANSWERED else Fate.LATE
        if self.twice and self.chance.random() < self.twice:
            return Fate.TWICE
        return Fate.GOOD


@dataclass(eq=False, slots=True)
class _Pending:
    source: Process
    answer: "asyncio.Future[Any]"
    error: Callable[[str], Exception]

    def fail(self, why: str) -> None:
        if not self.answer.done() and not self.source.dead:
            self.answer.set_exception(self.error(why))


class Server:
    """The receiver of calls.

    Attributes:
        up: whether it answers at all.
        process: what it runs as.
    """

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process
        self.up = True
        self.generation = 0
        self.pending: dict[_Pending, None] = {}
        self.on_break: list[Callable[[], None]] = []
        #: Called after each call that was carried out, with its name.
        self.after_call: Callable[[str], None] = lambda name: None

    def break_connections(self) -> None:
        """Lose all connections, as a server does that dies: what was carried out is not answered any more."""
        self.generation += 1
        pending, self.pending = list(self.pending), {}
        for one in pending:
            one.fail("the connection is lost")
        for end in list(self.on_break):
            end()


class Network:
    def __init__(self, loop: SimulatedLoop, seed: int) -> None:
        self._loop = loop
        self._seed = seed
        self._links: dict[tuple[str, str], Link] = {}
        #: Is called for every call that does not go well.
        self.on_fate: Callable[[str, str, str, Fate], None] = lambda role, server, name, fate: None

    def link(self, role: str, server: str) -> Link:
        key = role, server
        if key not in self._links:
            self._links[key] = Link(self._loop, role, random.Random(f"{self._seed}/{role}/{server}"))
        return self._links[key]

    def links(self, role: str, server: str) -> list[Link]:
        """Every link of a role to a server; `*` is any of them that has been used."""
        if role != "*" and server != "*":
            return [self.link(role, server)]
        return [
            link for (one, other), link in sorted(self._links.items()) if role in ("*", one) and server in ("*", other)
        ]

    async def ask(
        self,
        source: Process,
        server: Server,
        name: str,
        serve: Callable[[], Coroutine[Any, Any, T]],
        *,
        error: Callable[[str], Exception],
        patience_s: float,
        waits: bool = False,
    ) -> T:
        """Have a server do something, and return what it says.

        Args:
            source: who asks.
            server: who is asked.
            name: of the call, for the trace.
            serve: does it; called any number of times.
            error: makes the error of a call without an answer.
            patience_s: how long to wait for the answer.
            waits: whether `serve` awaits anything; it is done at once otherwise.
        """
        loop = self._loop
        link = self.link(source.role, server.name)
        fate = link.fate()
        if fate is not Fate.GOOD:
            self.on_fate(source.name, server.name, name, fate)
        pending = _Pending(source, loop.create_future(), error)
        carried_out = _CarriedOut(
            self._loop, link, server, name=name, serve=serve, pending=pending, waits=waits, fate=fate
        )
        server.pending[pending] = None
        context = server.process.context
        match fate:
            case Fate.REFUSED:
                loop.call_later(link.delay(), pending.fail, "connection refused")
            case Fate.LATE:
                loop.call_later(link.delay(), pending.fail, "connection lost")
                late_s = link.delay() + _LATE_S * link.chance.random()
                loop.call_later(late_s, carried_out.begin, context=context)
            case Fate.TWICE:
                loop.call_later(link.delay(), carried_out.begin, context=context)
                loop.call_later(link.delay(), carried_out.begin, context=context)
            case _:
                loop.call_later(link.delay(), carried_out.begin, context=context)
        # An answer comes or its connection breaks, sooner or later; only where it may be later is a timer needed.
        timeout = None if link.whole else loop.call_later(patience_s, pending.fail, f"no answer in {patience_s:g} s")
        try:
            return await pending.answer
        finally:
            if timeout is not None:
                timeout.cancel()
            server.pending.pop(pending, None)


class _CarriedOut:
    """A request at the server, and its answer on the way back."""

    __slots__ = ("_fate", "_link", "_loop", "_name", "_pending", "_serve", "_server", "_waits")

    def __init__(
        self,
        loop: SimulatedLoop,
        link: Link,
        server: Server,
        *,
        name: str,
        serve: Callable[[], Coroutine[Any, Any, Any]],
        pending: _Pending,
        waits: bool,
        fate: Fate,
    ) -> None:
        self._loop, self._link, self._server, self._name = loop, link, server, name
        self._serve, self._pending, self._waits, self._fate = serve, pending, waits, fate

    def begin(self) -> None:
        if not self._server.up or self._server.process.dead:
            self._loop.call_later(self._link.delay(), self._pending.fail, "connection refused")
            return
        if self._waits:
            self._server.process.start(self._carry_out())
            return
        body = self._serve()
        generation = self._server.generation
        try:
            body.send(None)
        except StopIteration as stop:
            self._done(generation, stop.value, None)
        except Exception as error:
            self._done(generation, None, error)
        else:
            body.close()
            raise AssertionError(f"{self._server.name}: {self._name} waits")

    async def _carry_out(self) -> None:
        generation = self._server.generation
        try:
            value = await self._serve()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._done(generation, None, error)
        else:
            self._done(generation, value, None)

    def _done(self, generation: int, value: Any, error: Exception | None) -> None:
        self._server.after_call(self._name)
        if self._fate is Fate.UNANSWERED:
            self._loop.call_later(self._link.delay(), self._pending.fail, "connection lost")
        elif self._server.generation == generation:
            self._loop.call_later(self._link.delay(), self._arrive, generation, value, error)

    def _arrive(self, generation: int, value: Any, error: Exception | None) -> None:
        answer = self._pending.answer
        if answer.done() or self._pending.source.dead or self._server.generation != generation:
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)
