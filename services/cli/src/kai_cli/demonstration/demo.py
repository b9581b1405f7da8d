"""`kai demo`: the demonstration. Everything on one machine, a fleet of 24 nodes, and the manifests in `examples/`.

When the examples have run, work of three teams keeps coming and going (`life`). With `--once` the same workload runs on
an identical fleet that is scheduled blind to NUMA instead, a report compares the two, and the demonstration ends.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from cyclopts import Parameter
from cyclopts.validators import Number
from kaicore.analysis.replay.replay import replay_log
from kaicore.errors import ConfigurationError, InvalidObject, KaiError, LogUnavailable
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.ledger.feed import EventFeed
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.audit import verify
from kaicore.rules.model.quantity import parse_duration
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import PRESENT, Stage
from kaicore.rules.state.views import PodsView, WorkView
from kaicore.runtime.fork_server import forking

from kai_cli.demonstration.life import Life
from kai_cli.demonstration.report import (
    ClusterReport,
    DemoReport,
    PlacedDomains,
    groups_of,
    has_caught_up,
    listed_pods,
    render,
)
from kai_cli.running.hints import how_to_ask, kai
from kai_cli.running.load import Loader
from kai_cli.running.registered_clusters import RegisteredClusters
from kai_cli.running.stack import IMPORTED, ClusterSpec, Stack
from kai_cli.running.up import interruption, print_line
from kai_cli.sources.manifests import Manifest, read_manifests
from kai_cli.sources.paths import ONCE, DataDirectory, RunningCluster, data_directory


def example_manifests() -> Path:
    """Return the folder of the demonstration's manifests.

    Raises:
        ConfigurationError: this installation has none.
    """
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "_examples", package.parents[3] / "examples"):
        if candidate.is_dir():
            return candidate
    raise ConfigurationError("the examples are missing from this installation: name manifests with --examples")


_SIGHTED, _BLIND = "demo", "demo-blind"
_PROFILE = "demo24"
#: The second cluster, and the hub of both, come when the first one runs.
_SECOND = ClusterSpec(name="demo-2", profile="mini", exporter=False)

#: Exit code of a comparison that was not let finish, as shells have it of a Ctrl-C.
_INTERRUPTED = 130
#: Seconds without a new event, all Jobs done, after which a cluster counts as settled.
_QUIET_S = 3.0
#: Seconds until the demonstration goes on although a cluster has not settled.
_PATIENCE_S = 150.0
#: Seconds between two lines of progress.
_PROGRESS_S = 2.0


class _Condition(msgspec.Struct):
    type: str
    status: str


class _JobStatus(msgspec.Struct):
    conditions: list[_Condition] = []
    succeeded: int = 0


class _Metadata(msgspec.Struct):
    namespace: str
    name: str


class _Job(msgspec.Struct):
    metadata: _Metadata
    status: _JobStatus = msgspec.field(default_factory=_JobStatus)


class _JobList(msgspec.Struct):
    items: list[_Job]


def demo(
    *,
    once: bool = False,
    clusters: Annotated[int, Parameter(validator=Number(gte=1, lte=2))] = 1,
    lasting: Annotated[str | None, Parameter(name="--for")] = None,
    seed: int = 0,
    data_dir: Path | None = None,
    examples: Path | None = None,
    fresh: bool = False,
) -> int:
    """Show it all: start everything, apply the examples, show progress; then let it live until Ctrl-C.

    Args:
        once: compare with scheduling blind to NUMA, print a report, and end.
        clusters: 2 for a second cluster and a hub of both, once the examples have run; not with --once.
        lasting: how long work of three teams keeps coming once the examples have run, such as 10m, and 0s for none
            at all; by default as long as the demonstration runs.
        seed: of the teams' work: the same one brings the same work in the same order.
        data_dir: where everything is kept; by default .kai, or $KAI_DATA_DIR.
        examples: manifests to apply, instead of those that come with kai; what carries the annotation
            demo.kai.scheduler/never-fits: "true" is to wait.
        fresh: begin anew, deleting what an earlier run left; `--once` always does, without --data-dir in a folder of
            its own. A folder that holds anything else than kai's data is never deleted.
    """
    if once and clusters > 1:
        raise ConfigurationError("--clusters: a comparison has none of its own; leave --once out")
    if once and lasting is not None:
        raise ConfigurationError("--for: a comparison ends when its work has; leave --once out")
    life_s = _seconds_of(lasting)
    directory = data_directory(data_dir)
    own = once and data_dir is None
    if own:
        directory = DataDirectory(directory.root / ONCE)
    workload = read_manifests([examples or example_manifests()])
    with directory.lock() as held:
        if once or fresh:
            directory.clear(named_by_us=own)
        with forking(IMPORTED) as forks:
            stack = Stack(directory, lock=held, report=print_line, forks=forks)
            showing = _compare(stack, workload) if once else _show(stack, workload, clusters, life_s=life_s, seed=seed)
            return asyncio.run(_demo(stack, showing, once=once))


def _seconds_of(lasting: str | None) -> float | None:
    if lasting is None:
        return None
    try:
        return max(0, parse_duration(lasting, subject="--for", field="duration")) / 1_000_000
    except InvalidObject as error:
        raise ConfigurationError(f"--for {lasting}: {error.problem}") from error


async def _demo(stack: Stack, show: Coroutine[None, None, DemoReport | None], *, once: bool) -> int:
    interrupted = interruption()
    showing = asyncio.create_task(show)
    waiting = asyncio.create_task(interrupted.wait())
    report: DemoReport | None = None
    try:
        await asyncio.wait({showing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if showing.done():
            report = await showing
            if not once:
                await interrupted.wait()
    finally:
        showing.cancel()
        waiting.cancel()
        with suppress(asyncio.CancelledError, KaiError):
            await showing
        print_line("stopping ...")
        await stack.stop()
    if not once:
        return 0
    if report is None:
        print_line("interrupted: there is no report")
        return _INTERRUPTED
    print_line(f"what it left answers: {kai(stack.directory, 'why', 'default/never-fits', '--cluster', _SIGHTED)}")
    sys.stdout.write(render(report))
    return 0 if report.good else 1


async def _show(stack: Stack, workload: list[Manifest], clusters: int, *, life_s: float | None, seed: int) -> None:
    await stack.start()
    first = ClusterSpec(name=_SIGHTED, profile=_PROFILE)
    cluster = await stack.add_cluster(first)
    more = ("cluster list", "get dispatches") if clusters > 1 else ()
    for line in how_to_ask(stack.directory, "why default/never-fits", *more):
        print_line(line)
    print_line("Ctrl-C stops it; the next `make run` goes on from here.")
    await _apply(workload, cluster)
    try:
        async with _client(cluster) as client, asyncio.TaskGroup() as tasks:
            life = Life(client, seed=seed, report=print_line)
            if life_s == 0 or not await life.has_begun():
                await _follow_the_examples(stack, cluster)
            if clusters > 1:
                tasks.create_task(_keep_two(stack, first))
            if life_s != 0:
                asking = kai(stack.directory, "get", "queues", "--cluster", _SIGHTED)
                print_line(f"three teams bring work from now on: {asking}")
                tasks.create_task(life.run(seconds=life_s))
    except ExceptionGroup as errors:
        raise _first(errors) from errors


def _first(errors: ExceptionGroup) -> Exception:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first


async def _follow_the_examples(stack: Stack, cluster: RunningCluster) -> None:
    async with await PostgresLog.open(stack.database_url, application="kai-demo") as log:
        _, _, settled = await _follow_until_settled(log, _SIGHTED, cluster, PlacedDomains())
    if not settled:
        print_line(f"some of it still waits or runs: {kai(stack.directory, 'get', 'pods', '--pending')}")


async def _keep_two(stack: Stack, first: ClusterSpec) -> None:
    """Add a second cluster and the hub, and keep the clusters as the hub's log says until cancelled."""
    keeping = RegisteredClusters(stack, [first, _SECOND], report=print_line)
    await keeping.register_own_first()
    following = asyncio.create_task(keeping.run())
    try:
        await keeping.hub_started.wait()
        print_line(f"a second cluster and the hub of both: {kai(stack.directory, 'submit', 'FILE')}")
        await following
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def _compare(stack: Stack, workload: list[Manifest]) -> DemoReport:
    await stack.start()
    async with await PostgresLog.open(stack.database_url, application="kai-demo") as log:
        sighted = await _run(stack, log, workload, ClusterSpec(name=_SIGHTED, profile=_PROFILE))
        # Its log is all that is needed of it now: running on, it would take time from the other.
        await stack.remove_cluster(_SIGHTED)
        print_line("the same workload on an identical fleet, scheduled blind to NUMA:")
        config = stack.directory.root / "blind.yaml"
        config.write_text(yaml.safe_dump({"numa": False}))
        blind_spec = ClusterSpec(name=_BLIND, profile=_PROFILE, scheduler_config=config, exporter=False)
        blind = await _run(stack, log, workload, blind_spec)
        print_line("replaying every recorded cycle, and verifying the hash chains ...")
        replays = [await replay_log(log, name) for name in (_SIGHTED, _BLIND)]
        audits = [await verify(log, name) for name in (_SIGHTED, _BLIND)]
    return DemoReport(sighted, blind, replays, [audit.ok for audit in audits])


async def _run(stack: Stack, log: EventLog, workload: list[Manifest], spec: ClusterSpec) -> ClusterReport:
    cluster = await stack.add_cluster(spec)
    await _apply(workload, cluster)
    placed = PlacedDomains()
    state, seconds, settled = await _follow_until_settled(log, spec.name, cluster, placed)
    async with _client(cluster) as client:
        succeeded = {(job.metadata.namespace, job.metadata.name): job.status.succeeded for job in await _jobs(client)}
    groups = groups_of(workload, state, succeeded=succeeded)
    return ClusterReport.of(state, groups, placed.of_gangs(state), seconds=seconds, settled=settled)


async def _apply(workload: list[Manifest], cluster: RunningCluster) -> None:
    async with _client(cluster) as client:
        loaded = await Loader(client).create(workload)
    if loaded.refused:
        raise KaiError(f"examples: {loaded.refused[0]}")
    created = ", ".join(f"{number} {kind}" for kind, number in sorted(loaded.created.items()))
    print_line(f"applied the examples: {created}" if created else "the examples are there from an earlier run")


async def _follow_until_settled(
    log: EventLog, name: str, cluster: RunningCluster, placed: PlacedDomains
) -> tuple[ClusterState, float, bool]:
    """Fold the log, tell of progress, and return when all Jobs are done, nothing happens any more and all is folded."""
    loop = asyncio.get_running_loop()
    began = shown_at = last_event = loop.time()
    state = ClusterState(name)
    feed = EventFeed(log, None, name)
    try:
        async with _client(cluster) as client:
            while loop.time() - began < _PATIENCE_S:
                with suppress(LogUnavailable):
                    events = await feed.next_batch(timeout_s=0.25)
                    state.fold_all(events)
                    placed.see(events)
                    last_event = loop.time() if events else last_event
                if loop.time() - shown_at >= _PROGRESS_S:
                    shown_at = loop.time()
                    print_line(_progress(state, seconds=shown_at - began))
                quiet = loop.time() - last_event >= _QUIET_S
                if quiet and not state.waiting - _explained(state) and await _is_over(client, state):
                    print_line(_progress(state, seconds=loop.time() - began))
                    return state, loop.time() - began, True
    finally:
        await feed.close()
    return state, loop.time() - began, False


def _explained(state: WorkView) -> set[str]:
    return {uid for uid in state.waiting if state.class_of(state.pods[uid]).key in state.reasons.by_class}


async def _is_over(client: KubeClient, state: PodsView) -> bool:
    # The Jobs first: what the API server had then, it has in the list of pods too.
    return await _jobs_done(client) and has_caught_up(state, await listed_pods(client))


async def _jobs(client: KubeClient) -> list[_Job]:
    return msgspec.json.decode(await client.get("/apis/batch/v1/jobs"), type=_JobList).items


async def _jobs_done(client: KubeClient) -> bool:
    return all(
        any(
            condition.type in ("Complete", "Failed") and condition.status == "True"
            for condition in job.status.conditions
        )
        for job in await _jobs(client)
    )


def _progress(state: PodsView, *, seconds: float) -> str:
    stages = dict.fromkeys(PRESENT, 0)
    for entry in state.pods.values():
        stages[entry.stage] += 1
    rejected = sum(state.counters.rejections.values())
    return (
        f"{seconds:5.1f} s  {stages[Stage.WAITING]:4} waiting {stages[Stage.PLACED]:4} placed "
        f"{stages[Stage.BOUND]:4} bound {stages[Stage.FINISHED]:4} finished   "
        f"{rejected:4} rejected by kubelets   {state.position:6} events"
    )


@asynccontextmanager
async def _client(cluster: RunningCluster) -> AsyncIterator[KubeClient]:
    async with KubeClient(configured_access(cluster.service_kubeconfig)) as client:
        yield client
