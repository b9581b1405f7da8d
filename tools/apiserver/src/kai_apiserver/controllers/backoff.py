"""Delays before a controller replaces what failed: longer with each failure in a row."""

from dataclasses import dataclass

from kaicore.backoff import backoff

#: The longest wait, in first waits: ten minutes of ten seconds each in the real Job controller.
_MOST = 60.0


@dataclass(slots=True)
class _Failures:
    """Failures since the last success, and when the last was (seconds since 1970)."""

    count: int = 0
    last_s: float = 0.0


class Backoffs:
    """The waits of a controller's objects, by uid; forgotten on restart."""

    def __init__(self, base_s: float) -> None:
        """`base_s` is the first wait; it doubles with each failure."""
        self._base_s = base_s
        self._failures: dict[str, _Failures] = {}

    def failed(self, uid: str, now_s: float) -> None:
        """Something of the object has failed."""
        failures = self._failures.setdefault(uid, _Failures())
        failures.count += 1
        failures.last_s = now_s

    def forget(self, uid: str) -> None:
        """Something of it has succeeded, or the object is gone."""
        self._failures.pop(uid, None)

    def count(self, uid: str) -> int:
        """How often something of the object has failed since the last success."""
        failures = self._failures.get(uid)
        return failures.count if failures is not None else 0

    def remaining(self, uid: str, now_s: float) -> float:
        """Seconds left to wait; not positive if it is time."""
        failures = self._failures.get(uid)
        if failures is None:
            return 0.0
        return failures.last_s + backoff(failures.count, first=self._base_s, most=_MOST * self._base_s) - now_s
