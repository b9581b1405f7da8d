"""Keys of what has changed since somebody looked, for those who look again only at these."""

#: Whoever does not look for so many changes looks at everything again, so that they take up no more and more memory.
_MOST = 100_000


class ChangedKeys:
    """The keys that have changed since they were taken last."""

    def __init__(self) -> None:
        #: None while all count as changed.
        self._keys: set[str] | None = None

    def add(self, *keys: str) -> None:
        """Take note of changes."""
        if self._keys is not None:
            self._keys.update(keys)
            if len(self._keys) > _MOST:
                self._keys = None

    def take(self) -> set[str] | None:
        """Return the keys; None where any may have changed: at first, and after too many changes."""
        keys, self._keys = self._keys, set()
        return keys
