"""Use of queues over time, by the hour, from the log's own clock; and its weighted sum at a given time.

Stored figures do not depend on the weighting. Windows and half-lives are settings of the reader, so the same history
answers a what-if with others. Everything is a whole number: amounts (memory and hugepages in MiB) times milliseconds,
weights in 2**-32. Use of the current hour counts in full, that of an hour n before counts 0.5**(n / half-life), and
nothing from before the window counts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import isqrt
from typing import Generic, TypeVar

import msgspec

from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import PODS, add_amounts, is_memory
from kaicore.rules.queues.division import HOUR_US, RETENTION_HOURS, USAGE_SCALE, FairShareConfig

_HOUR_MS = HOUR_US // 1000
_ONE = 1 << 32
#: The most that is written down of an hour: what a snapshot holds has 64 bits.
_MOST = 1 << 62
_FRACTION_BITS = 16

NameT = TypeVar("NameT")


class UseHistory(msgspec.Struct):
    """The use by one part of the accounts over time.

    Attributes:
        rate: what it uses now, in the resources' units.
        settled_ms: up to when `hours` tells of it, milliseconds since the epoch.
        hours: by resource and hour since the epoch: amount times milliseconds.
    """

    rate: Amounts = {}
    settled_ms: int = 0
    hours: dict[str, dict[int, int]] = {}

    def change(self, amounts: Amounts, *, sign: int, at_us: int) -> None:
        """Use more, or less, from a point in time on; microseconds since the epoch, never earlier than before."""
        self.settle(at_us)
        add_amounts(self.rate, amounts, sign)

    def settle(self, at_us: int) -> None:
        """Write down what was used up to a point in time."""
        at_ms = at_us // 1000
        if at_ms > self.settled_ms:
            hour, length = at_ms // _HOUR_MS, at_ms - self.settled_ms
            if hour == self.settled_ms // _HOUR_MS:
                # Most changes are in the hour of the one before: the fold does this for every pod.
                for resource, amount in self.rate.items():
                    if resource != PODS and (scaled := weighable(resource, amount)):
                        self._used(resource, hour, scaled * length)
            else:
                for used in self._since(at_ms):
                    self._used(*used)
        self.settled_ms = at_ms

    def _used(self, resource: str, hour: int, amount: int) -> None:
        by_hour = self.hours.get(resource)
        if by_hour is None:
            by_hour = self.hours[resource] = {}
        now = by_hour.get(hour, 0) + amount
        by_hour[hour] = now if now < _MOST else _MOST

    def forget(self, before_hour: int) -> bool:
        """Forget what was before an hour; tell whether nothing is left."""
        for resource in list(self.hours):
            by_hour = self.hours[resource]
            for hour in [hour for hour in by_hour if hour < before_hour]:
                del by_hour[hour]
            if not by_hour:
                del self.hours[resource]
        return not (self.rate or self.hours)

    def weighed(self, hours: range, weights: Mapping[int, int], *, at_us: int) -> Amounts:
        """Return the use of some hours up to a point in time, each hour's times its weight, by resource."""
        sums: Amounts = {}
        for resource, by_hour in self.hours.items():
            sums[resource] = sum(amount * weights[hour] for hour, amount in by_hour.items() if hour in hours)
        for resource, hour, amount in self._since(at_us // 1000):
            if hour in hours:
                sums[resource] = sums.get(resource, 0) + amount * weights[hour]
        return sums

    def _since(self, at_ms: int) -> Iterable[tuple[str, int, int]]:
        start = max(self.settled_ms, at_ms - RETENTION_HOURS * _HOUR_MS)
        for resource, amount in self.rate.items():
            scaled = weighable(resource, amount)
            if not scaled or resource == PODS:
                continue
            begin = start
            while begin < at_ms:
                hour = begin // _HOUR_MS
                end = min(at_ms, (hour + 1) * _HOUR_MS)
                yield resource, hour, scaled * (end - begin)
                begin = end


def weighable(resource: str, amount: int) -> int:
    """Return an amount in the units of histories."""
    return amount >> 20 if is_memory(resource) else amount


@dataclass(slots=True)
class UsageReader(Generic[NameT]):
    """Weighs histories; what it remembers of the hours that have passed only saves time."""

    _closed: dict[NameT, tuple[tuple[int, int, int], Amounts]] = field(default_factory=dict)

    def parts(
        self,
        histories: Mapping[NameT, UseHistory],
        config: FairShareConfig,
        *,
        totals: Amounts,
        since_us: int,
        recorded_us: int,
        now_us: int,
    ) -> dict[NameT, Amounts]:
        """Return what each used, as a part of what the cluster had to give, in `USAGE_SCALE`.

        Args:
            totals: what the cluster has to give now, by resource; taken for what it had all along.
            since_us: when the log begins, microseconds since the epoch.
            recorded_us: when its last event was recorded; nothing of before then will change.
        """
        hour = now_us // HOUR_US
        first = hour - (hour % config.window_hours if config.tumbling else config.window_hours)
        weights = _weights(hour - first + 1, config.half_life_hours)
        by_hour = {hour - age: weight for age, weight in enumerate(weights)}
        span = sum(
            (min(now_us, (one + 1) * HOUR_US) - max(since_us, one * HOUR_US)) // 1000 * by_hour[one]
            for one in range(max(first, since_us // HOUR_US), hour + 1)
        )
        if span <= 0:
            return {}
        key = (first, hour, config.half_life_hours)
        capacity = {resource: weighable(resource, amount) * span for resource, amount in totals.items()}
        by_queue = {}
        for name, history in histories.items():
            closed = self._closed.get(name)
            if closed is None or closed[0] != key:
                passed = history.weighed(range(first, hour), by_hour, at_us=hour * HOUR_US)
                closed = (key, passed)
                if recorded_us >= hour * HOUR_US:
                    self._closed[name] = closed
            current = history.weighed(range(hour, hour + 1), by_hour, at_us=now_us)
            parts = {}
            for resource in closed[1].keys() | current.keys():
                if capacity.get(resource):
                    used = closed[1].get(resource, 0) + current.get(resource, 0)
                    parts[resource] = used * USAGE_SCALE // capacity[resource]
            by_queue[name] = parts
        for name in self._closed.keys() - histories.keys():
            del self._closed[name]
        return by_queue


@lru_cache(maxsize=64)
def _weights(count: int, half_life: int) -> tuple[int, ...]:
    return tuple(halved(age, half_life) if half_life else _ONE for age in range(count))


def halved(age: int, half_life: int) -> int:
    """Return 0.5**(age / half_life) in 2**-32, by whole numbers only: the same on every machine."""
    halvings, rest = divmod(age, half_life)
    fraction = (rest << _FRACTION_BITS) // half_life
    weight, root = _ONE, _ONE // 2
    for bit in range(_FRACTION_BITS - 1, -1, -1):
        root = isqrt(root * _ONE)
        if fraction >> bit & 1:
            weight = weight * root // _ONE
    return weight >> halvings
