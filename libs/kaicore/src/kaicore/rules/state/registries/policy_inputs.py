"""Facts from outside that policies look at (`kaicore.policy`): what was recorded last, by name and node.

Whoever records one looks first whether it may be (`check_input`). The fold cannot refuse an event; what goes beyond the
bound there is not taken, on every machine alike.
"""

import re
from collections.abc import Iterable, Mapping

import msgspec

from kaicore.errors import InvalidObject
from kaicore.rules.events.payloads import PolicyInputRecorded

#: Facts that are kept, and characters of a text.
MOST_INPUTS, LONGEST_TEXT = 50_000, 200
_NAME = re.compile(r"[a-z0-9]([-a-z0-9._/]{0,61}[a-z0-9])?", re.ASCII)
_NODE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


class PolicyInput(msgspec.Struct, frozen=True):
    """A fact as it was recorded last.

    Attributes:
        node: that it is about; empty for the whole cluster.
        value: a number or a text.
        recorded_at: when, microseconds since the epoch.
    """

    name: str
    node: str
    value: int | str
    by: str
    recorded_at: int


class PolicyInputs:
    """The facts, no more than `MOST_INPUTS`."""

    def __init__(self, kept: Iterable[PolicyInput] = ()) -> None:
        """Args: kept: what a snapshot has."""
        self._inputs = {(one.name, one.node): one for one in kept}
        #: By name and node, for policies; made when a cycle asks.
        self._values: dict[str, dict[str, int | str]] | None = None

    def __len__(self) -> int:
        """Return how many facts there are."""
        return len(self._inputs)

    def take(self, payload: PolicyInputRecorded, *, at: int) -> bool:
        """Take a record over; return whether anything is otherwise now.

        Args:
            at: when it was recorded, microseconds since the epoch.
        """
        key = payload.name, payload.node
        before = self._inputs.get(key)
        if payload.value is None:
            self._inputs.pop(key, None)
        elif before is not None or len(self._inputs) < MOST_INPUTS:
            self._inputs[key] = PolicyInput(payload.name, payload.node, payload.value, payload.by, at)
        else:
            return False
        changed = (None if before is None else before.value) != payload.value
        if changed:
            self._values = None
        return changed

    def get(self, name: str, node: str = "") -> PolicyInput | None:
        """Return a fact; None where there is none."""
        return self._inputs.get((name, node))

    def values(self) -> Mapping[str, Mapping[str, int | str]]:
        """Return the values by name and node; of the whole cluster, under an empty node."""
        if self._values is None:
            self._values = {}
            for name, node in sorted(self._inputs):
                self._values.setdefault(name, {})[node] = self._inputs[name, node].value
        return self._values

    def record(self) -> list[PolicyInput]:
        """Return all, by name and node; for snapshots and lists."""
        return [self._inputs[key] for key in sorted(self._inputs)]


def check_input(given: PolicyInputRecorded, known: PolicyInputs) -> None:
    """Look whether a fact may be recorded. Raises InvalidObject: naming the field and what is wrong."""
    about, value = f"policy input {given.name[:64]}", given.value
    if not _NAME.fullmatch(given.name):
        problem = "must be 1 to 63 of a-z, 0-9, -, ., _ and /, with a letter or digit at both ends"
        raise InvalidObject(about, "name", given.name[:100], problem)
    if given.node and not _NODE.fullmatch(given.node):
        raise InvalidObject(about, "node", given.node[:300], "is no name of a node: a-z, 0-9, - and ., 253 at most")
    if isinstance(value, str) and not (0 < len(value) <= LONGEST_TEXT and value.isprintable()):
        raise InvalidObject(about, "value", value[:300], f"a text has 1 to {LONGEST_TEXT} printable characters")
    if isinstance(value, int) and (isinstance(value, bool) or not -(2**63) <= value < 2**63):
        raise InvalidObject(about, "value", value, "a number is whole and has 64 bits at most")
    if value is not None and known.get(given.name, given.node) is None and len(known) >= MOST_INPUTS:
        problem = f"there are {MOST_INPUTS:,} inputs already; take some away first (value null)"
        raise InvalidObject(about, "value", value, problem)
