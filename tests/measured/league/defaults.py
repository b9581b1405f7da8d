"""The engine's defaults against their alternatives, one setting at a time, for each kind of work.

`python -m tests.measured.league defaults [--part 10] [--seeds 42 43 44]`.

Work on whole GPUs, on shares of GPUs and on GPUs of claims (DRA) comes until the cluster is full: the figure is per
cent of the GPUs held. Gangs come and end over time: it is GPU-hours held less those that evictions cost, in per cent.
"""

import argparse
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from kaicore.rules.engine.config import Backfill, EngineConfig, PlacementStrategy
from msgspec.structs import replace

from tests.measured.league import ours
from tests.measured.league.engine_run import EngineRun
from tests.measured.league.jobs import setting
from tests.measured.league.openb import MILLI, arrivals, nodes, tasks
from tests.measured.league.records import figures

_HOUR_US = 3_600_000_000
#: Settings that decide where pods go, and for gangs those that decide when, and what is moved.
_WHERE: tuple[Mapping[str, Any], ...] = (
    {"placement_strategy": PlacementStrategy.SPREAD},
    {"recent_work_days": 0},
)
_WHEN: tuple[Mapping[str, Any], ...] = (
    {"placement_strategy": PlacementStrategy.SPREAD},
    {"backfill": Backfill.OFF},
    {"backfill": Backfill.CONSERVATIVE},
    {"consolidate_groups": 0},
    {"consolidate_win_us": _HOUR_US // 2},
    {"consolidate_win_us": _HOUR_US},
    {"hold_after_us": 4 * _HOUR_US},
)
#: By kind of work, the alternatives to the defaults; the first is the default.
ALTERNATIVES = {
    kind: ({}, *(_WHEN if kind == "gangs" else _WHERE)) for kind in ("whole GPUs", "shares", "claims", "gangs")
}


def figure(kind: str, given: Mapping[str, Any], *, part: int, seed: int) -> float:
    """Return what the engine makes of a kind of work.

    Args:
        given: the settings that are not the defaults.
        part: one node of OpenB in so many; gangs have a tenth of as many hosts of Lingjun's network, and six hours.
    """
    config = replace(EngineConfig(gpu_sharing=kind == "shares"), **given)
    if kind == "gangs":
        gangs = setting("gangs", size=max(1_200 // (10 * part), 4), days=0.25, load=1.05, seed=seed)
        gangs = gangs._replace(checkpoint_s=3_600, away_s=300)
        return figures(EngineRun(gangs, config, limits=True).records(), gangs).useful
    some = nodes().every(part)
    total = int(some.gpus.sum())
    arriving = arrivals(tasks("default", whole=kind != "shares"), total=total, percent=130, seed=seed)
    *_, (_, held) = ours.allocated(some, arriving, config, claims=kind == "claims")
    return held * 100 / (total * MILLI)


def main(arguments: Sequence[str]) -> None:
    """Print a row for the default and each alternative, by kind of work."""
    parser = argparse.ArgumentParser(prog="python -m tests.measured.league defaults", description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=list(ALTERNATIVES), default=list(ALTERNATIVES))
    parser.add_argument("--part", type=int, default=10, help="take one node in so many")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    chosen = parser.parse_args(arguments)
    for kind in chosen.kinds:
        for given in ALTERNATIVES[kind]:
            found = [figure(kind, given, part=chosen.part, seed=seed) for seed in chosen.seeds]
            name = ", ".join(f"{key}={value}" for key, value in given.items()) or "defaults"
            spread = stdev(found) if len(found) > 1 else 0
            print(f"{kind:12} {name:35} {mean(found):6.2f} (±{spread:4.2f})", flush=True)
