"""Waiting groups that start alone, are alike, and have not changed since a cycle left them waiting.

Thousands of them wait on a full cluster. The state keeps them from cycle to cycle, so that a cycle looks at the line
and not at each group.
"""

from collections.abc import Iterable, Sequence

from kaicore.rules.engine.work.workload import LonePod, OrderKey


class RestingLine:
    """Such groups of one kind, with their pods.

    Attributes:
        scheduler_name: of all of their pods.
        class_key: likewise.
        lones: the pod of each group, by the group's key.
        uids: of these pods.
        evicts_us: from when on no delay keeps any of them from having others evicted, microseconds since the epoch.
    """

    def __init__(self, scheduler_name: str, class_key: str) -> None:
        self.scheduler_name, self.class_key = scheduler_name, class_key
        self.lones: dict[str, LonePod] = {}
        self.uids: set[str] = set()
        self.evicts_us = 0
        self._sorted: tuple[list[tuple[OrderKey, str]], list[str], int] | None = None

    def add(self, key: str, lone: LonePod, *, evicts_us: int) -> None:
        """Add a group."""
        self.lones[key] = lone
        self.uids.add(lone.member.pod.uid)
        self.evicts_us, self._sorted = max(self.evicts_us, evicts_us), None

    def drop(self, key: str) -> None:
        """Take a group out."""
        self.uids.discard(self.lones.pop(key).member.pod.uid)
        self._sorted = None

    def in_order(self) -> tuple[Sequence[tuple[OrderKey, str]], Sequence[str], int]:
        """Return the places and keys of the groups by place; their keys, sorted; and when the first pod was created.

        The time is in seconds since the epoch. What is returned is kept until a group comes or goes; not to be changed.
        """
        if self._sorted is None:
            entries = sorted((lone.order_key, key) for key, lone in self.lones.items())
            oldest = min(lone.member.pod.created_at for lone in self.lones.values())
            self._sorted = entries, sorted(self.lones), oldest
        return self._sorted


def uids_of(lines: Iterable[RestingLine]) -> set[str]:
    """Return the uids of the pods of lines."""
    return set[str]().union(*(line.uids for line in lines))


def keys_of(lines: Iterable[RestingLine]) -> set[str]:
    """Return the keys of the groups of lines."""
    return set[str]().union(*(line.lones for line in lines))
