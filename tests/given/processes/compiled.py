"""Copies of sources that need not be compiled again."""

import os
import shutil
from importlib.util import cache_from_source
from pathlib import Path


def share_compiled(originals: Path, copies: Path) -> None:
    """Give copies of sources below a folder what Python has compiled of the originals, where they are the same."""
    for copy in copies.rglob("*.py"):
        original = originals / copy.relative_to(copies)
        compiled = Path(cache_from_source(original))
        if compiled.exists() and original.exists() and original.read_bytes() == copy.read_bytes():
            # Python compares the time of the source with that in what it has compiled.
            stat = original.stat()
            os.utime(copy, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            target = Path(cache_from_source(copy))
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(compiled, target)
