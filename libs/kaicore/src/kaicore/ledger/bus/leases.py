"""Members and leases: the live processes of a role, and the one process that holds a task. On NATS, and seconds old at
most.

**A lease is a hint for liveness, and safety never depends on it.** Its holder may be paused between reading its clock
and acting, so two may believe that they hold it. The conditional append in Postgres prevents double work: an append
names the version of a stream (`cycle/<shard>`, `node/<name>`, `group/<key>`), and only one of two appends finds it. A
lease only spares the loser's work, and shows the others when to take over.

A `LeaseStore` has names with small values, and writes that are conditional on the revision of the value that they
replace. `NatsLeaseStore` keeps them in the bucket `kai-leases` of JetStream (one for all clusters),
`tests/given/doubles/memory_leases.py` in memory. `tests/contract/test_leases.py` runs the same tests on both. Two
things are built on a store:

- `Members`: a process announces itself under a role, renews that, and sees which others are live. Shards share groups
  by it, and binders share nodes (`kaicore.rules.model.replicas.owner(key, members.live())`).
- `Lease`: at most one process holds a name. A standby waits for it.

```python
store = await NatsLeaseStore.open(nats_url, name="kai-relay")
lease = Lease(store, cluster, "relay", owner=instance, duration_s=3.0)
while not stopping:
    if await lease.hold():          # acquires, or renews; call it at least every duration_s / 3
        await work()                # as long as lease.held(); appends stay conditional
    await sleep(1)
await lease.release()               # the next one need not wait
```

**Standby of a service** ("availability"): a `Lease` named after the service, as above. The second instance folds along
and calls `hold()`; it takes over when the first one has not renewed for `duration_s`, or at once after `release()`.
`Lease.token` is the fencing token: the store's revision at which this holder acquired it. The next one's is greater.

**A cluster's lease on a group** ("clusters"): `Lease(store, "hub", f"group/{namespace}/{name}", owner=cluster)`. The
first cluster may act while `held()`; the second one's `hold()` succeeds only after the first one's duration has passed
by the second one's clock, which is after it has passed by the first one's own (below). A release to another cluster
must in addition be an event in the log: the bucket can be lost.

**Time.** A holder counts its lease from *before* it sent the renewal, and takes nine tenths of the duration; a
contender counts from *after* it read the renewal, and waits for all of it. So the holder's own end comes first as long
as the rates of two clocks differ by less than a tenth. No clock is compared with another. The clock goes on while the
machine sleeps.

**When NATS fails:**

- *wiped*: each member announces itself anew with its next renewal, and the others count it as live meanwhile. A lease
  is kept by who held it, if he writes it anew first; a contender that had seen it waits until it would have run out;
  one that has just started takes it, and until the old holder's next renewal, which is refused, two believe to hold it.
  Revisions begin at the time of day, so tokens grow also then.
- *paused, or unreachable for all*: no renewal comes. A holder's lease runs out by its own clock. A member sees the
  others run out and sees only itself. It may take all work, and the conditional appends keep one of each. Or it goes on
  with the members that it knew, because `Members.fresh` says that they are out of date. When the store answers again,
  all records count anew.
- *partitioned*: a member that is cut off sees only itself, as above. The others take over its work after its duration.
  Both work; the second append to Postgres is refused.
- *slow*: a renewal that comes late counts from when it was sent.
"""

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol, Self

import msgspec

from kaicore.errors import BusUnavailable, InvalidObject
from kaicore.ledger.bus import jetstream
from kaicore.ledger.bus.client import Outgoing
from kaicore.ledger.bus.connection import Connection
from kaicore.ledger.bus.wire import check_cluster
from kaicore.rules.model.replicas import JUST_AFTER_S, LOOKS, RENEWALS, Liveness, Sighting


def lease_clock() -> float:
    """Return seconds of a clock that is never set and that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaseRecord(msgspec.Struct, frozen=True, rename="camel"):
    """The value of an entry.

    Attributes:
        owner: who holds the lease, or the member itself.
        duration_ms: how long the entry counts without being renewed.
    """

    owner: str
    duration_ms: int

    @property
    def duration_s(self) -> float:
        """The entry's life without renewal, in seconds."""
        return self.duration_ms / 1000


_decoder = msgspec.json.Decoder(LeaseRecord)
encode_record = msgspec.json.Encoder().encode


def decode_record(value: bytes) -> LeaseRecord:
    """Return what an entry says; one that is deleted, or cannot be read, is nobody's and counts for no time."""
    try:
        return _decoder.decode(value)
    except msgspec.DecodeError:
        return LeaseRecord("", 0)


_NAME = re.compile(r"[-_a-zA-Z0-9]+([/.=][-_a-zA-Z0-9]+)*")


class Entry(NamedTuple):
    """The entry under a name.

    Attributes:
        name: of the entry, such as `scheduler/default/1f2e`.
        value: empty for an entry that was deleted.
        revision: grows with each write of any entry of the store, deletions included.
    """

    name: str
    value: bytes
    revision: int


class LeaseStore(Protocol):
    """Entries by cluster and name.

    What is not written again for an hour is forgotten; all may be lost at any time. Every method but `close` raises
    `BusUnavailable` when the store does not answer: a write may have happened then. `InvalidObject` is raised for a
    name that cannot be one.
    """

    async def read(self, cluster: str, prefix: str) -> list[Entry]:
        """Return the entries with names that begin with `prefix`, by name; also deleted ones, until forgotten."""

    async def write(self, cluster: str, name: str, value: bytes, *, expect: int) -> int | None:
        """Write an entry if it is still as it was read.

        Args:
            value: not empty.
            expect: the entry's revision as it was read; 0 where there is to be none, or a deleted one.

        Returns:
            The entry's new revision; None where another one was found, and nothing was written.
        """

    async def delete(self, cluster: str, name: str, *, expect: int) -> bool:
        """Delete an entry if it is still as it was read; return whether it was."""

    async def close(self) -> None:
        """Release connections. Never raises."""


def check_name(name: str) -> str:
    """Return the name of an entry if it can be one. Raises InvalidObject: it cannot."""
    if not _NAME.fullmatch(name):
        raise InvalidObject("lease", "name", name, "must be letters, digits, - and _, with single / . or = between")
    return name


async def _entry(store: LeaseStore, cluster: str, name: str) -> Entry:
    """Return the entry under a name; one without a value where there is none."""
    entries = await store.read(cluster, name)
    return next((entry for entry in entries if entry.name == name), Entry(name, b"", 0))


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
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        """Args:
        owner: tells this process from all others, also from its own former runs.
        duration_s: how long it counts without being renewed; in whole milliseconds.
        clock: seconds; never set, and going on while the machine sleeps.
        """
        self._store = store
        self._cluster = cluster
        self._name = name
        self._record = LeaseRecord(owner, round(duration_s * 1000))
        self._clock = clock
        self._others = Liveness()
        self._last_owner = ""
        self._revision = 0
        self._until = float("-inf")
        #: The store's revision at which this holder acquired the lease; 0 before. The next holder's is greater.
        self.token = 0
        #: Why the store did not answer when it was last asked; empty where it did.
        self.trouble = "not asked yet"

    @property
    def answered(self) -> bool:
        """True if the store answered when it was last asked."""
        return not self.trouble

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
        try:
            entry = await _entry(self._store, self._cluster, self._name)
            if self._is_others(entry):
                self._until = float("-inf")
            else:
                await self._write(entry.revision if entry.value else 0)
            self.trouble = ""
        except BusUnavailable as error:
            self.trouble = str(error)
        return self.held()

    async def release(self) -> None:
        """Give the lease up, so that the next one need not wait. Never raises for a store that does not answer."""
        self._until = float("-inf")
        with suppress(BusUnavailable):
            if self._revision and not await self._store.delete(self._cluster, self._name, expect=self._revision):
                # A renewal that was cut off may have come there all the same.
                entry = await _entry(self._store, self._cluster, self._name)
                if entry.value and decode_record(entry.value).owner == self._record.owner:
                    await self._store.delete(self._cluster, self._name, expect=entry.revision)
        self._revision = 0

    def _is_others(self, entry: Entry) -> bool:
        """True if another seems to hold the lease; also if the store has lost the record of it."""
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
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        """Args:
        role: what they share, such as `scheduler/default`.
        member: tells this process from all others, also from its own former runs; no `/`.
        ttl_s: how long a member counts as live without renewing its record.
        clock: seconds; never set, and going on while the machine sleeps.
        """
        self._store = store
        self._cluster = cluster
        self._prefix = f"{role}/"
        self.member = member
        self._record = LeaseRecord(member, round(ttl_s * 1000))
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
        """True if the others are known; also when nobody could be asked for as long as a member counts as live."""
        return self._settled or self._clock() - self._began >= self._record.duration_s

    @property
    def fresh(self) -> bool:
        """True if the store has answered within a member's time; else who is live is a guess."""
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
        others = (
            Sighting(entry.name.removeprefix(self._prefix), entry.revision, decode_record(entry.value).duration_s)
            for entry in entries
            if entry.name != name
        )
        self._liveness.observe(others, now=self._clock())
        self._settled = True
        return True

    async def _renew(self, mine: Entry) -> None:
        expect, began = mine.revision if mine.value else 0, self._clock()
        record = encode_record(self._record)
        if await self._store.write(self._cluster, mine.name, record, expect=expect) is not None:
            self._renew_at = began + self._record.duration_s / RENEWALS

    async def leave(self) -> None:
        """Withdraw this member's record, so that the others take over at once. Never raises if the store is away."""
        with suppress(BusUnavailable):
            mine = await _entry(self._store, self._cluster, f"{self._prefix}{self.member}")
            if mine.value:
                await self._store.delete(self._cluster, mine.name, expect=mine.revision)


_BUCKET = "KV_kai-leases"
_SUBJECTS = "$KV.kai-leases."

#: Seconds after which an entry that is not written again is forgotten.
_FORGET_S = 3600


class NatsLeaseStore:
    """Members and leases on NATS; see `kaicore.ledger.bus.leases.LeaseStore`."""

    def __init__(self, connection: Connection, *, replicas: int = 1) -> None:
        """Prefer `open`."""
        self._connection = connection
        self._api = jetstream.JetStreamApi(connection)
        self._replicas = replicas

    @classmethod
    async def open(cls, url: str, *, name: str, replicas: int = 1) -> Self:
        """Begin to connect, and return without waiting for it. Raises ConfigurationError: a url cannot be one.

        Args:
            url: of the servers, with commas between them.
            name: the client's, for the server's logs.
            replicas: servers that hold the bucket, where it has to be made.
        """
        connection = Connection(url, name=name)
        connection.dial()
        return cls(connection, replicas=replicas)

    async def wait_connected(self, *, timeout_s: float) -> bool:
        """Wait for a connection, at most `timeout_s`; return whether there is one."""
        return await self._connection.wait_up(timeout_s=timeout_s)

    async def read(self, cluster: str, prefix: str) -> list[Entry]:
        """See `LeaseStore.read`."""
        check_name(prefix.rstrip("/."))
        subjects = f"{_SUBJECTS}{check_cluster(cluster)}."
        request = {"subjects_filter": f"{subjects}>"}
        answer = await self._api.ask(f"STREAM.INFO.{_BUCKET}", request, absent=(jetstream.STREAM_NOT_FOUND,))
        if answer is None or answer.state is None:
            return []
        names = sorted(subject.removeprefix(subjects) for subject in answer.state.subjects)
        entries = await asyncio.gather(*(self._last(cluster, name) for name in names if name.startswith(prefix)))
        return [entry for entry in entries if entry is not None]

    async def write(self, cluster: str, name: str, value: bytes, *, expect: int) -> int | None:
        """See `LeaseStore.write`."""
        assert value
        revision = await self._put(cluster, name, value, expect)
        if revision is None and not expect:
            # What was deleted has a revision too.
            entry = await self._last(cluster, name)
            if entry is not None and not entry.value:
                return await self._put(cluster, name, value, entry.revision)
        return revision

    async def delete(self, cluster: str, name: str, *, expect: int) -> bool:
        """See `LeaseStore.delete`."""
        return await self._put(cluster, name, b"", expect) is not None

    async def close(self) -> None:
        """See `LeaseStore.close`."""
        await self._connection.close()

    async def _last(self, cluster: str, name: str) -> Entry | None:
        request = {"last_by_subj": _subject(cluster, name)}
        absent = (jetstream.STREAM_NOT_FOUND, jetstream.MESSAGE_NOT_FOUND)
        answer = await self._api.ask(f"STREAM.MSG.GET.{_BUCKET}", request, absent=absent)
        if answer is None or answer.message is None:
            return None
        return Entry(name, answer.message.data, answer.message.seq)

    async def _put(self, cluster: str, name: str, value: bytes, expect: int) -> int | None:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(expect), "Nats-Expected-Stream": _BUCKET}
        if not value:
            headers["KV-Operation"] = "DEL"
        message = Outgoing(_subject(cluster, name), value, headers)
        try:
            answer = jetstream.read_answer(await self._connection.ask([message]))
        except BusUnavailable:
            # There may be no bucket yet, or no longer; making it needs an answer too.
            if not await self._made():
                raise
            answer = jetstream.read_answer(await self._connection.ask([message]))
        if answer.error is None:
            return answer.seq
        if answer.error.err_code == jetstream.WRONG_LAST_SEQUENCE:
            return None
        raise jetstream.unavailable(f"writing {name}", answer.error)

    async def _made(self) -> bool:
        """Make the bucket unless there is one; return whether it was made."""
        config = {
            "name": _BUCKET,
            "description": "members and leases of kai-ledger",
            "subjects": [f"{_SUBJECTS}>"],
            "storage": "file",
            "retention": "limits",
            "discard": "new",
            "first_seq": time.time_ns() // 1000,
            "max_msgs_per_subject": 1,
            "max_age": _FORGET_S * jetstream.NANOSECONDS,
            "duplicate_window": jetstream.NANOSECONDS,
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "deny_delete": True,
            "num_replicas": self._replicas,
        }
        if await self._api.ask(f"STREAM.INFO.{_BUCKET}", absent=(jetstream.STREAM_NOT_FOUND,)) is not None:
            return False
        await self._api.ask(f"STREAM.CREATE.{_BUCKET}", config, absent=(jetstream.NAME_IN_USE,))
        return True


def _subject(cluster: str, name: str) -> str:
    return f"{_SUBJECTS}{check_cluster(cluster)}.{check_name(name)}"
