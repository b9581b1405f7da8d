"""The gang league: gangs over time through the product's own engine, in virtual time, beside baselines.

`python -m tests.league gangs [--nodes 64] [--days 4] [--seeds 1 2 3] [--load 1.05] [--policies easy-limits ours-easy]`.

Gangs are of 1 GPU up to a quarter of the cluster, and most are small. Run times are lognormal. A gang declares one to
three times its run time as its limit, in policies with limits. The engine only starts: nothing is evicted.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from statistics import mean
from typing import NamedTuple, Protocol

import numpy as np
from kaicore.rules.engine.config import Action, Backfill, EngineConfig
from kaicore.rules.model.pod import Pod
from msgspec.structs import replace

from tests.factory import container, pod
from tests.league.backfill import BASELINES, PER_NODE, Gang, baseline
from tests.workloads import Workloads

_HOUR_S, _DAY_S = 3_600, 86_400
#: Arrivals and ends are at whole minutes, so that several of them are looked at together.
_MINUTE_S = 60
#: Of run times: the median, and the spread of their logarithm.
_MEDIAN_S, _SPREAD = _HOUR_S, 1.0
#: Part of the time: later arrivals need not have started by the end, and from which GAR counts.
_SETTLED, _WARM = 0.8, 0.2


def gangs(*, nodes: int, days: float, load: float, seed: int) -> list[Gang]:
    """Return gangs as they arrive; their GPU-hours are `load` times what the cluster has in that time."""
    random = np.random.default_rng(seed)
    largest = nodes * PER_NODE // 4
    sizes = [2**power for power in range(largest.bit_length()) if 2**power <= largest]
    # Half as many of each further size from one node on; the smaller ones are alike.
    weights = np.array([1.0 if size < PER_NODE else 2.0 ** -(size.bit_length() - 4) for size in sizes])
    until, total = days * _DAY_S, 0.0
    drawn: list[tuple[int, int, int]] = []
    while total < load * nodes * PER_NODE * until:
        size = int(random.choice(sizes, p=weights / weights.sum()))
        runs = max(int(random.lognormal(np.log(_MEDIAN_S), _SPREAD)) // _MINUTE_S, 1) * _MINUTE_S
        drawn.append((size, runs, int(runs * random.uniform(1, 3)) // _MINUTE_S * _MINUTE_S))
        total += size * runs
    arrivals = sorted(int(at) // _MINUTE_S * _MINUTE_S for at in random.uniform(0, until, len(drawn)))
    return [Gang(number, at, *drawn[number]) for number, at in enumerate(arrivals)]


class EngineRun:
    """The engine over gangs; it knows their limits or does not, and sees their pods run or does not."""

    def __init__(self, nodes: int, config: EngineConfig, *, limits: bool, seen: bool = False) -> None:
        self.cluster = Workloads()
        self._config, self._limits, self._seen = config, limits, seen
        for number in range(nodes):
            self.cluster.add_node(f"n{number:04}", cpu=128, memory=1024, gpu=PER_NODE)
        self._epoch_s = self.cluster.now // 1_000_000 + 1

    def starts(self, arriving: Sequence[Gang], *, until: int) -> Iterator[tuple[int, int]]:
        """Yield when each gang starts that does, seconds from the beginning."""
        coming = list(reversed(arriving))
        pods: dict[str, tuple[Gang, list[Pod]]] = {}
        ending: list[tuple[int, str]] = []
        now = 0
        while now <= until:
            self.cluster.now = max((self._epoch_s + now) * 1_000_000, self.cluster.now)
            while coming and coming[-1].arrives <= now:
                gang = coming.pop()
                pods[f"g{gang.number:05}"] = gang, self._come(gang)
            while ending and ending[0][0] <= now:
                for one in pods.pop(heappop(ending)[1])[1]:
                    self.cluster.delete_pod(one)
            # A cycle that decides something is followed by another one, as the scheduler does.
            while names := {
                decision.name.rpartition("-")[0] for decision in self.cluster.cycle(self._config).placements
            }:
                for name in sorted(names):
                    gang, members = pods[name]
                    if self._seen:
                        self.cluster.run(members)
                    heappush(ending, (now + gang.runs, name))
                    yield gang.number, now
            times = [one[0] for one in ending[:1]] + [gang.arrives for gang in coming[-1:]]
            if not times:
                return
            now = max(min(times), now + 1)

    def _come(self, gang: Gang) -> list[Pod]:
        name, each = f"g{gang.number:05}", container(cpu=1, memory=1, gpu=min(gang.gpus, PER_NODE))
        spec = {"created_at": self._epoch_s + gang.arrives, "containers": (each,)}
        limit = {"active_deadline_s": gang.limit} if self._limits else {}
        if gang.pods == 1:
            return [self.cluster.add_pod(pod(f"{name}-0", **spec, **limit))]
        return self.cluster.gang(name, gang.pods, group={"created_at": spec["created_at"]}, **spec, **limit)


class _Policy(Protocol):
    def starts(self, gangs: Sequence[Gang], /, *, until: int) -> Iterator[tuple[int, int]]: ...


def policies(nodes: int) -> dict[str, Callable[[], _Policy]]:
    """Return what makes each policy for one run, by name."""
    starting = (Action.ALLOCATE,)
    off = EngineConfig(actions=starting, backfill=Backfill.OFF)
    easy = EngineConfig(actions=starting, backfill=Backfill.EASY)
    expecting = replace(easy, run_time_per_cent=75)
    return {
        **{name: partial(baseline, nodes, name) for name in BASELINES},
        "ours-off": lambda: EngineRun(nodes, off, limits=True),
        "ours-easy": lambda: EngineRun(nodes, easy, limits=True),
        "ours-conservative": lambda: EngineRun(nodes, replace(easy, backfill=Backfill.CONSERVATIVE), limits=True),
        "ours-hold": lambda: EngineRun(nodes, easy, limits=False),
        "ours-runs": lambda: EngineRun(nodes, expecting, limits=False, seen=True),
    }


class Figures(NamedTuple):
    """The result of a run.

    Attributes:
        gar: GPUs allocated, per cent, after the time to warm up.
        mean_h: mean wait in hours; what has not started by the end has waited until then.
        worst_h: the worst wait of gangs of at least a quarter of the largest.
        never: how many gangs of those that arrived early enough never started.
    """

    gar: float
    mean_h: float
    worst_h: float
    never: int


def figures(arriving: Sequence[Gang], started: dict[int, int], *, nodes: int, until: int) -> Figures:
    """Return the figures of a run."""
    warm = int(until * _WARM)
    held = 0
    for gang in arriving:
        at = started.get(gang.number)
        if at is not None:
            held += gang.gpus * max(min(at + gang.runs, until) - max(at, warm), 0)
    early = [gang for gang in arriving if gang.arrives <= until * _SETTLED]
    waits = {gang: started.get(gang.number, until) - gang.arrives for gang in early}
    largest = max(gang.gpus for gang in arriving)
    worst = max(wait for gang, wait in waits.items() if gang.gpus * 4 >= largest)
    return Figures(
        gar=held * 100 / (nodes * PER_NODE * (until - warm)),
        mean_h=mean(waits.values()) / _HOUR_S,
        worst_h=worst / _HOUR_S,
        never=sum(gang.number not in started for gang in early),
    )


def main(arguments: Sequence[str]) -> None:
    """Print a row for each policy: means over seeds, and the worst of all seeds."""
    parser = argparse.ArgumentParser(prog="tests.league gangs", description=__doc__)
    parser.add_argument("--nodes", type=int, default=64, help="of 8 GPUs each")
    parser.add_argument("--days", type=float, default=4)
    parser.add_argument("--load", type=float, default=1.05, help="GPU-hours that arrive, for each that there is")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    names = sorted(policies(1))
    parser.add_argument("--policies", nargs="+", choices=names, default=list(policies(1)))
    given = parser.parse_args(arguments)
    print(f"{given.nodes} nodes, {given.days:g} days, load {given.load:g}, {len(given.seeds)} seeds")
    print("policy        GAR %  mean wait h  worst wait of the largest h  never started  s a run")
    until = int(given.days * _DAY_S)
    for name in given.policies:
        began, found = time.perf_counter(), []
        for seed in given.seeds:
            arriving = gangs(nodes=given.nodes, days=given.days, load=given.load, seed=seed)
            started = dict(policies(given.nodes)[name]().starts(arriving, until=until))
            found.append(figures(arriving, started, nodes=given.nodes, until=until))
        each = (time.perf_counter() - began) / len(found)
        worst = " ".join(f"{one.worst_h:.1f}" for one in found)
        print(
            f"{name:12} {mean(one.gar for one in found):6.2f} {mean(one.mean_h for one in found):12.2f}"
            f" {mean(one.worst_h for one in found):9.1f} ({worst}) {sum(one.never for one in found):8} {each:10.1f}",
            flush=True,
        )
