"""`make fidelity VECTORS=FILE…`: our prediction against recorded decisions of the real kubelet.

Prints, per policy and scope, how often we agree on the verdict, on the reason, on the mask and on the amounts, then the
disagreements, one a line, and the same figures for each file, which has to reach every threshold. Below that, what else
the same files say: the counting rule, our rule without any exporter, and our rule on a cluster that was there
before the log, with the nodes of which it then says that their history is incomplete.
"""

import argparse
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import msgspec
from kaicore.rules.engine.config import Evaluator

from tests.fidelity.format import VectorError
from tests.fidelity.history import Knowledge
from tests.fidelity.judge import Judge
from tests.fidelity.score import Score
from tests.fidelity.vectors import read_vectors
from tests.given.shared_data import shared_path

EXACT = "exact"

#: Vectors of our own, written down from the rules.
OURS = Path(__file__).parent / "worked.jsonl"

#: What is measured, by name; the first is the product with all that it may know.
VARIANTS = {
    EXACT: Knowledge(),
    "counting": Knowledge(evaluator=Evaluator.COUNTING, reconstruct=False),
    "no-exporter": Knowledge(observed=False, published=False),
    "no-exporter-splits-known": Knowledge(observed=False, published=False, settled=True),
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


#: Least agreement in each file, per cent, of the product with all that it may know.
THRESHOLDS = {"verdict": 99.95, "reason": 99.5, "mask": 99.9, "memory": 100.0, "cpu-split": 86.0}

#: How many nodes of incomplete history are named under a variant that is not asked for alone.
_NAMED = 3


def judged(variant: str, file: Path) -> Judge:
    """Judge all scenarios of a file under one variant.

    Raises:
        VectorError: it is no vector file.
    """
    judge = Judge(VARIANTS[variant])
    for scenario in read_vectors(file):
        judge.run(scenario)
    return judge


def shortfalls(judge: Judge, thresholds: Mapping[str, float]) -> list[str]:
    """Say which figures of a file are below their threshold."""
    score = judge.total()
    sentences = []
    for name, least in thresholds.items():
        count, agreed = (getattr(score, f"{_FIGURES[name]}{ending}") for ending in ("", "_agreed"))
        if agreed * 100 < least * count:
            sentences.append(f"{name}: {agreed} of {count} ({agreed * 100 / count:.2f} %), and {least} % are asked for")
    return sentences


def _threshold(text: str) -> tuple[str, float]:
    name, _, share = text.rpartition("=")
    if (name or "verdict") not in _FIGURES:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(_FIGURES)}")
    try:
        return name or "verdict", float(share)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{share!r} is no percentage") from None


def main() -> int:
    """Judge the files; exit 1 if a figure of any is below its threshold, 2 if one is no vector file."""
    parser = argparse.ArgumentParser(prog="make fidelity VECTORS=...", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="vector files; by default ours and ../shared/data/kubelet")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument(
        "--threshold",
        type=_threshold,
        action="append",
        default=[],
        metavar="[FIGURE=]PERCENT",
        help="least agreement in each file, of verdicts if no figure is named; by default "
        + ", ".join(f"{name}={least}" for name, least in THRESHOLDS.items()),
    )
    parser.add_argument("--only", choices=VARIANTS, help="measure one variant, not all")
    parser.add_argument("--quiet", action="store_true", help="do not list the disagreements")
    options = parser.parse_args()
    recorded = sorted(shared_path("data/kubelet").glob("*.jsonl.gz"))
    files = options.files or [OURS, *recorded]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        parser.exit(2, f"fidelity: no such file: {', '.join(missing)}\n")
    variants = [options.only] if options.only else list(VARIANTS)
    tasks = [(variant, file) for variant in variants for file in files]
    try:
        with ProcessPoolExecutor(max_workers=2) as pool:
            parts = dict(zip(tasks, pool.map(judged, *zip(*tasks, strict=True)), strict=True))
    except VectorError as error:
        parser.exit(2, f"fidelity: {error}\n")
    judges = {}
    for variant in variants:
        judges[variant] = Judge(VARIANTS[variant])
        for file in files:
            judges[variant].add(parts[variant, file])
    thresholds = THRESHOLDS | dict(options.threshold)
    below = {str(file): shortfalls(parts[variants[0], file], thresholds) for file in files}
    if options.output == "json":
        document = _document(judges) | {"below": {file: lines for file, lines in below.items() if lines}}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(document)).decode() + "\n")
    else:
        if not options.files and not recorded:
            admits = judges[variants[0]].total().admits
            where = shared_path("data/kubelet")
            print(f"only {admits} verdicts of our own: no recorded ones in {where} (see KAI_SHARED)\n")
        _print(judges, quiet=options.quiet)
        print(f"{variants[0]}, by file\n{_heads()}")
        for file in files:
            print(_row(f"  {file.name}", parts[variants[0], file].total()))
        for path, lines in below.items():
            print(*(f"below: {path}: {line}" for line in lines), sep="\n", end="\n" if lines else "")
    return int(any(below.values()))


def _document(judges: dict[str, Judge]) -> dict[str, object]:
    return {
        variant: {
            "policies": [
                {"policy": policy, "scope": scope, **asdict(score)}
                for (policy, scope), score in sorted(judge.scores.items())
            ],
            "total": asdict(judge.total()),
            "disagreements": judge.disagreements,
            "incomplete": [
                {"node": node, "since": since, "admits": count}
                for node, (since, count) in sorted(judge.incomplete.items())
            ],
        }
        for variant, judge in judges.items()
    }


def _print(judges: dict[str, Judge], *, quiet: bool) -> None:
    for variant, judge in judges.items():
        print(f"{variant}\n{_heads()}")
        for (policy, scope), score in sorted(judge.scores.items()):
            print(_row(f"  {policy}/{scope}", score))
        print(_row("  all", judge.total()))
        nodes = sorted(judge.incomplete.items())
        named = nodes if len(judges) == 1 and not quiet else nodes[:_NAMED]
        for node, (since, count) in named:
            print(f"  {node}: history incomplete since position {since} ({count} admissions)")
        if len(named) < len(nodes):
            print(f"  {len(nodes) - len(named)} more nodes of incomplete history (--only {variant}, or -o json)")
    first = next(iter(judges.values()))
    if not quiet:
        print("disagreements:", *first.disagreements, sep="\n")


def _heads() -> str:
    heads = "".join(f"{name:>11}" for name in _FIGURES)
    return f"{'':30}{'admits':>7}{'+wrong':>8}{'-wrong':>8}{heads}{'incomplete':>12}"


def _row(name: str, score: Score) -> str:
    shares = ""
    for figure in _FIGURES.values():
        count, agreed = getattr(score, figure), getattr(score, f"{figure}_agreed")
        shares += f"{agreed * 100 / count:10.2f}%" if count else f"{'-':>11}"
    return f"{name:30}{score.admits:7}{score.wrong_admits:8}{score.wrong_rejects:8}{shares}{score.incomplete:12}"


if __name__ == "__main__":
    sys.exit(main())
