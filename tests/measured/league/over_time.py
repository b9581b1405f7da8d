"""The league over time: jobs through the engine and through baselines, in virtual time.

`python -m tests.measured.league over-time [--inputs gangs openb] [--nodes 64] [--days 1] [--load 1.05] [--seeds 1 2
3]`.

Baselines only start. The engine does what its settings say. What it evicts comes again after a while (`--away`), and
goes on from its last checkpoint (`--checkpoints`).
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev

from kaicore.rules.engine.config import Action, Backfill, EngineConfig
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.runtime.policies.loading import load_policy
from msgspec.structs import replace

from tests.measured.league import baselines, plot
from tests.measured.league.baselines import Fgd, Policy
from tests.measured.league.engine_run import EngineRun
from tests.measured.league.jobs import INPUTS, Setting, setting
from tests.measured.league.queues import Baseline, Estimate, Order, by_limit, by_true_run
from tests.measured.league.records import Figures, Record, figures

Run = Callable[[Setting, int], list[Record]]
_EXAMPLES = Path(__file__).parents[3] / "examples/policies"


def _baseline(policy: Callable[[Setting, int], Policy], order: Order = Order.SKIP, by: Estimate = by_limit) -> Run:
    return lambda given, seed: Baseline(given, policy(given, seed), order, by).records()


def _always(policy: Policy) -> Callable[[Setting, int], Policy]:
    return lambda _, __: policy


def _ours(config: EngineConfig, *, limits: bool = True, seen: bool = True) -> Run:
    return lambda given, _: EngineRun(given, config, limits=limits, seen=seen).records()


def _ruled(example: str, **arguments: object) -> Run:
    """Run the engine with its defaults and the policy of an example (`examples/policies`)."""

    def run(given: Setting, _: int) -> list[Record]:
        loaded = load_policy(str(_EXAMPLES / f"{example}.py"), arguments)
        engine = EngineRun(given, EngineConfig(policies=(loaded.setting,)), limits=True)
        engine.cluster.policies = PolicyBook()
        engine.cluster.policies.add(loaded.kind, loaded.setting.digest)
        return engine.records()

    return run


_STARTS = EngineConfig(actions=(Action.ALLOCATE,), backfill=Backfill.OFF)
_EASY = replace(_STARTS, backfill=Backfill.EASY)
_HOUR_US = 3_600_000_000
_PACKED = _always(baselines.best_fit)

#: Runs by name: placement policies that start all that fits, orders of starting with best fit, and the engine's.
POLICIES: dict[str, Run] = {
    "random": _baseline(lambda _, seed: baselines.at_random(seed)),
    "least-allocated": _baseline(_always(baselines.least_allocated)),
    "most-allocated": _baseline(_always(baselines.most_allocated)),
    "packing": _baseline(_always(baselines.packing)),
    "fgd": _baseline(lambda given, _: Fgd([job.each for job in given.jobs])),
    "fifo": _baseline(_PACKED, Order.FIFO),
    "skip": _baseline(_PACKED),
    "easy-true": _baseline(_PACKED, Order.EASY, by_true_run),
    "easy-limits": _baseline(_PACKED, Order.EASY),
    "conservative": _baseline(_PACKED, Order.CONSERVATIVE),
    "ours": _ours(EngineConfig()),
    "ours-still": _ours(EngineConfig(consolidate_groups=0)),
    "ours-win-10m": _ours(EngineConfig(consolidate_win_us=_HOUR_US // 6)),
    "ours-win-30m": _ours(EngineConfig(consolidate_win_us=_HOUR_US // 2)),
    "ours-win-1h": _ours(EngineConfig(consolidate_win_us=_HOUR_US)),
    "ours-win-4h": _ours(EngineConfig(consolidate_win_us=4 * _HOUR_US)),
    "ours-off": _ours(_STARTS, seen=False),
    "ours-easy": _ours(_EASY, seen=False),
    "ours-conservative": _ours(replace(_EASY, backfill=Backfill.CONSERVATIVE), seen=False),
    "ours-hold": _ours(_EASY, limits=False, seen=False),
    "ours-hold-2h": _ours(replace(_EASY, hold_after_us=2 * _HOUR_US), limits=False, seen=False),
    "ours-hold-4h": _ours(replace(_EASY, hold_after_us=4 * _HOUR_US), limits=False, seen=False),
    "ours-runs": _ours(replace(_EASY, run_time_per_cent=75), limits=False),
    "ours-aging": _ruled("aging", minutes=30, most=100),
    "ours-las": _ruled("least_attained_service"),
}
_USUAL = (
    "random",
    "least-allocated",
    "most-allocated",
    "packing",
    "fgd",
    "fifo",
    "skip",
    "easy-limits",
    "conservative",
)
_HEAD = (
    "policy                GAR %         SOR %       GFR %    wait h: mean          p50         p99   slowdown"
    "   worst of largest   never  evicted  % of pods  lost GPU-h  useful %  JTTED nodes, switches   s a run"
)


def _spread(found: Sequence[Figures], value: Callable[[Figures], float]) -> str:
    values = [value(one) for one in found]
    return f"{mean(values):.2f} ±{stdev(values) if len(values) > 1 else 0:.2f}"


def _known(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{mean(known):.2f}" if known else "-"


def _row(name: str, found: Sequence[Figures], seconds: float) -> Iterator[str]:
    """Yield the figures of a policy as text, and its waits by size below them."""
    columns: tuple[tuple[int, Callable[[Figures], float]], ...] = (
        (13, lambda one: one.gar),
        (13, lambda one: one.sor),
        (13, lambda one: one.gfr),
        (13, lambda one: one.mean_h),
        (12, lambda one: one.p50_h),
        (13, lambda one: one.p99_h),
        (14, lambda one: one.slowdown),
        (14, lambda one: one.worst_h),
    )
    text = "".join(f"{_spread(found, value):>{width}}" for width, value in columns)
    never, evicted = sum(one.never for one in found), sum(one.evicted for one in found)
    lost = sum(one.lost_h for one in found)
    moved, useful = mean(one.moved for one in found), mean(one.useful for one in found)
    near = f"{_known(one.jtted_nodes for one in found):>9} {_known(one.jtted_domains for one in found):>5}"
    yield f"{name:17}{text}{never:8}{evicted:9}{moved:11.2f}{lost:12.0f}{useful:10.2f}{near}{seconds:18.1f}"
    sizes = sorted({size for one in found for size in one.by_size}, key=lambda size: int(size.split("-")[0].strip("+")))
    waits = (f"{size}: {mean(one.by_size[size] for one in found if size in one.by_size):.2f}" for size in sizes)
    yield f"{'':17}  mean wait h by GPUs  {'  '.join(waits)}"


def main(arguments: Sequence[str]) -> None:
    """Print a row for each policy: means and spreads over seeds; counts are of all seeds."""
    parser = argparse.ArgumentParser(prog="tests.measured.league over-time", description=__doc__)
    parser.add_argument("--inputs", nargs="+", choices=INPUTS, default=list(INPUTS))
    parser.add_argument("--nodes", type=int, default=64, help="how many, about")
    parser.add_argument("--days", type=float, default=1)
    parser.add_argument("--load", type=float, default=1.05, help="GPU-hours that arrive, for each that there is")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--policies", nargs="+", choices=list(POLICIES), default=[*_USUAL, "ours-off", "ours-easy", "ours"]
    )
    parser.add_argument("--checkpoints", type=int, default=3_600, help="seconds between those of running jobs; 0: none")
    parser.add_argument("--away", type=int, default=300, help="seconds until an evicted pod's successor comes")
    parser.add_argument("--plot", type=Path, help="also write plots of waits, FOLDER/league-INPUT.svg")
    given = parser.parse_args(arguments)
    for name in given.inputs:
        settings = [
            setting(name, size=given.nodes, days=given.days, load=given.load, seed=seed)._replace(
                checkpoint_s=given.checkpoints, away_s=given.away
            )
            for seed in given.seeds
        ]
        nodes, jobs = len(settings[0].nodes.gpus), [len(one.jobs) for one in settings]
        print(f"{name}: {nodes} nodes, {given.days:g} days, load {given.load:g}, {jobs} jobs by seed\n{_HEAD}")
        waits: dict[str, list[float]] = {}
        for policy in given.policies:
            began = time.process_time()
            runs = [POLICIES[policy](one, seed) for one, seed in zip(settings, given.seeds, strict=True)]
            each = (time.process_time() - began) / len(runs)
            found = [figures(records, one) for records, one in zip(runs, settings, strict=True)]
            print(*_row(policy, found, each), sep="\n", flush=True)
            waits[policy] = [
                ((one.until if record.started is None else record.started) - record.job.arrives) / 3600
                for records, one in zip(runs, settings, strict=True)
                for record in records
            ]
        if given.plot:
            plot.write_waits(given.plot / f"league-{name}.svg", f"{name}, load {given.load:g}", waits)
