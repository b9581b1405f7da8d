"""The live members of a role; see `kaicore.ledger.bus.leases`."""

from collections.abc import Callable, Mapping

from kaicore.errors import BusUnavailable
from kaicore.ledger.bus.leases.port import Entry, LeaseRecord, LeaseStore, decode_record, encode_record, lease_clock
from kaicore.rules.sharing.replicas import JUST_AFTER_S, LOOKS, RENEWALS, Liveness, Sighting


class Members:
    """One process among those of a role."""

    def __init__(
        self,
        store: LeaseStore,
        cluster: str,
        role: str,
        *,
        member: str,
        ttl_s: float = 2.0,
        about: Mapping[str, str] | None = None,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        """Args:
        store: where members announce themselves.
        cluster: the name of the cluster.
        role: what they share, such as `scheduler/default`.
        member: tells this process from all others, also from its own former runs; no `/`.
        ttl_s: how long a member counts as live without renewing its record.
        about: what else is to be shown of this member.
        clock: seconds; never set, and going on while the machine sleeps.
        """
        self._store = store
        self._cluster = cluster
        self._prefix = f"{role}/"
        self.member = member
        self._record = LeaseRecord(member, round(ttl_s * 1000), about or {})
        self._clock = clock
        self._liveness = Liveness()
        self._began = clock()
        self._settled = False
        self._answered_at = float("-inf")
        self._renew_at = float("-inf")

    @property
    def renewal_s(self) -> float:
        """Seconds after which `beat` is to be called again.

        Of two members an eighth of the time to live; of more, more, for each reads the records of all; a third where
        there is no other, and at most. Less where another member is about to count no more: that is seen at once.
        """
        now, members = self._clock(), len(self.live())
        part = min(members / 2 / LOOKS, 1 / RENEWALS) if members > 1 else 1 / RENEWALS
        ends_s = self._liveness.next_end(now=now) - now + JUST_AFTER_S
        renew_s = self._renew_at - now
        return min(self._record.duration_s * part, ends_s, renew_s if renew_s > 0 else ends_s)

    @property
    def settled(self) -> bool:
        """Whether the others are known; also when nobody could be asked for as long as a member counts as live."""
        return self._settled or self._clock() - self._began >= self._record.duration_s

    @property
    def fresh(self) -> bool:
        """Whether the store has answered within the time for which a member counts; else who is live is a guess."""
        return self._clock() - self._answered_at < self._record.duration_s

    def live(self) -> tuple[str, ...]:
        """Return the members that count as live, sorted; this one always does."""
        return tuple(sorted({*self._liveness.live(now=self._clock()), self.member}))

    async def beat(self) -> bool:
        """Look at the others' records, and renew this member's if it is time; return whether the store answered."""
        name = f"{self._prefix}{self.member}"
        try:
            entries = await self._store.read(self._cluster, self._prefix)
            mine = next((entry for entry in entries if entry.name == name), Entry(name, b"", 0))
            if not mine.value or self._clock() >= self._renew_at:
                await self._renew(mine)
        except BusUnavailable:
            return False
        if not self.fresh:
            # The others could not be seen to renew their records: each counts anew from now on.
            self._liveness = Liveness()
        self._answered_at = self._clock()
        self._liveness.observe((self._sighting(entry) for entry in entries if entry.name != name), now=self._clock())
        self._settled = True
        return True

    async def _renew(self, mine: Entry) -> None:
        expect, began = mine.revision if mine.value else 0, self._clock()
        record = encode_record(self._record)
        if await self._store.write(self._cluster, mine.name, record, expect=expect) is not None:
            self._renew_at = began + self._record.duration_s / RENEWALS

    async def leave(self) -> None:
        """Withdraw this member's record, so that the others take over at once. Never raises if the store is away."""
        try:
            for entry in await self._store.read(self._cluster, f"{self._prefix}{self.member}"):
                if entry.value and entry.name == f"{self._prefix}{self.member}":
                    await self._store.delete(self._cluster, entry.name, expect=entry.revision)
        except BusUnavailable:
            pass

    def _sighting(self, entry: Entry) -> Sighting:
        member = entry.name.removeprefix(self._prefix)
        return Sighting(member, entry.revision, decode_record(entry.value).duration_s)
