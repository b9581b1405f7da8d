"""`tools/checker`, a program in Go that shares no code with the product: built once, and asked about a recording."""

import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "tools/checker"

#: Seconds that the checker may take; it gives up an order of appends after two minutes by itself.
_PATIENCE_S = 1800


@dataclass(frozen=True, slots=True)
class Verdict:
    """The checker's report on a recording.

    Attributes:
        findings: what is wrong, one line each.
        wrong: how much is wrong, by kind.
        checked: how much was looked at, by kind.
    """

    findings: list[str]
    wrong: dict[str, int] = field(default_factory=dict)
    checked: dict[str, int] = field(default_factory=dict)


class NoChecker(Exception):
    """It cannot be built here; says why."""


@functools.cache
def checker() -> Path:
    """Build the checker, or take what an earlier run built of the same source.

    Raises:
        NoChecker: there is no Go, or no module proxy answers.
    """
    sources = [path for path in sorted(SOURCE.iterdir()) if path.suffix in (".go", ".mod", ".sum")]
    digest = hashlib.sha256(b"\n".join(path.name.encode() + b"\n" + path.read_bytes() for path in sources)).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kai-checker"
    program = cache / digest[:16]
    if program.exists():
        return program
    if shutil.which("go") is None:
        raise NoChecker("there is no Go on this machine (https://go.dev/dl, or apt install golang)")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        made = Path(scratch) / "checker"
        done = subprocess.run(["go", "build", "-o", made, "."], cwd=SOURCE, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoChecker(f"go build of {SOURCE}: {done.stderr.strip()}")
        made.rename(program)
    return program


def verdict_of(recording: Path) -> Verdict:
    """Check a recording.

    Raises:
        NoChecker: see `checker`.
    """
    done = subprocess.run([checker(), recording], capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Verdict(**summary)
