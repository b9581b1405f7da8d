"""Schedulers of two engine versions side by side on one shard: the newer takes over; the log tells them apart."""

import asyncio
import signal
from collections import Counter
from itertools import groupby

from kaicore.analysis.replay.replay import replay_log
from kaicore.ledger.log.port import Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.engine.config import ENGINE_VERSION
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import CycleCompleted, ShadowDecided

from tests.given.processes.kai_commands import kai
from tests.given.processes.older_scheduler import OLDER
from tests.integration.scheduling import facts_of, placed
from tests.measured.bench.scale.services import Servers, ServiceProcess


async def test_a_newer_scheduler_stands_by_an_older_one_and_takes_over_and_a_replay_knows_who_decided(
    superuser_url: str, postgres_log: PostgresLog, nats_url: str, cluster_name: str
) -> None:
    settings = Servers(database_url=superuser_url, nats_url=nats_url).settings(cluster_name)
    facts = await facts_of(postgres_log, cluster_name, nodes=2)
    async with ServiceProcess("tests.given.processes.older_scheduler", settings) as older:
        await older.ready()
        await facts.add_pods("a", cpu=1)
        await placed(postgres_log, cluster_name, 1)
        async with ServiceProcess("kai_scheduler.main", settings, forked=True) as newer:
            await newer.ready()
            await facts.add_pods("b", cpu=1)
            await placed(postgres_log, cluster_name, 2)
            # Whatever the two overlapped in: only one of them decided on each pod.
            older.signal(signal.SIGTERM)
            assert await older.ended() == 0
            await facts.add_pods("c", cpu=1)
            await placed(postgres_log, cluster_name, 3)
            newer.signal(signal.SIGTERM)
            assert await newer.ended() == 0

    engines = await engines_of(postgres_log, cluster_name)
    assert engines == sorted(engines)
    assert set(engines) == {OLDER, ENGINE_VERSION}
    # Each kept a snapshot that the other one does not read.
    saved = {schema for schema in (await schemas(postgres_log, cluster_name)) if schema.startswith("state-")}
    assert {schema.rpartition("-")[2] for schema in saved} == {OLDER, ENGINE_VERSION}
    report = await replay_log(postgres_log, cluster_name)
    assert report.differences == []
    assert report.otherwise == []
    assert report.engine_versions == dict(Counter(engines))
    assert report.other_engine == engines.count(OLDER)


async def test_a_newer_shadow_of_the_scheduler_is_promoted_by_one_command_and_back_by_another(
    superuser_url: str, postgres_log: PostgresLog, nats_url: str, cluster_name: str
) -> None:
    settings = Servers(database_url=superuser_url, nats_url=nats_url).settings(cluster_name) | {"LEASE_MS": "600"}
    facts = await facts_of(postgres_log, cluster_name, nodes=4)
    pods = 0

    async def decided_by(engine: str) -> None:
        """Pods come until one is placed by an engine; each is placed by one of the two."""
        nonlocal pods
        while (await engines_of(postgres_log, cluster_name))[-1:] != [engine]:
            await facts.add_pods(f"p{pods}", cpu=1)
            pods += 1
            await placed(postgres_log, cluster_name, pods)

    async def shadow(*words: str, code: int = 0) -> str:
        log = ("--cluster", cluster_name, "--database-url", superuser_url)
        done = await asyncio.to_thread(kai, "shadow", *words, *log)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    async with (
        ServiceProcess("tests.given.processes.older_scheduler", settings) as blue,
        ServiceProcess("kai_scheduler.main", settings | {"SHADOW": "kai-ledger"}, forked=True) as green,
    ):
        await asyncio.gather(blue.ready(), green.ready())
        await decided_by(OLDER)
        assert "did you mean 'default'" in await shadow("promote", "defualt", code=2)
        assert "decides from event" in await shadow("promote")
        await decided_by(ENGINE_VERSION)
        assert "decides already" in await shadow("promote")
        assert "decides from event" in await shadow("back")
        await decided_by(OLDER)
        # Once more, and the promoted one ends as by a crash: the other takes over as from any scheduler.
        await shadow("promote")
        await decided_by(ENGINE_VERSION)
        await green.kill()
        await decided_by(OLDER)

    engines = [engine for engine, _ in groupby(await engines_of(postgres_log, cluster_name))]
    assert engines == [OLDER, ENGINE_VERSION] * 2 + [OLDER]
    shadowed = await postgres_log.read(cluster_name, where=Filter(types=("ShadowDecided",)))
    assert {record.engine_version for record in map(decode_payload, shadowed) if isinstance(record, ShadowDecided)} == {
        ENGINE_VERSION
    }
    report = await replay_log(postgres_log, cluster_name)
    assert report.differences == []
    assert report.otherwise == []


async def engines_of(log: PostgresLog, cluster: str) -> list[str]:
    """Return the engines of a cluster's cycles, in their order."""
    cycles = map(decode_payload, await log.read(cluster, limit=100_000, where=Filter(types=(CYCLE,))))
    return [cycle.engine_version for cycle in cycles if isinstance(cycle, CycleCompleted)]


#: Type of the event with which a cycle is recorded.
CYCLE = CycleCompleted.__name__


async def schemas(log: PostgresLog, cluster: str) -> list[str]:
    """Return the schemas of a cluster's snapshots."""
    rows = await log.connections.rows("SELECT schema FROM snapshot WHERE cluster = %s", [cluster])
    return [schema for (schema,) in rows]
