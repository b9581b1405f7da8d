"""Reasons of the operator's policies: the nodes that one refuses, and the groups that one holds."""

from typing import ClassVar

from msgspec import field

from kaicore.rules.events.reasons.base import CodedReason, NodeReason, time_text


class FilteredByPolicy(NodeReason, frozen=True, kw_only=True):
    """Nodes that a policy of the operator refuses.

    Attributes:
        why: the policy's text; empty where it has none.
        policy: its name.
    """

    why: str = field(name="detail", default="")
    policy: str

    def __str__(self) -> str:
        return self._nodes(f"refused by policy {self.policy}{': ' * bool(self.why)}{self.why}")


class HeldByPolicy(CodedReason, frozen=True, kw_only=True):
    """A policy of the operator does not let the group start yet.

    Attributes:
        why: the policy's text.
        policy: its name.
        until_us: when it is asked again, microseconds since the epoch; 0 for with each cycle.
    """

    of_nodes: ClassVar[bool] = False
    why: str = field(name="detail", default="")
    policy: str
    until_us: int = 0

    def __str__(self) -> str:
        until = f" until {time_text(self.until_us)}" if self.until_us else ""
        return f"held by policy {self.policy}{until}{': ' * bool(self.why)}{self.why}"
