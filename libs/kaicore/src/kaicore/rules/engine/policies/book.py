"""The book of policies' code, by the digest of its source, and the guard under which the code runs.

The edge fills the book (`kaicore.runtime.policies.loading`). A cycle looks its policies up by the digests that its
configuration names, so it never runs other code than is recorded. Each cycle has policies of its own, for what one
keeps in itself must not reach the next cycle.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from kaicore.errors import KaiError
from kaicore.policy import Policy
from kaicore.rules.engine.config import PolicySetting

_Answer = TypeVar("_Answer")
#: For which a policy may run in one cycle, seconds of CPU.
BUDGET_S = 1.0


class PolicyMismatch(KaiError):
    """A configuration names policies of which this process has no code, or other code."""


class PolicyOverran(Exception):
    """A guard ended a policy that took longer than its budget, or took too long lately."""


class PolicyGuard(Protocol):
    """Bounds the time and the memory of policies; only the edge can, for the core has no clock."""

    def begin(self) -> None:
        """Take notice that a cycle begins."""

    def run(self, policy: str, call: Callable[[], _Answer]) -> _Answer:
        """Run a part of a policy, named by its name.

        Raises:
            PolicyOverran: it took longer than its budget of the cycle.
            MemoryError: it asked for more memory than its bound.
        """


class Unguarded:
    """The guard of trials and tests: no bounds."""

    def begin(self) -> None:
        """Nothing is counted."""

    def run(self, policy: str, call: Callable[[], _Answer]) -> _Answer:
        """Run a part of a policy."""
        return call()


class PolicyBook:
    """The policies of which this process has the code.

    Attributes:
        guard: under which they run.
    """

    def __init__(self, guard: PolicyGuard | None = None, *, others: bool = False) -> None:
        """Args:
        guard: by default none that bounds anything.
        others: whether another source of a policy's name stands in for the recorded one; to compare the two.
        """
        self.guard: PolicyGuard = guard or Unguarded()
        self._others = others
        self._kinds: dict[tuple[str, str], type[Policy]] = {}

    def add(self, kind: type[Policy], digest: str) -> None:
        """Enter a policy under its name and the digest of its source."""
        self._kinds[kind.name, digest] = kind

    def policies(self, settings: Sequence[PolicySetting]) -> list[tuple[PolicySetting, Policy]]:
        """Return new policies for settings, in their order.

        Raises:
            PolicyMismatch: the book has no code of a digest, or the code does not take the arguments.
        """
        return [(setting, self._policy(setting)) for setting in settings]

    def known(self, settings: Sequence[PolicySetting]) -> tuple[PolicySetting, ...]:
        """Return those of some settings of which the book has the code."""
        return tuple(one for one in settings if (one.name, one.digest) in self._kinds)

    def _policy(self, setting: PolicySetting) -> Policy:
        kind = self._kinds.get((setting.name, setting.digest))
        if kind is None and self._others:
            kind = next((one for (name, _), one in self._kinds.items() if name == setting.name), None)
        about = f"policy {setting.name} {setting.version}"
        if kind is None:
            known = sorted(digest[:12] for name, digest in self._kinds if name == setting.name)
            has = f"its source here has the digest {', '.join(known)}" if known else "its source is not here"
            raise PolicyMismatch(f"{about}: the cycle was decided by source {setting.digest[:12]}; {has}")
        arguments: Any = setting.arguments
        try:
            return kind(kind.Arguments.model_validate(arguments))
        except ValidationError as error:
            raise PolicyMismatch(f"{about}: arguments: {error}") from error


#: The book of processes without policies.
NO_POLICIES = PolicyBook()
