"""The product's own engine over jobs in virtual time: cycles decide, pods run, end, are evicted and are made again."""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import msgspec
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.events import payloads
from kaicore.rules.model.group import TopologyConstraint
from kaicore.rules.model.node import KAI_TOPOLOGY, TopologyDefinition, TopologyLevel
from kaicore.rules.model.pod import Owner, Pod, QosClass

from tests.given.cluster.factory import pod
from tests.given.work.workloads import Workloads
from tests.measured.league.jobs import Setting
from tests.measured.league.ours import add_nodes, container_of, models_of
from tests.measured.league.records import Record, Stint

_SECOND_US = 1_000_000
#: Cycles at one moment after which no more are run before something happens.
_MOST_ROUNDS = 16
_SWITCH = "league/access-switch"


@dataclass(slots=True)
class LiveJob:
    """A job that waits or runs.

    Attributes:
        pods: by name.
        placed: when and on which row, by name of pod.
        left: how long it still has to run, seconds: as of its last checkpoint before it began.
        began: when all of its pods were on nodes last; None while they are not.
        checkpoint: when it wrote the last checkpoint that the pods say, seconds.
        turn: how often they began to; the end that an earlier turn would have had does not come.
    """

    record: Record
    pods: dict[str, Pod] = field(default_factory=dict)
    placed: dict[str, tuple[int, int]] = field(default_factory=dict)
    left: int = 0
    began: int | None = None
    checkpoint: int = 0
    turn: int = 0


class EngineRun:
    """The engine over all jobs; it knows their limits or does not, and sees their pods run or does not."""

    def __init__(self, given: Setting, config: EngineConfig, *, limits: bool, seen: bool = True) -> None:
        """Args:
        given: nodes and jobs. Where the nodes are on a network, jobs of several pods prefer one access switch.
        config: the shard's settings.
        limits: whether the pods declare how long they may run.
        seen: whether the log has that pods run; without, only that they were placed.
        """
        self.cluster = Workloads()
        self._given, self._config, self._limits, self._seen = given, config, limits, seen
        if given.domains:
            levels = (TopologyLevel("switch", (_SWITCH,)),)
            definition = TopologyDefinition(KAI_TOPOLOGY, "network", "uid-network", "1", levels)
            self.cluster.record("topology/network", payloads.TopologyDefinitionObserved(definition))
        add_nodes(self.cluster, given.nodes, labels=[{_SWITCH: one.replace("/", "-")} for one in given.domains])
        self._epoch_s = self.cluster.now // _SECOND_US + 1
        self._live: dict[str, LiveJob] = {}
        self._ending: list[tuple[int, str, int]] = []
        #: Successors of evicted pods that are yet to come, by when and by name.
        self._returning: list[tuple[int, str, Pod]] = []
        #: What happens to nodes: when, its number, and what is done; empty in most runs.
        self._happening: list[tuple[int, int, Callable[[int], None]]] = []

    def records(self) -> list[Record]:
        """Return what becomes of each job."""
        records = [Record(job) for job in self._given.jobs]
        coming = list(reversed(records))
        now = 0
        while now <= self._given.until:
            self.cluster.now = max((self._epoch_s + now) * _SECOND_US, self.cluster.now)
            while coming and coming[-1].job.arrives <= now:
                self._come(coming.pop())
            while self._ending and self._ending[0][0] <= now:
                _, name, turn = heappop(self._ending)
                if name in self._live and self._live[name].turn == turn:
                    self._end(name, now)
            while self._returning and self._returning[0][0] <= now:
                _, name, again = heappop(self._returning)
                name = name.rpartition("-")[0]
                self._live[name].pods[again.name] = self.cluster.add_pod(again)
            while self._happening and self._happening[0][0] <= now:
                heappop(self._happening)[2](now)
            self._write_checkpoints(now)
            for _ in range(_MOST_ROUNDS):
                # A cycle that decides something is followed by another one, as the scheduler does.
                result = self.cluster.cycle(self._config)
                if not result.placements and not result.evictions:
                    break
                self._carry_out(result, now)
            times = [one[0] for one in (*self._ending[:1], *self._returning[:1], *self._happening[:1])]
            times += [record.job.arrives for record in coming[-1:]]
            if not times:
                break
            now = max(min(times), now + 1)
        for live in self._live.values():
            for name in live.placed:
                self._off(live, name, self._given.until)
        return records

    def _come(self, record: Record) -> None:
        job, name = record.job, f"g{record.job.number:05}"
        live = self._live[name] = LiveJob(record, left=job.runs)
        spec: dict[str, Any] = {
            "created_at": self._epoch_s + job.arrives,
            "containers": (container_of(job.each),),
            "node_affinity": models_of(job.each),
            "owner": Owner("Job", name, f"uid-job-{name}"),
            "qos": QosClass.BURSTABLE,
        }
        if self._limits:
            spec["active_deadline_s"] = job.limit
        if job.pods == 1:
            pods = [self.cluster.add_pod(pod(f"{name}-0", **spec))]
        else:
            near = TopologyConstraint("network", preferred=_SWITCH) if self._given.domains else None
            group = {"created_at": spec["created_at"]}
            pods = self.cluster.gang(name, job.pods, group=group, topology=near, **spec)
        live.pods = {one.name: one for one in pods}

    def _write_checkpoints(self, now: int) -> None:
        """Running pods say when their jobs last wrote a checkpoint, where the next cycle could ask."""
        every = self._given.checkpoint_s
        if not (every and self._seen and any(live.began is None for live in self._live.values())):
            return
        for live in self._live.values():
            at = now - (now - live.began) % every if live.began is not None else 0
            if live.began is not None and at > max(live.began, live.checkpoint):
                live.checkpoint = at
                for one in live.pods.values():
                    self.cluster.see(one, checkpoint_at=self._epoch_s + at)

    def _carry_out(self, result: CycleResult, now: int) -> None:
        for eviction in result.evictions:
            name = eviction.name.rpartition("-")[0]
            live = self._live[name]
            live.record.evicted += 1
            live.record.lost_gpu_s += eviction.lost_gpu_seconds
            self._again(live, eviction.name, now)
        for decision in result.placements:
            name = decision.name.rpartition("-")[0]
            live = self._live[name]
            live.placed[decision.name] = now, int(decision.node.removeprefix("n"))
            if self._seen:
                self.cluster.run(live.pods[decision.name])
            if len(live.placed) == live.record.job.pods:
                live.turn += 1
                live.began = now
                self._begins(name, live, now)
                if live.record.started is None:
                    live.record.started = now
                    live.record.rows = tuple(row for _, row in live.placed.values())

    def _begins(self, name: str, live: LiveJob, now: int) -> None:
        """All pods of a job are on nodes."""
        heappush(self._ending, (now + live.left, name, live.turn))

    def _again(self, live: LiveJob, name: str, now: int) -> None:
        """A pod was evicted: its controller makes another one, and the job goes on from its last checkpoint."""
        live.turn += 1
        if live.began is not None:
            every = self._given.checkpoint_s
            live.left -= (now - live.began) // every * every if every else 0
            live.began = None
        self._off(live, name, now)
        del live.placed[name]
        before = live.pods.pop(name)
        self.cluster.delete_pod(before)
        comes = now + self._given.away_s
        again = msgspec.structs.replace(
            before,
            uid=f"{before.uid}+",
            name=f"{before.name}+",
            node_name="",
            phase="Pending",
            created_at=max(self.cluster.now // _SECOND_US, self._epoch_s + comes),
        )
        if self._given.away_s:
            heappush(self._returning, (comes, again.name, again))
        else:
            live.pods[again.name] = self.cluster.add_pod(again)

    def _end(self, name: str, now: int) -> None:
        live = self._live.pop(name)
        live.record.ended = now
        for one in live.pods.values():
            self._off(live, one.name, now)
            self.cluster.delete_pod(one)

    def _off(self, live: LiveJob, name: str, now: int) -> None:
        begin, row = live.placed[name]
        live.record.stints.append(Stint(begin, now, row, live.record.job.each.gpus))
