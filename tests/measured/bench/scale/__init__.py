"""Measurements of growth: every part by itself, in real processes, then together, then the needs of more of everything.

`make bench ARGS=scale` measures all, `make bench ARGS=scale.binding` one part. On a machine that has other work, the
rates say little and the CPU times stay.
"""

import importlib
from collections.abc import Iterator

from tests.measured.bench.figures import Figure

PARTS = (
    "head_row",
    "relaying",
    "one_scheduler",
    "binding",
    "replicas",
    "overfull",
    "takeover",
    "clusters",
    "three_clusters",
    "growth",
)


def figures() -> Iterator[Figure]:
    for part in PARTS:
        yield from importlib.import_module(f"{__name__}.{part}").figures()
