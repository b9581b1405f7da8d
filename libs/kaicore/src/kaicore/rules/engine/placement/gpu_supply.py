"""GPUs that are opened for sharing, and the parts of them that pods hold, as a cycle gives and takes them.

`NodeColumns` has the supply beside its devices. A GPU that is opened is one whole GPU of its node, held by its
reservation pod; what of it is free is a part. Counts are sums, so a cycle may take back in any order.
"""

from collections.abc import Callable, Iterable
from copy import copy
from typing import NamedTuple

import numpy as np

from kaicore.rules.model.gpu_share import WHOLE
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import Amounts
from kaicore.rules.numa.columns import Ints
from kaicore.rules.numa.zone_charge import ZoneCharge


class Reservation(NamedTuple):
    """The holding of a GPU that is opened for sharing.

    Attributes:
        uid: of the entry that is charged for it.
        requests: what it takes of the node as a whole.
        charge: what it takes of the node's zones.
    """

    uid: str
    requests: Amounts
    charge: ZoneCharge


class GivenPart(NamedTuple):
    """A part of a GPU that a pod gets or holds.

    Attributes:
        group: the GPU group.
        milli: thousandths of the GPU.
        mib: MiB as asked for; 0 for a fraction.
        opens: whether the GPU is opened for this pod, by this cycle.
        reservation: of a GPU that this cycle opens, what its reservation pod is charged with.
        placement: the zones that the reservation pod is predicted to get.
    """

    group: str
    milli: int
    mib: int = 0
    opens: bool = False
    reservation: Reservation | None = None
    placement: Placement | None = None


class GpuSupply:
    """Opened GPUs by row, and what of each is used."""

    def __init__(self) -> None:
        #: Rows by the GPU groups of which parts are to be had.
        self._rows: dict[str, int] = {}
        #: The same by row.
        self._of_row: dict[int, tuple[str, ...]] = {}
        #: Thousandths and pods of each group, also of those that are not to be had.
        self._used: dict[str, int] = {}
        self._pods: dict[str, int] = {}
        self._largest: Ints = np.zeros(0, np.int64)
        #: Returns what holds a group's GPU by facts and decisions; None where nothing does.
        self.reservation_of: Callable[[str], Reservation | None] = _nothing
        #: Reservations of the GPUs that this copy has opened.
        self._opened: dict[str, Reservation] = {}

    def copy(self) -> "GpuSupply":
        """Return a supply that a cycle can give out."""
        other = copy(self)
        other._rows, other._of_row = dict(self._rows), dict(self._of_row)  # noqa: SLF001 - of the same class
        other._used, other._pods = dict(self._used), dict(self._pods)  # noqa: SLF001
        other._opened = dict(self._opened)  # noqa: SLF001
        other._largest = self._largest.copy()  # noqa: SLF001
        return other

    def __bool__(self) -> bool:
        """True if parts of any GPU are to be had."""
        return bool(self._rows)

    def offer(self, group: str, row: int) -> None:
        """Let parts of a GPU be had; harmless where they are already."""
        if group not in self._rows:
            self._rows[group] = row
            self._of_row[row] = tuple(sorted((*self._of_row.get(row, ()), group)))
            self._find_largest(row)

    def withdraw(self, group: str) -> None:
        """Let no more parts of a GPU be had; harmless where none are."""
        row = self._rows.pop(group, None)
        if row is None:
            return
        left = tuple(one for one in self._of_row[row] if one != group)
        if left:
            self._of_row[row] = left
        else:
            del self._of_row[row]
        self._find_largest(row)

    def hold(self, group: str, milli: int, *, sign: int = 1) -> None:
        """A pod holds a part of a GPU, or holds it no more with `sign=-1`."""
        used, pods = self._used.get(group, 0) + sign * milli, self._pods.get(group, 0) + sign
        if used or pods:
            self._used[group], self._pods[group] = used, pods
        else:
            self._used.pop(group, None)
            self._pods.pop(group, None)
        row = self._rows.get(group)
        if row is not None:
            self._find_largest(row)

    def give(self, row: int, parts: Iterable[GivenPart], *, sign: int = 1) -> None:
        """Give parts to a pod on a row, or take them back with `sign=-1`."""
        for part in parts:
            self.hold(part.group, part.milli, sign=sign)
            if not part.opens:
                continue
            if sign > 0:
                assert part.reservation is not None, "a GPU is opened with its reservation"
                self._opened[part.group] = part.reservation
                self.offer(part.group, row)
            else:
                self._opened.pop(part.group, None)
                self.withdraw(part.group)

    def reservation(self, group: str) -> Reservation | None:
        """Return what holds a group's GPU now; None where nothing does, or where parts of it are not to be had."""
        if group not in self._rows:
            return None
        return self._opened.get(group) or self.reservation_of(group)

    def pods(self, group: str) -> int:
        """Return how many pods hold a part of a GPU."""
        return self._pods.get(group, 0)

    def used(self, group: str) -> int:
        """Return how much of a GPU is used, in thousandths."""
        return self._used.get(group, 0)

    def free(self, row: int) -> list[tuple[int, str]]:
        """Return what is free of each opened GPU of a row, in thousandths, with its group: the least first."""
        return sorted((WHOLE - self._used.get(group, 0), group) for group in self._of_row.get(row, ()))

    def rows(self) -> Iterable[int]:
        """Return the rows with opened GPUs."""
        return self._of_row

    def unused(self) -> list[str]:
        """Return the opened GPUs of which no pod holds a part, in order."""
        return sorted(group for group in self._rows if not self._pods.get(group))

    def largest(self, rows: int) -> Ints:
        """Return the largest free part by row, in thousandths; 0 on rows without opened GPUs. Not to be changed.

        Args: rows: how many rows there are.
        """
        self._reserve(rows)
        return self._largest[:rows]

    def _find_largest(self, row: int) -> None:
        self._reserve(row + 1)
        groups, used = self._of_row.get(row, ()), self._used
        self._largest[row] = max((WHOLE - used.get(group, 0) for group in groups), default=0)

    def _reserve(self, rows: int) -> None:
        if rows > len(self._largest):
            more = np.zeros(max(rows, 2 * len(self._largest)) - len(self._largest), np.int64)
            self._largest = np.concatenate([self._largest, more])


def _nothing(_: str) -> Reservation | None:
    return None
