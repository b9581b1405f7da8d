"""The part of a cluster's work that is this binder's, where the cluster has several.

Work is shared by rendezvous hashing over the live binders (`kaicore.ledger.bus.leases`): bindings and evictions by
node, ProvisioningRequests by name, what is written on pods by uid, statuses by object. The list of live binders is
seconds old. So two binders may carry out the same work for a moment, or a frozen one may wake up. That does no harm:

- A pod is bound once: the API server refuses the second binding, and the binder that finds the pod on the decision's
  node counts that as its own. An outcome's id follows from the decision's, so the log takes one.
- A node's order is kept: the binder that takes over a node begins with its first decision without an outcome, and goes
  on to the next only when that one has its outcome.
- An eviction names the pod's uid; asked for twice, it evicts one pod.
- What is written twice is the same.
"""

import asyncio
from collections.abc import Callable

from kaicore.ledger.bus.leases import Members
from kaicore.rules.model.replicas import owner

from kai_binder.projection.open_work import Decision, NominatedNode, Observation, Task, is_binding, is_eviction

#: How often the bus is asked who is live before this binder takes all work.
_TRIES = 3

Work = Task[Decision] | NominatedNode | Observation


class WorkShare:
    """A binder's part of a cluster's work; all of it where it is the only one."""

    def __init__(self, members: Members | None = None) -> None:
        """Args: members: the binders of the cluster, of which this is one; None for the only one."""
        self._members = members
        self._live: tuple[str, ...] = ()

    def has(self, key: str) -> bool:
        """Tell whether work is this binder's, by what it is shared by."""
        return self._members is None or owner(key, self._live) == self._members.member

    def has_work(self, work: Work) -> bool:
        """Tell whether a piece of work is this binder's."""
        return self._members is None or self.has(_key(work))

    @property
    def live(self) -> tuple[str, ...]:
        """The binders that count as live, sorted; none where this is the only one."""
        return self._live

    def of(self, live: tuple[str, ...]) -> "WorkShare":
        """Return this binder's share if these are live."""
        share = WorkShare(self._members)
        share._live = live
        return share

    async def join(self) -> None:
        """Announce this binder, and wait until the others are known; not for long if the bus does not answer."""
        if self._members is None:
            return
        for _ in range(_TRIES):
            if await self._members.beat():
                break
            await asyncio.sleep(self._members.renewal_s)
        self._live = self._members.live()

    async def keep(self, on_change: Callable[[tuple[str, ...]], None]) -> None:
        """Announce this binder again and again, until cancelled.

        Args:
            on_change: called with those that were live before, when others are.
        """
        if self._members is None:
            await asyncio.Event().wait()
            return
        try:
            while True:
                await asyncio.sleep(self._members.renewal_s)
                await self._members.beat()
                before, self._live = self._live, self._members.live()
                if before != self._live:
                    on_change(before)
        finally:
            await self._members.leave()


def _key(work: Work) -> str:
    """Return what a piece of work is shared by."""
    if is_binding(work) or is_eviction(work):
        return f"node/{work.decision.node}"
    return work.stream if isinstance(work, Task) else f"pod/{work.uid}"
