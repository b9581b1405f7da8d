"""The files of `kai export --format parquet`: one per table of a log, for DuckDB, Polars, pandas and others."""

import asyncio
import inspect
from collections.abc import AsyncIterable, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from kaicore.analysis.ask.projections import tables as tables_module
from kaicore.analysis.ask.projections.tables import TABLES, TABLES_SCHEMA, Tables
from kaicore.errors import ConfigurationError
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.cluster_state import ClusterState

#: Events between two batches: what is in memory, and a row group of the files.
_BATCH = 50_000
_TIME = pa.timestamp("us", tz="UTC")
_TYPES = {str: pa.string(), int: pa.int64(), bool: pa.bool_()}


async def write_tables(
    directory: Path, events: AsyncIterable[Event], state: ClusterState, about: Mapping[str, str]
) -> dict[str, int]:
    """Write the tables of a log.

    Args:
        directory: to write to: one file per table, and README.md with what columns mean; files there are replaced.
        events: in order, those after `state`.
        state: before the first event; it is folded on.
        about: what each file's metadata says of the log.

    Returns:
        how many rows each table has.

    Raises:
        ConfigurationError: the directory cannot be written to.
    """
    tables, counts = Tables(state), dict.fromkeys(TABLES, 0)
    try:
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        with ExitStack() as stack:
            writers = {
                name: stack.enter_context(pq.ParquetWriter(directory / f"{name}.parquet", _schema(row, about)))
                for name, row in TABLES.items()
            }
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
            writers[name].write_table(_table(some, writers[name].schema))
            counts[name] += len(some)


def _schema(row: type[msgspec.Struct], about: Mapping[str, str]) -> pa.Schema:
    fields = [(one.name, _TIME if _is_time(one.name) else _TYPES[one.type]) for one in msgspec.structs.fields(row)]
    return pa.schema(fields, metadata={"kai.schema": str(TABLES_SCHEMA), **about})


def _table(rows: list[msgspec.Struct], schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        values = [getattr(row, field.name) for row in rows]
        if _is_time(field.name):
            values = [value or None for value in values]
        columns.append(pa.array(values, type=field.type))
    return pa.Table.from_arrays(columns, schema=schema)


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
