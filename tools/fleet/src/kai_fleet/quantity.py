"""Kubernetes resource quantities as integers: millicores for CPU, plain units (bytes, counts) for the rest."""

import re
from fractions import Fraction
from functools import lru_cache

from kaicore.errors import InvalidQuantity

#: Beyond this an amount is a typing error.
LARGEST = 2**62

_FORM = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?\d{1,3}))?", re.ASCII)
_BINARY = {unit: 1024 ** (power + 1) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}
_DECIMAL = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000 ** (power + 1)) for power, unit in enumerate(("k", "M", "G", "T", "P", "E"))},
}


def parse_amount(resource: str, quantity: str | float, *, subject: str, field: str) -> int:
    """Return an amount of `resource`: millicores for `cpu`, units otherwise; rounded up, as `Quantity.Value` does.

    Raises:
        InvalidQuantity: naming `subject`, `field` and the quantity.
    """
    try:
        return _scaled(str(quantity), 1000 if resource == "cpu" else 1)
    except ValueError as error:
        raise InvalidQuantity(subject, field, quantity, str(error)) from None


@lru_cache(maxsize=8192)
def _scaled(text: str, scale: int) -> int:
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError("not a quantity")
    sign, digits, binary, decimal, exponent = match.groups()
    value = Fraction(digits) * scale
    if binary:
        value *= _BINARY[binary]
    elif decimal:
        value *= _DECIMAL[decimal]
    elif exponent:
        value *= Fraction(10) ** int(exponent)
    if sign == "-" and value:
        raise ValueError("negative")
    if value > LARGEST:
        raise ValueError("too large")
    return -(-value.numerator // value.denominator)


def format_amount(resource: str, amount: int) -> str:
    """Write an amount the way a kubelet does in a node's status."""
    if resource == "cpu":
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    if (resource == "memory" or resource.startswith(("hugepages-", "ephemeral-storage"))) and amount % 1024 == 0:
        return f"{amount // 1024}Ki" if amount else "0"
    return str(amount)
