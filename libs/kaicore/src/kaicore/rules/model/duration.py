"""Durations as Go and Kubernetes write them (`metav1.Duration`): `60s`, `1h30m`, `-1s`, `500ms`."""

import re
from fractions import Fraction

from kaicore.errors import InvalidObject

_UNITS_US = {
    "ns": Fraction(1, 1000),
    "us": Fraction(1),
    "µs": Fraction(1),
    "ms": Fraction(1_000),
    "s": Fraction(1_000_000),
    "m": Fraction(60_000_000),
    "h": Fraction(3_600_000_000),
}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")
_DURATION = re.compile(rf"[+-]?(?:0|(?:{_PART.pattern})+)")

#: Above this no duration is believed: some 285 years.
_MOST_US = 2**53

#: Longer texts are not even looked at.
_MOST_TEXT = 100


def parse_duration(text: str, *, subject: str, field: str) -> int:
    """Parse a duration into microseconds, cut to whole ones.

    Raises:
        InvalidObject: it is no duration.
    """
    if len(text) > _MOST_TEXT or _DURATION.fullmatch(text) is None:
        raise InvalidObject(subject, field, text[:_MOST_TEXT], "is no duration such as 90s or 1h30m")
    total = int(sum(Fraction(number) * _UNITS_US[unit] for number, unit in _PART.findall(text)))
    if total > _MOST_US:
        raise InvalidObject(subject, field, text, "is too long")
    return -total if text.startswith("-") else total
