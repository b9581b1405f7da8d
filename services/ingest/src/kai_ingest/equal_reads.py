"""Tells the second of two equal reads of a pod from the first, so that no half of an admission is taken for the whole.

podresources read in the middle of an admission shows what was given so far: CPUs without memory, say, and the whole a
moment later. What two looks of an exporter at its kubelet have in common lasts.
"""

from collections import OrderedDict

#: How many pods are remembered.
_KEPT = 10_000


class EqualReads:
    """The last read of each pod that has to be read again."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[bytes, int]] = OrderedDict()

    def again(self, uid: str, content: bytes, *, at: int) -> bool:
        """Tell whether the same was read before, and remember it for the next time.

        Args:
            uid: whose.
            content: digest of what was read.
            at: when, by the node's clock; a report that is sent twice is one read.
        """
        before = self._last.get(uid)
        if before is not None and before[0] == content:
            return before[1] < at
        self._last[uid] = content, at
        self._last.move_to_end(uid)
        if len(self._last) > _KEPT:
            self._last.popitem(last=False)
        return False

    def settled(self, uid: str) -> None:
        """Forget a pod: what it holds is no question any more."""
        self._last.pop(uid, None)
