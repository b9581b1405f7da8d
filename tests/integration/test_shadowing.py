"""A shadow on a log: pods of another scheduler are decided on before each binding, and nothing else is recorded."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from kai_cli.trials.shadow_report import report_text
from kai_scheduler.metrics import SchedulerMetrics
from kai_scheduler.scheduler import CyclePace
from kai_scheduler.shadowing import EVERY, Shadow
from kaicore.analysis.ask.explanations import why_pod
from kaicore.analysis.life.pod_history import PodEvidence
from kaicore.analysis.replay.replay import replay_log
from kaicore.analysis.trial.shadow import shadow_report
from kaicore.analysis.trial.simulation.kubelets import find_kubelets
from kaicore.errors import UnknownSubject
from kaicore.ledger.feed import EventFeed
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import EventLog
from kaicore.rules.deciding.shadow import shadow_notes
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import Unit
from kaicore.rules.events.payloads import Payload, ShadowDecided
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import decode_state, encode_state
from kaicore.runtime.service import Health, ServiceContext, get_logger
from prometheus_client import CollectorRegistry

from tests.given.cluster.factory import amounts, pod, topology
from tests.given.cluster.hierarchy import queue
from tests.given.logs.new_events import as_new
from tests.given.processes.tasks import going
from tests.given.processes.waiting import until_payloads
from tests.integration.scheduling import facts_of

CLUSTER = "c"


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(lambda: 1)


@asynccontextmanager
async def shadowing(
    log: EventLog,
    *schedulers: str,
    cluster: str = CLUSTER,
    instance: str = "one",
    config: EngineConfig | None = None,
    policies: PolicyBook = NO_POLICIES,
) -> AsyncIterator[Shadow]:
    context = ServiceContext("scheduler", Health("state"), get_logger())
    feed = EventFeed(log, None, cluster)
    shadow = Shadow(
        log=log,
        feed=feed,
        state=ClusterState(cluster),
        config=config or EngineConfig(),
        schedulers=schedulers,
        instance=instance,
        context=context,
        metrics=SchedulerMetrics(CollectorRegistry()),
        pace=CyclePace(period_ms=0, standby_ms=200),
        policies=policies,
    )
    await shadow.begin()
    async with going(shadow.run(), until=context.stopping):
        yield shadow
    await feed.close()


async def recorded(log: EventLog, count: int = 1, *, cluster: str = CLUSTER) -> list[ShadowDecided]:
    return await until_payloads(log, cluster, "ShadowDecided", holds=lambda decided: len(decided) >= count)


def seen(name: str, *, scheduler: str = "default-scheduler", node: str = "", **spec: int) -> tuple[str, Payload]:
    fact = pod(name, scheduler_name=scheduler, node_name=node, **spec)
    return f"pod/{fact.uid}", payloads.PodObserved(fact)


async def folded(log: MemoryLog) -> ClusterState:
    return ClusterState(CLUSTER).fold_all(await log.read(CLUSTER, limit=100_000))


async def test_a_pod_that_was_bound_at_once_is_decided_on_as_it_was_before(log: MemoryLog) -> None:
    facts = await facts_of(log, CLUSTER, nodes=1)
    async with shadowing(log, "default-scheduler"):
        # Three GPUs are free in each zone of four once these are there: the zones of the third pod tell what was known.
        await facts.append(
            seen("a", cpu=2, gpu=3),
            seen("a", cpu=2, gpu=3, node="n0"),
            seen("b", cpu=2, gpu=3),
            seen("own", scheduler="kai-ledger", cpu=1),
        )
        await facts.append(seen("b", cpu=2, gpu=3, node="n0"))
        first, second = await recorded(log, 2)
    assert [(one.name, one.node) for one in first.placed] == [("a", "n0")]
    assert first.input_position < (await position_of(log, "pod/uid-a", 2))
    assert [(one.name, one.node) for one in second.placed] == [("b", "n0")]
    assert first.config is not None
    assert first.scheduler == "default-scheduler"
    types = {event.type for event in await log.read(CLUSTER, limit=1000)}
    assert types == {"NodeObserved", "TopologyObserved", "PodObserved", "ShadowDecided"}


async def position_of(log: MemoryLog, stream: str, version: int) -> int:
    (event,) = [one for one in await log.read(CLUSTER, limit=1000) if (one.stream, one.version) == (stream, version)]
    return event.position


async def test_what_a_shadow_decides_charges_nothing_and_is_replayed(log: MemoryLog) -> None:
    facts = await facts_of(log, CLUSTER, nodes=1)
    async with shadowing(log, EVERY):
        await facts.append(seen("a", cpu=2, gpu=4), seen("v", scheduler="volcano", cpu=2, gpu=4))
        await recorded(log, 2)
        await facts.append(seen("never", cpu=2, gpu=5))
        await recorded(log, 3)
    state = await folded(log)
    assert state.columns.used[state.columns.row("n0")].sum() == 0
    assert {uid: choice.node for uid, choice in state.shadows.choices.items()} == {"uid-a": "n0", "uid-v": "n0"}
    (reasons,) = state.shadows.reasons.by_class.values()
    assert reasons["shadow/default-scheduler"].reasons[0].code == "NumaNeverFits"
    assert any("shadow would put it on n0" in note for note in shadow_notes(state.pods["uid-a"], state))
    assert any("shadow would let it wait" in note for note in shadow_notes(state.pods["uid-never"], state))
    assert encode_state(decode_state(encode_state(state))) == encode_state(state)
    report = await replay_log(log, CLUSTER)
    assert (report.cycles, report.decisions, report.kinds) == (3, 2, {})


async def test_a_record_that_is_not_what_the_engine_decides_is_a_difference(log: MemoryLog) -> None:
    facts = await facts_of(log, CLUSTER, nodes=2)
    async with shadowing(log, "default-scheduler"):
        await facts.append(seen("a", cpu=2, gpu=4))
        (decided,) = await recorded(log)
    forged = MemoryLog(lambda: 1)
    elsewhere = (msgspec.structs.replace(decided.placed[0], node="n1"),)
    for event in await log.read(CLUSTER, limit=1000):
        new = as_new(event)
        if event.type == "ShadowDecided":
            new = msgspec.structs.replace(new, payload=msgspec.structs.replace(decided, placed=elsewhere))
        await forged.append(CLUSTER, [Unit((new,))])
    report = await replay_log(forged, CLUSTER)
    assert report.kinds == {"ShadowDecided: placed": 1}
    assert "n1" in str(report.differences[0])


async def test_of_two_shadows_one_records(log: MemoryLog) -> None:
    facts = await facts_of(log, CLUSTER, nodes=1)
    async with shadowing(log, EVERY), shadowing(log, EVERY, instance="two"):
        for number in range(5):
            await facts.append(seen(f"p{number}", cpu=1, gpu=1))
            await recorded(log, number + 1)
    placed = [one.name for decided in await recorded(log) for one in decided.placed]
    assert sorted(placed) == [f"p{number}" for number in range(5)]


async def test_a_report_tells_rejections_that_the_shadow_avoids_from_those_that_it_does_not(log: MemoryLog) -> None:
    facts = await facts_of(log, CLUSTER, nodes=2)
    async with shadowing(log, EVERY):
        for name in ("a", "b"):
            await facts.append(seen(name, cpu=2, gpu=3, node="n0"))
        zone, free = amounts(cpu=16, memory=64, gpu=4), amounts(cpu=14, memory=64, gpu=1)
        published = topology("n0", zone, zone, available=(free, free))
        await facts.append(("nrt/n0", payloads.TopologyObserved(published)))
        for name, node in (("moved", "n0"), ("fine", "n1")):
            await facts.append(seen(name, cpu=2, gpu=2), seen(name, cpu=2, gpu=2, node=node))
            await recorded(log, 1 if name == "moved" else 2)
        moved = pod("moved", scheduler_name="default-scheduler", node_name="n0", cpu=2, gpu=2)
        ended = msgspec.structs.replace(moved, phase="Failed", reason="TopologyAffinityError")
        fine = pod("fine", scheduler_name="default-scheduler", node_name="n1", cpu=2, gpu=2)
        running = msgspec.structs.replace(fine, phase="Running")
        await facts.append(
            ("pod/uid-moved", payloads.PodObserved(ended)), ("pod/uid-fine", payloads.PodObserved(running))
        )
    report = await shadow_report(log, CLUSTER, find_kubelets, simulate=False)
    assert report.choices == {"same node": 1, "other node": 1, "would wait": 0, "not decided": 0}
    assert (report.rejections.observed, report.rejections.avoided) == (1, 1)
    assert (report.predictions.rejected_rightly, report.predictions.admitted_rightly) == (1, 1)
    (rejected,) = report.rejected
    assert (rejected.name, rejected.chosen, bool(rejected.predicted)) == ("moved", "n1", True)
    assert [(one.queue, one.pods, one.avoided) for one in report.queues] == [("namespace/default", 2, 1)]
    assert "avoids 1" in report_text(report)
    with pytest.raises(UnknownSubject, match="no shadow of 'default-schedular'; did you mean 'default-scheduler'"):
        await shadow_report(log, CLUSTER, find_kubelets, scheduler="default-schedular")


async def test_work_of_others_whose_queue_does_not_exist_would_wait_and_why_lists_the_reason(log: MemoryLog) -> None:
    facts = await facts_of(log, CLUSTER, nodes=1)
    await facts.append(("queue/team", payloads.QueueObserved(queue("team", quota=4))))
    lost = pod("a", scheduler_name="default-scheduler", cpu=2, gpu=1, labels={KAI_QUEUE_LABEL: "gone"})
    async with shadowing(log, "default-scheduler"):
        await facts.append((f"pod/{lost.uid}", payloads.PodObserved(lost)))
        await recorded(log)
    state = await folded(log)
    answer = why_pod(state, "default", "a", PodEvidence(story=[], uid="uid-a"))
    assert answer is not None
    assert [one.code for one in answer.reasons] == ["QueueDoesNotExist"]
    assert any("shadow would let it wait: queue gone" in note for note in answer.notes)
