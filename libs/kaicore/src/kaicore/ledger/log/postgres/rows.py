"""Events as rows: a batch as one statement, and rows back into events."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import msgspec
from psycopg import AsyncConnection
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format

from kaicore.rules.events.envelope import Event

#: In the order in which `to_event` takes them.
COLUMNS = (
    "position, stream, version, type, schema, id, actor, occurred_at, recorded_at, "
    "body, hash, subject, cause, correlation"
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


def encode_rows(events: Iterable[Event]) -> str:
    """Encode consecutive events for `kai_append`.

    Cluster and recorded_at are the same for all and not in it, nor are positions: the last one's is said beside it.
    """
    return _encoder.encode(
        [
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
                bytes(event.body).decode(),
                event.hash,
            )
            for event in events
        ]
    ).decode()


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
