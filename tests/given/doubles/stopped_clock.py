"""A clock that stands still."""


class StoppedClock:
    """A clock that stands still until it is set.

    Attributes:
        now: microseconds since the epoch.
    """

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now
