"""Lines that were already logged about each object: a line is logged again only when it differs."""

from kaicore.kube.reflector_core import ObjectKey


class ReportedLines:
    """Remembers what was last said of each object of each kind."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, ObjectKey], tuple[str, ...]] = {}

    def news(self, kind: str, key: ObjectKey, lines: tuple[str, ...]) -> tuple[str, ...]:
        """Return those lines that were not said of an object when last something was said of it."""
        before = self._said.get((kind, key), ())
        if lines:
            self._said[kind, key] = lines
        else:
            self.forget(kind, key)
        return tuple(line for line in lines if line not in before)

    def forget(self, kind: str, key: ObjectKey) -> None:
        """Take note that an object is gone."""
        self._said.pop((kind, key), None)
