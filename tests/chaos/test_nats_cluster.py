"""NATS as three servers: one is killed and one is cut off while events flow; messages and leases survive."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from kaicore.errors import BusUnavailable
from kaicore.ledger.bus import NatsBus
from kaicore.ledger.bus.client import Outgoing
from kaicore.ledger.bus.connection import Connection
from kaicore.ledger.bus.leases import Lease, NatsLeaseStore
from kaicore.ledger.log.postgres import PostgresLog

from tests.chaos.test_bus_kill import flowing
from tests.given.processes.relay_process import PATIENCE_S, RelayProcess, relayed
from tests.given.servers.nats_cluster import NatsCluster
from tests.given.servers.servers import scratch_directory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("KAI_TEST_LONG" not in os.environ, reason="takes a minute: make chaos"),
]

SERVERS = 3


@pytest.fixture
async def nats() -> AsyncIterator[NatsCluster]:
    with scratch_directory() as directory:
        async with NatsCluster(directory) as cluster:
            yield cluster


async def stream_info(connection: Connection, cluster: str) -> dict[str, Any]:
    """Return what JetStream says of a cluster's stream as soon as all its servers hold all of it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(BusUnavailable):
                answer = await connection.ask([Outgoing(f"$JS.API.STREAM.INFO.kai-{cluster}", b"")])
                info: dict[str, Any] = msgspec.json.decode(answer.data)
                replicas = info.get("cluster", {}).get("replicas", [])
                if info.get("cluster", {}).get("leader") and [one["current"] for one in replicas] == [True, True]:
                    return info
            await asyncio.sleep(0.05)


async def test_a_server_is_killed_and_another_is_cut_off_and_neither_messages_nor_leases_are_lost(
    nats: NatsCluster, database_url: str, postgres_log: PostgresLog, cluster_name: str
) -> None:
    connection = Connection(nats.url, name="test")
    connection.dial()
    bus = NatsBus(connection)
    store = NatsLeaseStore(connection, replicas=SERVERS)
    relay = RelayProcess(database_url, nats.url, "--stream-replicas", str(SERVERS))
    async with relay, flowing(postgres_log, nats, cluster_name) as (writer, readers):  # type: ignore[arg-type]
        await relayed(bus, cluster_name, writer.head)
        before = await stream_info(connection, cluster_name)
        assert before["config"]["num_replicas"] == SERVERS
        assert await Lease(store, cluster_name, "watcher", owner="one", duration_s=600).hold()

        killed = nats.of_name(before["cluster"]["leader"])
        await killed.kill()
        await progress(bus, cluster_name, writer)
        await killed.start()
        cut = nats.of_name((await stream_info(connection, cluster_name))["cluster"]["leader"])
        nats.cut_off(cut)
        await progress(bus, cluster_name, writer)
        for reader in readers:
            await reader.read_from_bus()
        nats.join(cut)

        after = await stream_info(connection, cluster_name)
        # Nothing was made anew: it is the stream from the beginning, with every message.
        assert (after["created"], after["state"]["first_seq"]) == (before["created"], 1)
        other = Lease(store, cluster_name, "watcher", owner="two", duration_s=600)
        while not other.answered:
            assert not await other.hold()
    await bus.close()


async def progress(bus: NatsBus, cluster: str, writer: Any) -> None:
    """Wait until the bus has what is appended from now on."""
    await writer.more(50)
    await relayed(bus, cluster, writer.head)
