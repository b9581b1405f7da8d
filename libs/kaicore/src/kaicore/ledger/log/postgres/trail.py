"""Trails in Postgres: the table `state_trail`."""

import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kaicore.errors import KaiError
from kaicore.ledger.log.port import Snapshot
from kaicore.ledger.log.postgres.connections import Connection, Connections
from kaicore.ledger.log.snapshots import STATE_SNAPSHOT, discard, snapshot_digest
from kaicore.ledger.log.trail import TrailPlace


class PostgresTrail:
    """Trails in Postgres; see `kaicore.ledger.log.trail.TrailStore`."""

    def __init__(self, connections: Connections) -> None:
        """Args: connections: of the log."""
        self._connections = connections

    async def places(self, cluster: str) -> list[TrailPlace]:
        """See `TrailStore.places`."""
        rows = await self._rows(
            "SELECT position, schema, size FROM state_trail WHERE cluster = %s ORDER BY position", [cluster]
        )
        return [TrailPlace(*row) for row in rows]

    async def load(self, cluster: str, *, schema: str, upto: int) -> Snapshot | None:
        """See `TrailStore.load`."""
        while rows := await self._rows(
            "SELECT position, body, digest FROM state_trail WHERE cluster = %s AND schema = %s AND position <= %s "
            "ORDER BY position DESC LIMIT 1",
            [cluster, schema, upto],
        ):
            ((position, packed, digest),) = rows
            try:
                snapshot = Snapshot(STATE_SNAPSHOT, position, schema, zlib.decompress(packed))
            except zlib.error as error:
                discard(cluster, Snapshot(STATE_SNAPSHOT, position, schema, b""), why="unreadable", error=str(error))
            else:
                if snapshot_digest(cluster, snapshot) == digest:
                    return snapshot
                discard(cluster, snapshot, why="digest")
            # A role that only reads leaves it there.
            with suppress(KaiError):
                await self._connections.run(partial(_drop, cluster, [TrailPlace(position, schema, 0)]))
            upto = position - 1
        return None

    async def save(self, cluster: str, snapshot: Snapshot, packed: bytes, *, drop: Sequence[TrailPlace] = ()) -> None:
        """See `TrailStore.save`."""

        async def save(connection: Connection) -> None:
            async with connection.transaction():
                await _drop(cluster, drop, connection)
                await connection.execute(
                    "INSERT INTO state_trail (cluster, schema, position, size, body, digest) "
                    "VALUES (%s, %s, %s, %s, %b, %b) ON CONFLICT (cluster, schema, position) "
                    # What is there already may not be what was saved.
                    "DO UPDATE SET size = excluded.size, body = excluded.body, digest = excluded.digest",
                    [
                        cluster,
                        snapshot.schema,
                        snapshot.position,
                        len(packed),
                        packed,
                        snapshot_digest(cluster, snapshot),
                    ],
                )

        await self._connections.run(save)

    async def _rows(self, query: Any, parameters: Any) -> list[tuple[Any, ...]]:
        async def fetch(connection: Connection) -> list[tuple[Any, ...]]:
            async with connection.cursor(binary=True) as cursor:
                await cursor.execute(query, parameters)
                return await cursor.fetchall()

        return await self._connections.run(fetch)


async def _drop(cluster: str, places: Sequence[TrailPlace], connection: Connection) -> None:
    if places:
        await connection.execute(
            "DELETE FROM state_trail USING unnest(%s::text[], %s::bigint[]) AS gone (schema, position) "
            "WHERE cluster = %s AND state_trail.schema = gone.schema AND state_trail.position = gone.position",
            [[place.schema for place in places], [place.position for place in places], cluster],
        )
