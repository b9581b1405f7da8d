"""Leadership among several instances of a service: one leads, and the others stand ready. Every service with a leader
uses this rule.

A lease on the bus names the leader (`kaicore.ledger.bus.leases`). The others take over when it was not renewed for its
duration, and at once when the leader gives it up, which it does as soon as its work has ended after SIGTERM. The lease
is a hint. The log prevents double work: it refuses an instance after another one has taken over.

Without an answer from the bus no instance knows which one leads. Then a leader goes on. An instance that has heard of
no leader since it started begins after `ALONE_S`: it may be the only one. One that has heard of another waits
`BLIND_S`, and one that the log has refused waits for the bus; so two that cannot hear each other take over from each
other once at most.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from prometheus_client import Gauge
from pydantic import Field

from kaicore.errors import InvalidObject, KaiError
from kaicore.ledger.bus.leases import Lease, NatsLeaseStore
from kaicore.ledger.bus.wire import check_cluster
from kaicore.runtime.service.process import ServiceContext
from kaicore.runtime.service.settings import ServiceSettings

LEADS = Gauge("kai_leads", "1 while this instance leads, 0 while it stands by", ["cluster", "role"])

#: Seconds to wait for a bus that does not answer: with no leader known, and with one known.
ALONE_S, BLIND_S = 5.0, 60.0

#: Seconds between two attempts to get a lease from a bus that has not answered yet.
_FIRST_S = 0.1

#: Seconds that giving up a lease may take.
_RELEASE_S = 1.0

#: Seconds until a leader that the log refused, and that has the lease, begins anew.
_AGAIN_S = 0.5


class LeaseSettings(ServiceSettings):
    """Settings of a service of which one instance leads."""

    nats_url: str | None = Field(None, description="nats://… of the bus; several with commas between them")
    lease_ms: int = Field(
        2000,
        ge=0,
        description="how long a leader may be silent before another instance takes over; 0: there is no other",
    )
    lease_replicas: int = Field(
        1, ge=1, le=5, description="NATS servers that hold the leases, where they are made anew"
    )


class Leadership:
    """One instance's part in it."""

    def __init__(
        self,
        context: ServiceContext,
        lease: Lease,
        *,
        duration_s: float,
        notify: Callable[[bool], None],
        needed: tuple[str, ...] = (),
        refused: tuple[type[KaiError], ...] = (),
    ) -> None:
        """Args:
        notify: is called with whether this instance leads, at first and whenever that changes.
        needed: the conditions of readiness that count while it stands by.
        refused: what the work raises when the log refuses it because another instance has followed.
        """
        self._context = context
        self._lease = lease
        self._duration_s = duration_s
        self._notify = notify
        self._needed = needed
        self._refused = refused
        self._leads = asyncio.Event()
        self._deposed = asyncio.Event()
        self._heard_of_another = False
        self._was_refused = False
        self._silent_since: float | None = None

    async def lead_in_turn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do work whenever this instance leads, until the service is to stop.

        Args:
            work: ends by itself when the service is to stop; it is cancelled when another instance leads.

        Raises whatever the work raises, but for `refused`.
        """
        self._stand_by()
        keeping = asyncio.create_task(self._keep())
        try:
            while await self._has_begun(keeping):
                await self._lead(work)
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
            with suppress(TimeoutError):
                async with asyncio.timeout(_RELEASE_S):
                    await self._lease.release()

    async def _has_begun(self, keeping: "asyncio.Task[None]") -> bool:
        """Wait until this instance leads; return False when the service is to stop before."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self._leads, self._context.stopping)]
        await asyncio.wait([*waits, keeping], return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if keeping.done():
            await keeping
        return not self._context.stopping.is_set()

    async def _lead(self, work: Callable[[], Awaitable[None]]) -> None:
        self._context.health.lead()
        self._notify(True)
        self._context.log.info("leading")
        self._deposed.clear()
        working, deposed = asyncio.ensure_future(work()), asyncio.ensure_future(self._deposed.wait())
        try:
            await asyncio.wait([working, deposed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            deposed.cancel()
            ended = working.done()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        if ended:
            try:
                await working
            except self._refused as error:
                self._context.log.warning("another instance has followed", error=str(error))
                self._was_refused = True
                if self._lease.held():
                    await self._context.sleep(_AGAIN_S)
                else:
                    self._leads.clear()
        if not self._context.stopping.is_set():
            self._stand_by()

    def _stand_by(self) -> None:
        self._context.health.stand_by(*self._needed)
        self._notify(False)
        self._context.log.info("standing by")

    async def _keep(self) -> None:
        """Hold the lease, or wait for it."""
        while True:
            held = await self._lease.hold()
            trouble = self._lease.trouble and f"which instance leads is not known: {self._lease.trouble}"
            self._context.health.warn("lease", trouble)
            if held or not self._lease.answered:
                self._silent_since = None if self._lease.answered else self._silent_since or _now()
                if held or self._may_lead_blind():
                    self._leads.set()
            else:
                self._silent_since = None
                self._heard_of_another = True
                self._was_refused = False
                self._leads.clear()
                self._deposed.set()
            await asyncio.sleep(self._lease.renewal_s if self._lease.answered else min(self._duration_s / 3, _FIRST_S))

    def _may_lead_blind(self) -> bool:
        if self._leads.is_set():
            return True
        if self._was_refused or self._silent_since is None:
            return False
        return _now() - self._silent_since >= (BLIND_S if self._heard_of_another else ALONE_S)


@asynccontextmanager
async def leadership(
    context: ServiceContext,
    settings: LeaseSettings,
    *,
    cluster: str,
    role: str,
    instance: str,
    needed: tuple[str, ...] = (),
    refused: tuple[type[KaiError], ...] = (),
) -> AsyncIterator[Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]]:
    """Give a function that does work whenever this instance leads; without a bus, or on one that cannot carry the
    cluster's name, it simply does it.

    Args:
        instance: tells this process from all others, also from its own former runs.
        needed: see `Leadership`.
        refused: see `Leadership`.
    """
    if settings.nats_url is None or not settings.lease_ms or not can_lease(cluster):
        yield lambda work: work()
        return
    store = await NatsLeaseStore.open(settings.nats_url, name=f"kai-{context.name}", replicas=settings.lease_replicas)
    duration_s = settings.lease_ms / 1000
    try:
        yield Leadership(
            context,
            Lease(store, cluster, role, owner=instance, duration_s=duration_s),
            duration_s=duration_s,
            notify=LEADS.labels(cluster, role).set,
            needed=needed,
            refused=refused,
        ).lead_in_turn
    finally:
        await store.close()


def can_lease(cluster: str) -> bool:
    """True if the bus can carry a cluster's name."""
    try:
        check_cluster(cluster)
    except InvalidObject:
        return False
    return True


def _now() -> float:
    return asyncio.get_running_loop().time()
