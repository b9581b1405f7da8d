"""The base of the services' tests: an API server that is simulated, and a log; a test module may have its own."""

from collections.abc import AsyncIterator

import pytest
from kaicore.ledger.log.postgres import PostgresLog

from tests.given.servers.kube import Api, simulated


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with simulated() as api:
        yield api


@pytest.fixture
async def log(database_url: str) -> AsyncIterator[PostgresLog]:
    async with await PostgresLog.open(database_url, application="test") as log:
        yield log
