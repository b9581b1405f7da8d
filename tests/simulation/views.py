"""Read models in memory, with each call as one transaction, and as a projector reaches them over the network."""

from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any, TypeVar

from kaicore.analysis.ask.projections.projection import PROJECTION_SCHEMA
from kaicore.analysis.ask.projections.rows import PodHistory, RowChanges, TimeRow
from kaicore.analysis.ask.projections.store import Generation, Superseded
from kaicore.errors import LogUnavailable

from tests.given.logs.projected import Tables
from tests.simulation.loop import Process
from tests.simulation.network import Network, Server

T = TypeVar("T")

#: Seconds that a caller waits for an answer, and how often what has none is sent, as `Connections` does.
_PATIENCE_S, _TRIES = 5.0, 2


class MemoryViews:
    """See `kaicore.analysis.ask.projections.building.GenerationStore`; what Postgres keeps of it, in memory."""

    def __init__(self, saved: Callable[[str, Generation, Tables], None] = lambda cluster, generation, tables: None):
        """Args: saved: called with a generation and its tables whenever they have moved on."""
        self._saved = saved
        self._made: dict[str, dict[int, tuple[Generation, Tables]]] = {}

    async def generations(self, cluster: str) -> list[Generation]:
        return [generation for _, (generation, _) in sorted(self._made.get(cluster, {}).items())]

    async def begin(self, cluster: str, *, position: int, recorded_at: int) -> Generation:
        made = self._made.setdefault(cluster, {})
        live = not any(generation.live for generation, _ in made.values())
        generation = Generation(max(made, default=0) + 1, PROJECTION_SCHEMA, position, recorded_at, live)
        made[generation.number] = generation, Tables()
        return generation

    async def there(self, cluster: str, generation: int) -> list[PodHistory]:
        _, tables = self._made.get(cluster, {}).get(generation, (None, Tables()))
        return [row for row in tables.pods.values() if not row.gone_at]

    async def pods(self, cluster: str, generation: int, uids: Collection[str]) -> list[PodHistory]:
        _, tables = self._made.get(cluster, {}).get(generation, (None, Tables()))
        return [tables.pods[uid] for uid in uids if uid in tables.pods]

    async def over_time(
        self, cluster: str, generation: int, *, minutes: tuple[int, int], hours: tuple[int, int]
    ) -> list[TimeRow]:
        _, tables = self._made.get(cluster, {}).get(generation, (None, Tables()))
        kinds = ((tables.occupancy, minutes), (tables.queues, hours), (tables.decisions, hours))
        return [row for rows, (begin, end) in kinds for row in rows.values() if begin <= row.at < end]

    async def save(
        self, cluster: str, before: Generation, changes: RowChanges, *, position: int, recorded_at: int
    ) -> None:
        now, tables = self._made.get(cluster, {}).get(before.number, (None, Tables()))
        if now is None or now.position != before.position:
            if now is not None and now.position == position:
                return
            raise Superseded(f"cluster {cluster}: generation {before.number} is not at {before.position} any more")
        self.write(cluster, now._replace(position=position, recorded_at=recorded_at), tables, changes)

    def write(self, cluster: str, generation: Generation, tables: Tables, changes: RowChanges) -> None:
        """Keep what events change, and how far they go."""
        tables.save(changes)
        self._made[cluster][generation.number] = generation, tables
        self._saved(cluster, generation, tables)

    async def go_live(self, cluster: str, generation: int) -> None:
        made = self._made.get(cluster, {})
        self._made[cluster] = {
            number: (one._replace(live=True), tables) for number, (one, tables) in made.items() if number == generation
        }

    def made(self, cluster: str, number: int) -> tuple[Generation, Tables] | None:
        return self._made.get(cluster, {}).get(number)

    def live(self, cluster: str) -> tuple[Generation, Tables] | None:
        """The rows that are read: the generation and its tables."""
        return next((one for one in self._made.get(cluster, {}).values() if one[0].live), None)


class NetworkViews:
    """See `MemoryViews`; a call without an answer is sent once more."""

    def __init__(self, process: Process, network: Network, server: Server, views: MemoryViews) -> None:
        self._process, self._network, self._server, self._views = process, network, server, views

    async def _ask(self, name: str, serve: Callable[[], Coroutine[Any, Any, T]]) -> T:
        for last in (*(False,) * (_TRIES - 1), True):
            try:
                return await self._network.ask(
                    self._process, self._server, f"views {name}", serve, error=LogUnavailable, patience_s=_PATIENCE_S
                )
            except LogUnavailable:
                if last:
                    raise
        raise AssertionError

    async def generations(self, cluster: str) -> list[Generation]:
        return await self._ask("generations", lambda: self._views.generations(cluster))

    async def begin(self, cluster: str, *, position: int, recorded_at: int) -> Generation:
        return await self._ask("begin", lambda: self._views.begin(cluster, position=position, recorded_at=recorded_at))

    async def there(self, cluster: str, generation: int) -> list[PodHistory]:
        return await self._ask("there", lambda: self._views.there(cluster, generation))

    async def pods(self, cluster: str, generation: int, uids: Collection[str]) -> list[PodHistory]:
        return await self._ask("pods", lambda: self._views.pods(cluster, generation, uids))

    async def over_time(
        self, cluster: str, generation: int, *, minutes: tuple[int, int], hours: tuple[int, int]
    ) -> list[TimeRow]:
        over = partial(self._views.over_time, cluster, generation, minutes=minutes, hours=hours)
        return await self._ask("over time", over)

    async def save(
        self, cluster: str, before: Generation, changes: RowChanges, *, position: int, recorded_at: int
    ) -> None:
        await self._ask(
            "save",
            lambda: self._views.save(cluster, before, changes, position=position, recorded_at=recorded_at),
        )

    async def go_live(self, cluster: str, generation: int) -> None:
        await self._ask("go live", lambda: self._views.go_live(cluster, generation))
