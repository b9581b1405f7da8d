"""Asking embedded servers."""

import asyncio
import os
from contextlib import suppress

import nats
import psycopg
import pytest
from kaicore.ledger.bus.client import NatsClient
from kaicore.ledger.nkeys import key_of
from kaicore.runtime.embedded import EmbeddedNats, EmbeddedPostgres
from kaicore.runtime.embedded.process import EmbeddedServer

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as another user")

SERVERS: list[type[EmbeddedServer]] = [EmbeddedPostgres, EmbeddedNats]


async def query(url: str, statement: str) -> object:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(statement)
        return await cursor.fetchone() if cursor.description else None


async def connected(url: str) -> NatsClient:
    address, key = key_of(url)
    client = NatsClient(key)
    try:
        await client.connect(address, signature_cb=client.signature, allow_reconnect=False)
    except nats.errors.Error:
        await client.close()
        raise
    return client


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
