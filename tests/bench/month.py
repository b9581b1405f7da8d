"""A month of ten million events: `kai report`, and the log as Parquet (`tests.bench.report`)."""

from collections.abc import Iterator

from tests.bench.figures import Figure
from tests.bench.report import measured


def figures() -> Iterator[Figure]:
    """Measure."""
    yield from measured(10_000_000)
