"""A month of ten million events: `kai report`, and the log as Parquet (`tests.measured.bench.report`)."""

from collections.abc import Iterator

from tests.measured.bench.figures import Figure
from tests.measured.bench.report import measured


def figures() -> Iterator[Figure]:
    yield from measured(10_000_000)
