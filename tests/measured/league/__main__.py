"""Run the league: `python -m tests.measured.league [--list default] [--policies ours]`, or `… over-time`."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import msgspec
from kaicore.rules.engine.config import EngineConfig, PlacementStrategy

from tests.measured.league import bound, defaults, month, ours, over_time, plot
from tests.measured.league.baselines import (
    Fgd,
    Left,
    Policy,
    allocated,
    at_random,
    best_fit,
    least_allocated,
    most_allocated,
    packing,
)
from tests.measured.league.openb import LISTS, MILLI, Nodes, Task, arrivals, folder, nodes, published, tasks

#: How much has arrived when figures are taken, in per cent of all GPUs.
_MARKS = (100, 130)
#: Nothing is compared unless FGD holds what its authors publish: in the mean of these seeds and others, within so much.
_SEEDS, _NEAR = (42, 43, 44), 0.3
_HOUR_US = 3_600_000_000
#: Victims that a cycle tries where moves have a rate: exchanges find nearly all that pays, and the rest takes hours.
_FEW_STEPS = 500
Run = Callable[[Nodes, Sequence[Task], int, Left], Iterator[tuple[int, int]]]


def _alone(policy: Callable[[int], Policy]) -> Run:
    return lambda all_nodes, arriving, seed, left: allocated(all_nodes.shuffled(seed), arriving, policy(seed), left)


def policies(listed: Sequence[Task], moves: ours.Moves, at_once: int) -> dict[str, Run]:
    """Return runs of all policies by name; those that move pods count that in `moves`."""
    sharing = EngineConfig(gpu_sharing=any(task.shares for task in listed))
    # Where all tasks have shares, or some name models, the cluster is full earlier.
    full = 92 if any(task.models for task in listed) else 95
    full = full if any(task.gpus and not task.shares for task in listed) else 85

    def engine(*, at_once: int = ours.AT_ONCE, largest_first: bool = False, claims: bool = False, **given: Any) -> Run:
        config = msgspec.structs.replace(sharing, **given)
        how: dict[str, Any] = {"at_once": at_once, "largest_first": largest_first, "claims": claims}
        return lambda all_nodes, arriving, _, left: ours.allocated(all_nodes, arriving, config, left=left, **how)

    def moving(**given: Any) -> Run:
        steps = {"search_steps": _FEW_STEPS} if "consolidate_win_us" in given else {}
        config = msgspec.structs.replace(sharing, **steps, **given)
        return lambda all_nodes, arriving, _, left: ours.allocated(all_nodes, arriving, config, moves=moves, left=left)

    return {
        "random": _alone(at_random),
        "best-fit": _alone(lambda _: best_fit),
        "packing": _alone(lambda _: packing),
        "least-allocated": _alone(lambda _: least_allocated),
        "most-allocated": _alone(lambda _: most_allocated),
        "fgd": _alone(lambda _: Fgd(listed)),
        "ours": engine(at_once=at_once),
        "ours-largest": engine(at_once=at_once, largest_first=True),
        "ours-dra": engine(claims=True),
        "ours-alone": engine(recent_work_days=0),
        "in-time": moving(consolidate_groups=0),
        "moves": moving(),
        "moves-30m": moving(consolidate_win_us=_HOUR_US // 2),
        "moves-1h": moving(consolidate_win_us=_HOUR_US),
        "moves-1-a-day": moving(consolidate_win_us=_HOUR_US, consolidate_pods_per_day=1),
        "moves-2-a-day": moving(consolidate_win_us=_HOUR_US, consolidate_pods_per_day=2),
        "moves-full": moving(consolidate_win_us=_HOUR_US, consolidate_from_per_cent=full),
        "moves-4h": moving(consolidate_win_us=4 * _HOUR_US),
        "ours-spread": engine(placement_strategy=PlacementStrategy.SPREAD),
    }


class Outcome(NamedTuple):
    """A run's figures.

    Attributes:
        allocated: per cent of all GPUs, by per cent that has arrived.
        failed: per cent of the tasks that arrived.
        unallocated: GPUs at the end.
        stranded: those of them that tasks like the list's cannot use (FGD's measure).
    """

    allocated: dict[int, float]
    failed: float
    unallocated: float
    stranded: float


def outcome(
    run: Run, listed: list[Task], seed: int, marks: Sequence[int] = (*_MARKS, *plot.POINTS), *, every: int = 1
) -> Outcome:
    """Return a run's figures; on each `every`th node only."""
    all_nodes = nodes().every(every)
    total, left = int(all_nodes.gpus.sum()), Left()
    arriving = arrivals(listed, total=total, percent=max(marks), seed=seed)
    found: dict[int, float] = {}
    for asked, held in run(all_nodes, arriving, seed, left):
        for mark in marks:
            if asked * 100 <= mark * total * MILLI or mark not in found:
                found[mark] = held * 100 / (total * MILLI)
    assert left.cluster is not None, "the run is at its end"
    unallocated = total - left.cluster.held / MILLI
    return Outcome(found, left.failed * 100 / len(arriving), unallocated, Fgd(listed).stranded(left.cluster))


def _parts(found: Sequence[Outcome]) -> list[str]:
    """Return mean and spread at each mark."""
    columns = [[one.allocated[mark] for one in found] for mark in _MARKS]
    spreads = [stdev(at) if len(at) > 1 else 0 for at in columns]
    return [
        f"{mean(at):6.2f} (±{spread:4.2f}) at {mark} %"
        for at, spread, mark in zip(columns, spreads, _MARKS, strict=True)
    ]


def _reproduced(name: str, run: Run, listed: list[Task], seeds: Sequence[int]) -> dict[int, Outcome]:
    """Print FGD's figures as its authors publish them and as found; return ours by seed.

    Raises:
        SystemExit: they differ too much.
    """
    print(f"{'published':15} {'  '.join(f'{published(name)[mark]:6.2f} (mean) at {mark} %' for mark in _MARKS)}, FGD")
    found = {seed: outcome(run, listed, seed) for seed in sorted({*_SEEDS, *seeds})}
    off = [mean(one.allocated[mark] for one in found.values()) - published(name)[mark] for mark in _MARKS]
    print(
        f"{'reproduced':15} {'  '.join(_parts([*found.values()]))}: {', '.join(f'{one:+.2f}' for one in off)}",
        flush=True,
    )
    if max(map(abs, off)) > _NEAR:
        raise SystemExit(f"{name}: FGD is more than {_NEAR} points off what its authors publish: nothing is compared")
    return found


def _league(name: str, given: argparse.Namespace) -> None:
    """Print a row for each policy over one list."""
    listed = tasks(name, whole=given.whole)
    title = f"{name}, {'whole-GPU' if given.whole else 'all'} tasks"
    print(f"{title}: per cent of the GPUs allocated")
    fgd: dict[int, Outcome] = {}
    if not given.whole and given.part == 1:
        fgd = _reproduced(name, policies(listed, ours.Moves(), given.at_once)["fgd"], listed, given.seeds)
    curves: dict[str, list[float]] = {}
    for policy in given.policies:
        began = time.process_time()
        moves = ours.Moves(given.checkpoints)
        run = policies(listed, moves, given.at_once)[policy]
        known = fgd if policy == "fgd" else {}
        found = [known.get(seed) or outcome(run, listed, seed, every=given.part) for seed in given.seeds]
        curves[policy] = [mean(one.allocated[mark] for one in found) for mark in plot.POINTS]
        parts = _parts(found)
        parts.append(f"{mean(one.failed for one in found):5.2f} % of the tasks failed")
        parts.append(f"{mean(one.unallocated for one in found):6.1f} GPUs unallocated")
        parts.append(f"{mean(one.stranded for one in found):6.1f} of them stranded (FGD's measure)")
        if moves.pods:
            share, lost = moves.pods * 100 / moves.placed, moves.lost_gpu_s / 3600
            parts.append(f"{share:.2f} % of {moves.placed} pods moved, {lost:.0f} GPU-hours lost")
        print(f"{policy:15} {'  '.join(parts)}  {(time.process_time() - began) / len(found):6.1f} s", flush=True)
    if given.plot:
        plot.write(given.plot / f"league-{name}.svg", title, curves)


def main() -> None:
    """Print a row for each policy: GPUs allocated at each mark, mean and spread over seeds, and seconds of a run."""
    parts = {"over-time": over_time.main, "month": month.main, "bound": bound.main, "defaults": defaults.main}
    if own := parts.get("".join(sys.argv[1:2])):
        own(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", nargs="+", default=LISTS, choices=LISTS, help="of tasks")
    parser.add_argument("--whole", action="store_true", help="without the tasks that share a GPU")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42])
    parser.add_argument("--policies", nargs="+", default=["random", "best-fit", "fgd", "ours"])
    parser.add_argument("--part", type=int, default=1, help="take one node in so many")
    parser.add_argument("--at-once", type=int, default=ours.AT_ONCE, help="tasks between two cycles of `ours`")
    parser.add_argument("--checkpoints", type=int, default=3_600, help="seconds between those of running pods")
    parser.add_argument("--plot", type=Path, help="also write plots of the means, FOLDER/league-LIST.svg")
    given = parser.parse_args()
    if not folder().exists():
        parser.error(
            f"{folder()} is absent (or KAI_SHARED names another folder): its README says where the lists are from"
        )
    if not given.whole and "ours-dra" in given.policies:
        parser.error("--policies ours-dra: claims have whole devices: say --whole")
    for name in given.list:
        if given.whole and name == "gpushare100":
            print("gpushare100: all of its tasks share a GPU")
            continue
        _league(name, given)


if __name__ == "__main__":
    main()
