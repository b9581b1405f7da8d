"""Clocks of processes that can be set: libfaketime from PyPI, preloaded; nothing of it needs root.

Only the wall clock moves. Timeouts are measured on the monotonic clock, which cannot be set on a real machine either.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path


def faketime() -> Path | None:
    """The library, where the package `libfaketime` is installed."""
    found = importlib.util.find_spec("libfaketime")
    if found is None or not found.submodule_search_locations:
        return None
    (directory, *_) = found.submodule_search_locations
    library = Path(directory) / "vendor/libfaketime/src/libfaketime.so.1"
    return library if library.exists() else None


class Clock:
    """The wall clock of some processes."""

    def __init__(self, file: Path) -> None:
        """Args: file: holds how far it is ahead; readable for any user."""
        self._file = file
        self.set(0)

    def set(self, ahead_s: float) -> None:
        """Set it so far ahead of the machine's; processes notice within a second."""
        scratch = self._file.with_suffix(".new")
        scratch.write_text(f"{ahead_s:+.3f}\n")
        scratch.chmod(0o644)
        scratch.rename(self._file)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that goes by this clock."""
        library = faketime()
        if library is None:
            return {}
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DISABLE_SHM": "1",
        }


def why_clocks_cannot_be_set(scratch: Path) -> str:
    """The obstacle on this machine; empty when there is none."""
    if faketime() is None:
        return "the package libfaketime is not installed (pip install libfaketime)"
    clock = Clock(scratch / "clock")
    clock.set(3600)
    asked = [sys.executable, "-I", "-S", "-c", "import time; print(time.time())"]
    seen = [
        float(subprocess.run(asked, env=os.environ | extra, capture_output=True, text=True, check=True).stdout)
        for extra in ({}, clock.environment)
    ]
    return (
        "" if seen[1] - seen[0] > 1800 else "libfaketime has no effect here (another processor, or no dynamic linking)"
    )
