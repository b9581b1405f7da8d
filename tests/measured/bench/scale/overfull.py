"""Replicas of a shard on a cluster that is too small for what comes: the part of their decisions that lose.

In simulated time, and by a model of how long a cycle takes, so that a figure is the same on every machine: so much for
the cycle and so much for each pod that it decides about. Pods come at a steady rate. Where they run for a while, room
becomes free all the time, and the cluster stays full; where a machine is slow, most pods wait for seconds.
"""

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from kaicore.rules.deciding.decide import Proposal
from kaicore.rules.events.payloads import PodPlaced
from kaicore.rules.state.pods.pod_entry import Stage

from tests.given.cluster.factory import amounts, pod
from tests.given.processes.replicas import Replicas
from tests.given.work.workloads import OWNER, Workloads
from tests.measured.bench.figures import Figure
from tests.measured.bench.scale.shapes import shape

_ZONE = amounts(cpu=64, memory=512, gpu=4)
_GPUS = 8
_PERIOD_S, _RETRY_S, _BACKOFF_S, _BACKOFF_MOST_S = 0.2, 0.05, 0.05, 1.0


@dataclass(frozen=True, slots=True)
class Story:
    """The arrivals, and the durations of things.

    Attributes:
        nodes: of eight GPUs.
        pods: of one GPU each that come.
        per_s: so many per second.
        runs_s: seconds that a pod runs at least, and at most; nothing for ever.
        cycle_s: how long a cycle takes.
        pod_s: how much longer for each pod.
        gang: how many pods start together.
    """

    nodes: int
    pods: int
    per_s: float
    runs_s: tuple[float, float] | None = None
    cycle_s: float = 0.005
    pod_s: float = 0.0004
    gang: int = 1


@dataclass(frozen=True, slots=True)
class Shown:
    """The result: the part of the units that were stale, 0 to 1; pods placed, and when the last one was."""

    conflict_rate: float
    placed: int
    last_s: float
    cycles: int


#: By name: as fast as it is, and on a machine that is ten times slower; and a cluster that stays full.
STORIES = {
    "fills up": Story(nodes=150, pods=2_040, per_s=2_000),
    "fills up, ten times slower": Story(nodes=150, pods=2_040, per_s=2_000, cycle_s=0.05, pod_s=0.004),
    "fills up, ten times slower, gangs of 8": Story(
        nodes=150, pods=2_040, per_s=2_000, cycle_s=0.05, pod_s=0.004, gang=8
    ),
    "stays full": Story(nodes=20, pods=400, per_s=20, runs_s=(5.0, 15.0)),
}


def shown(story: Story, replicas: int) -> Shown:
    """Let replicas decide about what comes."""
    cluster = Workloads()
    for number in range(story.nodes):
        cluster.add_node(f"n{number:05}", _ZONE, _ZONE, policy="restricted")
    names = [f"r{number}" for number in range(replicas)]
    made = Replicas(cluster)
    made.list(names)
    play = _Play(story, cluster, made)
    for name in names:
        play.at(0.0, partial(play.begin, name))
    for number in range(story.pods // story.gang):
        play.at(number * story.gang / story.per_s, partial(play.come, number))
    play.run()
    tally = made.tally
    return Shown(tally.conflict_rate, tally.placed, play.last_s, tally.cycles)


class _Play:
    def __init__(self, story: Story, cluster: Workloads, replicas: Replicas) -> None:
        self._story, self._cluster, self._replicas = story, cluster, replicas
        self._chance = random.Random(story.nodes)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._begun_at: dict[str, float] = {}
        self._seen: dict[str, int] = {}
        self._due_at: dict[str, float] = {}
        self._conflicts: dict[str, int] = {}
        self._quiet: set[str] = set()
        self._epoch = cluster.now
        self._left = story.pods // story.gang
        self._running = 0
        self.now_s = self.last_s = 0.0

    def at(self, at_s: float, do: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (at_s, self._number, do))

    def run(self) -> None:
        """Go on until nothing comes, ends or is placed any more."""
        while self._queue and not self._is_over():
            self.now_s, _, do = heapq.heappop(self._queue)
            self._cluster.now = max(self._cluster.now, self._epoch + int(self.now_s * 1e6))
            do()

    def _is_over(self) -> bool:
        return not (self._left or self._running) and len(self._quiet) == len(self._seen) > 0

    def come(self, number: int) -> None:
        spec = shape(number) | {"created_at": self._cluster.now // 1_000_000}
        self._left -= 1
        if self._story.gang > 1:
            self._cluster.gang(f"g{number:05}", self._story.gang, **spec)
        else:
            self._cluster.add_pod(pod(f"p{number:06}", owner=OWNER, **spec))

    def begin(self, name: str) -> None:
        """A replica decides, if anything has happened since it did, or something is due."""
        revision = self._cluster.state.revision
        if self._seen.get(name) == revision and self.now_s < self._due_at[name]:
            self._quiet.add(name)
            self.at(self.now_s + _RETRY_S, partial(self.begin, name))
            return
        self._quiet.discard(name)
        self._seen[name], self._begun_at[name] = revision, self.now_s
        self._due_at[name] = float("inf")
        if not self._replicas.begin(name):
            self.at(self.now_s + _RETRY_S, partial(self.begin, name))
            return
        self.at(self.now_s + self._took(self._replicas.begun[name]), partial(self.end, name))

    def _took(self, proposal: Proposal) -> float:
        return self._story.cycle_s + self._story.pod_s * len(proposal.result.placements)

    def end(self, name: str) -> None:
        """A replica appends what it decided; pods run."""
        proposal, tally = self._replicas.begun[name], self._replicas.tally
        events, conflicts = len(self._cluster.events), tally.conflicts
        if self._replicas.end(name):
            self.last_s = self.now_s
        lost = tally.conflicts > conflicts
        self._conflicts[name] = self._conflicts.get(name, 0) + 1 if lost else 0
        wait = min(_BACKOFF_S * 2 ** (self._conflicts[name] - 1), _BACKOFF_MOST_S) if lost else 0.0
        if due := proposal.result.due:
            self._due_at[name] = max((due - self._epoch) / 1e6, self.now_s)
        if lost:
            self._due_at[name] = self.now_s
        self.at(max(self._begun_at[name] + _PERIOD_S, self.now_s + wait), partial(self.begin, name))
        if self._story.runs_s is not None:
            for event in self._cluster.events[events:]:
                if event.type == PodPlaced.__name__:
                    self._start(event.subject.partition("/")[2])

    def _start(self, name: str) -> None:
        assert self._story.runs_s is not None
        entry = self._cluster.state.pods[f"uid-{name}"]
        assert entry.stage is Stage.PLACED
        self._cluster.run(entry.pod)
        self._running += 1
        self.at(self.now_s + self._chance.uniform(*self._story.runs_s), partial(self._end_of, entry.pod.uid))

    def _end_of(self, uid: str) -> None:
        self._running -= 1
        self._cluster.delete_pod(self._cluster.state.pods[uid].pod)


def figures() -> Iterator[Figure]:
    for name, story in STORIES.items():
        for replicas in (2, 4):
            run = shown(story, replicas)
            what = f"scale: {replicas} replicas, simulated time, {story.nodes} nodes, a cluster that {name}"
            yield Figure(f"{what}: conflicts", round(run.conflict_rate * 100, 2), "% of units", 0)
            yield Figure(f"{what}: last of {run.placed} placed", round(run.last_s, 2), "s", 0)
