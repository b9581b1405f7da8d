"""Random gangs with honest limits over time: promises are kept, all start, and what was recorded replays."""

from typing import Any, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st
from kaicore.rules.engine.config import Action, Backfill, EngineConfig
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.events.payloads import TopologyDefinitionObserved
from kaicore.rules.events.reasons.making_room import RoomPromised
from kaicore.rules.model.group import TopologyConstraint
from kaicore.rules.model.node import KAI_TOPOLOGY, TopologyDefinition, TopologyLevel
from kaicore.rules.model.pod import Pod
from msgspec.structs import replace

from tests.given.cluster.factory import pod
from tests.given.examples import examples
from tests.given.logs.replaying import replayed
from tests.given.work.workloads import Workloads

_MINUTE_US = 60_000_000
#: What a story's own clock adds to a cycle's: each event is a millisecond.
_LATE_US = 1_000_000
_CONFIG = EngineConfig(actions=(Action.ALLOCATE,), backfill=Backfill.EASY, hold_after_us=0)
_CONSERVATIVE = replace(_CONFIG, backfill=Backfill.CONSERVATIVE, most_promises=3)
_ALONE_TOO = replace(_CONFIG, promise_alone_after_us=5 * _MINUTE_US)


class Job(NamedTuple):
    """A gang: when it comes after the one before, and what it asks for; times in minutes.

    Attributes:
        spare: how much longer than it runs it says.
    """

    after: int
    pods: int
    gpu: int
    runs: int
    spare: int


jobs = st.lists(
    st.builds(Job, st.integers(0, 5), st.integers(1, 4), st.integers(1, 8), st.integers(1, 30), st.integers(0, 20)),
    min_size=2,
    max_size=14,
)


class Story:
    """Gangs on some nodes of 8 GPUs, until all have started."""

    def __init__(self, nodes: int, *, limits: bool, config: EngineConfig = _CONFIG) -> None:
        self.cluster, self._limits, self._config = Workloads(), limits, config
        self.cluster.add_nodes(nodes, cpu=64, memory=256, gpu=8)
        self._ends: dict[str, tuple[int, list[Pod]]] = {}
        self._open: dict[str, tuple[Job, list[Pod]]] = {}
        #: By group, until when it was promised a start first.
        self.promised: dict[str, int] = {}

    def run(self, coming: list[Job]) -> None:
        """Have all come, start and end."""
        arrivals, at = [], self.cluster.now
        for number, job in enumerate(coming):
            at += job.after * _MINUTE_US
            arrivals.append((at, f"g{number}", job))
        while arrivals or self._open:
            while arrivals and arrivals[0][0] <= self.cluster.now:
                _, name, job = arrivals.pop(0)
                self._come(name, job)
            for name in [name for name, (end, _) in self._ends.items() if end <= self.cluster.now]:
                for one in self._ends.pop(name)[1]:
                    self.cluster.delete_pod(one)
            self._see(self.cluster.now, self.cluster.cycle(self._config))
            times = [end for end, _ in self._ends.values()] + [at for at, _, _ in arrivals[:1]]
            assert times or not self._open, "nothing runs, and something waits for ever"
            self.cluster.now = max(min(times, default=0), self.cluster.now)

    def _come(self, name: str, job: Job) -> None:
        limit = (job.runs + job.spare) * 60 if self._limits else 0
        created = self.cluster.now // 1_000_000
        spec = {"cpu": 1, "memory": 1, "gpu": job.gpu, "created_at": created, "active_deadline_s": limit}
        self._open[name] = job, self.cluster.gang(name, job.pods, group={"created_at": created}, **spec)

    def _see(self, now: int, result: CycleResult) -> None:
        for name in sorted({decision.name.rpartition("-")[0] for decision in result.placements}):
            job, pods = self._open.pop(name)
            self._ends[name] = now + job.runs * _MINUTE_US, pods
            late = now > self.promised.get(name, now) + _LATE_US
            # Only the first promise of all stands whatever the groups that start sooner leave of the nodes.
            assert not late or self._config is not _CONFIG, f"{name} starts later than it was promised"
        found = [(one.group, reason) for one in result.groups for reason in one.reasons]
        standing = [(key, reason) for key, reason in found if isinstance(reason, RoomPromised)]
        assert len(standing) <= (1 if self._config is _CONFIG else self._config.most_promises)
        for key, reason in standing:
            if self._limits:
                assert not reason.unlimited
                # 0: what it waits for is at its limit, and about to be gone.
                assert reason.starts_at == 0 or reason.starts_at > now
                if reason.starts_at:
                    self.promised.setdefault(key.rpartition("/")[2], reason.starts_at)


def fitting(nodes: int, coming: list[Job]) -> list[Job]:
    """Leave out what would not fit on an empty cluster."""
    return [job for job in coming if job.pods <= nodes * (8 // job.gpu)]


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 4), jobs)
def test_promised_start_is_never_delayed_by_what_ends_within_its_limit(nodes: int, coming: list[Job]) -> None:
    Story(nodes, limits=True).run(fitting(nodes, coming))


#: Two gangs that were promised the same node at once: each kept the other from starting.
_BOTH_NOW = [
    *(Job(0, 1, 5, 2, 0), Job(0, 2, 1, 1, 0), Job(1, 2, 1, 1, 0), Job(1, 3, 2, 2, 0), Job(0, 1, 5, 1, 0)),
    *(Job(1, 1, 5, 2, 0), Job(1, 2, 8, 1, 0), Job(1, 2, 8, 5, 0), Job(0, 1, 8, 1, 0)),
    *(Job(0, 1, 1, 1, 0), Job(1, 3, 1, 2, 0), Job(1, 3, 2, 1, 0)),
]


@settings(max_examples=examples(20), deadline=None)
@example(2, _BOTH_NOW, False, _CONSERVATIVE)
@given(st.integers(1, 3), jobs, st.booleans(), st.sampled_from((_CONFIG, _CONSERVATIVE, _ALONE_TOO)))
def test_story_with_promises_replays_without_differences(
    nodes: int, coming: list[Job], limits: bool, config: EngineConfig
) -> None:
    story = Story(nodes, limits=limits, config=config)
    story.run(fitting(nodes, coming))
    assert replayed(story.cluster.events).differences == []


class Running(NamedTuple):
    """A pod that runs: on which node, its GPUs, and the minutes that its limit leaves it."""

    node: int
    gpu: int
    left: int


def _starts(running: list[Running], gang: tuple[int, int], *, near: bool, at: int) -> tuple[list[Any], int]:
    """Have a gang wait beside what runs after so many minutes; return its reasons, and how many of its pods start."""
    cluster = Workloads()
    levels = (TopologyLevel("rack", ("rack",)),)
    cluster.record(
        "topology/t", TopologyDefinitionObserved(TopologyDefinition(KAI_TOPOLOGY, "t", "uid-t", "1", levels))
    )
    for number in range(4):
        cluster.add_node(f"n{number}", cpu=64, memory=256, gpu=8, labels={"rack": f"r{number % 2}"})
    free, began = [8] * 4, cluster.now // 1_000_000
    for number, one in enumerate(running):
        free[one.node] -= one.gpu
        if free[one.node] >= 0 and one.left > at:
            where = {"node_name": f"n{one.node}", "phase": "Running", "start_time": began}
            limit = {"active_deadline_s": one.left * 60}
            cluster.add_pod(pod(f"run-{number}", cpu=1, memory=1, gpu=one.gpu, **where, **limit))
        elif free[one.node] < 0:
            free[one.node] += one.gpu
    count, gpu = gang
    topology = TopologyConstraint("t", required="rack") if near else None
    cluster.gang("gang", count, topology=topology, cpu=1, memory=1, gpu=gpu)
    result = cluster.cycle(_CONFIG)
    return [reason for one in result.groups for reason in one.reasons], len(result.placements)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.builds(Running, st.integers(0, 3), st.integers(1, 8), st.integers(1, 9)), max_size=16),
    st.tuples(st.integers(2, 6), st.integers(1, 8)),
    st.booleans(),
)
def test_promised_start_is_the_first_end_after_which_the_gang_fits(
    running: list[Running], gang: tuple[int, int], near: bool
) -> None:
    reasons, placed = _starts(running, gang, near=near, at=0)
    promises = [reason for reason in reasons if isinstance(reason, RoomPromised)]
    fitting = [at for at in range(10) if _starts(running, gang, near=near, at=at)[1]]
    assert bool(promises) == (not placed and bool(fitting))
    for promise in promises:
        began = Workloads().now // 1_000_000
        assert promise.starts_at // 1_000_000 - began == fitting[0] * 60


class Aged(NamedTuple):
    """A pod without a limit that runs: on which node, and its GPUs."""

    node: int
    gpu: int


def _promised(result: CycleResult) -> RoomPromised | None:
    found = (reason for one in result.groups for reason in one.reasons if isinstance(reason, RoomPromised))
    return next(found, None)


def _fits_after(promise: RoomPromised, running: list[tuple[int, Aged]], gang: tuple[int, int], ends: int) -> bool:
    """Tell whether a gang fits on promised nodes once so many pods there are gone, the youngest first."""
    count, gpu = gang
    there = [one for _, one in sorted(running, reverse=True) if f"n{one.node}" in promise.names.split(", ")]
    free = dict.fromkeys(promise.names.split(", "), 8)
    for one in there[ends:]:
        free[f"n{one.node}"] -= one.gpu
    return sum(left // gpu for left in free.values()) >= count


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.builds(Aged, st.integers(0, 3), st.integers(1, 8)), max_size=16),
    st.tuples(st.integers(2, 6), st.integers(1, 8)),
    st.sets(st.integers(0, 15), max_size=3),
    st.sampled_from((0, 30, 60)),
)
def test_held_room_is_enough_whichever_pods_end_and_whenever_it_was_looked_for(
    pods: list[Aged], gang: tuple[int, int], ended: set[int], seconds: int
) -> None:
    cluster = Workloads().add_nodes(4, cpu=64, memory=256, gpu=8)
    free, began = [8] * 4, cluster.now // 1_000_000
    running: dict[int, tuple[Aged, Pod]] = {}
    for number, one in enumerate(pods):
        if free[one.node] >= one.gpu:
            free[one.node] -= one.gpu
            where = {"node_name": f"n{one.node}", "phase": "Running", "start_time": began + number * 60 - 3_600}
            running[number] = one, cluster.add_pod(pod(f"run-{number}", cpu=1, memory=1, gpu=one.gpu, **where))
    cluster.gang("gang", gang[0], cpu=1, memory=1, gpu=gang[1])
    first = _promised(cluster.cycle(_CONFIG))
    for number in sorted(ended & running.keys()):
        cluster.delete_pod(running.pop(number)[1])
    cluster.now += seconds * 1_000_000
    kept = _promised(cluster.cycle(_CONFIG))
    if kept is not None:
        left = [(number, one) for number, (one, _) in running.items()]
        assert _fits_after(kept, left, gang, kept.unlimited)
        assert not _fits_after(kept, left, gang, 0)
        assert first is None or kept.since == first.since
        assert kept.looked_at or (first is not None and seconds < 60) or kept.since >= cluster.now - 1_000_000


class Small(NamedTuple):
    """Small pods of a stream: when one comes after the one before, and how long it runs, in minutes."""

    after: int
    gpu: int
    runs: int


#: A pod of a whole node is promised a start after so many minutes; pods of the stream run for at most so many.
_AFTER, _LONGEST = 60, 40
#: Two pods at a time, each of which ends in the middle of the other one's run: the node is never empty.
_RELAY = [Small(15, 1, 30)] * 40


def _wait_behind(stream: list[Small], *, limits: bool, config: EngineConfig) -> int | None:
    """Return for how many minutes a pod of a whole node waits behind a stream of small ones; None if to its end."""
    cluster = Workloads().add_node("n0", cpu=64, memory=256, gpu=8)
    began, at = cluster.now, 0
    ends: list[tuple[int, Pod]] = []
    for number, small in enumerate([Small(0, 1, _LONGEST), *stream]):
        at += small.after
        cluster.now = max(cluster.now, began + at * _MINUTE_US)
        for _, one in [end for end in ends if end[0] <= at]:
            cluster.delete_pod(one)
        ends = [end for end in ends if end[0] > at]
        spec: dict[str, Any] = {"cpu": 1, "memory": 1, "created_at": cluster.now // 1_000_000}
        limit = (small.runs + 1) * 60 if limits else 0
        one = cluster.add_pod(pod(f"small-{number}", gpu=small.gpu, active_deadline_s=limit, **spec))
        if number == 1:
            cluster.add_pod(pod("whole", gpu=8, **spec))
        started = cluster.placed(cluster.cycle(config))
        if "whole" in started:
            return at
        if one.name in started:
            ends.append((at + small.runs, one))
        else:
            cluster.delete_pod(one)
    return None


@settings(max_examples=examples(30), deadline=None)
@example(_RELAY, True)
@example(_RELAY, False)
@given(
    st.lists(st.builds(Small, st.integers(1, 20), st.integers(1, 4), st.integers(1, _LONGEST)), min_size=1),
    st.booleans(),
)
def test_pod_alone_does_not_starve_behind_a_stream_of_smaller_ones(stream: list[Small], limits: bool) -> None:
    config = replace(_CONFIG, promise_alone_after_us=_AFTER * _MINUTE_US)
    waited = _wait_behind([*stream, *_RELAY], limits=limits, config=config)
    # It starts with the first arrival after the last of those ended that ran when it was promised its start.
    assert waited is not None
    assert waited <= stream[0].after + _AFTER + 20 + _LONGEST + 20


def test_pod_alone_starves_behind_a_stream_of_smaller_ones_where_nothing_is_promised() -> None:
    for config in (_CONFIG, replace(_CONFIG, backfill=Backfill.OFF)):
        assert _wait_behind(_RELAY, limits=True, config=replace(config, promise_alone_after_us=0)) is None
