"""Recent work: the classes of pods with devices that the log saw in the last days, weighed by pod-hours.

A pod counts for an hour when the log first sees it, and for the rest of its run when it ends. So work that waits
counts, and a class of long runs soon outweighs a class of short ones. A pod counts alike however many devices it has:
by device-hours, room was kept for few large pods where many small ones came (decision 0060).
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from kaicore.rules.engine.config import DAY_US, MOST_RECENT_DAYS
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.placement.room_for_work import RecentClass

#: A pod counts for so long when it is first seen, seconds.
_AT_FIRST = 3600
#: More classes are not kept; then the lightest are forgotten, down to the second number.
_MOST_KEPT, _KEPT = 256, 192
#: More classes do not count in a cycle.
_MOST_COUNTED = 64
#: Of fewer pods no mix is made.
LEAST_PODS = 128


class SeenDay(NamedTuple):
    """The work that the log saw on a day.

    Attributes:
        day: days since the epoch.
        pods: how many came.
        seconds: pod-seconds.
    """

    day: int
    pods: int
    seconds: int


class SeenWork(msgspec.Struct):
    """The work that the log saw of a class.

    Attributes:
        pod_class: the class, without what its claims ask for.
        claimed: how many devices the claims of a pod ask for.
        days: in order, each with how many pods came and their pod-seconds.
    """

    pod_class: PodClass
    claimed: int
    days: list[SeenDay]

    @property
    def devices(self) -> int:
        """The number of devices that a pod asks for."""
        return self.pod_class.size[0] + self.claimed


class RecentWork:
    """Work by class, of the last `MOST_RECENT_DAYS`; no more than 256 classes."""

    def __init__(self, seen: Iterable[SeenWork] = ()) -> None:
        """Args: seen: what a snapshot has."""
        self._seen = {_key(one.pod_class, one.claimed): one for one in seen}
        #: The last day of which anything was counted.
        self._day = 0

    def came(self, pod_class: PodClass, *, claimed: int, at_us: int) -> None:
        """Count a pod that is new, if it asks for devices.

        Args:
            claimed: how many devices its claims ask for.
            at_us: when, microseconds since the epoch.
        """
        self._count(pod_class, claimed, at_us, pods=1, seconds=_AT_FIRST)

    def ended(self, pod_class: PodClass, *, claimed: int, ran_us: int, at_us: int) -> None:
        """Count the part of a run that did not count when the pod came.

        Args: see `came`; ran_us: how long it held its node, microseconds.
        """
        seconds = ran_us // 1_000_000 - _AT_FIRST
        if seconds > 0:
            self._count(pod_class, claimed, at_us, pods=0, seconds=seconds)

    def mix(self, *, days: int, now_us: int, shares: bool = False) -> tuple[RecentClass, ...]:
        """Return the heaviest classes of the last days, at most 64; none where fewer than `LEAST_PODS` pods came.

        Args:
            days: how many count, today included; 0 for none.
            now_us: microseconds since the epoch.
            shares: whether pods with a share of a GPU count.
        """
        since, pods = now_us // DAY_US - days, 0
        found: list[tuple[int, str]] = []
        for key, one in self._seen.items():
            if one.pod_class.gpu_share is not None and not shares:
                continue
            lately = [seen for seen in one.days if seen.day > since]
            pods += sum(seen.pods for seen in lately)
            weight = sum(seen.seconds for seen in lately)
            if weight:
                found.append((-weight, key))
        if pods < LEAST_PODS or not days:
            return ()
        return tuple(
            RecentClass(self._seen[key].pod_class, self._seen[key].claimed, -weight)
            for weight, key in sorted(found)[:_MOST_COUNTED]
        )

    def record(self) -> list[SeenWork]:
        """Return all, for snapshots."""
        return [self._seen[key] for key in sorted(self._seen)]

    def _count(self, pod_class: PodClass, claimed: int, at_us: int, *, pods: int, seconds: int) -> None:
        key, day = _key(pod_class, claimed), at_us // DAY_US
        if day > self._day:
            self._day = day
            self._forget_until(day - MOST_RECENT_DAYS)
        one = self._seen.get(key) or SeenWork(pod_class, claimed, [])
        if not one.devices and pod_class.gpu_share is None:
            return
        self._seen[key] = one
        before = next((seen for seen in one.days if seen.day == day), SeenDay(day, 0, 0))
        new = SeenDay(day, before.pods + pods, before.seconds + seconds)
        one.days = sorted([*(seen for seen in one.days if seen.day != day), new])
        if len(self._seen) > _MOST_KEPT:
            self._forget_lightest()

    def _forget_until(self, day: int) -> None:
        for key, one in list(self._seen.items()):
            one.days = [seen for seen in one.days if seen.day > day]
            if not one.days:
                del self._seen[key]

    def _forget_lightest(self) -> None:
        weights = {key: sum(seen.seconds for seen in one.days) for key, one in self._seen.items()}
        for key in sorted(weights, key=lambda key: (-weights[key], key))[_KEPT:]:
            del self._seen[key]


def _key(pod_class: PodClass, claimed: int) -> str:
    return f"{pod_class.key}+{claimed}" if claimed else pod_class.key
