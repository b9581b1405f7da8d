"""An ingest with facts to judge reports by, and exporters that report to it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kaicore.ledger.log.postgres import PostgresLog

from tests.conftest import module_database_url as superuser_url
from tests.given.cluster.podresources import Kubelet, serving, write_sysfs
from tests.given.processes.exporting import Exporting
from tests.given.processes.ingest_service import Facts, Observations, RunningIngest, running_ingest

__all__ = ["superuser_url"]


@pytest.fixture
async def log(database_url: str) -> AsyncIterator[PostgresLog]:
    async with await PostgresLog.open(database_url, patience_s=5) as opened:
        yield opened


@pytest.fixture
def facts(log: PostgresLog, cluster_name: str) -> Facts:
    return Facts(log, cluster_name)


@pytest.fixture
def observed(log: PostgresLog, cluster_name: str) -> Observations:
    return Observations(log, cluster_name)


@pytest.fixture
async def ingest(log: PostgresLog, cluster_name: str) -> AsyncIterator[RunningIngest]:
    async with running_ingest(log, cluster_name) as running:
        yield running


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    write_sysfs(tmp_path / "n1/sys", {0: "0-3", 1: "4-7"})
    async with serving(Kubelet(), tmp_path / "n1/kubelet.sock") as running:
        yield running


@pytest.fixture
def exporting(ingest: RunningIngest, cluster_name: str, tmp_path: Path) -> Exporting:
    return Exporting(ingest.url, cluster_name, tmp_path)
