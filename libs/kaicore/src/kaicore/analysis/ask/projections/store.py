"""The read models in Postgres. The changes of a batch of events and the batch's last position are written in one
transaction.

Rows belong to a generation. The live generation is read. Another one can be built beside it, and takes its place in one
transaction when it has caught up. A builder writes only if the generation is unchanged since its last write, so that
two builders cannot both count the same events.

The tables of the read models, in the schema `views`. `migrations/versions/0006_views.py` creates them.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Self, TypeVar

import msgspec
import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from kaicore.analysis.ask.projections.projection import PROJECTION_SCHEMA
from kaicore.analysis.ask.projections.rows import (
    DecisionsHour,
    Occupancy,
    PodHistory,
    QueueHour,
    RowChanges,
    TimeRow,
)
from kaicore.errors import KaiError
from kaicore.ledger.connections import Connection, Connections

#: Rows that are read at once.
_ROWS = 20_000


_RowT = TypeVar("_RowT", bound=msgspec.Struct)
_RowT_co = TypeVar("_RowT_co", bound=msgspec.Struct, covariant=True)


@dataclass(frozen=True, slots=True)
class ReadModelTable(Generic[_RowT_co]):
    """A table of the read models (`keys`: of its primary key, beside cluster and generation)."""

    name: str
    row: type[_RowT_co]
    keys: tuple[str, ...]
    #: Whether rows that are written are added to those that are there.
    adds: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns, in the order of the fields of its row."""
        return ("cluster", "generation", *self.row.__struct_fields__)


POD_HISTORY = ReadModelTable("pod_history", PodHistory, ("uid",))
OCCUPANCY = ReadModelTable("occupancy", Occupancy, ("at",))
QUEUE_HOUR = ReadModelTable("queue_hour", QueueHour, ("at", "queue", "resource"), adds=True)
DECISIONS_HOUR = ReadModelTable("decisions_hour", DecisionsHour, ("at",), adds=True)

#: All that have rows of a generation.
OF_GENERATIONS = (POD_HISTORY, OCCUPANCY, QUEUE_HOUR, DECISIONS_HOUR)

#: The rows of a generation.
OF_GENERATION = "cluster = %(cluster)s AND generation = %(generation)s"
_GENERATIONS = (
    "SELECT generation AS number, schema, position, recorded_at, live FROM views.progress WHERE cluster = %(cluster)s "
    "ORDER BY generation"
)
_NEWEST = "SELECT coalesce(max(generation), 0), bool_or(live) FROM views.progress WHERE cluster = %s"
_MOVE = (
    "UPDATE views.progress SET position = %(position)s, recorded_at = %(recorded_at)s "
    "WHERE cluster = %(cluster)s AND generation = %(generation)s AND position = %(before)s"
)
_POSITION = "SELECT position FROM views.progress WHERE cluster = %(cluster)s AND generation = %(generation)s"
_GO_LIVE = "UPDATE views.progress SET live = true WHERE cluster = %(cluster)s AND generation = %(generation)s"
_NONE: Mapping[str, Any] = MappingProxyType({})


class Superseded(KaiError):
    """The generation has moved on, or is gone: another one builds it, or has taken its place."""


class Generation(NamedTuple):
    """A generation of a cluster's read models (`position`: up to which events are counted)."""

    number: int
    schema: int
    position: int
    recorded_at: int
    live: bool


class FrozenViews:
    """A cluster's live read models as of one moment, to be read as a whole."""

    def __init__(self, connection: Connection, cluster: str, generation: Generation) -> None:
        """Use `ViewStore.frozen`."""
        self._connection, self._cluster, self.generation = connection, cluster, generation

    async def rows(self, table: ReadModelTable[msgspec.Struct]) -> AsyncGenerator[list[tuple[Any, ...]], None]:
        """Give all rows of a table, so many at a time, in the order of the fields of its row."""
        async with psycopg.AsyncServerCursor(self._connection, "rows") as cursor:
            await cursor.execute(_select(table), _place(self._cluster, self.generation.number), binary=True)
            while rows := await cursor.fetchmany(_ROWS):
                yield rows


class ViewStore:
    """The read models of all clusters in one database."""

    def __init__(self, connections: Connections) -> None:
        """Prefer `open`."""
        self._connections = connections

    @classmethod
    async def open(cls, url: str, *, application: str, patience_s: float = 15.0, connections: int = 2) -> Self:
        """Connect; the arguments are those of `PostgresLog.open`.

        Raises:
            ConfigurationError: the url is none, or the database is not migrated.
            LogUnavailable: the server does not answer.
        """
        pool = Connections(url, size=connections, patience_s=patience_s, application=application)
        await pool.open()
        return cls(pool)

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Building.

    async def generations(self, cluster: str) -> list[Generation]:
        """Return the generations, the oldest first."""
        return [Generation(**row) for row in await self._read(_GENERATIONS, {"cluster": cluster})]

    async def begin(self, cluster: str, *, position: int, recorded_at: int) -> Generation:
        """Begin a generation without rows; it is live if no other is.

        Args:
            position: where it begins: the last position before the log's first event.
        """

        async def work(connection: Connection) -> Generation:
            async with connection.transaction():
                row = await (await connection.execute(_NEWEST, [cluster])).fetchone()
                assert row is not None
                generation = Generation(row[0] + 1, PROJECTION_SCHEMA, position, recorded_at, not row[1])
                await connection.execute(
                    "INSERT INTO views.progress (cluster, generation, schema, position, recorded_at, live) "
                    "VALUES (%s, %s, %s, %s, %s, %s)",
                    [cluster, *generation],
                )
                return generation

        return await self._connections.run(work)

    async def there(self, cluster: str, generation: int) -> list[PodHistory]:
        """Return the rows of pods that are not gone."""
        return await self.rows(POD_HISTORY, cluster, generation, where=["gone_at = 0"])

    async def pods(self, cluster: str, generation: int, uids: Collection[str]) -> list[PodHistory]:
        """Return the rows of some pods."""
        where, values = ["uid = ANY(%(uids)s)"], {"uids": sorted(uids)}
        return await self.rows(POD_HISTORY, cluster, generation, where=where, values=values)

    async def over_time(
        self, cluster: str, generation: int, *, minutes: tuple[int, int], hours: tuple[int, int]
    ) -> list[TimeRow]:
        """Return the rows of the minutes and hours that begin within these times."""
        found: list[TimeRow] = []
        tables: tuple[tuple[ReadModelTable[TimeRow], tuple[int, int]], ...] = (
            (OCCUPANCY, minutes),
            (QUEUE_HOUR, hours),
            (DECISIONS_HOUR, hours),
        )
        for table, (begin, end) in tables:
            where, values = ["at >= %(begin)s", "at < %(end)s"], {"begin": begin, "end": end}
            found += await self.rows(table, cluster, generation, where=where, values=values)
        return found

    async def save(
        self, cluster: str, before: Generation, changes: RowChanges, *, position: int, recorded_at: int
    ) -> None:
        """Write what events change, and how far they go. Raises Superseded: the generation is not there any more.

        Args:
            changes: by the events after it.
            position: of the last of them.
        """
        here = _place(cluster, before.number)
        moving = here | {"before": before.position, "position": position, "recorded_at": recorded_at}

        async def work(connection: Connection) -> None:
            async with connection.transaction():
                moved = await connection.execute(_MOVE, moving)
                if not moved.rowcount:
                    row = await (await connection.execute(_POSITION, here)).fetchone()
                    if row is not None and row[0] == position:
                        # This very call succeeded before, and only its answer was lost.
                        return
                    raise Superseded(
                        f"cluster {cluster}: generation {before.number} is not at {before.position} any more"
                    )
                for table, rows in (
                    (POD_HISTORY, changes.pods),
                    (OCCUPANCY, changes.occupancy),
                    (QUEUE_HOUR, changes.queues),
                    (DECISIONS_HOUR, changes.decisions),
                ):
                    await _write(connection, table, cluster, before.number, rows)

        await self._connections.run(work)

    async def go_live(self, cluster: str, generation: int) -> None:
        """Make a generation the one that is read, and delete the others."""

        async def work(connection: Connection) -> None:
            async with connection.transaction():
                place, others = _place(cluster, generation), "cluster = %(cluster)s AND generation <> %(generation)s"
                await connection.execute(sql.SQL("DELETE FROM views.progress WHERE {}").format(sql.SQL(others)), place)
                await connection.execute(_GO_LIVE, place)
                for table in OF_GENERATIONS:
                    await connection.execute(
                        sql.SQL("DELETE FROM {} WHERE {}").format(_name(table), sql.SQL(others)), place
                    )

        await self._connections.run(work)

    # Reading.

    @asynccontextmanager
    async def frozen(self, cluster: str) -> AsyncIterator[FrozenViews | None]:
        """Give the read models by this program's rules, unmoved by what is written meanwhile; None where none are."""
        async with self._connections.snapshot() as connection:
            rows = await (await connection.execute(_GENERATIONS, {"cluster": cluster})).fetchall()
            generation = next((one for one in (Generation(*row) for row in rows) if one.live), None)
            ours = generation is not None and generation.schema == PROJECTION_SCHEMA
            yield FrozenViews(connection, cluster, generation) if generation is not None and ours else None

    async def live(self, cluster: str) -> Generation | None:
        """Return the generation that is read; None where nothing was made yet."""
        return next((one for one in await self.generations(cluster) if one.live), None)

    async def rows(
        self,
        table: ReadModelTable[_RowT],
        cluster: str,
        generation: int,
        *,
        where: Sequence[str] = (),
        values: Mapping[str, Any] = _NONE,
        order: str = "",
        limit: int | None = None,
    ) -> list[_RowT]:
        """Return rows of a table of read models.

        Args:
            where: further conditions, in SQL, with the parameters `values`.
            order: columns, in SQL.
            limit: how many at most; None for all.
        """
        query = sql.SQL("{} {} {} LIMIT %(limit)s").format(
            _select(table),
            sql.SQL("".join(f" AND ({one})" for one in where)),
            sql.SQL(f"ORDER BY {order}" if order else ""),
        )
        return await self.found(table.row, query, {**_place(cluster, generation), **values, "limit": limit})

    async def found(self, row: type[_RowT], query: sql.SQL | sql.Composed, values: Mapping[str, Any]) -> list[_RowT]:
        """Return what a query finds, as rows with fields of its columns' names."""
        found = await self._read(query, values)
        return [msgspec.convert({name: _whole(value) for name, value in one.items()}, row) for one in found]

    async def _read(self, query: sql.SQL | sql.Composed | str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        async def work(connection: Connection) -> list[dict[str, Any]]:
            cursor = connection.cursor(row_factory=dict_row)
            return await (await cursor.execute(query, values)).fetchall()

        return await self._connections.run(work)


def _place(cluster: str, generation: int) -> dict[str, Any]:
    return {"cluster": cluster, "generation": generation}


def _name(table: ReadModelTable[msgspec.Struct]) -> sql.Identifier:
    return sql.Identifier("views", table.name)


def _names(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


@cache
def _select(table: ReadModelTable[msgspec.Struct]) -> sql.Composed:
    return sql.SQL("SELECT {} FROM {} WHERE {}").format(
        _names(table.row.__struct_fields__), _name(table), sql.SQL(OF_GENERATION)
    )


def _whole(value: object) -> object:
    """Return a number as Python's own; what Postgres calls numeric comes as a Decimal."""
    return value if isinstance(value, str | int) else int(str(value))


async def _write(
    connection: Connection,
    table: ReadModelTable[msgspec.Struct],
    cluster: str,
    generation: int,
    rows: Sequence[msgspec.Struct],
) -> None:
    if rows:
        values = [{**_place(cluster, generation), **msgspec.structs.asdict(row)} for row in rows]
        # Not msgspec: some numbers have more than 64 bits.
        await connection.execute(_upsert(table), {"rows": json.dumps(values)})


@cache
def _upsert(table: ReadModelTable[msgspec.Struct]) -> sql.Composed:
    """Return the statement that writes all rows of a JSON list; one for each row costs ten times as much."""
    keys = ("cluster", "generation", *table.keys)
    change = sql.SQL("{0} = {1}.{0} + excluded.{0}" if table.adds else "{0} = excluded.{0}")
    changes = [change.format(sql.Identifier(one), _name(table)) for one in table.columns if one not in keys]
    return sql.SQL(
        "INSERT INTO {table} ({names}) SELECT {names} FROM json_populate_recordset(NULL::{table}, %(rows)s::json) "
        "ON CONFLICT ({keys}) DO UPDATE SET {changes}"
    ).format(table=_name(table), names=_names(table.columns), keys=_names(keys), changes=sql.SQL(", ").join(changes))
