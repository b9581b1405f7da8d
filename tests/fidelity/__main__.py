"""`make fidelity VECTORS=FILE…`: our prediction against recorded decisions of the real kubelet.

Prints, per policy and scope, how often we agree on the verdict, on the reason, on the mask and on the amounts, then the
disagreements, one a line. Below that, what else the same files say: the seed's counting rule, our rule without any
exporter, and our rule on a cluster that was there before the log.
"""

import argparse
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import msgspec
from kaicore.engine.config import Evaluator

from tests.fidelity.history import Knowledge
from tests.fidelity.judge import Judge
from tests.fidelity.score import Score
from tests.fidelity.vectors import read_vectors
from tests.shared_data import shared_path

EXACT = "exact"

#: What is measured, by name; the first is the product with all that it may know.
VARIANTS = {
    EXACT: Knowledge(),
    "counting": Knowledge(evaluator=Evaluator.COUNTING, reconstruct=False),
    "no-exporter": Knowledge(observed=False, published=False),
    "installed-late": Knowledge(since=50),
    "installed-late-no-placements": Knowledge(since=50, observed=False),
}

_FIGURES = {
    "verdict": "admits",
    "reason": "reasons",
    "mask": "masks",
    "memory": "memory",
    "certain": "certain",
    "cpu-split": "cpu_splits",
    "dev-split": "device_splits",
}


def judged(variant: str, files: Iterable[Path]) -> Judge:
    """Judge all scenarios of some files under one variant."""
    judge = Judge(VARIANTS[variant])
    for file in files:
        for scenario in read_vectors(file):
            judge.run(scenario)
    return judge


def main() -> int:
    """Judge the files; exit 1 below the threshold."""
    parser = argparse.ArgumentParser(prog="make fidelity VECTORS=...", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="vector files; by default all of ../shared/data/kubelet")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--threshold", type=float, default=99.95, help="least agreement on verdicts, per cent")
    parser.add_argument("--only", choices=VARIANTS, help="measure one variant, not all")
    parser.add_argument("--quiet", action="store_true", help="do not list the disagreements")
    options = parser.parse_args()
    files = options.files or sorted(shared_path("data/kubelet").glob("*.jsonl.gz"))
    if not files:
        sys.exit("fidelity: no vector files: name some (VECTORS=...), or put them into ../shared/data/kubelet")
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        sys.exit(f"fidelity: no such file: {', '.join(missing)}")
    variants = [options.only] if options.only else list(VARIANTS)
    with ProcessPoolExecutor(max_workers=2) as pool:
        judges = dict(zip(variants, pool.map(judged, variants, [files] * len(variants)), strict=True))
    if options.output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(_document(judges))).decode() + "\n")
    else:
        _print(judges, quiet=options.quiet)
    total = judges[variants[0]].total()
    return 0 if total.admits_agreed * 100 >= options.threshold * total.admits else 1


def _document(judges: dict[str, Judge]) -> dict[str, object]:
    return {
        variant: {
            "policies": [
                {"policy": policy, "scope": scope, **asdict(score)}
                for (policy, scope), score in sorted(judge.scores.items())
            ],
            "total": asdict(judge.total()),
            "disagreements": judge.disagreements,
        }
        for variant, judge in judges.items()
    }


def _print(judges: dict[str, Judge], *, quiet: bool) -> None:
    heads = "".join(f"{name:>11}" for name in _FIGURES)
    columns = f"{'':30}{'admits':>7}{'+wrong':>8}{'-wrong':>8}{heads}{'incomplete':>12}"
    for variant, judge in judges.items():
        print(f"{variant}\n{columns}")
        for (policy, scope), score in sorted(judge.scores.items()):
            print(_row(f"  {policy}/{scope}", score))
        print(_row("  all", judge.total()))
    first = next(iter(judges.values()))
    if not quiet:
        print("disagreements:", *first.disagreements, sep="\n")


def _row(name: str, score: Score) -> str:
    shares = ""
    for figure in _FIGURES.values():
        count, agreed = getattr(score, figure), getattr(score, f"{figure}_agreed")
        shares += f"{agreed * 100 / count:10.2f}%" if count else f"{'-':>11}"
    return f"{name:30}{score.admits:7}{score.wrong_admits:8}{score.wrong_rejects:8}{shares}{score.incomplete:12}"


if __name__ == "__main__":
    sys.exit(main())
