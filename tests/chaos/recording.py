"""A run's recording for `tools/checker`: read from the stores themselves, without the product's own readers."""

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import nats
import psycopg
from kaicore.ledger.bus.client import NatsClient
from kaicore.ledger.nkeys import key_of
from kaicore.rules.events.envelope import Event
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

_COLUMNS = (
    "cluster, position, stream, version, type, schema, id::text, actor, occurred_at, recorded_at, subject, "
    "cause::text, correlation, body::text, encode(hash, 'hex')"
)
_NAMES = (
    *("cluster", "position", "stream", "version", "type", "schema", "id", "actor", "occurredAt", "recordedAt"),
    *("subject", "cause", "correlation", "body", "hash"),
)

_NEW = "SELECT position, encode(hash, 'hex') FROM event WHERE cluster = %s AND position > %s ORDER BY position"

#: Seconds between two looks at what is new.
_LOOK_S = 0.5


def event_line(event: Event) -> str:
    """An event as a line of `events.jsonl`."""
    values = (
        *(event.cluster, event.position, event.stream, event.version, event.type, event.schema, str(event.id)),
        *(event.actor, event.occurred_at, event.recorded_at, event.subject),
        *(str(event.cause) if event.cause else None, event.correlation, bytes(event.body).decode(), event.hash.hex()),
    )
    return json.dumps(dict(zip(_NAMES, values, strict=True)))


class Recorder:
    """Watches while a run goes on: what is in the log is noted as soon as it can be read, and journals are kept."""

    def __init__(self, directory: Path, url: str, api_server: Path) -> None:
        """Args:
        directory: of the recording, on the API server's disk.
        url: of the database, for its superuser.
        api_server: data directory of the API server.
        """
        directory.mkdir(parents=True)
        (directory / "apiserver").mkdir()
        self._directory, self._url, self._api_server = directory, url, api_server
        self._observed: TextIO = (directory / "observed.jsonl").open("w")
        self._read: dict[str, int] = {}
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            self._keep_journals()
            with suppress(psycopg.Error, OSError, TimeoutError):
                async with asyncio.timeout(10):
                    await self._note()
            await asyncio.sleep(_LOOK_S)

    def _keep_journals(self) -> None:
        for path in (*self._api_server.glob("journal-*"), *self._api_server.glob("snapshot-*")):
            if path.suffix != ".tmp":
                with suppress(FileExistsError, FileNotFoundError):
                    os.link(path, self._directory / "apiserver" / path.name)

    async def _note(self) -> None:
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True, connect_timeout=5) as connection:
            heads = await (await connection.execute("SELECT cluster, position FROM log_head")).fetchall()
            for cluster, head in heads:
                rows = await connection.execute(_NEW, [cluster, self._read.get(cluster, 0)])
                async for position, hash_ in rows:
                    self.observed(cluster, position, hash_)
                    self._read[cluster] = position
                assert self._read.get(cluster, 0) >= head, f"cluster {cluster}: the head is {head}"

    def observed(self, cluster: str, position: int, hash_: str) -> None:
        """Note that somebody has read an event: it must be there in the end."""
        self._observed.write(json.dumps({"cluster": cluster, "position": position, "hash": hash_}) + "\n")

    async def close(self, nats_url: str, cluster: str) -> None:
        """Write down what is in all stores now; nothing may append any more.

        Args:
            nats_url: of the bus.
            cluster: the one that is on the bus, and that the API server is of.
        """
        self._watching.cancel()
        self._keep_journals()
        await self._note()
        self._observed.close()
        (self._directory / "run.json").write_text(json.dumps({"cluster": cluster}))
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            with (self._directory / "events.jsonl").open("w") as file:
                async with connection.cursor(name="events", withhold=True) as cursor:
                    await cursor.execute(f"SELECT {_COLUMNS} FROM readable_event ORDER BY cluster, position")
                    async for row in cursor:
                        file.write(json.dumps(dict(zip(_NAMES, row, strict=True))) + "\n")
            tables = {
                "heads": {
                    name: {"position": position, "hash": hash_}
                    for name, position, hash_ in await _all(
                        connection, "cluster, position, encode(hash, 'hex')", "log_head"
                    )
                },
                "streams": _nested(await _all(connection, "cluster, stream, version", "stream")),
                "ids": _nested(await _all(connection, "cluster, id::text, position", "event_id")),
            }
        (self._directory / "tables.json").write_text(json.dumps(tables))
        with (self._directory / "bus.jsonl").open("w") as file:
            for message in await _messages(nats_url, cluster):
                file.write(json.dumps(message) + "\n")


async def _all(connection: psycopg.AsyncConnection[Any], columns: str, table: str) -> list[Any]:
    return await (await connection.execute(f"SELECT {columns} FROM {table}")).fetchall()  # type: ignore[arg-type]


def _nested(rows: list[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for cluster, name, number in rows:
        nested.setdefault(cluster, {})[name] = number
    return nested


async def _messages(url: str, cluster: str) -> Iterator[dict[str, Any]]:
    """All messages of a cluster's stream, by a consumer of our own."""
    address, key = key_of(url)
    client = NatsClient(key)
    await client.connect(address, signature_cb=client.signature)
    read: list[dict[str, Any]] = []
    try:
        jetstream, name = client.jetstream(timeout=30), f"kai-{cluster}"
        try:
            last = (await jetstream.stream_info(name)).state.last_seq
        except nats.js.errors.NotFoundError:
            return iter(read)
        config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.ALL)
        subscription = await jetstream.pull_subscribe("", stream=name, config=config)
        while (position := read[-1]["sequence"] if read else 0) < last:
            batch = await subscription.fetch(min(500, last - position), timeout=5)
            for message in batch:
                sequence = message.metadata.sequence.stream
                data = base64.b64encode(message.data).decode()
                read.append({"cluster": cluster, "sequence": sequence, "subject": message.subject, "data": data})
            await batch[-1].ack()
    finally:
        await client.close()
    return iter(read)
