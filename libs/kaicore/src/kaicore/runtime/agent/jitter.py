"""A random number for waits (`kaicore.backoff.jittered`), without `random`, which takes 0.2 MB (decision 0500)."""

import os


def jitter() -> float:
    """Return a random number, 0 to 1."""
    return int.from_bytes(os.urandom(4), "big") / 0xFFFF_FFFF
