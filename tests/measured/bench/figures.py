"""Figures as one JSON line each: name, value, unit and spread."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure; `spread` in per cent of the value is half the range of the runs, or of what `paired` says."""

    name: str
    value: float
    unit: str
    spread: float

    def line(self) -> str:
        return msgspec.json.encode(self).decode()


def figure(name: str, runs: Sequence[float], unit: str) -> Figure:
    """Sum up runs: their median and spread."""
    value = statistics.median(runs)
    spread = (max(runs) - min(runs)) / 2 / value * 100 if value else 0.0
    return Figure(name, round(value, 3), unit, round(spread, 1))


def paired(name: str, own: Sequence[float], others: Sequence[float]) -> Figure:
    """Hold runs against others that were made in turns with them: the median of how many times as much they take.

    The spread is half of the range in which the true median lies, 19 times of 20 (by the order of the pairs: Conover,
    Practical Nonparametric Statistics, 3.2).
    """
    ratios = sorted(mine / other for mine, other in zip(own, others, strict=True))
    value, count = statistics.median(ratios), len(ratios)
    outside = max(int((count - 1.96 * math.sqrt(count)) / 2), 0)
    spread = (ratios[count - 1 - outside] - ratios[outside]) / 2 / value * 100
    return Figure(name, round(value, 3), "times", round(spread, 1))
