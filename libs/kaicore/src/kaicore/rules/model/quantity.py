"""Kubernetes resource quantities and durations as integers.

Every amount in kai-ledger is a whole number in the canonical unit of its resource: millicores for `cpu`, bytes for
memory and hugepages, counts for everything else. A quantity that is not whole in that unit is rounded up, as
Kubernetes' `Quantity.MilliValue()` and `Quantity.Value()` do. Durations are read as Go and Kubernetes write them
(`metav1.Duration`): `60s`, `1h30m`, `-1s`, `500ms`.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

from kaicore.errors import AbsurdQuantity, InvalidObject, InvalidQuantity

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
    """Parse a duration into microseconds, cut to whole ones. Raises InvalidObject: it is no duration."""
    if len(text) > _MOST_TEXT or _DURATION.fullmatch(text) is None:
        raise InvalidObject(subject, field, text[:_MOST_TEXT], "is no duration such as 90s or 1h30m")
    total = int(sum(Fraction(number) * _UNITS_US[unit] for number, unit in _PART.findall(text)))
    if total > _MOST_US:
        raise InvalidObject(subject, field, text, "is too long")
    return -total if text.startswith("-") else total


CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
STORAGE = "storage"
PODS = "pods"
HUGEPAGES_PREFIX = "hugepages-"

#: Above this no amount is believed: what all pods of a node ask for, in thousandths, must stay within 64 bits. It is
#: 256Ti of memory, and more CPUs and devices than there are.
MAX_AMOUNT = 2**48

#: Sizes of volumes are compared and never summed, and file systems without an end say that they have 8Ei.
MAX_STORAGE = 2**62

_BINARY = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))
_MAX_THOUSANDTHS = 2**63 - 1

_SUFFIXES = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
_QUANTITY = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d{1,3})|(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei))?")


@lru_cache(maxsize=4096)
def is_hugepages(resource: str) -> bool:
    """Tell whether the resource is a hugepage size, such as `hugepages-2Mi`."""
    return resource.startswith(HUGEPAGES_PREFIX)


@lru_cache(maxsize=4096)
def is_memory(resource: str) -> bool:
    """Tell whether the memory manager accounts for the resource."""
    return resource == MEMORY or resource.startswith(HUGEPAGES_PREFIX)


def is_bytes(resource: str) -> bool:
    """Tell whether the resource is counted in bytes."""
    return resource in (MEMORY, EPHEMERAL_STORAGE) or is_hugepages(resource)


def is_native(resource: str) -> bool:
    """Tell whether Kubernetes itself defines the resource (no domain prefix, or `kubernetes.io/`)."""
    return "/" not in resource or "kubernetes.io/" in resource


def parse_amount(text: str | int, *, resource: str, subject: str, field: str) -> int:
    """Parse a quantity into the canonical unit of `resource`.

    Args:
        text: a Kubernetes quantity, such as `500m`, `32Gi`, `8`, `1e3`.
        resource: decides the unit: millicores for `cpu`, else bytes or counts.
        subject: the object, for the error; for example `Pod default/train-0`.
        field: the field's path, for the error.

    Raises:
        InvalidQuantity: when `text` is no quantity, or is negative.
        AbsurdQuantity: when it exceeds `most_amount`.
    """
    amount, problem = read_amount(text, resource=resource, subject=subject, field=field)
    if problem is not None:
        raise problem
    return amount


def read_amount(text: str | int, *, resource: str, subject: str, field: str) -> tuple[int, AbsurdQuantity | None]:
    """Parse a quantity as `parse_amount` does; of one that is too large to be believed return the most that is.

    Raises InvalidQuantity: when `text` is no quantity, or is negative.

    Returns:
        The amount, and what is wrong with it if something is.
    """
    try:
        amount = _parse(str(text), resource == CPU)
    except ValueError as error:
        raise InvalidQuantity(subject, field, text, str(error)) from None
    most = most_amount(resource)
    if amount <= most:
        return amount, None
    problem = f"absurdly large quantity, more than {canonical_quantity(resource, most)}"
    return most, AbsurdQuantity(subject, field, text, problem)


def thousandths(text: str) -> int | None:
    """Return a quantity, which may be negative, in thousandths, rounded away from zero; None where it is none."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    value = _value(match) * 1000
    rounded = -(-value.numerator // value.denominator)
    return -rounded if match[1] == "-" else rounded


def parse_thousandths(text: str, *, subject: str, field: str) -> int:
    """Parse a quantity of any resource into thousandths, rounded up.

    Args: see `parse_amount`.

    Raises:
        InvalidQuantity: it is no quantity, is negative, or more than 64 bits hold.
    """
    try:
        amount = _parse(text, True)
    except ValueError as error:
        raise InvalidQuantity(subject, field, text, str(error)) from None
    if amount > _MAX_THOUSANDTHS:
        raise InvalidQuantity(subject, field, text, "absurdly large quantity")
    return amount


def thousandths_text(amount: int) -> str:
    """Write thousandths as an exact Kubernetes quantity: `2`, `1500m`, `10Gi`."""
    if amount % 1000:
        return f"{amount}m"
    return _in_whole_units(amount // 1000)


def _in_whole_units(amount: int) -> str:
    suffix, unit = next(((suffix, unit) for suffix, unit in _BINARY if amount and amount % unit == 0), ("", 1))
    return f"{amount // unit}{suffix}"


def most_amount(resource: str) -> int:
    """Return the largest amount of a resource that is believed."""
    return MAX_STORAGE if resource == STORAGE else MAX_AMOUNT


@lru_cache(maxsize=65536)
def is_whole(text: str) -> bool:
    """Tell whether a text is a quantity of whole pieces: `2`, `2000m` and `2k`, but not `1500m`."""
    match = _QUANTITY.fullmatch(text)
    return match is not None and _value(match).denominator == 1


def _value(match: re.Match[str]) -> Fraction:
    _, number, exponent, suffix = match.groups()
    return Fraction(number) * (Fraction(10) ** int(exponent) if exponent else _SUFFIXES[suffix or ""])


@lru_cache(maxsize=65536)
def _parse(text: str, milli: bool) -> int:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError("not a Kubernetes quantity")
    sign, value = match[1], _value(match)
    if sign == "-" and value:
        raise ValueError("negative quantity")
    if milli:
        value *= 1000
    return -(-value.numerator // value.denominator)


def format_amount(resource: str, amount: int) -> str:
    """Write an amount as a person would: `8`, `22.5`, `500m`, `118.5Gi`; one cut to `MAX_AMOUNT` may be more."""
    if not is_bytes(resource) and amount >= MAX_AMOUNT // 2:
        return f"{canonical_quantity(resource, amount)} or more"
    if resource == CPU:
        return f"{amount}m" if 0 < abs(amount) < 1000 else f"{amount / 1000:.3f}".rstrip("0").rstrip(".")
    if is_bytes(resource):
        for suffix, unit in _BINARY:
            if abs(amount) >= unit:
                tenths = amount * 10 // unit
                return f"{tenths // 10}{suffix}" if tenths % 10 == 0 else f"{tenths // 10}.{abs(tenths) % 10}{suffix}"
    return str(amount)


def asked_amount(resource: str, amount: int) -> str:
    """Write an amount that one pod asks for; bytes, too, may have been cut to `MAX_AMOUNT`."""
    return format_amount(resource, amount) + (" or more" if is_bytes(resource) and amount >= MAX_AMOUNT else "")


def exact_amount(resource: str, amount: int) -> str:
    """Write an amount as an answer carries it, exactly: `8`, `500m`, `32Gi`, `11212808Ki`."""
    return _in_whole_units(amount) if is_bytes(resource) else canonical_quantity(resource, amount)


def readable_amount(resource: str, text: str) -> str:
    """Write an exact amount of an answer as a person would, in tenths; what is no quantity stays as it is."""
    sign, text = ("-", text[1:]) if text.startswith("-") else ("", text)
    try:
        return sign + format_amount(resource, _parse(text, resource == CPU))
    except ValueError:
        return sign + text


def add_amounts(amounts: dict[str, int], more: Mapping[str, int], times: int) -> None:
    """Add amounts to others so many times, or take them off with -1; an amount of 0 is left out."""
    for resource, amount in more.items():
        now = amounts.get(resource, 0) + times * amount
        if now:
            amounts[resource] = now
        else:
            amounts.pop(resource, None)


def canonical_quantity(resource: str, amount: int) -> str:
    """Write an amount as an exact Kubernetes quantity, as annotations carry it: `8`, `500m`, `1073741824`."""
    if resource == CPU and amount % 1000:
        return f"{amount}m"
    return str(amount // 1000) if resource == CPU else str(amount)


def quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    """Return amounts as canonical quantities, in order of resource."""
    return {name: canonical_quantity(name, amounts[name]) for name in sorted(amounts)}
