"""Replicas as real processes: one is killed, one is frozen, and everything is placed once all the same."""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.groups.labels import SIGS_POD_GROUP
from kaicore.rules.groups.membership import SIGS_GROUP_LABEL
from kaicore.rules.model.group import GroupSource, GroupTemplate, PodSet

from tests.given.cluster.factory import pod
from tests.given.processes.kai_commands import spawned
from tests.given.processes.waiting import until_payloads
from tests.integration.scheduling import Facts, placed
from tests.integration.test_scheduler import check_replay

GANG = 3


@asynccontextmanager
async def replicas(database_url: str, nats_url: str, cluster: str, *names: str) -> AsyncIterator[dict[str, int]]:
    """Run a scheduler for each name; yield their processes' ids."""
    environment = {
        **os.environ,
        "KAI_DATABASE_URL": database_url,
        "KAI_NATS_URL": nats_url,
        "KAI_CLUSTER": cluster,
        "KAI_LISTEN": "127.0.0.1:0",
        "KAI_MEMBER_TTL_MS": "1000",
        "KAI_PERIOD_MS": "20",
    }
    processes = {
        name: await spawned(
            "kai_scheduler.main",
            environment={**environment, "KAI_REPLICA": name},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in names
    }
    try:
        yield {name: process.pid for name, process in processes.items()}
    finally:
        for process in processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()


async def listed(log: EventLog, cluster: str, names: Sequence[str]) -> None:
    await until_payloads(log, cluster, "ReplicasChanged", holds=lambda told: told and told[-1].replicas == tuple(names))


async def add_gangs(facts: Facts, *names: str) -> None:
    for name in names:
        template = GroupTemplate(sets=(PodSet(min_pods=GANG),))
        group = GroupSource(
            kind=SIGS_POD_GROUP,
            uid=f"g-{name}",
            namespace="default",
            name=name,
            resource_version="1",
            templates=(template,),
        )
        members = [pod(f"{name}-{one}", cpu=1, gpu=1, labels={SIGS_GROUP_LABEL: name}) for one in range(GANG)]
        await facts.append(
            (f"group/{group.key}", payloads.GroupSourceObserved(group)),
            *((f"pod/{one.uid}", payloads.PodObserved(one)) for one in members),
        )


async def test_replicas_survive_a_kill_and_a_freeze(
    postgres_log: EventLog, database_url: str, nats_url: str, cluster_name: str
) -> None:
    log, facts = postgres_log, Facts(postgres_log, cluster_name)
    await facts.add_nodes(12)
    async with replicas(database_url, nats_url, cluster_name, "r0", "r1", "r2") as pids:
        await listed(log, cluster_name, ("r0", "r1", "r2"))
        await add_gangs(facts, *(f"a{number}" for number in range(9)))
        await placed(log, cluster_name, 9 * GANG)
        events = await log.read(cluster_name, where=Filter(types=("PodPlaced",)))
        assert len({event.actor for event in events}) > 1, "one replica decided everything"
        os.kill(pids["r1"], signal.SIGKILL)
        os.kill(pids["r2"], signal.SIGSTOP)
        await add_gangs(facts, *(f"b{number}" for number in range(9)))
        await placed(log, cluster_name, 18 * GANG)
        await listed(log, cluster_name, ("r0",))
        os.kill(pids["r2"], signal.SIGCONT)
        await listed(log, cluster_name, ("r0", "r2"))
        await add_gangs(facts, *(f"c{number}" for number in range(9)))
        nodes = await placed(log, cluster_name, 27 * GANG)
        assert len(nodes) == 27 * GANG
    cycles = Counter(
        (event.correlation, decode_payload(event).name.rpartition("-")[0])  # type: ignore[attr-defined]
        for event in await log.read(cluster_name, limit=10_000, where=Filter(types=("PodPlaced",)))
    )
    assert set(cycles.values()) == {GANG}, "a gang was placed in parts"
    await check_replay(log, cluster_name)
