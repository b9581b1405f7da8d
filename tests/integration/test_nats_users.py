"""`deploy/nats/nats.conf` on the real server: the relay alone publishes, the others read, a stranger does nothing."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from kaicore.errors import BusUnavailable
from kaicore.ledger.bus import Limits, Message, NatsBus
from kaicore.ledger.bus.leases import Lease, NatsLeaseStore
from kaicore.ledger.feed import EventFeed
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.runtime.embedded import EmbeddedNats

from tests.given.logs.new_events import new_event, unit
from tests.given.processes.relay_process import PATIENCE_S, RelayProcess, relayed
from tests.given.servers.servers import scratch_directory

CONFIG = Path(__file__).parents[2] / "deploy" / "nats" / "nats.conf"
READERS = ("scheduler", "binder", "ingest", "hub")
LEADERS = ("watcher", "projector")


class DeployedNats(EmbeddedNats):
    """The server with the deployed configuration; only where it listens and stores is the test's."""

    def _command(self, port: int) -> list[str]:
        command = super()._command(port)
        store = msgspec.json.encode(str(self._directory / "data")).decode()
        text = CONFIG.read_text().replace("/data", store).replace("0.0.0.0:4222", f"127.0.0.1:{port}")
        for user in ("relay", *READERS, *LEADERS):
            text = text.replace(f"$NATS_{user.upper()}_PASSWORD", f"secret-of-{user}")
        text = text.replace('http: "127.0.0.1:8222"', f'server_name: "{self._server_name}"')
        Path(command[-1]).write_text(text)
        return command

    def url_of(self, user: str) -> str:
        return f"nats://{user}:secret-of-{user}@{self.url.rpartition('@')[2]}"


@pytest.fixture
async def server() -> AsyncIterator[DeployedNats]:
    with scratch_directory() as directory:
        async with DeployedNats(directory) as running:
            yield running


async def connected(url: str) -> NatsBus:
    bus = await NatsBus.open(url, name="test")
    assert await bus.wait_connected(timeout_s=PATIENCE_S)
    return bus


async def test_the_relay_publishes_and_each_reader_reads(
    server: DeployedNats, database_url: str, postgres_log: PostgresLog, cluster_name: str
) -> None:
    await postgres_log.append(cluster_name, [unit(new_event()) for _ in range(20)])
    async with RelayProcess(database_url, server.url_of("relay")):
        for reader in READERS:
            bus = await connected(server.url_of(reader))
            await relayed(bus, cluster_name, 20)
            feed = EventFeed(postgres_log, bus, cluster_name)
            assert len(await feed.catch_up(20)) == 20
            await feed.close()
            subscription = await bus.subscribe(cluster_name, after=0)
            assert await subscription.ready(timeout_s=PATIENCE_S)
            await subscription.close()
            await bus.close()


async def test_each_service_holds_leases(server: DeployedNats) -> None:
    for user in (*LEADERS, *READERS, "relay"):
        store = await NatsLeaseStore.open(server.url_of(user), name="test")
        assert await store.wait_connected(timeout_s=PATIENCE_S)
        lease = Lease(store, "c1", user, owner="test")
        assert await lease.hold()
        await lease.release()
        await store.close()


async def test_a_reader_can_neither_publish_nor_change_a_stream(server: DeployedNats) -> None:
    publisher = await connected(server.url_of("relay"))
    await publisher.create_stream("c1", first=1, limits=Limits())
    buses = [await connected(server.url_of(reader)) for reader in READERS]
    # At once: what is not allowed is not answered, so each takes as long as an answer may.
    outcomes = await asyncio.gather(
        *(
            attempt
            for bus in buses
            for attempt in (
                bus.publish("c1", [Message(1, "X", b"a lie")]),
                bus.delete_stream("c1"),
                bus.set_limits("c1", Limits(max_bytes=1 << 20)),
            )
        ),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [BusUnavailable] * 3 * len(READERS)
    for bus in buses:
        await bus.close()
    state = await publisher.stream("c1")
    assert state is not None
    assert state.empty
    await publisher.close()


async def test_a_stranger_is_not_let_in(server: DeployedNats) -> None:
    place = server.url.rpartition("@")[2]
    logins = ("", "relay:wrong@", "nobody:secret-of-relay@")
    buses = [await NatsBus.open(f"nats://{login}{place}", name="test") for login in logins]
    assert await asyncio.gather(*(bus.wait_connected(timeout_s=1) for bus in buses)) == [False] * 3
    for bus in buses:
        await bus.close()


def test_passwords_of_the_configuration_come_from_the_environment() -> None:
    lines = [line for line in CONFIG.read_text().splitlines() if "password" in line and not line.startswith("#")]
    assert len(lines) == 7
    assert all("password: $NATS_" in line for line in lines)
    assert not [name for name in os.environ if name.startswith("NATS_")]
