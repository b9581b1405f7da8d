"""Bars: parts of a whole, as percentages that templates draw."""

from collections.abc import Iterable
from dataclasses import dataclass

from kaicore.analysis.projections.capacity import Gpus


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar.

    Attributes:
        kind: what it is, which is also its class in the style sheet.
        label: for people.
        amount: for people.
        start, width: in hundredths of the bar.
    """

    kind: str
    label: str
    amount: str
    start: float
    width: float


def parts(whole: float, amounts: Iterable[tuple[str, str, float, str]]) -> tuple[Part, ...]:
    """Lay parts out one after another.

    Args:
        whole: what the full bar stands for; parts beyond it are cut off.
        amounts: kind, label, amount and the amount's text of each; those of nothing are left out.
    """
    made, start = [], 0.0
    for kind, label, amount, text in amounts:
        width = min(100.0 * amount / whole, 100.0 - start) if whole > 0 else 0.0
        if amount > 0:
            made.append(Part(kind, label, text, round(start, 2), round(width, 2)))
            start += width
    return tuple(made)


def gpu_parts(gpus: Gpus) -> tuple[Part, ...]:
    """Return the bar of some nodes' GPUs."""
    kinds = (
        ("held", "held", gpus.held),
        ("releasing", "releasing", gpus.releasing),
        ("free", "free", gpus.free),
        ("stranded", "stranded", gpus.stranded),
        ("out", "out of service", gpus.out),
    )
    return parts(gpus.total, ((kind, label, amount, str(amount)) for kind, label, amount in kinds))
