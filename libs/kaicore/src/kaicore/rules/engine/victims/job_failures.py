"""Failures that Jobs allow: an eviction may count as one, and our evictions must not make a Job fail unnoticed.

An eviction counts unless the Job's pod failure policy ignores disruptions (`kaicore.kube.job_failures`). Each Job is an
account: the failures that its limit still allows, less the decided evictions that are not over yet. The Job may have
counted one of those already; then the account is one too low until its pod is gone.
"""

from collections.abc import Callable, Iterable

import msgspec

from kaicore.rules.engine.workload import Member
from kaicore.rules.model.pod import Pod


class FailuresLeft(msgspec.Struct, frozen=True):
    """What a pod's Job bears.

    Attributes:
        account: names the Job, or the one index of it that the pod is.
        left: how many more failures it bears, whatever was decided lately.
    """

    account: str
    left: int


class FailureAccounts:
    """How many more evictions Jobs bear."""

    def __init__(self, left_of: Callable[[Pod], FailuresLeft | None], leaving: Iterable[Member]) -> None:
        """Args:
        left_of: returns what a pod's Job bears; None where it has none, or that does not count evictions.
        leaving: pods that are on their way out.
        """
        self._left_of = left_of
        self._taken: dict[str, int] = {}
        self.take(leaving)

    def take(self, members: Iterable[Member], *, sign: int = 1) -> None:
        """Count pods as evicted, or with `sign=-1` as not."""
        for member in members:
            borne = self._left_of(member.pod)
            if borne is not None:
                self._taken[borne.account] = self._taken.get(borne.account, 0) + sign

    def refuse(self, members: Iterable[Member]) -> bool:
        """Tell whether any Job would fail if all of the pods were evicted."""
        evicted: dict[str, int] = {}
        for member in members:
            borne = self._left_of(member.pod)
            if borne is not None:
                count = evicted[borne.account] = evicted.get(borne.account, 0) + 1
                if self._taken.get(borne.account, 0) + count > borne.left:
                    return True
        return False

    def left(self, member: Member) -> int | None:
        """Return how many more failures a pod's Job bears now, at least -1; None where evictions do not count."""
        borne = self._left_of(member.pod)
        return None if borne is None else max(borne.left - self._taken.get(borne.account, 0), -1)


def failures_text(left: int | None) -> str:
    """Say what an eviction is to the Job of the pod, behind why it is evicted; empty where that does not count it."""
    if left is None:
        return ""
    if left < 0:
        return "; its Job counts that as a failure, bears no more and fails"
    return f"; its Job counts that as a failure and bears {left} more"
