"""Members and leases: the live processes of a role, and the one process that holds a task. On NATS, and seconds old at
most.

**A lease is a hint for liveness, and safety never depends on it.** Its holder may be paused between reading its clock
and acting, so two may believe that they hold it. The conditional append in Postgres prevents double work: an append
names the version of a stream (`cycle/<shard>`, `node/<name>`, `group/<key>`), and only one of two appends finds it. A
lease only spares the loser's work, and shows the others when to take over.

`port` defines a store: names with small values, and writes that are conditional on the revision of the value that they
replace. `NatsLeaseStore` keeps them in the bucket `kai-leases` of JetStream (one for all clusters), `MemoryLeaseStore`
in memory. `tests/contract/test_leases.py` runs the same tests on both. Two things are built on a store:

- `Members`: a process announces itself under a role, renews that, and sees which others are live. Shards share groups
  by it, and binders share nodes (`kaicore.rules.sharing.replicas.owner(key, members.live())`).
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

from kaicore.ledger.bus.leases.lease import Lease
from kaicore.ledger.bus.leases.members import Members
from kaicore.ledger.bus.leases.memory import MemoryLeaseStore
from kaicore.ledger.bus.leases.nats import NatsLeaseStore
from kaicore.ledger.bus.leases.port import Entry, LeaseStore

__all__ = ["Entry", "Lease", "LeaseStore", "Members", "MemoryLeaseStore", "NatsLeaseStore"]
