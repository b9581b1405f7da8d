"""The arms of the comparison: who schedules, and what came of it."""

import asyncio
import os
import time
from collections import Counter
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from kai_cli.running.load import Loader
from kaicore.analysis.replay.log_states import events_of
from kaicore.analysis.replay.replay import checked_promises, replay_log
from kaicore.analysis.trial.history.reading import read_history
from kaicore.analysis.trial.history.results import RunResult, result_of
from kaicore.analysis.trial.shadow import ShadowReport
from kaicore.kube.api.client import KubeClient
from kaicore.ledger.log.port import EventLog
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import PodObserved
from kaicore.rules.model.pod import is_kubelet_rejection
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.yaml_text import load_yaml

from tests.e2e.cluster import DEPLOY, PATIENCE_S, Cluster
from tests.e2e.live_stack import LiveStack, running
from tests.e2e.test_adopting import until_served
from tests.measured.beside.peers import (
    KAI_SCHEDULER,
    KUBE,
    QUEUE,
    TOPOLOGY_AWARE,
    kai_definitions,
    kai_queues,
    run_peer,
)
from tests.measured.beside.workload import FLEET, TOPOLOGY, Arrival, agents, arrivals

OURS = "kai-ledger"

#: Seconds that the work may take after the last Job came.
_REST_S = 400.0


class Arm(StrEnum):
    """The scheduler of an arm. Where ours does not schedule, it is a shadow."""

    SHADOWED = "shadowed"
    OURS = "ours"
    BOTH = "both"
    TOPOLOGY_AWARE = "topology-aware"
    KAI = "kai-scheduler"
    KAI_BOTH = "kai-both"


ARMS = tuple(Arm)
_SCHEDULERS = {
    Arm.SHADOWED: (KUBE,),
    Arm.OURS: (OURS,),
    Arm.BOTH: (KUBE, OURS),
    Arm.TOPOLOGY_AWARE: (TOPOLOGY_AWARE,),
    Arm.KAI: (KAI_SCHEDULER,),
    Arm.KAI_BOTH: (KAI_SCHEDULER, OURS),
}


class Fared(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The results of a scheduler's pods, in the words of a what-if over history."""

    pods: int
    started: int
    finished: int
    rejections: int
    by_reason: dict[str, int]
    wait_p50: float | None
    wait_p99: float | None
    fragmentation: float | None
    stranded_gpu_hours: float
    nodes_per_job: float | None
    domains_per_job: float | None


class ArmResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The results of an arm.

    Attributes:
        api: the owner of the API server.
        schedulers: what came of the pods of each.
        simulated: what the shadow's report says of the window simulated, by run.
        report: the shadow's report, pod by pod.
        wrong: promises that were given twice, cycles that do not replay, pods that the log does not have as they are.
    """

    arm: str
    api: str
    seconds: float
    schedulers: dict[str, Fared]
    simulated: dict[str, Fared] = {}
    report: dict[str, Any] = {}
    wrong: tuple[str, ...] = ()


def run_arm(arm: Arm, root: Path, *, jobs: int, every_s: float, seed: int) -> ArmResult:
    """Start everything, bring the work, wait for its end, and tell what came of it.

    The API server is that of `KAI_TEST_KUBECONFIG`, by default a simulated one.

    Raises:
        FileNotFoundError: a program of the other side is not there.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        (root / "fleet.yaml").write_text(FLEET)
        cluster = Cluster(root / "cluster", profile=str(root / "fleet.yaml"))
        cluster.start()
        stack.callback(cluster.stop)
        schedulers = _SCHEDULERS[arm]
        peers = [name for name in schedulers if name != OURS]
        kai = KAI_SCHEDULER in peers
        asyncio.run(_define(cluster, kai=kai))
        asyncio.run(_add_agents(cluster))
        for name in peers:
            run_peer(stack, root, cluster.tls_kubeconfig, name)
        if kai:
            # As the guide has it: only one may write the statuses of Queues.
            os.environ["KAI_QUEUE_STATUSES"] = "false"
            stack.callback(os.environ.pop, "KAI_QUEUE_STATUSES")
        shadow = "" if OURS in schedulers else schedulers[0]
        live = stack.enter_context(running(LiveStack(root / "kai", cluster, shadow=shadow, observed=True)))
        work = arrivals(seed, jobs=jobs, every_s=every_s, schedulers=schedulers, queue=QUEUE if kai else "")
        wrong = asyncio.run(_bring(live, work))
        report = None
        if shadow:
            report = msgspec.convert(live.ask("shadow", "report"), ShadowReport)
            (root / "report.json").write_bytes(msgspec.json.encode(report))
        fared, more = asyncio.run(_judge(live, schedulers))
    result = ArmResult(
        arm=arm.value,
        api="simulated" if cluster.simulated else "kube-apiserver",
        seconds=round(time.monotonic() - began, 1),
        schedulers=fared,
        wrong=(*wrong, *more),
    )
    return result if report is None else _with_report(result, report)


async def _define(cluster: Cluster, *, kai: bool) -> None:
    """Create what the peers, and the work, need of definitions; KAI's are its own."""
    ours = load_yaml((DEPLOY / "crds/topologies/kai.scheduler.yaml").read_text())
    definitions = kai_definitions() if kai else [ours]
    async with cluster.client() as client:
        refused = (await Loader(client).create(definitions)).refused
        for definition in definitions:
            await until_served(client, definition)
        if kai:
            namespaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kai-scheduler"}}]
            refused += (await Loader(client).create([*namespaces, *kai_queues()])).refused
    assert refused == []


async def _add_agents(cluster: Cluster) -> None:
    """Have a pod of a DaemonSet on each node."""
    async with cluster.client() as client, asyncio.timeout(PATIENCE_S):
        while True:
            names = [
                item["metadata"]["name"] for item in msgspec.json.decode(await client.get("/api/v1/nodes"))["items"]
            ]
            # Those refused before their namespace has its ServiceAccount come with the next try.
            if names and not (await Loader(client).create(agents(cluster.namespace, names))).refused:
                return
            await asyncio.sleep(0.2)


async def _bring(live: LiveStack, work: list[Arrival]) -> list[str]:
    """Bring the work and wait for its end; what the log did not have in time as the API server has it."""
    wrong: list[str] = []
    async with live.client() as client:
        await live.create(TOPOLOGY)
        for number, arrival in enumerate(work):
            await asyncio.sleep(arrival.after_s)
            await live.create(arrival.manifest)
            if number == len(work) // 2:
                wrong += await _unseen(live, client)
        path = f"/apis/batch/v1/namespaces/{live.namespace}/jobs"
        deadline = time.monotonic() + _REST_S
        while any(_open(job) for job in msgspec.json.decode(await client.get(path))["items"]):
            if time.monotonic() > deadline:
                wrong.append("work was left when time was up")
                break
            await asyncio.sleep(2)
        return wrong + await _unseen(live, client)


def _open(job: dict[str, Any]) -> bool:
    return int(job.get("status", {}).get("succeeded", 0)) < int(job["spec"]["completions"])


async def _unseen(live: LiveStack, client: KubeClient) -> list[str]:
    """Wait until the log has all bound pods on the nodes on which they are now; name those that it never has."""
    listed = msgspec.json.decode(await client.get(f"/api/v1/namespaces/{live.namespace}/pods"))["items"]
    nodes = {item["metadata"]["uid"]: item["spec"].get("nodeName", "") for item in listed}
    missing: list[str] = []

    def seen(state: ClusterState) -> bool:
        missing[:] = [
            uid
            for uid, node in nodes.items()
            if node and (uid not in state.pods or state.pods[uid].pod.node_name != node)
        ]
        return not missing

    with suppress(TimeoutError):
        await live.until(seen)
    return [f"pod {uid} on {nodes[uid]} is not in the log" for uid in missing]


async def _judge(live: LiveStack, schedulers: tuple[str, ...]) -> tuple[dict[str, Fared], list[str]]:
    async with live.log() as log:
        wrong: list[str] = []
        replayed = await replay_log(log, "e2e")
        wrong += [f"replay: {difference}" for difference in replayed.differences]
        upto = (await log.head("e2e")).position
        promises = (await checked_promises(log, "e2e", upto=upto)).report
        wrong += [f"promised twice: {promise}" for promise in promises.twice]
        return {name: await _fared(log, name, upto) for name in schedulers}, wrong


async def _fared(log: EventLog, scheduler: str, upto: int) -> Fared:
    reasons: Counter[str] = Counter()
    rejected: set[str] = set()
    async for event in events_of(log, "e2e", upto=upto):
        payload = decode_payload(event) if event.type == "PodObserved" else None
        if not isinstance(payload, PodObserved) or payload.pod.scheduler_name != scheduler:
            continue
        if is_kubelet_rejection(payload.pod) and payload.pod.uid not in rejected:
            rejected.add(payload.pod.uid)
            reasons[payload.pod.reason] += 1
    state = ClusterState("e2e")
    history = await read_history(log, state, upto, set_as=EngineConfig(scheduler_name=scheduler))
    lineage_of = {story.pod.uid: lineage.uid for lineage in history.lineages for story in lineage.stories}
    result = result_of(scheduler, history, history.stories, lineage_of, history.samples, state=state)
    return _figures(result, dict(sorted(reasons.items())))


def _figures(result: RunResult, reasons: dict[str, int]) -> Fared:
    return Fared(
        pods=result.pods,
        started=result.started,
        finished=result.finished,
        rejections=result.rejections,
        by_reason=reasons,
        wait_p50=_round(result.waits.p50),
        wait_p99=_round(result.waits.p99),
        fragmentation=_round(result.fragmentation),
        stranded_gpu_hours=round(result.stranded_gpu_hours, 3),
        nodes_per_job=_round(result.spread.nodes),
        domains_per_job=_round(result.spread.domains),
    )


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _with_report(result: ArmResult, report: ShadowReport) -> ArmResult:
    assert report.trajectory is not None
    runs = (report.trajectory.baseline, *(one.result for one in report.trajectory.alternatives))
    document = msgspec.to_builtins(report)
    parts = ("pods", "choices", "rejections", "predictions", "zones", "chosenZones", "wouldStart", "notes")
    return msgspec.structs.replace(
        result,
        simulated={run.name: _figures(run, {}) for run in runs},
        report={part: document[part] for part in parts} | {"validity": msgspec.to_builtins(report.trajectory.validity)},
    )
