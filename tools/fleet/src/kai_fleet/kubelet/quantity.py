"""Kubernetes resource quantities, for the fleet and the simulated API server.

A kubelet counts in integers: millicores for CPU, plain units (bytes, counts) for the rest. An API server decides
nothing with quantities beyond comparing a request with its limit: it keeps exact values and writes them back in one
canonical form (`1024Mi` as `1Gi`, `0.5` as `500m`).
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from kaicore.errors import InvalidQuantity

#: Beyond this an amount is a typing error.
LARGEST = 2**62

#: What the API server says of a quantity that is none.
NOT_A_QUANTITY = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"

_FORM = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?\d{1,3}))?", re.ASCII)
_BINARY = {unit: power + 1 for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BY_KIBI = {power: suffix for suffix, power in _BINARY.items()}
_BY_POWER = {power: suffix for suffix, power in _DECIMAL.items()}

_Family = Literal["binary", "decimal", "exponent"]


def exact_value(text: str) -> Fraction:
    """Return the exact value of a quantity, in units. Raises ValueError: it is none."""
    return _parse(text)[0]


def parse_amount(resource: str, quantity: str | float, *, subject: str, field: str) -> int:
    """Return an amount of `resource`: millicores for `cpu`, units otherwise; rounded up, as `Quantity.Value` does.

    Raises InvalidQuantity: naming `subject`, `field` and the quantity.
    """
    try:
        return _scaled(str(quantity), 1000 if resource == "cpu" else 1)
    except ValueError as error:
        raise InvalidQuantity(subject, field, quantity, str(error)) from None


def format_amount(resource: str, amount: int) -> str:
    """Write an amount the way a kubelet does in a node's status."""
    if resource == "cpu":
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    if (resource == "memory" or resource.startswith(("hugepages-", "ephemeral-storage"))) and amount % 1024 == 0:
        return f"{amount // 1024}Ki" if amount else "0"
    return str(amount)


@lru_cache(maxsize=4096)
def canonical(text: str) -> str:
    """Return the same quantity as the API server would write it. Raises ValueError: it is none."""
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


@lru_cache(maxsize=8192)
def _parse(text: str) -> tuple[Fraction, _Family]:
    """Return value and suffix family."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(NOT_A_QUANTITY)
    sign, digits, binary, decimal, exponent = match.groups()
    value = Fraction(digits) * (-1 if sign == "-" else 1)
    if binary:
        return value * 1024 ** _BINARY[binary], "binary"
    if exponent:
        return value * Fraction(10) ** int(exponent), "exponent"
    return value * Fraction(10) ** _DECIMAL[decimal or ""], "decimal"


@lru_cache(maxsize=8192)
def _scaled(text: str, scale: int) -> int:
    value = _parse(text)[0] * scale
    if value < 0:
        raise ValueError("negative")
    if value > LARGEST:
        raise ValueError("too large")
    return -(-value.numerator // value.denominator)


def _decimal(value: Fraction, *, exponent: bool) -> str:
    """Write with the largest power of 1000 that leaves a whole number; below nano, round up as the API server does."""
    power = -9
    nanos = value * 10**9
    whole = -(-nanos.numerator // nanos.denominator)
    while whole % 1000 == 0 and power < 18:
        whole, power = whole // 1000, power + 3
    if exponent:
        return f"{whole}e{power}" if power else str(whole)
    return f"{whole}{_BY_POWER[power]}"
