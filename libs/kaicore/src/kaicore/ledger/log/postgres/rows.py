"""Events as rows: a batch as one statement, and rows back into events."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec

from kaicore.ledger.log.shapes import BODY, SCHEMA
from kaicore.rules.events.envelope import Event

#: Of the table `event`, in the order in which `to_event` takes them.
COLUMNS = (
    f"position, stream, version, type, {SCHEMA} AS schema, id, actor, occurred_at, recorded_at, "
    f"convert_to({BODY}, 'UTF8') AS body, hash, subject, cause, correlation"
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

    Cluster and recorded_at are the same for all and not in it, nor are positions: the last one stands beside it.

    Args:
        cut: by id, the shape and the values of bodies (`kaicore.ledger.log.shapes`).
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
    return [Event(cluster, *(*row[:9], msgspec.Raw(row[9]), *row[10:])) for row in rows]
