"""The read models in Postgres. The changes of a batch of events and the batch's last position are written in one
transaction.

Rows belong to a generation. The live generation is read. Another one can be built beside it, and takes its place in one
transaction when it has caught up. A builder writes only if the generation is unchanged since its last write, so that
two builders cannot both count the same events.

The tables of the read models, in the schema `views`. `migrations/versions/0006_views.py` creates them.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, NamedTuple, Self, TypeVar

import msgspec
import psycopg
from psycopg.rows import dict_row
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Executable,
    FromClause,
    Integer,
    MetaData,
    Numeric,
    Select,
    Table,
    Text,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

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
from kaicore.ledger.log.postgres.connections import Connection, Connections

METADATA = MetaData(schema="views")

#: Amounts times seconds, which 64 bits do not hold.
LARGE = frozenset({"allocated", "requested", "fair_share"})
#: Rows that are read at once.
_ROWS = 20_000


def _table(name: str, row: type[msgspec.Struct], *keys: str) -> Table:
    fields = [
        Column(
            field.name,
            Text if field.type is str else Numeric(asdecimal=False) if field.name in LARGE else BigInteger,
            primary_key=field.name in keys,
            nullable=False,
        )
        for field in msgspec.structs.fields(row)
    ]
    cluster = Column("cluster", Text, primary_key=True)
    generation = Column("generation", Integer, primary_key=True, autoincrement=False)
    return Table(name, METADATA, cluster, generation, *fields)


PROGRESS = Table(
    "progress",
    METADATA,
    Column("cluster", Text, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("schema", Integer, nullable=False),
    Column("live", Boolean, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("recorded_at", BigInteger, nullable=False),
)
POD_HISTORY = _table("pod_history", PodHistory, "uid")
OCCUPANCY = _table("occupancy", Occupancy, "at")
QUEUE_HOUR = _table("queue_hour", QueueHour, "at", "queue", "resource")
DECISIONS_HOUR = _table("decisions_hour", DecisionsHour, "at")

#: All that have rows of a generation.
OF_GENERATIONS = (POD_HISTORY, OCCUPANCY, QUEUE_HOUR, DECISIONS_HOUR)


_DIALECT = PGDialect_psycopg()  # type: ignore[no-untyped-call]

_RowT = TypeVar("_RowT", bound=msgspec.Struct)


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

    async def rows(self, table: Table) -> AsyncGenerator[list[tuple[Any, ...]], None]:
        """Give all rows of a table, so many at a time, in the order of the fields of its row."""
        text, parameters = _compiled(select(*_fields(table)).where(_of(table, self._cluster, self.generation.number)))
        async with psycopg.AsyncServerCursor(self._connection, "rows") as cursor:
            await cursor.execute(text, parameters, binary=True)
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
        """Return the generations that there are, the oldest first."""
        rows = await self._read(select(PROGRESS).where(PROGRESS.c.cluster == cluster).order_by(PROGRESS.c.generation))
        return [
            Generation(row["generation"], row["schema"], row["position"], row["recorded_at"], row["live"])
            for row in rows
        ]

    async def begin(self, cluster: str, *, position: int, recorded_at: int) -> Generation:
        """Begin a generation without rows; it is live if no other is.

        Args:
            position: where it begins: the last position before the log's first event.
        """

        async def work(connection: Connection) -> Generation:
            async with connection.transaction():
                newest = select(func.coalesce(func.max(PROGRESS.c.generation), 0), func.bool_or(PROGRESS.c.live))
                row = await (await _run(connection, newest.where(PROGRESS.c.cluster == cluster))).fetchone()
                assert row is not None
                generation = Generation(row[0] + 1, PROJECTION_SCHEMA, position, recorded_at, not row[1])
                await _run(
                    connection,
                    insert(PROGRESS).values(
                        cluster=cluster,
                        generation=generation.number,
                        schema=generation.schema,
                        live=generation.live,
                        position=position,
                        recorded_at=recorded_at,
                    ),
                )
                return generation

        return await self._connections.run(work)

    async def there(self, cluster: str, generation: int) -> list[PodHistory]:
        """Return the rows of pods that are not gone."""
        wanted = _of(POD_HISTORY, cluster, generation) & (POD_HISTORY.c.gone_at == 0)
        return _rows(PodHistory, await self._read(select(*_fields(POD_HISTORY)).where(wanted)))

    async def pods(self, cluster: str, generation: int, uids: Collection[str]) -> list[PodHistory]:
        """Return the rows of some pods."""
        wanted = _of(POD_HISTORY, cluster, generation) & POD_HISTORY.c.uid.in_(sorted(uids))
        return _rows(PodHistory, await self._read(select(*_fields(POD_HISTORY)).where(wanted)))

    async def over_time(
        self, cluster: str, generation: int, *, minutes: tuple[int, int], hours: tuple[int, int]
    ) -> list[TimeRow]:
        """Return the rows of the minutes and hours that begin within these times."""
        found: list[TimeRow] = []
        kinds = (
            (Occupancy, OCCUPANCY, minutes),
            (QueueHour, QUEUE_HOUR, hours),
            (DecisionsHour, DECISIONS_HOUR, hours),
        )
        for row, table, (begin, end) in kinds:
            wanted = _of(table, cluster, generation) & (table.c.at >= begin) & (table.c.at < end)
            found += _rows(row, await self._read(select(*_fields(table)).where(wanted)))
        return found

    async def save(
        self, cluster: str, before: Generation, changes: RowChanges, *, position: int, recorded_at: int
    ) -> None:
        """Write what events change, and how far they go. Raises Superseded: the generation is not there any more.

        Args:
            changes: by the events after it.
            position: of the last of them.
        """
        here = _of(PROGRESS, cluster, before.number)

        async def work(connection: Connection) -> None:
            async with connection.transaction():
                moving = update(PROGRESS).where(here & (PROGRESS.c.position == before.position))
                moved = await _run(connection, moving.values(position=position, recorded_at=recorded_at))
                if not moved.rowcount:
                    row = await (await _run(connection, select(PROGRESS.c.position).where(here))).fetchone()
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
                others = (PROGRESS.c.cluster == cluster) & (PROGRESS.c.generation != generation)
                await _run(connection, delete(PROGRESS).where(others))
                await _run(connection, update(PROGRESS).where(_of(PROGRESS, cluster, generation)).values(live=True))
                for table in OF_GENERATIONS:
                    old = (table.c.cluster == cluster) & (table.c.generation != generation)
                    await _run(connection, delete(table).where(old))

        await self._connections.run(work)

    # Reading.

    @asynccontextmanager
    async def frozen(self, cluster: str) -> AsyncIterator[FrozenViews | None]:
        """Give the read models by this program's rules, unmoved by what is written meanwhile; None where none are."""
        async with self._connections.snapshot() as connection:
            query = select(PROGRESS).where(PROGRESS.c.cluster == cluster, PROGRESS.c.live)
            text, parameters = _compiled(query)
            row = await (await connection.execute(text, parameters)).fetchone()
            generation = None if row is None else Generation(row[1], row[2], row[4], row[5], live=True)
            ours = generation is not None and generation.schema == PROJECTION_SCHEMA
            yield FrozenViews(connection, cluster, generation) if generation is not None and ours else None

    async def live(self, cluster: str) -> Generation | None:
        """Return the generation that is read; None where nothing was made yet."""
        return next((one for one in await self.generations(cluster) if one.live), None)

    async def rows(
        self,
        row: type[_RowT],
        table: FromClause,
        cluster: str,
        generation: int,
        *,
        where: Sequence[ColumnElement[bool]] = (),
        order: Sequence[ColumnElement[Any]] = (),
        limit: int,
    ) -> list[_RowT]:
        """Return rows of a table of read models (`where`: further conditions)."""
        query = select(*_fields(table)).where(_of(table, cluster, generation), *where).order_by(*order).limit(limit)
        return _rows(row, await self._read(query))

    async def _read(self, query: Select[Any]) -> list[dict[str, Any]]:
        async def work(connection: Connection) -> list[dict[str, Any]]:
            cursor = connection.cursor(row_factory=dict_row)
            text, parameters = _compiled(query)
            return await (await cursor.execute(text, parameters)).fetchall()

        return await self._connections.run(work)


def _of(table: FromClause, cluster: str, generation: int) -> ColumnElement[bool]:
    return (table.c.cluster == cluster) & (table.c.generation == generation)


def _fields(table: FromClause) -> list[ColumnElement[Any]]:
    return [column for column in table.c if column.name not in ("cluster", "generation")]


def _rows(row: type[_RowT], found: Sequence[dict[str, Any]]) -> list[_RowT]:
    return [msgspec.convert({name: _whole(value) for name, value in one.items()}, row) for one in found]


def _whole(value: object) -> object:
    """Return a number as Python's own; what Postgres calls numeric comes as a Decimal."""
    return value if isinstance(value, str | int) else int(str(value))


async def _write(
    connection: Connection, table: Table, cluster: str, generation: int, rows: Sequence[msgspec.Struct]
) -> None:
    if rows:
        values = [{"cluster": cluster, "generation": generation, **msgspec.structs.asdict(row)} for row in rows]
        # Not msgspec: some numbers have more than 64 bits.
        await connection.execute(_upsert(table), {"rows": json.dumps(values)})


@cache
def _upsert(table: Table) -> bytes:
    """Return the statement that writes all rows of a JSON list; one for each row costs ten times as much."""
    names = [column.name for column in table.c]
    like: ColumnElement[Any] = literal_column(f"NULL::{table.fullname}")
    given = func.json_populate_recordset(like, bindparam("rows", type_=JSON)).table_valued(*names)
    statement = upsert(table).from_select(names, select(*given.c))
    keys = [column.name for column in table.primary_key]
    adds = table in (QUEUE_HOUR, DECISIONS_HOUR)
    changed = {
        name: table.c[name] + statement.excluded[name] if adds else statement.excluded[name]
        for name in names
        if name not in keys
    }
    return _compiled(statement.on_conflict_do_update(index_elements=keys, set_=changed))[0]


async def _run(connection: Connection, statement: Executable) -> Any:
    text, parameters = _compiled(statement)
    return await connection.execute(text, parameters)


def _compiled(statement: Executable) -> tuple[bytes, dict[str, Any]]:
    compiled = statement.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})  # type: ignore[attr-defined]
    return str(compiled).encode(), dict(compiled.params)
