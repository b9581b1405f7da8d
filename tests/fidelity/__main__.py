"""`make fidelity VECTORS=FILE…`: agreement with recorded kubelet decisions, then the disagreements, one a line."""

import argparse
import sys
from pathlib import Path

from tests.fidelity.judge import Judge, Score
from tests.fidelity.vectors import read_vectors
from tests.shared_data import shared_path


def main() -> int:
    """Judge the files; exit 1 below the threshold."""
    parser = argparse.ArgumentParser(prog="make fidelity VECTORS=...", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="vector files; by default all of ../shared/data/kubelet")
    parser.add_argument("--threshold", type=float, default=98.5, help="least agreement on verdicts, per cent")
    parser.add_argument("--quiet", action="store_true", help="do not list the disagreements")
    options = parser.parse_args()
    files = options.files or sorted(shared_path("data/kubelet").glob("*.jsonl.gz"))
    if not files:
        sys.exit("fidelity: no vector files: name some (VECTORS=...), or put them into ../shared/data/kubelet")
    judge = Judge()
    for file in files:
        for scenario in read_vectors(file):
            judge.run(scenario)
    total = Score()
    print(f"{'policy/scope':28}{'admits':>8}{'agree':>9}{'wrong admit':>13}{'wrong reject':>14}{'masks':>9}")
    for (policy, scope), score in sorted(judge.scores.items()):
        print(_row(f"{policy}/{scope}", score))
        for name in Score.__slots__:
            setattr(total, name, getattr(total, name) + getattr(score, name))
    print(_row("all", total))
    if not options.quiet:
        print(*judge.disagreements, sep="\n")
    return 0 if total.agreed * 100 >= options.threshold * total.admits else 1


def _row(name: str, score: Score) -> str:
    masks = f"{score.masks_agreed * 100 / score.masks:8.2f}%" if score.masks else f"{'-':>9}"
    return (
        f"{name:28}{score.admits:8}{score.agreed * 100 / max(score.admits, 1):8.2f}%"
        f"{score.wrong_admits:13}{score.wrong_rejects:14}{masks}"
    )


if __name__ == "__main__":
    sys.exit(main())
