"""`make prove`: many seeds, on all processors; `python -m tests.simulation --help` tells the rest."""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from math import ceil
from os import cpu_count
from pathlib import Path
from typing import Any

import msgspec

from tests.simulation.hub_plan import hub_plan_of
from tests.simulation.plan import Fault, Plan, decode, described, encode, plan_of
from tests.simulation.shrinking import shrunk
from tests.simulation.world import Outcome, run

#: Seeds that a process is given at a time.
_CHUNK = 20

KEPT = Path(__file__).parent / "kept"

Record = dict[str, Any]


def run_chunk(first: int, count: int, given: argparse.Namespace) -> Record:
    """Run seeds one after the other; return what became of them as plain data."""
    begun = time.process_time()
    failed: dict[int, list[str]] = {}
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    virtual = 0.0
    for seed in range(first, first + count):
        outcome = run(_plan(seed, given))
        if outcome.violations:
            failed[seed] = outcome.violations[:3]
        counts += outcome.counts
        faults += outcome.faults
        virtual += outcome.seconds
    return {
        "first": first,
        "count": count,
        "failed": failed,
        "counts": counts,
        "faults": faults,
        "virtual": virtual,
        "cpu": time.process_time() - begun,
    }


def _plan(seed: int, given: argparse.Namespace) -> Plan:
    draw = hub_plan_of if given.hub else plan_of
    return draw(seed, seconds=given.seconds, plant=given.plant)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, metavar="N", help="how many seeds")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first seed")
    parser.add_argument(
        "--seconds", type=float, default=8.0, metavar="S", help="of virtual time in which things come and fail"
    )
    parser.add_argument("--processes", type=int, default=cpu_count() or 1, metavar="N")
    parser.add_argument(
        "--minutes", type=float, default=0.0, metavar="M", help="stop after that; go on with the next call"
    )
    parser.add_argument("--state", type=Path, default=Path(".prove"), metavar="DIR", help="where is kept what was run")
    parser.add_argument(
        "--plant", default="", metavar="NAME", help="plant a fault in the code (tests/simulation/plants.py)"
    )
    parser.add_argument("--hub", action="store_true", help="two clusters under one hub")
    parser.add_argument("--seed", type=int, metavar="SEED", help="run one seed and tell what happened")
    parser.add_argument(
        "--crash-everywhere",
        metavar="ROLE",
        help="with --seed: its work without its faults, once for each await of that process, at which it is killed",
    )
    parser.add_argument("--kept", type=Path, metavar="FILE", help="run one kept plan and tell what happened")
    parser.add_argument("--trace", action="store_true", help="with --seed or --kept: everything that happened")
    parser.add_argument("--shrink", type=Path, metavar="FILE", help="with --seed: shrink the plan and keep it here")
    given = parser.parse_args()
    if given.crash_everywhere:
        return _everywhere(_plan(given.seed or 1, given), given.crash_everywhere)
    if given.seed is not None or given.kept is not None:
        plan = decode(given.kept.read_bytes()) if given.kept else _plan(given.seed, given)
        return _one(plan, trace=given.trace, shrink=given.shrink)
    return _many(given)


def _one(plan: Plan, *, trace: bool, shrink: Path | None) -> int:
    if shrink is not None:
        plan = shrunk(plan, tell=lambda line: print(line, file=sys.stderr))
        shrink.parent.mkdir(parents=True, exist_ok=True)
        shrink.write_bytes(encode(plan) + b"\n")
    outcome = run(plan)
    if trace:
        print("\n".join(outcome.trace))
    for item in sorted((*plan.arrivals, *plan.faults), key=lambda item: item.at):
        print(described(item))
    _tell_outcome(outcome)
    return 1 if outcome.violations else 0


def _everywhere(plan: Plan, role: str) -> int:
    """Run a plan's work once for each await of a process, which is killed there; return 1 where that is not borne."""
    quiet = whole(plan)
    steps = run(quiet).steps
    if role not in steps:
        raise SystemExit(f"--crash-everywhere {role}: there is no such process in this plan: {', '.join(steps)}")
    killed, failed = 0, 0
    for step in range(1, steps[role] + 1):
        outcome = run(crashed(quiet, role, step))
        killed += any(f" dead {role}." in line for line in outcome.trace)
        failed += bool(outcome.violations)
        for violation in outcome.violations[:2]:
            print(f"{role} killed at step {step}: {violation}", flush=True)
    print(f"{role} killed at {killed} of its {steps[role]} awaits, seed {plan.seed}: {failed} runs failed")
    return 1 if failed else 0


def whole(plan: Plan) -> Plan:
    """Return a plan of the same work without faults, as long as the work takes: what is killed is killed before."""
    quiet = msgspec.structs.replace(plan, faults=())
    return msgspec.structs.replace(quiet, seconds=float(ceil(run(quiet).seconds)))


def crashed(plan: Plan, role: str, step: int) -> Plan:
    """Return a plan in which a process is killed as it begins a step, besides."""
    crash = Fault(0.0, "crash", role, seconds=0.1, count=step)
    return msgspec.structs.replace(plan, faults=(crash, *plan.faults))


def _tell_outcome(outcome: Outcome) -> None:
    print(f"{len(outcome.trace)} lines of trace, SHA-256 {outcome.digest[:16]}, {outcome.seconds:.1f} s")
    for violation in outcome.violations:
        print(f"violated: {violation}")


def _many(given: argparse.Namespace) -> int:
    state = given.state / f"{_version()}-{given.seconds:g}-{given.plant or 'as-it-is'}{'-hub' * given.hub}.jsonl"
    state.parent.mkdir(parents=True, exist_ok=True)
    records = [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []
    done = {(record["first"], record["count"]) for record in records}
    chunks = [chunk for chunk in _chunks(given.first, given.seeds) if chunk not in done]
    records = [
        record for record in records if (record["first"], record["count"]) in set(_chunks(given.first, given.seeds))
    ]
    begun = time.monotonic()
    with ProcessPoolExecutor(given.processes) as pool, state.open("a") as kept:
        waiting = [pool.submit(run_chunk, *chunk, given) for chunk in chunks]
        for future in as_completed(waiting):
            if future.cancelled():
                continue
            record = json.loads(json.dumps(future.result()))
            records.append(record)
            kept.write(json.dumps(record) + "\n")
            kept.flush()
            _progress(records, given)
            if given.minutes and time.monotonic() - begun > given.minutes * 60:
                for other in waiting:
                    other.cancel()
    return _summary(records, given)


def _chunks(first: int, count: int) -> Iterator[tuple[int, int]]:
    end = first + count
    return ((begin, min(_CHUNK, end - begin)) for begin in range(first, end, _CHUNK))


def _version() -> str:
    """The code that runs, so that results of other code are not taken for those of this."""
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"


def _progress(records: list[Record], given: argparse.Namespace) -> None:
    seeds, failed = sum(record["count"] for record in records), sum(len(record["failed"]) for record in records)
    print(f"\r{seeds} of {given.seeds} seeds, {failed} failed", end="", file=sys.stderr, flush=True)


def _summary(records: list[Record], given: argparse.Namespace) -> int:
    print(file=sys.stderr)
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    failed: dict[str, list[str]] = {}
    for record in records:
        counts.update(record["counts"])
        faults.update(record["faults"])
        failed.update(record["failed"])
    seeds = sum(record["count"] for record in records)
    cpu, virtual = (sum(record[name] for record in records) for name in ("cpu", "virtual"))
    print(f"{seeds} seeds, {len(failed)} failed; {virtual / 3600:.1f} h in {cpu / 60:.1f} min of CPU time")
    print(f"{sum(faults.values())} faults: " + ", ".join(f"{number} {kind}" for kind, number in sorted(faults.items())))
    print(
        f"{sum(counts.values())} events and others: " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))
    )
    for seed, violations in sorted(failed.items(), key=lambda item: int(item[0])):
        command = f"python -m tests.simulation --seed {seed} --seconds {given.seconds:g}{' --hub' * given.hub}"
        print(
            f"seed {seed} fails: {violations[0]}\n  {command}\n  {command} --shrink tests/simulation/kept/{seed}.json"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
