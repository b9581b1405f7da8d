"""Directories for embedded servers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kaicore.runtime.embedded import EmbeddedPostgres

from tests.given.servers.servers import scratch_directory


@pytest.fixture
def directory() -> Iterator[Path]:
    with scratch_directory() as made:
        yield made


@pytest.fixture(scope="module")
def used() -> Iterator[Path]:
    """A directory with a Postgres that the tests of this module take over from each other, stopped."""
    with scratch_directory() as made:
        yield made / "postgres"


@pytest.fixture
def server(used: Path) -> EmbeddedPostgres:
    return EmbeddedPostgres(used, durable=False)
