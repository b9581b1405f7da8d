"""The cost of evicting pods, and the evictions that budgets and Jobs allow.

A cost is one integer, so that costs add up and compare. It has five figures, each above all that come after it:

1. the rank of the priority among all candidates: nothing of lower priority outweighs a pod of a higher one. A victim of
   middle priority would only evict the lower ones in its turn;
2. what the operator's policies add for the groups that the pods are of (`kaicore.policy.Policy.victims`);
3. the size of the pods: of each its largest share of any resource of the largest node, in ten-thousandths, rounded up,
   times the severity of the end (`Ending`). Pod slots do not count. Of pods of several priorities, these two figures
   are compared for the highest first;
4. the number of pods that go;
5. the minutes of work that are lost, up to `MOST_MINUTES` for pods that go together: of each pod since its last
   checkpoint (`LAST_CHECKPOINT_ANNOTATION`), or since it runs.

Equal costs are ordered by name, first name first.

A PodDisruptionBudget bounds how many further pods under it a cycle may evict. A Job bounds its failures, and our
evictions must not make it fail unnoticed. An eviction counts unless the Job's pod failure policy ignores disruptions
(`kaicore.rules.groups.dialects.job`). Each Job is an account: the failures that its limit still allows, less the
decided evictions that are not over yet. The Job may have counted one of those already; then the account is one too low
until its pod is gone.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum

import msgspec

from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.events.payloads import EvictionCost
from kaicore.rules.model.gpu_share import GPU, WHOLE
from kaicore.rules.model.pod import Amounts, Pod
from kaicore.rules.queues.tree import thousandths_of_gpus


class Budgets:
    """The number of further pods that may be evicted, by budget.

    A pod under several budgets is never chosen: the API refuses to evict it.
    """

    def __init__(
        self, allowed: Mapping[str, int] | None = None, by_pod: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """Args:
        allowed: `status.disruptionsAllowed` by budget, as `<namespace>/<name>`, less the evictions not granted yet.
        by_pod: the budgets of each pod that has any, by its uid.
        """
        self._allowed = dict(allowed or {})
        self._by_pod = by_pod or {}

    def copy(self) -> "Budgets":
        """Return budgets that a cycle can change."""
        return Budgets(self._allowed, self._by_pod)

    def take(self, members: Iterable[Member], *, sign: int = 1) -> None:
        """Count pods as evicted, or with `sign=-1` as not."""
        for member in members:
            for budget in self._by_pod.get(member.pod.uid, ()):
                self._allowed[budget] = self._allowed.get(budget, 0) - sign

    def refuse(self, members: Iterable[Member]) -> bool:
        """Tell whether any budget would be exceeded by evicting all of the pods."""
        return bool(self._by_pod) and bool(self.refusing(members))

    def refusing(self, members: Iterable[Member]) -> set[tuple[str, ...]]:
        """Return the budgets that do not let all of the pods be evicted; several together if a pod is under several."""
        evicted: dict[tuple[str, ...], int] = {}
        for member in members:
            budgets = self._by_pod.get(member.pod.uid, ())
            if budgets:
                evicted[budgets] = evicted.get(budgets, 0) + 1
        return {budgets for budgets, count in evicted.items() if len(budgets) > 1 or self.allowed(budgets[0]) < count}

    def allowed(self, budget: str) -> int:
        """Return how many more pods a budget lets be evicted."""
        return max(self._allowed.get(budget, 0), 0)

    def under(self, budgets: tuple[str, ...], members: Iterable[Member]) -> int:
        """Count the pods that are under just these budgets."""
        return sum(self._by_pod.get(member.pod.uid) == budgets for member in members)


class FailuresLeft(msgspec.Struct, frozen=True):
    """The failures that a pod's Job still bears.

    Attributes:
        account: names the Job, or the one index of it that the pod is.
        left: how many more failures it bears, whatever was decided lately.
    """

    account: str
    left: int


class FailureAccounts:
    """The number of further evictions that Jobs bear."""

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


MOST_MINUTES = 2**16 - 1
#: A minute, and what is above it: each has room for the sum of many victims.
_MINUTE, POD, _SIZE = 1, 2**24, 2**52
#: Above the sizes of one priority is what policies add to it, and above that the next higher priority.
_EXTRA, _RANK_BITS = 2**48, 72

#: Parts of the largest node in which sizes are counted.
_PARTS = 10_000
_SLOTS = "pods"


class Ending(IntEnum):
    """The severity for a group that some of its pods go, as a factor."""

    SHRINKS = 1
    """It goes on without them."""
    ENDS = 2
    """It ends as a whole, and starts anew."""
    FAILS = 4
    """A Job of its pods fails for good, for it counts the evictions and bears no more failures."""


def cost_of(*, rank: int, ending: Ending, pods: int, size: int, minutes: int, extra: int = 0) -> int:
    """Return the cost of pods of one group that go together.

    Args:
        rank: of the group's priority, 1 for the lowest.
        size: see `PodSizes`, summed over the pods; a pod without any has the least.
        minutes: of work that they lose, summed over the pods.
        extra: what policies add for the group.
    """
    of_rank = extra * _EXTRA + max(size, pods) * ending << _RANK_BITS * (rank - 1)
    return of_rank * _SIZE + pods * POD + min(minutes, MOST_MINUTES) * _MINUTE


def cost_parts(cost: int) -> EvictionCost:
    """Return the figures of a cost, as the log records them."""
    above = cost // _SIZE
    rank = -(-above.bit_length() // _RANK_BITS)
    by_rank = [above >> _RANK_BITS * below & (1 << _RANK_BITS) - 1 for below in range(rank)]
    return EvictionCost(
        rank=rank,
        policies=sum(one // _EXTRA for one in by_rank),
        size=sum(one % _EXTRA for one in by_rank),
        pods=cost % _SIZE // POD,
        minutes=cost % POD // _MINUTE,
    )


def minutes_lost(member: Member, *, now: int) -> int:
    """Return how many whole minutes of work a pod loses if it goes at `now`, microseconds since the epoch."""
    return max(now - member.work_since, 0) // 60_000_000


def gpu_seconds_lost(member: Member, held: Amounts, *, now: int) -> int:
    """Return how much work a pod loses if it goes: whole seconds, times the GPUs that it holds; 0 if that is unknown.

    Args:
        now: microseconds since the epoch.
    """
    since = member.work_since
    return thousandths_of_gpus(held) * (max(now - since, 0) // 1_000_000) // WHOLE if since else 0


class PodSizes:
    """The sizes of pods: the share of a cluster's largest node that each holds."""

    def __init__(self, columns: NodeColumns) -> None:
        largest = columns.allocatable[columns.present].max(axis=0, initial=0)
        self._largest: dict[str, int] = {
            name: int(largest[index])
            for name, index in columns.resources.items()
            if name != _SLOTS and index < len(largest) and largest[index] > 0
        }

    def of(self, requests: Amounts) -> int:
        """Return the largest part of any resource, in ten-thousandths, rounded up; what no node has does not count."""
        return max(
            (-(-amount * _PARTS // self._largest[name]) for name, amount in requests.items() if name in self._largest),
            default=0,
        )

    def of_gpus(self, milli: int) -> int:
        """Return the same for parts of GPUs, in thousandths of one."""
        return -(-milli * _PARTS // (self._largest.get(GPU, 1) * WHOLE))
