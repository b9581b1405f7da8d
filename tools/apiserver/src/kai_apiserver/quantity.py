"""Resource quantities as the API server reads and writes them back: `1024Mi` comes back as `1Gi`, `0.5` as `500m`.

The server decides nothing with them beyond comparing a request with its limit, so a quantity here is an exact rational
with the suffix family it was written in, and no more.
"""

import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

_FORM = re.compile(r"^([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]+)?$")
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BY_POWER = {power: suffix for suffix, power in _DECIMAL.items()}
_BY_KIBI = {power: suffix for suffix, power in _BINARY.items()}

#: What the API server says of a quantity that is none.
NOT_A_QUANTITY = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def amount(text: str) -> Fraction:
    """The exact value of a quantity.

    Raises:
        ValueError: if it is none.
    """
    return _parse(text)[0]


@lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[Fraction, str]:
    """Value and suffix family: `binary`, `decimal` or `exponent`."""
    match = _FORM.match(text)
    if match is None:
        raise ValueError(NOT_A_QUANTITY)
    sign, digits, suffix = match[1], match[2], match[3] or ""
    value = Fraction(Decimal(digits)) * (-1 if sign == "-" else 1)
    if suffix in _BINARY:
        return value * 1024 ** _BINARY[suffix], "binary"
    if suffix[:1] in ("e", "E") and len(suffix) > 1:
        return value * Fraction(10) ** int(suffix[1:]), "exponent"
    return value * Fraction(10) ** _DECIMAL[suffix], "decimal"


@lru_cache(maxsize=4096)
def canonical(text: str) -> str:
    """The same quantity as the API server would write it.

    Raises:
        ValueError: if it is none.
    """
    value, family = _parse(text)
    if not value:
        return "0"
    sign, value = ("-", -value) if value < 0 else ("", value)
    if family == "binary" and value.denominator == 1 and value >= 1024:
        whole, power = value.numerator, 0
        while power < 6 and whole % 1024 == 0:
            whole, power = whole // 1024, power + 1
        return f"{sign}{whole}{_BY_KIBI[power] if power else ''}"
    return sign + _decimal(value, exponent=family == "exponent")


def _decimal(value: Fraction, *, exponent: bool) -> str:
    """The largest power of 1000 that leaves a whole number; below nano, rounded up as the API server rounds."""
    power = -9
    nanos = value * 10**9
    whole = -(-nanos.numerator // nanos.denominator)
    while whole % 1000 == 0 and power < 18:
        whole, power = whole // 1000, power + 3
    if exponent:
        return f"{whole}e{power}" if power else str(whole)
    return f"{whole}{_BY_POWER[power]}"
