"""The API replays by itself what was decided since the last time, and counts what comes out otherwise."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from kai_api.long_answers import LongAnswers, NoAnswer, Question, keep_replaying
from kaicore.ledger.log.port import EventLog
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.events.envelope import NewEvent, Unit
from kaicore.rules.events.payloads import PodPlaced
from kaicore.runtime.policies.loading import load_policy
from prometheus_client import REGISTRY

from tests.conftest import module_database_url as superuser_url
from tests.given.cluster.factory import pod
from tests.given.logs.new_events import as_new
from tests.given.processes.kai_commands import Forks
from tests.given.work.workloads import OWNER, Workloads

__all__ = ["superuser_url"]

pytestmark = pytest.mark.timeout(120)

EXAMPLE = Path(__file__).parents[2] / "examples/policies/spot_last.py"


def history(cluster: str) -> tuple[Workloads, int]:
    """Two cycles, and where the first one's events end."""
    made, ends = Workloads(cluster), []
    made.add_nodes(2, cpu=8, memory=32)
    for number in range(2):
        made.full([made.add_pod(pod(f"p{number}", cpu=2, memory=4, owner=OWNER))])
        ends.append(len(made.events))
    return made, ends[0]


def elsewhere(one: NewEvent) -> NewEvent:
    """A decision as somebody wrote it who put the pod on the other node."""
    if not isinstance(one.payload, PodPlaced):
        return one
    node = "n1" if one.payload.node == "n0" else "n0"
    return msgspec.structs.replace(one, payload=msgspec.structs.replace(one.payload, node=node))


async def counted(cluster: str, **least: int) -> dict[str, float]:
    """Wait until counters say as much; return them all."""
    names = ("replayed_cycles", "replay_differences", "replays_failed")
    async with asyncio.timeout(60):
        while True:
            now = {
                name: REGISTRY.get_sample_value(f"kai_api_{name}_total", {"cluster": cluster}) or 0 for name in names
            }
            if all(now[name] >= amount for name, amount in least.items()):
                return now
            await asyncio.sleep(0.05)


async def test_each_cycle_is_replayed_once_by_itself_and_a_difference_is_counted(
    postgres_log: EventLog, database_url: str, cluster_name: str
) -> None:
    made, first_ends = history(cluster_name)

    async def store(events: list[NewEvent]) -> None:
        await postgres_log.append(cluster_name, [Unit((one,)) for one in events])

    events = [as_new(event) for event in made.events]
    with Forks() as forks:
        answers = LongAnswers(database_url, at_once=1, most_s=60, forks=forks)
        replaying = asyncio.create_task(keep_replaying(postgres_log, answers, every_s=0.05, after={}))
        await store(events[:first_ends])
        well = await counted(cluster_name, replayed_cycles=1)
        assert (well["replay_differences"], well["replays_failed"]) == (0, 0)
        await store([elsewhere(one) for one in events[first_ends:]])
        altered = await counted(cluster_name, replay_differences=1)
        assert (altered["replayed_cycles"], altered["replays_failed"]) == (2, 0)
        replaying.cancel()


async def test_replay_by_the_api_runs_the_code_of_policies_and_without_it_names_the_digest(
    postgres_log: EventLog, database_url: str, cluster_name: str
) -> None:
    loaded, made = load_policy(str(EXAMPLE)), Workloads(cluster_name)
    made.policies = PolicyBook()
    made.policies.add(loaded.kind, loaded.setting.digest)
    made.add_node("spot", cpu=8, memory=32, labels={"cloud.example/spot": "true"})
    made.add_node("stays", cpu=64, memory=256)
    made.add_pod(pod("one", cpu=2, memory=4, owner=OWNER))
    assert made.placed(made.cycle(EngineConfig(policies=(loaded.setting,)))) == {"one": "stays"}
    await postgres_log.append(cluster_name, [Unit((as_new(event),)) for event in made.events])

    async def replayed(policies: str) -> bytes:
        answers = LongAnswers(database_url, at_once=1, most_s=60, forks=forks, policies=policies)
        never = asyncio.get_running_loop().create_future()
        return await answers.ask(Question.REPLAY, cluster_name, gone=never)

    with Forks() as forks:
        report = msgspec.json.decode(await replayed(str(EXAMPLE.parent)))
        assert (report["cycles"], report["kinds"]) == (1, {})
        with pytest.raises(NoAnswer, match=f"source {loaded.setting.digest[:12]}; its source is not here"):
            await replayed("")
