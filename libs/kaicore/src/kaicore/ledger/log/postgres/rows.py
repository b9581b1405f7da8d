"""Events as rows: a batch as one statement, and rows back into events."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec
from psycopg import AsyncConnection
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format

from kaicore.ledger.log.postgres.shapes import BODY, SCHEMA
from kaicore.rules.events.envelope import Event

#: Of the table `event`, in the order in which `to_event` takes them.
COLUMNS = (
    f"position, stream, version, type, {SCHEMA} AS schema, id, actor, occurred_at, recorded_at, "
    f"{BODY} AS body, hash, subject, cause, correlation"
)

_encoder = msgspec.json.Encoder()


class _Row(msgspec.Struct):
    """An event as the insert takes it.

    The body goes as a string, not as JSON within JSON: Postgres would have to parse it twice to find its end, and does
    not let a NUL pass that is escaped in it.
    """

    stream: str
    version: int
    type: str
    schema: int
    id: UUID
    actor: str
    occurred_at: int
    subject: str
    cause: UUID | None
    correlation: str
    body: str
    hash: bytes
    shape: int = 0


def encode_rows(events: Iterable[Event], cut: Mapping[UUID, tuple[int, bytes]] = MappingProxyType({})) -> str:
    """Encode consecutive events for `kai_append`.

    Cluster and recorded_at are the same for all and not in it, nor are positions: the last one's is said beside it.

    Args:
        cut: by id, the shape and the values of bodies (`kaicore.ledger.log.postgres.shapes`).
    """
    rows = []
    for event in events:
        shape, body = cut.get(event.id) or (0, bytes(event.body))
        rows.append(
            _Row(
                event.stream,
                event.version,
                event.type,
                event.schema,
                event.id,
                event.actor,
                event.occurred_at,
                event.subject,
                event.cause,
                event.correlation,
                body.decode(),
                event.hash,
                shape,
            )
        )
    return _encoder.encode(rows).decode()


def to_events(cluster: str, rows: Sequence[tuple[Any, ...]]) -> list[Event]:
    """Make events of rows of `COLUMNS`."""
    return [Event(cluster, *row) for row in rows]


class _RawJsonLoader(Loader):
    """Takes a json column as the bytes that it is; psycopg's own loader would decode it."""

    format = Format.TEXT

    def load(self, data: Buffer) -> msgspec.Raw:
        return msgspec.Raw(bytes(data))


class _RawJsonBinaryLoader(_RawJsonLoader):
    format = Format.BINARY


def register_loaders(connection: AsyncConnection[Any]) -> None:
    """Make a connection give json columns as `msgspec.Raw`."""
    connection.adapters.register_loader("json", _RawJsonLoader)
    connection.adapters.register_loader("json", _RawJsonBinaryLoader)
