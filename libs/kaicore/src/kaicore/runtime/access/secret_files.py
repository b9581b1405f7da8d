"""Files with secrets: whole or not there, also after a crash or on a full disk, and readable by their owner only."""

import os
from collections.abc import Callable
from pathlib import Path


def write_secret(path: Path, secret: bytes) -> None:
    """Write a file. Raises OSError: it cannot be written; what was there stays."""
    partial = path.with_name(f"{path.name}.new")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(descriptor)
    partial.replace(path)


def kept_secret(path: Path, make: Callable[[], bytes]) -> bytes:
    """Return what a file keeps; it is made where there is none, or nothing in it."""
    if not path.exists() or not path.stat().st_size:
        write_secret(path, make())
    return path.read_bytes()
