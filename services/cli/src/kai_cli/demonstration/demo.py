"""`kai demo`: the demonstration. Everything on one machine, a fleet of 24 nodes, and the manifests in `examples/`.

When the examples have run, work of three teams keeps coming and going, so that there is always something to see. What
comes, in which order and for how long it runs is a function of a seed and a number; the clock only says when. The teams
take turns: for a while one of them brings most of the work and borrows what the others leave, then another comes back
and reclaims it. Manifests are those of the folder `teams`.

With `--once` the same workload runs on an identical fleet that is scheduled blind to NUMA instead, a report compares
the two, and the demonstration ends.
"""

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import count
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import yaml
from cyclopts import Parameter
from cyclopts.validators import Number
from kaicore.analysis.replay.replay import replay_log
from kaicore.errors import ApiStatus, ClusterUnavailable, ConfigurationError, InvalidObject, KaiError, LogUnavailable
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.discovery import ObjectPaths
from kaicore.ledger.feed import EventFeed
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.audit import verify
from kaicore.rules.model.quantity import parse_duration
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import PRESENT, Stage
from kaicore.rules.state.views import PodsView, WorkView
from kaicore.runtime.fork_server import forking
from kaicore.yaml_text import load_yaml, load_yaml_all

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
from kai_cli.running.stack import DEMO_PROFILE, IMPORTED, ClusterSpec, Stack
from kai_cli.running.up import first_error, interruption, print_line
from kai_cli.sources.manifests import Manifest, read_manifests
from kai_cli.sources.paths import ONCE, DataDirectory, RunningCluster, data_directory

#: What the living demonstration has made; other work is left alone.
LIFE_LABEL = "demo.kai.scheduler/life"
#: Age in seconds at which an object that does not end by itself is deleted.
DELETE_AFTER = "demo.kai.scheduler/delete-after"

_QUEUE = "kai.scheduler/queue"
_RUN_SECONDS = "simulator.kai.scheduler/run-seconds"
_NAMESPACE = "default"
#: How much of the work each team brings, by turns of so many arrivals.
_TURNS = (
    {"research": 8, "vision": 0, "speech": 2},
    {"research": 2, "vision": 7, "speech": 1},
    {"research": 3, "vision": 3, "speech": 3},
)
_TURN = 12
#: Seconds between two arrivals, and for how long work runs.
_PAUSES_S, _RUNS_S = (4, 11), (45, 150)
#: Pods that wait for a node at most, before anything else comes.
MOST_WAITING = 30
#: Seconds between two looks at how it stands; of so many looks one is reported.
_LOOK_S, _LOOKS_REPORTED = 5.0, 12
#: Where the number of the next arrival is kept, with the cluster's other objects.
_KEPT_PATH = f"/api/v1/namespaces/{_NAMESPACE}/configmaps"
_KEPT_NAME = "life-of-the-demonstration"


class Arrival(NamedTuple):
    """Work that comes.

    Attributes:
        pause_s: seconds after the one before.
        manifest: the object, named by its number.
    """

    pause_s: float
    manifest: Manifest


def teams() -> Traversable:
    """Return the folder of the teams' manifests: what they share, and in `work` a file for each kind of work."""
    return resources.files("kai_cli.demonstration") / "teams"


def shared_by_teams() -> list[Manifest]:
    """Return the teams' queues, that of work which names none, and the topology that some work names."""
    texts = ((teams() / name).read_text("utf-8") for name in ("queues.yaml", "topology.yaml"))
    return [manifest for text in texts for manifest in load_yaml_all(text)]


def team_work() -> dict[str, list[Manifest]]:
    """Return what each team may bring, by the name of its queue, in order of the files' names."""
    work: dict[str, list[Manifest]] = {}
    files = sorted((teams() / "work").iterdir(), key=lambda file: file.name)
    for manifest in (load_yaml(file.read_text("utf-8")) for file in files):
        work.setdefault(manifest["metadata"]["labels"][_QUEUE], []).append(manifest)
    return work


def arrival(work: dict[str, list[Manifest]], *, seed: int, number: int, pace: float = 1.0) -> Arrival:
    """Return the work of a number: always the same for a seed.

    Args:
        pace: how much faster than usual work comes and goes.
    """
    chance = random.Random(f"{seed}/{number}")
    weights = _TURNS[number // _TURN % len(_TURNS)]
    (team,) = chance.choices(list(weights), weights=list(weights.values()))
    manifest = deepcopy(chance.choice(work[team]))
    pause, seconds = chance.randint(*_PAUSES_S) / pace, chance.randint(*_RUNS_S) / pace
    metadata = manifest["metadata"]
    metadata["name"] = f"{metadata['name']}-{number}"
    metadata["namespace"] = _NAMESPACE
    metadata["labels"][LIFE_LABEL] = "true"
    _run_for(manifest, seconds)
    return Arrival(pause, manifest)


def _run_for(part: Any, seconds: float) -> None:
    """Have all pods of a manifest that end by themselves run for so long."""
    if isinstance(part, list):
        for item in part:
            _run_for(item, seconds)
    elif isinstance(part, dict):
        for name, value in part.items():
            if name == _RUN_SECONDS:
                part[name] = f"{seconds:g}"
            else:
                _run_for(value, seconds)


class Life:
    """Brings work to a cluster, and takes away what does not end by itself."""

    def __init__(self, client: KubeClient, *, seed: int, report: Callable[[str], None], pace: float = 1.0) -> None:
        """Args:
        report: gets a line about how it stands now and then.
        pace: how much faster than usual work comes and goes; tests are in a hurry.
        """
        self._client = client
        self._loader = Loader(client)
        self._paths = ObjectPaths(client)
        self._seed = seed
        self._pace = pace
        self._report = report
        self._work = team_work()
        self._number = 0
        self._has_room = asyncio.Event()

    async def run(self, *, seconds: float | None) -> None:
        """Bring work for so many seconds, None for no end, and see to what is there; runs until cancelled.

        A cluster that has been brought work before gets what comes next.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._see_to_it())
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._persist(self._begin)
                    while True:
                        await self._has_room.wait()
                        coming = arrival(self._work, seed=self._seed, number=self._number, pace=self._pace)
                        await asyncio.sleep(coming.pause_s)
                        await self._persist(partial(self._bring, coming.manifest))
            self._report("no more work comes: the time of the living demonstration is over")

    async def _persist(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Try until the API server answers: it may be started again, or have much to do."""
        while True:
            try:
                return await attempt()
            except* ClusterUnavailable:  # also of several requests at once
                pass
            await asyncio.sleep(_LOOK_S)

    async def has_begun(self) -> bool:
        """True if the cluster got work before, in an earlier run too.

        Raises ClusterUnavailable: the API server does not answer.
        """
        kept = await self._client.find(f"{_KEPT_PATH}/{_KEPT_NAME}")
        if kept is not None:
            self._number = int(msgspec.json.decode(kept)["data"]["next"])
        return kept is not None

    async def _begin(self) -> None:
        await self._loader.create(shared_by_teams())
        if not await self.has_begun():
            await self._client.post(_KEPT_PATH, {"metadata": {"name": _KEPT_NAME}, "data": {"next": "0"}})

    async def _bring(self, manifest: Manifest) -> None:
        loaded = await self._loader.create([manifest])
        for refusal in loaded.refused:
            self._report(f"refused: {refusal}")
        self._number += 1
        await self._client.patch(f"{_KEPT_PATH}/{_KEPT_NAME}", {"data": {"next": str(self._number)}})

    async def _see_to_it(self) -> None:
        for look in count():
            with suppress(KaiError):  # the next look comes soon
                pods = await listed_pods(self._client)
                waiting = sum(not pod.node and pod.phase == "Pending" for pod in pods)
                (self._has_room.set if waiting < MOST_WAITING else self._has_room.clear)()
                if look % _LOOKS_REPORTED == _LOOKS_REPORTED - 1:
                    running = sum(pod.phase == "Running" for pod in pods)
                    self._report(f"living: {self._number} came so far; {running} pods run, {waiting} wait")
                for team in self._work.values():
                    for manifest in team:
                        if DELETE_AFTER in manifest["metadata"].get("annotations", {}):
                            await self._take_away(manifest)
            await asyncio.sleep(_LOOK_S / self._pace)

    async def _take_away(self, like: Manifest) -> None:
        """Delete what was made like a manifest and has been there for long enough."""
        path = await self._paths.collection(like)
        found = await self._client.get(path, {"labelSelector": f"{LIFE_LABEL}=true"})
        now = datetime.now(UTC)
        for metadata in (one["metadata"] for one in msgspec.json.decode(found)["items"]):
            age_s = (now - datetime.fromisoformat(metadata["creationTimestamp"])).total_seconds()
            if age_s * self._pace >= float(metadata.get("annotations", {}).get(DELETE_AFTER, "inf")):
                with suppress(ApiStatus):  # it may be gone already
                    await self._client.delete(f"{path}/{metadata['name']}")


def example_manifests() -> Path:
    """Return the folder of the demonstration's manifests. Raises ConfigurationError: this installation has none."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "_examples", package.parents[3] / "examples"):
        if candidate.is_dir():
            return candidate
    raise ConfigurationError("the examples are missing from this installation: name manifests with --examples")


_SIGHTED, _BLIND = "demo", "demo-blind"
_PROFILE = DEMO_PROFILE
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
#: And where nothing has happened since.
_STILL_S = 10.0


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
        stack.stop_restarting()
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
    first = ClusterSpec(name=_SIGHTED, profile=_PROFILE)
    cluster = await stack.start_with(first)
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
        raise first_error(errors) from errors


async def _follow_the_examples(stack: Stack, cluster: RunningCluster) -> None:
    async with await PostgresLog.open(stack.database_url, application="kai-demo") as log:
        _, _, settled = await _follow_until_settled(log, _SIGHTED, cluster, PlacedDomains())
    if not settled:
        print_line(f"some of it still waits or runs: {kai(stack.directory, 'get', 'pods', '--pending')}")


async def _keep_two(stack: Stack, first: ClusterSpec) -> None:
    """Add a second cluster and the hub, and keep the clusters as the hub's log says until cancelled."""
    keeping = RegisteredClusters(stack, [first, _SECOND], report=print_line)
    await keeping.register_own_first()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keeping.run())
        await keeping.hub_started.wait()
        print_line(f"a second cluster and the hub of both: {kai(stack.directory, 'submit', 'FILE')}")


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
        jobs = await _jobs(client)
    succeeded = {
        (job["metadata"]["namespace"], job["metadata"]["name"]): job.get("status", {}).get("succeeded", 0)
        for job in jobs
    }
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
    state, shown = ClusterState(name), 0
    feed = EventFeed(log, None, name)
    try:
        async with _client(cluster) as client:
            while loop.time() - began < _PATIENCE_S:
                with suppress(LogUnavailable):
                    events = await feed.next_batch(timeout_s=0.25)
                    state.fold_all(events)
                    placed.see(events)
                    last_event = loop.time() if events else last_event
                if loop.time() - shown_at >= (_PROGRESS_S if state.position > shown else _STILL_S):
                    shown_at, shown = loop.time(), state.position
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


async def _jobs(client: KubeClient) -> list[Manifest]:
    jobs: list[Manifest] = msgspec.json.decode(await client.get("/apis/batch/v1/jobs"))["items"]
    return jobs


async def _jobs_done(client: KubeClient) -> bool:
    conditions = [job.get("status", {}).get("conditions", ()) for job in await _jobs(client)]
    return all(
        any(one["type"] in ("Complete", "Failed") and one["status"] == "True" for one in of) for of in conditions
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
