"""Show a bug on the version before its mend: the mend's tests on the code before it, then on the code with it.

    .venv/bin/python scripts/reproduce.py COMMIT TEST [REVISION:PATH ...]
    .venv/bin/python scripts/reproduce.py COMMIT "--kept tests/simulation/kept/PLAN.json"

`REVISION:PATH` is what the test needs besides and the mend is not in: a module that judges, a test that came later.

What begins with `--` is for `python -m tests.simulation`. The simulation is then that of each version, for its own
faults are mended in it; a kept plan is the one that is here.

The first run must fail and the second one pass; the exit code is 0 if so. A run of more than five minutes has failed:
some of the bugs are that something hangs. It works in a worktree in a temporary folder, with the environment that is
installed here; Postgres and NATS come from its wheels. Standard library only.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: What exit codes mean, those of pytest and of the simulation; the last one is of a run that was ended.
_SAID = {0: "passes", 1: "fails", -signal.SIGKILL: "hangs"}
_MOST_S = 300.0


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        sys.stderr.write("usage: scripts/reproduce.py COMMIT TEST [REVISION:PATH ...]\n")
        return 2
    commit, test, *besides = arguments
    with tempfile.TemporaryDirectory(prefix="kai-before-") as name:
        place = Path(name) / "kai"
        git("worktree", "add", "--quiet", "--detach", str(place), f"{commit}^")
        try:
            if not test.startswith("--"):
                git("checkout", "--quiet", commit, "--", "tests", place=place)
            take(besides, place=place)
            before = tested(place, test)
            git("checkout", "--quiet", "--force", commit, place=place)
            take(besides, place=place)
            after = tested(place, test)
        finally:
            git("worktree", "remove", "--force", str(place))
    for when, code in (("before", before), ("with", after)):
        sys.stdout.write(f"{when} {commit}: {_SAID.get(code, f'cannot be run (code {code})')}\n")
    return 0 if before in (1, -signal.SIGKILL) and after == 0 else 1


def git(*arguments: str, place: Path = ROOT) -> None:
    subprocess.run(["git", *arguments], cwd=place, check=True)


def take(besides: list[str], *, place: Path) -> None:
    for one in besides:
        revision, path = one.split(":", 1)
        git("checkout", "--quiet", revision, "--", path, place=place)


def tested(place: Path, test: str) -> int:
    """Run a test on the code of a worktree; the exit code of its process."""
    sources = [str(path) for path in sorted(place.glob("*/*/src"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), *sources])}
    command = [sys.executable, "-m", "pytest", "--quiet", "--no-header", "-p", "no:cacheprovider", "-x", test]
    if test.startswith("--"):
        given = [str(ROOT / one) if one.endswith(".json") else one for one in test.split()]
        command = [sys.executable, "-m", "tests.simulation", *given]
    process = subprocess.Popen(command, cwd=place, env=environment, start_new_session=True)
    try:
        return process.wait(_MOST_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
