"""Databases that past versions have left, opened by this one: docs/how-to/upgrade.md."""

import asyncio
import io
import lzma
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from kaicore.analysis.replay.moments import Range
from kaicore.analysis.replay.replay import checked_promises, replay_log
from kaicore.errors import NotMigrated
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.port import Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.audit import verify
from kaicore.runtime.embedded.places import unprivileged_user
from kaicore.runtime.embedded.postgres import programs_of

from tests.conftest import as_role
from tests.given.logs.new_events import new_event, unit
from tests.given.recorded import DIRECTORY
from tests.integration.scheduling import Facts, scheduling

DUMPS = sorted((DIRECTORY / "versions").glob("*.sql.xz"))


def restored(dump: Path, url: str) -> None:
    """Restore a dump as `psql` does."""
    psql = programs_of(unprivileged_user()) / "psql"
    done = subprocess.run(
        [str(psql), "--quiet", "--set=ON_ERROR_STOP=1", f"--dbname={url}"],
        input=lzma.decompress(dump.read_bytes()),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.usefixtures("_migrated_template")  # makes the roles
@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.name.partition(".")[0])
async def test_a_database_of_a_past_version_is_migrated_and_decided_as_it_was_and_goes_on(
    empty_database_url: str, dump: Path
) -> None:
    restored(dump, empty_database_url)
    upgrade(empty_database_url)
    async with await PostgresLog.open(empty_database_url) as log:
        clusters = await log.clusters()
        assert clusters == ["demo", "demo-blind"]
        report = await replay_log(log, "demo-blind")
        # What this engine is meant to decide otherwise is counted apart.
        assert report.differences == []
        assert report.cycles == report.other_engine > 10
        for cluster in clusters:
            audit = await verify(log, cluster)
            assert audit.ok, str(audit)
            assert (await checked_promises(log, cluster, upto=audit.head.position)).report.twice == []
    # The services of this version go on where those of that one ended.
    async with await PostgresLog.open(as_role(empty_database_url, "kai_append")) as log:
        before = (await log.head("demo")).position
        facts = Facts(log, "demo", "later")
        await facts.add_nodes(1)
        where, position = Filter(types=("PodPlaced",), subject="default/later"), 0
        async with scheduling(log, "demo"), asyncio.timeout(60):
            await facts.add_pods("later", cpu=1)
            while not await log.read("demo", where=where):
                position = await log.wait_beyond("demo", position, timeout_s=5)
        assert (await verify(log, "demo")).ok
        report = await replay_log(log, "demo", Range(before + 1, (await log.head("demo")).position))
        assert (report.differences, report.other_engine) == ([], 0)
        assert report.cycles > 0


async def test_a_database_is_opened_after_it_was_migrated_and_not_before(empty_database_url: str) -> None:
    restored(DUMPS[0], empty_database_url)
    with pytest.raises(NotMigrated, match="migrate it"):
        await PostgresLog.open(empty_database_url)
    upgrade(empty_database_url)
    async with await PostgresLog.open(empty_database_url) as log:
        await log.append("demo", [unit(new_event("node/added"))])
        assert (await verify(log, "demo")).ok


#: The last version before roles of services, and what its programs do on a schema that they do not know.
OLDER = "ca568e49"
OLDER_PROGRAM = """
import asyncio, sys, uuid
import kaicore
from kaicore.analysis.inquiry.replay import replay_log
from kaicore.errors import ConfigurationError
from kaicore.ledger.log.audit import verify
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.envelope import NewEvent, Unit
from kaicore.rules.events.payloads import NodeDeleted

owner, service = sys.argv[1:]
print(kaicore.__file__)
try:
    upgrade(owner)
except ConfigurationError as error:
    print("refused:", error)

async def main():
    async with await PostgresLog.open(service) as log:
        report = await replay_log(log, "demo")
        print("replayed:", report.cycles > 10, report.differences)
        event = NewEvent(uuid.uuid4(), "node/n1", NodeDeleted(uid="u1", name="n1"), "test", 1_700_000_000_000_000, "n1")
        (outcome,) = await log.append("demo", [Unit((event,))])
        print("appended:", len(outcome.positions))
        print("chain:", (await verify(log, "demo")).ok)

asyncio.run(main())
"""


@pytest.mark.slow
def test_an_older_version_reads_and_appends_on_this_schema_and_does_not_migrate_it(
    empty_database_url: str, database_url: str, tmp_path: Path
) -> None:
    del database_url  # it has made the roles
    archive = ["git", "-C", str(Path(__file__).parents[2]), "archive", OLDER, "libs", "migrations"]
    older = subprocess.run(archive, capture_output=True, check=False)
    if older.returncode:
        pytest.skip(f"no {OLDER} in this checkout's history: {older.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(older.stdout)) as tar:
        # Python 3.11 has filters from 3.11.4 on.
        tar.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (dump,) = (one for one in DUMPS if one.name.startswith(OLDER))
    restored(dump, empty_database_url)
    upgrade(empty_database_url)
    sources = tmp_path / "libs" / "kaicore" / "src"
    done = subprocess.run(
        [sys.executable, "-c", OLDER_PROGRAM, empty_database_url, as_role(empty_database_url, "kai_append")],
        env={**os.environ, "PYTHONPATH": str(sources)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    origin, *said = done.stdout.splitlines()
    assert origin.startswith(str(sources))
    assert said[0].startswith("refused: the database was migrated by a newer kai-ledger")
    assert said[1:] == ["replayed: True []", "appended: 1", "chain: True"]
