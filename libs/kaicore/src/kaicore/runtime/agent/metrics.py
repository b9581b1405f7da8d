"""Counters, gauges and histograms in Prometheus' text format 0.0.4, reduced to the needs of an agent.

The client library does the same and takes 5 MB of an agent's 30; names and meaning of its methods are kept.
"""

import os
import resource
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Name, its labels and the value.
Sample = tuple[str, tuple[tuple[str, str], ...], float]


class Registry:
    """The metrics of a process."""

    def __init__(self) -> None:
        self.families: list[Family] = []

    def text(self) -> str:
        """Return all samples in the text format."""
        lines = []
        for family in self.families:
            lines += [f"# HELP {family.shown} {family.meaning}", f"# TYPE {family.shown} {family.kind}"]
            lines += [f"{name}{_braced(labels)} {_number(value)}" for name, labels, value in family.samples()]
        return "\n".join([*lines, ""])


@dataclass(eq=False)
class Family(ABC):
    """A metric with the values of all its labels.

    Attributes:
        kind: `counter`, `gauge` or `histogram`.
        name: without the ending of a counter.
    """

    kind = ""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    registry: Registry = field(default_factory=Registry)

    def __post_init__(self) -> None:
        self.registry.families.append(self)

    @property
    def shown(self) -> str:
        """The name as it is shown."""
        return self.name

    @abstractmethod
    def samples(self) -> Iterator[Sample]:
        """Yield the metrics to show."""


class Counter(Family):
    """Counts what happens."""

    kind = "counter"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._counts: dict[tuple[str, ...], float] = {} if self.labels else {(): 0.0}

    @property
    def shown(self) -> str:
        """The name with its ending."""
        return f"{self.name}_total"

    def inc(self, by: float = 1.0, *values: str) -> None:
        """Count more; `values` are the labels', in their order."""
        self._counts[values] = self._counts.get(values, 0.0) + by

    def samples(self) -> Iterator[Sample]:
        """See `Family.samples`."""
        for values, count in self._counts.items():
            yield self.shown, tuple(zip(self.labels, values, strict=True)), count


class Gauge(Family):
    """A value that is asked for when it is shown."""

    kind = "gauge"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._value: Callable[[], float] = lambda: 0.0

    def set_function(self, value: Callable[[], float]) -> None:
        """Ask this from now on."""
        self._value = value

    def samples(self) -> Iterator[Sample]:
        """See `Family.samples`."""
        yield self.name, (), float(self._value())


@dataclass(eq=False)
class Histogram(Family):
    """Counts values by size (`buckets`: their upper bounds, ascending)."""

    kind = "histogram"

    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._counts = [0] * (len(self.buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        place = next((at for at, bound in enumerate(self.buckets) if value <= bound), len(self.buckets))
        self._counts[place] += 1
        self._sum += value

    def samples(self) -> Iterator[Sample]:
        """See `Family.samples`."""
        below = 0
        for bound, count in zip((*self.buckets, inf), self._counts, strict=True):
            below += count
            yield f"{self.name}_bucket", (("le", _number(bound)),), below
        yield f"{self.name}_count", (), below
        yield f"{self.name}_sum", (), self._sum


def process_metrics(registry: Registry) -> None:
    """Register what client libraries tell of any process, where boards look for it."""
    started = time.time()
    cpu = Gauge("process_cpu_seconds_total", "Total user and system CPU time spent in seconds", registry=registry)
    cpu.kind = "counter"
    cpu.set_function(lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
    memory = Gauge("process_resident_memory_bytes", "Resident memory size in bytes", registry=registry)
    memory.set_function(_resident)
    Gauge("process_start_time_seconds", "Start time of the process", registry=registry).set_function(lambda: started)


def _resident() -> float:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0.0


def _braced(labels: Iterable[tuple[str, str]]) -> str:
    parts = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{parts}}}" if parts else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return "+Inf" if value == inf else repr(float(value))
