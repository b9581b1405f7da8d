"""The files of `kai export --format parquet`: one per table of a log, for DuckDB, Polars, pandas and others."""

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from kaicore.analysis.ask.projections import tables as tables_module
from kaicore.analysis.ask.projections.store import (
    OCCUPANCY,
    POD_HISTORY,
    QUEUE_HOUR,
    FrozenViews,
    ViewStore,
)
from kaicore.analysis.ask.projections.tables import TABLES, TABLES_SCHEMA, TYPES, Tables
from kaicore.errors import ConfigurationError
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.cluster_state import ClusterState

#: Events between two batches: what is in memory, and a row group of the files.
_BATCH = 50_000
__all__ = ["TYPES", "up_to_date", "write_tables"]

_TIME = pa.timestamp("us", tz="UTC")
#: Amounts times seconds, which 64 bits do not hold.
_LARGE = frozenset({"allocated", "requested", "fair_share"})
_SUM = pa.decimal128(38, 0)
_TYPES = {str: pa.string(), int: pa.int64(), bool: pa.bool_()}

#: Looks at read models that are a little behind, and seconds between two.
_LOOKS, _LOOK_S = 50, 0.2


@asynccontextmanager
async def up_to_date(log: EventLog, cluster: str) -> AsyncIterator[FrozenViews | None]:
    """Give the read models of a cluster that have all that its log has now; None where there are none."""
    if not isinstance(log, PostgresLog):
        yield None
        return
    store, head = ViewStore(log.connections), (await log.head(cluster)).position
    for _ in range(_LOOKS):
        there = await store.live(cluster)
        if there is None or there.position >= head:
            break
        await asyncio.sleep(_LOOK_S)
    async with store.frozen(cluster) as models:
        yield models if models is not None and models.generation.position >= head else None


async def write_tables(
    directory: Path,
    events: AsyncIterable[Event],
    state: ClusterState | None,
    about: Mapping[str, str],
    *,
    models: FrozenViews | None = None,
) -> dict[str, int]:
    """Write the tables of a log. Raises ConfigurationError: the directory cannot be written to.

    Args:
        directory: to write to: one file per table, and README.md with what columns mean; files there are replaced.
        events: in order, those after `state`.
        state: before the first event; it is folded on. None where there are `models`.
        about: what each file's metadata says of the log.
        models: have their own tables' rows; of events those of `TYPES` are enough then.

    Returns:
        how many rows each table has.
    """
    tables, counts = Tables(state), dict.fromkeys(TABLES, 0)
    try:
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        with ExitStack() as stack:
            writers = {
                name: stack.enter_context(pq.ParquetWriter(directory / f"{name}.parquet", _schema(row, about)))
                for name, row in TABLES.items()
            }
            if models is not None:
                for name, table in {"pods": POD_HISTORY, "usage": QUEUE_HOUR, "occupancy": OCCUPANCY}.items():
                    async for rows in models.rows(table):
                        columns = zip(*rows, strict=True)
                        counts[name] += await asyncio.to_thread(_write_columns, writers[name], columns)
            taken = 0
            async for event in events:
                tables.take(event)
                taken += 1
                if taken % _BATCH == 0:
                    _write(writers, tables.batch(), counts)
            _write(writers, tables.batch(last=True), counts)
        await asyncio.to_thread((directory / "README.md").write_text, _described(about))
    except OSError as error:
        raise ConfigurationError(f"{directory}: {error.strerror or error}") from error
    return counts


def _write(
    writers: Mapping[str, pq.ParquetWriter], rows: Mapping[str, list[msgspec.Struct]], counts: dict[str, int]
) -> None:
    for name, some in rows.items():
        if some:
            columns = ([getattr(row, field) for row in some] for field in writers[name].schema.names)
            counts[name] += _write_columns(writers[name], columns)


def _schema(row: type[msgspec.Struct], about: Mapping[str, str]) -> pa.Schema:
    fields = [
        (one.name, _TIME if _is_time(one.name) else _SUM if one.name in _LARGE else _TYPES[one.type])
        for one in msgspec.structs.fields(row)
    ]
    return pa.schema(fields, metadata={"kai.schema": str(TABLES_SCHEMA), **about})


def _write_columns(writer: pq.ParquetWriter, columns: Iterable[Sequence[Any]]) -> int:
    """Write rows that are given as columns, and return how many they are."""
    arrays = []
    for field, given in zip(writer.schema, columns, strict=True):
        values = [value or None for value in given] if _is_time(field.name) else given
        arrays.append(pa.array(values, type=field.type))
    table = pa.Table.from_arrays(arrays, schema=writer.schema)
    writer.write_table(table)
    return int(table.num_rows)


def _described(about: Mapping[str, str]) -> str:
    """Return what the tables and their columns mean, to lie beside them."""
    head = ", ".join(f"{name.removeprefix('kai.')} {value}" for name, value in about.items())
    parts = [f"# Tables of a log\n\n{head}; schema {TABLES_SCHEMA}.\n\n{inspect.getdoc(tables_module)}"]
    for name, row in TABLES.items():
        columns = ", ".join(f"`{one.name}`" for one in msgspec.structs.fields(row))
        parts.append(f"## {name}\n\n{columns}\n\n{inspect.getdoc(row)}")
    return "\n\n".join(parts) + "\n"


def _is_time(name: str) -> bool:
    return name == "at" or name.endswith("_at")
