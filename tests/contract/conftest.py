"""What a contract test runs against: a log in memory and in Postgres, a bus in memory and on NATS."""

import time
from collections.abc import AsyncIterator

import pytest
from kaicore.ledger.bus import Bus, MemoryBus, NatsBus
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.postgres import PostgresLog

from tests.relay_process import PATIENCE_S


@pytest.fixture(params=["memory", "postgres"])
def log_url(request: pytest.FixtureRequest) -> str | None:
    """The database of the log under test; None for the log in memory."""
    return request.getfixturevalue("module_database_url") if request.param == "postgres" else None


@pytest.fixture
async def log(log_url: str | None) -> AsyncIterator[EventLog]:
    made: EventLog
    if log_url is None:
        made = MemoryLog(clock=lambda: time.time_ns() // 1000)
    else:
        # Polling so rarely that a test which passes was woken.
        made = await PostgresLog.open(log_url, poll_s=3600)
    yield made
    await made.close()


@pytest.fixture
def cluster(cluster_name: str) -> str:
    """The tests of a module share a database, but no cluster."""
    return cluster_name


@pytest.fixture(params=["memory", "nats"])
def bus_url(request: pytest.FixtureRequest) -> str | None:
    """The server of the bus under test; None for the bus in memory."""
    return request.getfixturevalue("nats_url") if request.param == "nats" else None


@pytest.fixture
async def bus(bus_url: str | None, cluster: str) -> AsyncIterator[Bus]:
    made: Bus = MemoryBus() if bus_url is None else await NatsBus.open(bus_url, name="test")
    assert await made.wait_connected(timeout_s=PATIENCE_S)
    yield made
    if made.connected:
        await made.delete_stream(cluster)
    await made.close()
