"""The subjects of contract tests: a log in memory, in Postgres and read from files, a bus in memory and on NATS."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kaicore.ledger.bus import Bus, NatsBus
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.postgres import PostgresLog

from tests.given.doubles.memory_bus import MemoryBus
from tests.given.logs.exported import ExportedLog
from tests.given.processes.relay_process import PATIENCE_S


@pytest.fixture(params=["memory", "postgres", "file"])
def log_kind(request: pytest.FixtureRequest) -> str | None:
    """The database of the log under test, or `file`; None for the log in memory."""
    if request.param == "postgres":
        return str(request.getfixturevalue("module_database_url"))
    return None if request.param == "memory" else "file"


@pytest.fixture
async def log(log_kind: str | None, tmp_path: Path) -> AsyncIterator[EventLog]:
    made: EventLog
    if log_kind is None:
        made = MemoryLog(clock=_clock)
    elif log_kind == "file":
        made = ExportedLog(tmp_path, clock=_clock)
    else:
        # Polling so rarely that a test which passes was woken.
        made = await PostgresLog.open(log_kind, poll_s=3600)
    yield made
    await made.close()


def _clock() -> int:
    return time.time_ns() // 1000


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
