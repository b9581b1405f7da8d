"""Retired months as files: a month's table, and the snapshots kept with it, before the table is dropped.

Both are Postgres's own CSV with a header, compressed, so that `COPY … FROM` brings them back:

- `event_2026_01.csv.gz`: the events of all clusters, in order;
- `event_2026_01.kept.csv.gz`: the snapshots from which readers of the rest start (`kept_snapshot`).

A file is read back before it counts: the hash chain of its events must lead from one seal to the next.
"""

import csv
import gzip
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast
from uuid import UUID

import msgspec
from psycopg import AsyncConnection, sql

from kaicore.errors import ConfigurationError, CorruptLog
from kaicore.ledger.log.chain import GENESIS, continues
from kaicore.ledger.log.partitions import Month
from kaicore.ledger.log.port import Seal
from kaicore.ledger.log.shapes import BODY, SCHEMA
from kaicore.rules.events.envelope import Event

_EVENTS = sql.SQL(
    f"""COPY (
        SELECT cluster, position, stream, version, type, {SCHEMA} AS schema, id, actor, occurred_at, recorded_at,
            subject, cause, correlation, {BODY} AS body, hash FROM {{}} ORDER BY cluster, position
    ) TO STDOUT (FORMAT csv, HEADER)"""  # noqa: S608  # of constants
)
_NUMBERS = ("position", "version", "schema", "occurred_at", "recorded_at")
_KEPT = sql.SQL(
    "COPY (SELECT kept_snapshot.* FROM kept_snapshot JOIN seal ON seal.cluster = kept_snapshot.cluster "
    "AND seal.position = kept_snapshot.seal WHERE seal.detached = {} ORDER BY 1, 2, 3) TO STDOUT (FORMAT csv, HEADER)"
)


async def archive_month(
    connection: AsyncConnection[Any], month: Month, seals: Sequence[Seal], directory: Path
) -> list[Path]:
    """Write a detached month into files, and read them back.

    Args:
        connection: of a role that may read the month's table.
        seals: of all clusters that have events in it.
        directory: where the files go; made when missing.

    Returns:
        The files; what was there under these names is replaced.

    Raises:
        ConfigurationError: the directory cannot be written.
        CorruptLog: what was written is not what was sealed.
    """
    before = {seal.cluster: await _hash_before(connection, seal) for seal in seals}
    queries = {"csv.gz": _EVENTS.format(sql.Identifier(month.table)), "kept.csv.gz": _KEPT.format(month.table)}
    files: list[Path] = []
    try:
        _make(directory)
        for suffix, query in queries.items():
            file = directory / f"{month.table}.{suffix}"
            beside = file.with_name(f".{file.name}.new")
            with beside.open("wb") as raw:
                with gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed:
                    async with connection.cursor() as cursor, cursor.copy(query) as copy:
                        async for block in copy:
                            packed.write(block)
                raw.flush()
                os.fsync(raw.fileno())
            if not files:
                check_archive(beside, seals, before=before)
            beside.replace(file)
            files.append(file)
        # The table goes next: what a machine that fails then has on its disk must have these names.
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigurationError(f"{error.filename or directory}: cannot be written: {error.strerror}") from error
    return files


def check_archive(file: Path, seals: Sequence[Seal], *, before: dict[str, bytes]) -> None:
    """Read a file of events, and compare its hash chains with the seals.

    Raises CorruptLog: an event is missing, there twice, or not what it was; names it.

    Args:
        file: as `archive_month` writes it.
        before: by cluster, the hash of the event before its first one there.
    """
    hashes, positions = dict(before), {seal.cluster: seal.first_position - 1 for seal in seals}
    for event in read_month(file):
        expected = positions.get(event.cluster)
        if expected is None or event.position != expected + 1:
            raise CorruptLog(f"{file}: cluster {event.cluster}: event {event.position} is not the one that follows")
        if not continues(hashes[event.cluster], event):
            raise CorruptLog(f"{file}: cluster {event.cluster}: event {event.position}: its hash is another one")
        hashes[event.cluster], positions[event.cluster] = event.hash, event.position
    for seal in seals:
        if (positions[seal.cluster], hashes[seal.cluster]) != (seal.position, seal.hash):
            raise CorruptLog(f"{file}: cluster {seal.cluster}: ends at {positions[seal.cluster]}, not at its seal")


def read_month(file: Path) -> Iterator[Event]:
    """Yield the events of a month's file, of which nothing has been checked; those of each cluster in order.

    Raises:
        ConfigurationError: it cannot be read.
        CorruptLog: it is no such file, or cut off.
    """
    # Payloads of megabytes are one field.
    csv.field_size_limit(sys.maxsize)
    try:
        # A row that was cut off has None where there should be texts.
        yield from _rows(file)
    except (
        EOFError,
        gzip.BadGzipFile,
        zlib.error,
        csv.Error,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise CorruptLog(f"{file}: is no month of a log, or cut off: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from error


def _rows(file: Path) -> Iterator[Event]:
    with gzip.open(file, "rt", encoding="utf-8", newline="") as packed:
        for row in csv.DictReader(cast("IO[str]", packed)):
            fields: dict[str, Any] = {**row, **{name: int(row[name]) for name in _NUMBERS}}
            fields["id"] = UUID(row["id"])
            fields["cause"] = UUID(row["cause"]) if row["cause"] else None
            fields["body"] = msgspec.Raw(row["body"].encode())
            fields["hash"] = bytes.fromhex(row["hash"].removeprefix("\\x"))
            yield Event(**fields)


def _make(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)


async def _hash_before(connection: AsyncConnection[Any], seal: Seal) -> bytes:
    rows = await connection.execute(
        "SELECT hash FROM seal WHERE cluster = %s AND position = %s", [seal.cluster, seal.first_position - 1]
    )
    row = await rows.fetchone()
    return GENESIS if row is None else bytes(row[0])
