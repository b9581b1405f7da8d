"""A policy on its way to deciding: in a shadow beside the scheduler, live for one queue, for all, and back.

One of each point has inputs and past use, and is replayed. Hostile ones harm nothing in the service.
"""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest
from kai_cli.policies import policy_steps
from kai_cli.trials.shadow_report import report_text
from kaicore.analysis.ask.policy_inputs import PolicyInputRequest, record_input
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.replay.replay import replay_log
from kaicore.analysis.trial.shadow import shadow_report
from kaicore.analysis.trial.simulation.kubelets import find_kubelets
from kaicore.errors import ConfigurationError
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.runtime.policies.guard import TimeAndMemory
from kaicore.runtime.policies.loading import load_policy
from kaicore.runtime.shard_settings import book_of, read_shard_settings

from tests.given.cluster.factory import node, pod
from tests.given.cluster.hierarchy import queue
from tests.given.processes.kai_commands import kai, spawned
from tests.given.servers.ports import free_port
from tests.integration.scheduling import Facts, placed, scheduling
from tests.integration.test_shadowing import recorded, shadowing

_HALF_A_DAY_US = 43_200_000_000
CLUSTER = "c"
EXAMPLE = Path(__file__).parents[2] / "examples/policies/spot_last.py"
SPOT_LAST = load_policy(str(EXAMPLE))


@pytest.fixture
def book() -> PolicyBook:
    book = PolicyBook(TimeAndMemory())
    book.add(SPOT_LAST.kind, SPOT_LAST.setting.digest)
    return book


def config(*queues: str, name: str = "kai-ledger", policies: bool = True) -> EngineConfig:
    """Settings with the policy, for some queues or for all; or without it."""
    setting = msgspec.structs.replace(SPOT_LAST.setting, queues=queues)
    return EngineConfig(scheduler_name=name, policies=(setting,) if policies else ())


async def two_nodes(log: EventLog, cluster: str = CLUSTER) -> Facts:
    """A small spot node, which is packed first, and a large one that stays."""
    facts = Facts(log, cluster)
    spot = node("spot", cpu=32, gpu=8, labels={"cloud.example/spot": "true"})
    await facts.append(
        ("node/spot", payloads.NodeObserved(spot)),
        ("node/stays", payloads.NodeObserved(node("stays", cpu=256, gpu=64))),
        *((f"queue/{name}", payloads.QueueObserved(queue(name, quota=64))) for name in ("research", "other")),
    )
    return facts


async def comes(facts: Facts, name: str, queue_name: str = "other") -> None:
    one = pod(name, cpu=1, gpu=1, labels={KAI_QUEUE_LABEL: queue_name})
    await facts.append((f"pod/{one.uid}", payloads.PodObserved(one)))


async def test_shadow_with_a_policy_decides_beside_the_scheduler_and_is_compared_by_day(book: PolicyBook) -> None:
    now = 1
    log = MemoryLog(lambda: now)
    facts = await two_nodes(log)
    trial = config(name="trial")
    async with shadowing(log, "kai-ledger", config=trial, policies=book), scheduling(log, CLUSTER):
        for number in range(3):
            await comes(facts, f"p{number}")
            assert (await placed(log, CLUSTER, number + 1))[f"p{number}"] == "spot"
            decided = await recorded(log, number + 1)
            assert [(one.name, one.node) for one in decided[-1].placed] == [(f"p{number}", "stays")]
            now += _HALF_A_DAY_US
    report = await shadow_report(log, CLUSTER, find_kubelets, simulate=False, policies=book)
    assert (report.scheduler, report.pods, report.choices["other node"]) == ("kai-ledger", 3, 3)
    assert [(one.day, one.pods, one.other_node) for one in report.days] == [("1970-01-01", 2, 2), ("1970-01-02", 1, 1)]
    text = report_text(report)
    assert "3 other node" in text
    assert "1970-01-02" in text.partition("DAY")[2]


async def test_policy_goes_live_for_a_queue_then_for_all_and_back_with_an_event_for_each_step(book: PolicyBook) -> None:
    log = MemoryLog(lambda: 1)
    facts = await two_nodes(log)
    steps = (config(policies=False), config("research"), config(), config(policies=False))
    nodes = []
    for number, step in enumerate(steps):
        async with scheduling(log, CLUSTER, config=step, policies=book, instance=f"step{number}"):
            await comes(facts, f"r{number}", "research")
            await comes(facts, f"o{number}")
            by_name = await placed(log, CLUSTER, 2 * number + 2)
            nodes.append((by_name[f"r{number}"], by_name[f"o{number}"]))
    assert nodes == [("spot", "spot"), ("stays", "spot"), ("stays", "stays"), ("spot", "spot")]
    events = await log.read(CLUSTER, where=Filter(types=("ConfigRecorded", "CycleCompleted")), limit=1000)
    decoded = [decode_payload(event) for event in events]
    policies = {
        one.digest: one.config.get("policies", []) for one in decoded if isinstance(one, payloads.ConfigRecorded)
    }
    used = [one.config_digest for one in decoded if isinstance(one, payloads.CycleCompleted)]
    taken = [policies[digest] for digest in dict.fromkeys(used)]
    assert [[(one["digest"], one.get("queues", [])) for one in step] for step in taken] == [
        [],
        [(SPOT_LAST.setting.digest, ["research"])],
        [(SPOT_LAST.setting.digest, [])],
    ]
    assert policies[used[-1]] == []
    digest = SPOT_LAST.setting.digest[:12]
    assert [(one.policies, one.cycles > 0, one.left_out) for one in await policy_steps(log, CLUSTER)] == [
        ((f"spot-last 1 ({digest}) for research",), True, {}),
        ((f"spot-last 1 ({digest})",), True, {}),
        ((), True, {}),
    ]


EACH_POINT = """
import numpy as np
from kaicore.policy import Hold, PastUse, Policy


class EachPoint(Policy):
    name, version = "each-point", "1"
    inputs = ("price", "bound", "closed")
    history = (PastUse.OWNER, PastUse.NAMESPACE, PastUse.QUEUE)

    def filter(self, nodes, work, facts):
        return nodes.inputs("price") <= facts.input("bound", 100)

    def score(self, nodes, work, facts):
        return np.clip(1000 - nodes.inputs("price"), 0, 1000)

    def order(self, group, queue, facts):
        return group.used_gpu_seconds + group.namespace_use

    def order_queue(self, queue, facts):
        return -queue.past_use

    def victims(self, running, facts):
        return min(running.used_gpu_seconds, 1000)

    def admit(self, group, queue, facts):
        return Hold("closed") if facts.input("closed", "") == "yes" else None
"""


async def test_policy_of_each_point_decides_by_recorded_inputs_and_replays(tmp_path: Path) -> None:
    (tmp_path / "each_point.py").write_text(EACH_POINT)
    loaded = load_policy(str(tmp_path / "each_point.py"))
    book = PolicyBook(TimeAndMemory())
    book.add(loaded.kind, loaded.setting.digest)
    log = MemoryLog(lambda: 1)
    facts = await two_nodes(log)

    async def recorded_input(name: str, value: int | str | None, node: str = "") -> None:
        known = (await Inquiry(log).state_at(CLUSTER)).policy_inputs
        asked = PolicyInputRequest(name, value, node)
        await record_input(log, CLUSTER, asked, known, by="test", actor="test")

    await recorded_input("price", 300, "spot")
    await recorded_input("closed", "yes")
    async with scheduling(log, CLUSTER, config=EngineConfig(policies=(loaded.setting,)), policies=book):
        await comes(facts, "a", "research")
        await comes(facts, "b")
        head = 0
        while not await log.read(CLUSTER, where=Filter(types=("PodsLeftWaiting",))):
            head = await log.wait_beyond(CLUSTER, head, timeout_s=5)
        assert not await log.read(CLUSTER, where=Filter(types=("PodPlaced",)))
        # Nothing but an input changes, and the scheduler looks again.
        await recorded_input("closed", None)
        assert await placed(log, CLUSTER, 2) == {"a": "stays", "b": "stays"}
        await recorded_input("price", 0, "spot")
        await recorded_input("price", 7, "stays")
        await comes(facts, "c")
        assert (await placed(log, CLUSTER, 3))["c"] == "spot"
    report = await replay_log(log, CLUSTER, policies=book)
    assert report.differences == []
    assert report.decisions >= 3


#: Policies that fail, each in its own way; the first is the one that is refused before anything runs.
SOCKET = "import socket\n"
HOSTILE = {
    "loops": "order(self, group, queue, facts):\n        while True:\n            pass\n",
    "hoards": "admit(self, group, queue, facts):\n        return np.empty(1 << 28, np.int64)\n",
    "misshapen": "filter(self, nodes, work, facts):\n        return np.zeros(1, np.bool_)\n",
    "writes": "score(self, nodes, work, facts):\n        nodes.used('nvidia.com/gpu')[:] = 0\n",
    "vague": "order_queue(self, queue, facts):\n        return queue.name\n",
}
FAILURES = dict(zip(HOSTILE, ("TooSlow", "TooMuchMemory", "WrongAnswer", "ChangedInput", "WrongAnswer"), strict=True))


def write_hostile(folder: Path, *, head: str = "") -> Path:
    """Write the policies, and settings that name them and one that is good."""
    entries = [{"file": str(EXAMPLE)}]
    for name, body in HOSTILE.items():
        source = f"{head}import numpy as np\nfrom kaicore.policy import Policy\n\n\nclass Hostile(Policy):\n"
        source += f'    name, version = "{name}", "1"\n\n    def {body}'
        (folder / f"{name}.py").write_text(source)
        entries.append({"file": f"{name}.py"})
    settings = folder / "settings.yaml"
    settings.write_text(json.dumps({"policies": entries}))
    return settings


async def fetched(port: int, path: str) -> str:
    def get() -> str:
        with urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(get)


async def test_hostile_policies_harm_nothing_in_the_service_and_a_replay_is_equal(
    postgres_log: PostgresLog, database_url: str, nats_url: str, cluster_name: str, tmp_path: Path
) -> None:
    settings, port = write_hostile(tmp_path), free_port()
    environment = os.environ | {
        "KAI_DATABASE_URL": database_url,
        "KAI_NATS_URL": nats_url,
        "KAI_CLUSTER": cluster_name,
        "KAI_SCHEDULER_CONFIG": str(settings),
        "KAI_HTTP_PORT": str(port),
    }
    facts = await two_nodes(postgres_log, cluster_name)
    await comes(facts, "first")
    process = await spawned(
        "kai_scheduler.main", environment=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert await placed(postgres_log, cluster_name, 1) == {"first": "stays"}
        await comes(facts, "second")
        assert (await placed(postgres_log, cluster_name, 2))["second"] == "stays"
        metrics, ready = await fetched(port, "/metrics"), await fetched(port, "/readyz")
        assert process.returncode is None
    finally:
        process.kill()
        await process.wait()
    assert 'kai_cycle_left_out{shard="default",what="policy"} 5.0' in metrics
    assert [name for name, why in FAILURES.items() if f"policy {name}: {why}" not in ready] == [], ready
    events = await postgres_log.read(cluster_name, where=Filter(types=("CycleCompleted",)), limit=1000)
    cycles = [one for event in events if isinstance(one := decode_payload(event), payloads.CycleCompleted)]
    first, *_ = [{one.policy: one.why for one in cycle.policies_left_out} for cycle in cycles]
    assert first == FAILURES
    (step,) = await policy_steps(postgres_log, cluster_name)
    assert step.left_out == dict.fromkeys(FAILURES, len(cycles))
    report = await replay_log(postgres_log, cluster_name, policies=book_of([str(settings)]))
    assert (report.cycles, report.differences) == (len(cycles), [])
    with pytest.raises(ConfigurationError, match=r"loops\.py:1: may not import socket"):
        read_shard_settings(write_hostile(tmp_path, head=SOCKET))


async def test_inputs_are_recorded_and_listed_by_command(
    postgres_log: PostgresLog, cluster_name: str, database_url: str
) -> None:
    await Facts(postgres_log, cluster_name).add_nodes(1)
    where = ("--database-url", database_url, "--cluster", cluster_name)
    for given in (("price", "-3", "--node", "n0"), ("mode", "night"), ("gone", "1"), ("gone", "--remove")):
        done = kai("policy", "input", *given, *where)
        assert done.returncode == 0, done.stderr
    rows = json.loads(kai("policy", "input", "-o", "json", *where).stdout)
    assert [(row["name"], row["node"], row["value"], row["by"]) for row in rows] == [
        ("mode", "", "night", "kai"),
        ("price", "n0", -3, "kai"),
    ]
    assert "give a value, or --remove" in kai("policy", "input", "price", *where).stderr
