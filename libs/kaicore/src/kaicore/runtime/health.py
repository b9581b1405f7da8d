"""Conditions that a process must meet to be ready."""

from collections.abc import Mapping
from types import MappingProxyType


class Health:
    """Named conditions that a service must meet to be ready.

    A service is alive while it answers at all, and ready when every condition that it declared is met.
    """

    def __init__(self, *conditions: str) -> None:
        self._conditions: dict[str, str | None] = dict.fromkeys(conditions, "not yet")
        # Those that count while the service stands by; None while it does not.
        self._needed: frozenset[str] | None = None
        self._warnings: dict[str, str] = {}

    def warn(self, about: str, text: str) -> None:
        """Have the report say something that somebody has to look at, though the service goes on; empty: no more."""
        self._warnings[about] = text

    def met(self, condition: str) -> None:
        """Mark a condition as met."""
        self._conditions[condition] = None

    def unmet(self, condition: str, why: str) -> None:
        """Mark a condition as not met, and say why."""
        self._conditions[condition] = why

    def stand_by(self, *needed: str) -> None:
        """Take note that another instance leads; until `lead`, only these conditions count."""
        self._needed = frozenset(needed)
        for condition in self._conditions.keys() - self._needed:
            self._conditions[condition] = "not yet"

    def lead(self) -> None:
        """Take note that this instance leads: every condition counts."""
        self._needed = None

    @property
    def conditions(self) -> Mapping[str, str | None]:
        """Each condition with the reason why it is not met, or None."""
        return MappingProxyType(self._conditions)

    @property
    def ready(self) -> bool:
        """Whether every condition that counts is met."""
        return not any(why for name, why in self._conditions.items() if self._counts(name))

    def report(self) -> str:
        """One line per condition, in the style of `/readyz?verbose` of a Kubernetes API server."""
        lines = [self._line(name, why) for name, why in self._conditions.items()]
        lines += [f"[!]{about}: {text}" for about, text in self._warnings.items() if text]
        return "\n".join([*lines, "ready" if self.ready else "not ready", ""])

    def _counts(self, condition: str) -> bool:
        return self._needed is None or condition in self._needed

    def _line(self, condition: str, why: str | None) -> str:
        if not self._counts(condition):
            return f"[+]{condition} not needed: stands by"
        return f"[-]{condition} failed: {why}" if why else f"[+]{condition} ok"
