"""One run: a world, work, faults by a schedule; then quiet; then everybody who can find something wrong is asked."""

import asyncio
import json
import random
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from kaicore.analysis.replay.replay import checked_promises, replay_log
from kaicore.errors import BusUnavailable, ClusterError
from kaicore.ledger.bus import NatsBus
from kaicore.ledger.log.port import Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.audit import verify
from kaicore.rules.engine.config import ENGINE_VERSION
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import NodeObserved
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.indexes.node_trials import kind_of, trials_key
from kaicore.rules.state.indexes.past_runs import work_of

from tests.chaos.checker import NoChecker, Verdict, verdict_of
from tests.chaos.faults import MENDED, Kind
from tests.chaos.load import Load, unfinished
from tests.chaos.readers import Readers, read_models_differ
from tests.chaos.recording import Recorder
from tests.chaos.rejections import rejections_of
from tests.chaos.strikes import Step
from tests.chaos.world import CLUSTER, World, WorldOptions
from tests.given.logs.invariants import differences
from tests.given.processes.kai_commands import Spawned, spawned

ROOT = Path(__file__).parents[2]

#: Seconds in which some of the work must end once nothing fails any more: unobserved pods, stale gangs and back-offs
#: included. All of it may take longer, where a machine is slow and much is left.
PATIENCE_S = 150.0

#: Seconds without an event after which everything is said.
_QUIET_S = 2.5

#: How a supervisor tells that a process is left down for a while: for longer each time that it ends within a minute.
_PAUSE = re.compile(r"again in ([0-9.]+) s")

#: Events after which the indexes of a state are compared with a rebuild, a hundred times at most.
_INDEXES_CHECKED_EVERY = 250

#: Clients of the log: processes, workers of each, seconds between two units, seconds of one history.
_APPENDERS, _WORKERS, _PAUSE_S, _HISTORY_S = 2, 2, 0.2, 60.0


@dataclass(slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        struck: how many faults were injected, by kind.
        scheduled: how many steps the schedule had, by kind.
        wrong: all that is wrong, one line each; empty if nothing is.
        verdict: the checker's; None where it could not be asked, and `skipped` says why.
        figures: how much there was of what.
        misses: placements that were not as predicted, by cause.
        rejections: pods that kubelets rejected, which no decision foresees, and what the log had not known.
        stories: what the log says of the nodes of those among them that it could have avoided.
        events: of the cluster, for further questions.
    """

    struck: Counter[str] = field(default_factory=Counter)
    scheduled: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    verdict: Verdict | None = None
    skipped: str = ""
    figures: dict[str, int] = field(default_factory=dict)
    misses: Counter[str] = field(default_factory=Counter)
    rejections: list[str] = field(default_factory=list)
    stories: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def summary(self, **more: Any) -> dict[str, Any]:
        return {
            **more,
            "engine": ENGINE_VERSION,
            "commit": _commit(),
            "faults": self.struck.total(),
            "faultsByKind": dict(sorted(self.struck.items())),
            "stepsByKind": dict(sorted(self.scheduled.items())),
            "figures": self.figures,
            "misses": dict(self.misses.most_common()),
            "rejections": self.rejections,
            "checker": self.verdict.checked if self.verdict is not None else f"skipped: {self.skipped}",
            "wrong": self.wrong,
        }


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


async def run(  # long: a run from its start to its verdict, in order
    root: Path,
    options: WorldOptions,
    *,
    seed: int,
    seconds: float,
    steps: Sequence[Step],
    kinds: Sequence[Kind],
    appenders: int = _APPENDERS,
    pause: tuple[float, float] = (0.1, 0.5),
    tell: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Run it below a folder that is empty; the load makes something after a pause between so many seconds."""
    outcome = Outcome(scheduled=Counter(step.kind for step in steps))
    async with World(root, options) as world, AsyncExitStack() as stack:
        recorder = Recorder(root / "recording", world.postgres.url, root / "apiserver/objects")
        clients = [await _appender(world, root / "recording", number) for number in range(appenders)]
        for client in clients:
            stack.callback(_kill, client)
        load = Load(world, random.Random(seed))
        await load.prepare()
        tell(f"{len(world.processes)} processes run; {len(steps)} faults in {seconds:.0f} s")
        started = time.monotonic()
        readers = Readers(world, recorder) if options.readers else None
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(seconds, pause=pause))
            if readers is not None:
                group.create_task(readers.run(seconds))
            strikes = {kind.name: kind.strike for kind in kinds}

            async def strike(step: Step) -> None:
                await asyncio.sleep(max(0.0, started + step.at - time.monotonic()))
                tell(str(step))
                injected = await strikes[step.kind](world, step)
                outcome.struck[step.kind] += injected

            for step in steps:
                group.create_task(strike(step))
        tell("no more faults; the work comes to its end")
        if struck := sorted({step.target for step in steps if step.kind in MENDED}):
            await _mended(world, load, struck)
        outcome.wrong += await _ended(world, load)
        for client in clients:
            assert client.stdin is not None
            client.stdin.close()
        outcome.wrong += [
            f"appender: ended with code {code}" for client in clients if (code := await client.wait()) != 0
        ]
        await _quiet(world)
        if readers is not None:
            await readers.end()
            outcome.wrong += readers.wrong
            outcome.figures |= {f"{name}Answered": number for name, number in readers.answered.items()}
            outcome.figures |= {f"{name}Failed": number for name, number in readers.failed.items()}
        await world.end("exporter")
        await world.end("fleet")
        await _quiet(world)
        await world.end(*[name for name in world.processes if not name.startswith("relay")])
        clusters = await _relayed(world)
        await world.end("relay-a", "relay-b")
        await recorder.close(world.nats.url, CLUSTER)
        tell("everything stands still; the log is judged")
        await _judge_from_within(world, clusters, outcome)
        if readers is not None:
            outcome.wrong += await read_models_differ(world)
        outcome.figures["restarts"] = sum("again in" in line or "starting it again" in line for line in world.said)
        pauses = [float(match[1]) for line in world.said if (match := _PAUSE.search(line))]
        outcome.figures["longestRestartPauseSeconds"] = round(max(pauses, default=0))
        outcome.figures["made"] = len(load.created)
    try:
        outcome.verdict = await asyncio.to_thread(verdict_of, root / "recording")
        outcome.wrong += outcome.verdict.findings
    except NoChecker as error:
        outcome.skipped = str(error)
    return outcome


async def _appender(world: World, directory: Path, number: int) -> Spawned:
    name = f"appender-{number}"
    options = ["--workers", str(_WORKERS), "--pause", str(_PAUSE_S), "--cluster-s", str(_HISTORY_S)]
    return await spawned(
        *("tests.chaos.appender", await world.to_log(name), "appends", name, *options),
        *("--history", str(directory / f"appends-{number}.jsonl")),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _kill(process: Spawned) -> None:
    if process.returncode is None:
        process.kill()


async def _mended(world: World, load: Load, nodes: Sequence[str]) -> None:
    """Cordon and uncordon nodes that were struck, as one does who has mended them; each must run a pod of its own."""
    async with asyncio.timeout(PATIENCE_S), world.client() as client, await PostgresLog.open(world.postgres.url) as log:
        while True:
            with suppress(ClusterError):
                await client.delete("/simulator/faults")
                break
            await asyncio.sleep(0.5)
        before = (await log.head(CLUSTER)).position
        await load.cordon(client, nodes, cordoned=True)
        while True:
            seen = await log.read(CLUSTER, after=before, limit=100_000, where=Filter(types=("NodeObserved",)))
            facts = [payload.node for event in seen if isinstance(payload := decode_payload(event), NodeObserved)]
            if {fact.name for fact in facts if fact.unschedulable} >= set(nodes):
                break
            await asyncio.sleep(0.2)
        await load.cordon(client, nodes, cordoned=False)


async def _ended(world: World, load: Load) -> list[str]:
    """Wait until all work is over; return what is not."""
    names, fewest, since = ["nothing was asked"], 1 << 30, time.monotonic()
    while names and time.monotonic() - since < PATIENCE_S:
        with suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(30), world.client() as client:
                await client.delete("/simulator/faults")
                await load.complete(client)
                names = await unfinished(client)
        if len(names) < fewest:
            fewest, since = len(names), time.monotonic()
        await asyncio.sleep(0.5)
    return [f"stuck: {name}: of {len(names)} none has ended for {PATIENCE_S:.0f} s" for name in names]


async def _heads(world: World) -> dict[str, int]:
    async with await psycopg.AsyncConnection.connect(world.postgres.url, autocommit=True) as connection:
        rows = await (await connection.execute("SELECT cluster, position FROM log_head")).fetchall()
    return {str(cluster): int(position) for cluster, position in rows}


async def _quiet(world: World) -> None:
    """Wait until nothing is appended any more for a moment."""
    heads, since = await _heads(world), time.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        while time.monotonic() - since < _QUIET_S:
            await asyncio.sleep(0.25)
            now = await _heads(world)
            if now != heads:
                heads, since = now, time.monotonic()


async def _relayed(world: World) -> list[str]:
    """Wait until the bus has all of the log, which the checker sees to if it never has; return the clusters."""
    heads = await _heads(world)
    last = heads[CLUSTER]
    bus = await NatsBus.open(world.nats.url, name="chaos")
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    with suppress(BusUnavailable):
                        state = await bus.stream(CLUSTER)
                        if state is not None and state.last >= last:
                            break
                    await asyncio.sleep(0.1)
    finally:
        await bus.close()
    return sorted(heads)


async def _judge_from_within(world: World, clusters: Sequence[str], outcome: Outcome) -> None:
    """Ask the product itself: the chain, the promises, and whether every cycle is decided again as it was."""
    async with await PostgresLog.open(world.postgres.url) as log:
        for cluster in clusters:
            report = await verify(log, cluster)
            outcome.wrong += [] if report.ok else [f"audit of cluster {cluster}: {report}"]
        replay = await replay_log(log, CLUSTER)
        outcome.wrong += [f"replay: {difference}" for difference in replay.differences]
        head = (await log.head(CLUSTER)).position
        promises = (await checked_promises(log, CLUSTER, upto=head)).report
        outcome.wrong += [f"promised twice: {over}" for over in promises.twice]
        outcome.events = await log.read(CLUSTER, limit=10_000_000)
    found = [decode_payload(event) for event in outcome.events if event.type == "DifferenceFound"]
    outcome.wrong += [f"difference: {payload}" for payload in found]
    state = ClusterState(CLUSTER)
    stride = max(_INDEXES_CHECKED_EVERY, len(outcome.events) // 100)
    for start in range(0, len(outcome.events), stride):
        for event in outcome.events[start : start + stride]:
            state.fold(event)
            if event.type == "PodPlaced":
                outcome.wrong += _placed_on_suspect(state, event)
        outcome.wrong += [f"index at position {state.position}: {one}" for one in differences(state)]
    state.misses.expire(1 << 62)
    outcome.misses = misses_of(state)
    kinds = Counter(event.type for event in outcome.events)
    for name in ("PodPlaced", "PodBound", "PodRejected", "CycleCompleted", "BindFailed"):
        outcome.figures[name] = kinds[name]
    outcome.figures["events"] = head
    outcome.figures["brought"] = len(promises.brought)
    rejections = rejections_of(outcome.events)
    outcome.rejections = [str(one) for one in rejections.all]
    outcome.stories = rejections.avoidable
    outcome.figures["rejectedUnavoidably"] = rejections.unavoidable
    outcome.figures["rejectedAvoidably"] = outcome.figures["PodRejected"] - rejections.unavoidable


def _placed_on_suspect(state: ClusterState, event: Event) -> list[str]:
    """Say that a pod was placed on a node that is suspect for its kind of work, before a probe was due."""
    entry = state.pods.get(event.stream.removeprefix("pod/"))
    if entry is None:
        return []
    suspect = state.node_trials.suspects.get(trials_key(entry.node, kind_of(entry)))
    if suspect is None or (suspect.suspected.works and work_of(entry.pod) not in suspect.suspected.works):
        return []
    early = entry.decided_at >= suspect.position and event.occurred_at < suspect.probe_at
    return [f"position {event.position}: placed on suspect node {entry.node}"] if early else []


def misses_of(state: ClusterState) -> Counter[str]:
    """Count the placements that were not as predicted, by cause; a rejected pod counts under its kubelet's reason."""
    causes = Counter[str]()
    for counts in state.counters.misses.values():
        for policy_and_cause, count in counts.items():
            causes[policy_and_cause.rpartition("/")[2]] += count
    return causes


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary, indent=2) + "\n")
