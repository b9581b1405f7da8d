"""A name that one process at a time holds; see `kaicore.ledger.bus.leases`."""

from collections.abc import Callable, Mapping
from contextlib import suppress

from kaicore.errors import BusUnavailable
from kaicore.ledger.bus.leases.port import Entry, LeaseRecord, LeaseStore, decode_record, encode_record, lease_clock
from kaicore.rules.sharing.replicas import JUST_AFTER_S, LOOKS, RENEWALS, Liveness, Sighting

#: The part of its duration for which a holder believes in its lease.
_OWN_PART = 0.9


class Lease:
    """One process's side of a lease: it holds it, or waits for it."""

    def __init__(
        self,
        store: LeaseStore,
        cluster: str,
        name: str,
        *,
        owner: str,
        duration_s: float = 3.0,
        about: Mapping[str, str] | None = None,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        """Args:
        store: where leases are kept.
        cluster: the name of the cluster.
        name: of the lease.
        owner: tells this process from all others, also from its own former runs.
        duration_s: how long it counts without being renewed; in whole milliseconds.
        about: what else is to be shown of the holder.
        clock: seconds; never set, and going on while the machine sleeps.
        """
        self._store = store
        self._cluster = cluster
        self._name = name
        self._record = LeaseRecord(owner, round(duration_s * 1000), about or {})
        self._clock = clock
        self._others = Liveness()
        self._last_owner = ""
        self._revision = 0
        self._until = float("-inf")
        #: The store's revision at which this holder acquired the lease; 0 before. The next holder's is greater.
        self.token = 0
        #: Whether the store answered when it was last asked.
        self.answered = False

    def held(self) -> bool:
        """Tell whether the lease is held, by this process's own clock; another may act all the same."""
        return self._clock() < self._until

    @property
    def renewal_s(self) -> float:
        """Seconds after which `hold` is to be called again.

        A third of the duration for who holds the lease, an eighth for who waits for it; less where its time runs out.
        """
        now = self._clock()
        if self.held():
            return self._record.duration_s / RENEWALS
        return min(self._record.duration_s / LOOKS, max(self._others.next_end(now=now) - now, 0.0) + JUST_AFTER_S)

    async def hold(self) -> bool:
        """Acquire the lease, or renew it, if it may be had; return whether it is held.

        Never raises for a store that does not answer: then the lease is held as long as it was to be.
        """
        self.answered = False
        with suppress(BusUnavailable):
            entry = await self._entry()
            if self._is_others(entry):
                self._until = float("-inf")
            else:
                await self._write(entry.revision if entry.value else 0)
            self.answered = True
        return self.held()

    async def release(self) -> None:
        """Give the lease up, so that the next one need not wait. Never raises for a store that does not answer."""
        self._until = float("-inf")
        if self._revision:
            with suppress(BusUnavailable):
                await self._store.delete(self._cluster, self._name, expect=self._revision)
        self._revision = 0

    async def _entry(self) -> Entry:
        entries = await self._store.read(self._cluster, self._name)
        return next((entry for entry in entries if entry.name == self._name), Entry(self._name, b"", 0))

    def _is_others(self, entry: Entry) -> bool:
        """Whether another holds the lease, for all that can be seen; also if the store has lost what was seen of it."""
        now = self._clock()
        if entry.revision:
            record = decode_record(entry.value)
            self._last_owner = record.owner
            self._others.observe([Sighting(self._name, entry.revision, record.duration_s)], now=now)
        return self._last_owner != self._record.owner and bool(self._others.live(now=now))

    async def _write(self, expect: int) -> None:
        sent = self._clock()
        revision = await self._store.write(self._cluster, self._name, encode_record(self._record), expect=expect)
        if revision is None:
            self._until = float("-inf")
            return
        if not expect or expect != self._revision:
            self.token = revision
        self._revision = revision
        self._until = sent + self._record.duration_s * _OWN_PART
