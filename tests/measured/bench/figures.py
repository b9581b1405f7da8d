"""Figures as one JSON line each: name, value, unit and spread."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure; `spread` is half the range of the runs in per cent of the value."""

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
