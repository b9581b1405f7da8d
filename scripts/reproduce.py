"""Show a bug on the version before its mend: the mend's tests on the code before it, then on the code with it.

    .venv/bin/python scripts/reproduce.py COMMIT TEST

The first run must fail and the second one pass; the exit code is 0 if so. It works in a worktree in a temporary folder,
with the environment that is installed here; Postgres and NATS come from its wheels. Standard library only.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: What pytest's exit codes mean.
_SAID = {0: "passes", 1: "fails"}


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        sys.stderr.write("usage: scripts/reproduce.py COMMIT TEST\n")
        return 2
    commit, test = arguments
    with tempfile.TemporaryDirectory(prefix="kai-before-") as name:
        place = Path(name) / "kai"
        git("worktree", "add", "--quiet", "--detach", str(place), f"{commit}^")
        try:
            git("checkout", "--quiet", commit, "--", "tests", place=place)
            before = tested(place, test)
            git("checkout", "--quiet", "--force", commit, place=place)
            after = tested(place, test)
        finally:
            git("worktree", "remove", "--force", str(place))
    for when, code in (("before", before), ("with", after)):
        sys.stdout.write(f"{when} {commit}: {_SAID.get(code, f'cannot be run (code {code})')}\n")
    return 0 if before == 1 and after == 0 else 1


def git(*arguments: str, place: Path = ROOT) -> None:
    subprocess.run(["git", *arguments], cwd=place, check=True)


def tested(place: Path, test: str) -> int:
    """Run a test on the code of a worktree; pytest's exit code."""
    sources = [str(path) for path in sorted(place.glob("*/*/src"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), *sources])}
    command = [sys.executable, "-m", "pytest", "--quiet", "--no-header", "-p", "no:cacheprovider", "-x", test]
    return subprocess.run(command, cwd=place, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
