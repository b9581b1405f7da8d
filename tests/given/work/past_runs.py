"""Clusters with a past: pods that ran for so long, and what of it a history keeps."""

import heapq
import random
from collections.abc import Iterable

from kaicore.rules.deciding.forecast.runs import RunHistory
from kaicore.rules.model.pod import Owner

from tests.given.cluster.factory import amounts, pod
from tests.given.work.groups import job
from tests.given.work.workloads import Workloads

SECOND = 1_000_000


class PastRuns(Workloads):
    """A cluster with a clock that can be put on, and events for a history."""

    def after(self, seconds: float) -> None:
        """So much time passes."""
        self.now += int(seconds * SECOND)

    def ran(self, name: str, seconds: float, *, phase: str = "Succeeded", **spec: object) -> None:
        """A pod of a Job of its own runs for so long, on a node that is there no more."""
        spec.setdefault("owner", Owner("Job", name, f"uid-job-{name}", "batch/v1"))
        start = self.now // SECOND
        began = self.now
        one = self.add_pod(pod(name, phase="Running", node_name="gone", start_time=start, created_at=start, **spec))
        self.now = began + int(seconds * SECOND) - 1000
        self.see(one, phase=phase)
        self.delete_pod(self.state.pods[one.uid].pod)

    def have_run(self, pattern: str, lengths: Iterable[float], **spec: object) -> None:
        """Pods `<pattern>-<number>` ran for so many seconds, one after the other."""
        for number, seconds in enumerate(lengths):
            self.ran(f"{pattern}-{number}", seconds, **spec)

    def history(self) -> RunHistory:
        runs = RunHistory()
        for event in self.events:
            runs.take(event)
        return runs


def busy_cluster(*, nodes: int, jobs: int, mean_s: float, load: float, seed: int) -> PastRuns:
    """Jobs of one whole node come at random and run for exponential times."""
    chance = random.Random(seed)
    cluster = PastRuns()
    cluster.add_nodes(nodes, amounts(cpu=16, memory=64, gpu=4))
    begin = cluster.now
    #: When what happens, microseconds: ends before arrivals.
    happening: list[tuple[int, int, str]] = []
    at = 0.0
    for number in range(jobs):
        at += chance.expovariate(load * nodes / mean_s)
        heapq.heappush(happening, (begin + int(at * SECOND), 1, f"train-{number}"))
    while happening:
        now, arrives, name = heapq.heappop(happening)
        cluster.now = max(cluster.now, now)
        if arrives:
            owner = job(cluster, name)
            cluster.add_pod(pod(name, cpu=16, memory=64, gpu=4, owner=owner, created_at=now // SECOND))
        else:
            cluster.see(cluster.state.pods[f"uid-{name}"].pod, phase="Succeeded")
            cluster.delete_pod(cluster.state.pods[f"uid-{name}"].pod)
        for decision in cluster.cycle().placements:
            one = cluster.state.pods[decision.uid].pod
            start = cluster.now // SECOND
            cluster.see(one, node_name=decision.node, phase="Running", start_time=start)
            end = cluster.now + int(chance.expovariate(1 / mean_s) * SECOND)
            heapq.heappush(happening, (end, 0, one.name))
    return cluster
