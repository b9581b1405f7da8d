"""The rules of each evicting action: the pods that it may evict, the groups that it evicts for, and the price."""

from abc import ABC, abstractmethod
from typing import ClassVar

from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.pending_group import PendingGroup
from kaicore.rules.engine.workload import Workload
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts
from kaicore.rules.queues.cycle_queues import GroupRequests
from kaicore.rules.reasons.reason import Reason


class VictimRules(ABC):
    """The rules of one evicting action.

    Attributes:
        reason: what is recorded with its evictions.
        moves: whether every victim must find another place, and the move be worth it.
        spares_quotas: whether victims are taken last where their queue would lose part of its quota.
    """

    reason: ClassVar[EvictionReason]
    moves: ClassVar[bool] = False
    spares_quotas: ClassVar[bool] = False

    @abstractmethod
    def is_eligible(self, pending_group: PendingGroup, victim: Workload) -> bool:
        """Tell whether a running group may make way for a waiting one, by what both are."""

    @abstractmethod
    def refusal(self, requests: GroupRequests) -> tuple[Reason, ...]:
        """Return why groups may not have any pod evicted to start so much; empty if they may."""

    def most_pods(self, requests: GroupRequests) -> int | None:
        """Return how many pods may be evicted for so much that starts; None for any number."""
        return None

    def may_evict(self, requests: GroupRequests, victim: Workload) -> bool:
        """Tell whether its queue lets a running group make way, as the accounts are with what is to start charged."""
        return True

    def keeps_quota(self, requests: GroupRequests, victim: Group, held: Amounts) -> bool:
        """Tell whether a queue keeps its quota if so much of its work goes; asked if `spares_quotas`."""
        return True

    def exchange_refusal(self, requests: GroupRequests, victims: GroupRequests) -> tuple[Reason, ...]:
        """Return why groups may not start in place of all that would be evicted; empty if they may."""
        return ()
