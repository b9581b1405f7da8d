"""The promises of `kaicore.ledger.bus.leases`, held against the store in memory and NATS."""

from collections.abc import AsyncIterator

import pytest
from kaicore.errors import BusUnavailable, InvalidObject
from kaicore.ledger.bus.leases import Lease, LeaseStore, Members, NatsLeaseStore

from tests.given.doubles.memory_leases import MemoryLeaseStore
from tests.given.processes.relay_process import PATIENCE_S


@pytest.fixture
async def store(bus_url: str | None) -> AsyncIterator[LeaseStore]:
    made: LeaseStore
    if bus_url is None:
        made = MemoryLeaseStore()
    else:
        nats = made = await NatsLeaseStore.open(bus_url, name="test")
        assert await nats.wait_connected(timeout_s=PATIENCE_S)
    yield made
    await made.close()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_writes_are_conditional_on_the_revision_that_was_read(store: LeaseStore, cluster: str) -> None:
    assert await store.read(cluster, "binder/") == []
    first = await store.write(cluster, "binder/a", b"1", expect=0)
    assert first is not None
    assert await store.write(cluster, "binder/a", b"2", expect=0) is None
    assert await store.write(cluster, "binder/a", b"2", expect=first - 1) is None
    second = await store.write(cluster, "binder/a", b"2", expect=first)
    assert second is not None
    assert second > first
    other = await store.write(cluster, "binders/b", b"3", expect=0)
    assert other is not None
    assert other > second
    assert await store.read(cluster, "binder/") == [("binder/a", b"2", second)]
    assert [entry.name for entry in await store.read(cluster, "binder")] == ["binder/a", "binders/b"]


async def test_a_deleted_entry_is_seen_as_such_and_may_be_written_anew(store: LeaseStore, cluster: str) -> None:
    first = await store.write(cluster, "relay", b"1", expect=0)
    assert first is not None
    assert not await store.delete(cluster, "relay", expect=first - 1)
    assert await store.delete(cluster, "relay", expect=first)
    [entry] = await store.read(cluster, "relay")
    assert entry.value == b""
    assert entry.revision > first
    assert await store.write(cluster, "relay", b"2", expect=first) is None
    again = await store.write(cluster, "relay", b"2", expect=0)
    assert again is not None
    assert again > entry.revision


async def test_clusters_share_no_entries(store: LeaseStore, cluster: str) -> None:
    assert await store.write(cluster, "relay", b"1", expect=0)
    assert await store.read(f"{cluster}-2", "relay") == []
    assert await store.write(f"{cluster}-2", "relay", b"1", expect=0)


@pytest.mark.parametrize("name", ["", "a b", "a>", "a/*", "/a", "a//b"])
async def test_a_name_that_cannot_be_one_is_refused(store: LeaseStore, cluster: str, name: str) -> None:
    with pytest.raises(InvalidObject, match="lease: name"):
        await store.write(cluster, name, b"1", expect=0)


async def test_members_see_each_other_until_one_does_not_renew(store: LeaseStore, cluster: str) -> None:
    clock = Clock()
    one, two = (
        Members(store, cluster, "scheduler/default", member=name, ttl_s=3, clock=clock) for name in ("one", "two")
    )
    assert not one.settled
    assert one.live() == ("one",)
    for member in (one, two, one):
        assert await member.beat()
    assert one.settled
    assert one.live() == two.live() == ("one", "two")
    assert one.renewal_s == 3 / 8, "it looks more often than it renews its record"
    clock.now += 0.9
    assert await one.beat()
    assert 0 < one.renewal_s < 0.11, "its record is to be renewed in a third of its time"
    clock.now += 1.8
    await one.beat()
    assert one.live() == ("one", "two")
    assert 0.3 < one.renewal_s < 0.32, "it looks again when the other one's time has run out"
    clock.now += one.renewal_s
    await one.beat()
    assert one.live() == ("one",)
    await two.beat()
    await one.beat()
    assert one.live() == ("one", "two")
    await two.leave()
    await one.beat()
    assert one.live() == ("one",)


async def test_a_lease_has_one_holder_and_passes_on_when_it_runs_out(store: LeaseStore, cluster: str) -> None:
    first, second = Clock(), Clock()
    one = Lease(store, cluster, "relay", owner="one", duration_s=3, clock=first)
    two = Lease(store, cluster, "relay", owner="two", duration_s=3, clock=second)
    assert await one.hold()
    token = one.token
    assert not await two.hold()
    first.now = second.now = 1002
    assert await one.hold()
    assert one.token == token
    assert not await two.hold()
    first.now = second.now = 1004.8
    assert not one.held(), "by its own clock it ends before another may have it"
    assert not await two.hold()
    second.now = 1005.1
    assert await two.hold()
    assert two.token > token
    assert not await one.hold()
    assert not one.held()


async def test_a_released_lease_is_had_at_once(store: LeaseStore, cluster: str) -> None:
    one, two = (Lease(store, cluster, "relay", owner=name, clock=Clock()) for name in ("one", "two"))
    assert await one.hold()
    assert not await two.hold()
    await one.release()
    assert not one.held()
    assert await two.hold()
    assert two.token > one.token
    await one.release()
    assert await two.hold()


async def test_a_lease_is_released_though_its_last_renewal_was_cut_off(store: LeaseStore, cluster: str) -> None:
    one, two = (Lease(store, cluster, "relay", owner=name, clock=Clock()) for name in ("one", "two"))
    assert await one.hold()
    [entry] = await store.read(cluster, "relay")
    assert await store.write(cluster, "relay", entry.value, expect=entry.revision) is not None
    await one.release()
    assert await two.hold()


async def test_a_lease_outlives_a_store_that_does_not_answer_by_its_own_clock() -> None:
    store, clock = MemoryLeaseStore(), Clock()
    lease = Lease(store, "c", "relay", owner="one", duration_s=3, clock=clock)
    other = Lease(store, "c", "relay", owner="two", duration_s=3, clock=clock)
    member = Members(store, "c", "binder", member="one", clock=clock)
    neighbour = Members(store, "c", "binder", member="two", clock=clock)
    assert await lease.hold()
    assert not await other.hold()
    assert await neighbour.beat()
    assert await member.beat()
    store.disconnect()
    with pytest.raises(BusUnavailable):
        await store.read("c", "relay")
    assert await lease.hold()
    assert not await member.beat()
    assert member.live() == ("one", "two")
    clock.now += 3.1
    assert not await lease.hold()
    assert member.live() == ("one",)
    assert not member.fresh
    store.reconnect()
    assert await lease.hold()
    assert await member.beat()
    assert member.live() == ("one", "two"), "nobody could see whether it had renewed its record"


async def test_what_a_wiped_store_held_is_had_only_when_it_would_have_run_out() -> None:
    store, clock = MemoryLeaseStore(), Clock()
    one, two = (Lease(store, "c", "relay", owner=name, duration_s=3, clock=clock) for name in ("one", "two"))
    member, neighbour = (Members(store, "c", "binder", member=name, clock=clock) for name in ("one", "two"))
    assert await one.hold()
    assert not await two.hold()
    await neighbour.beat()
    await member.beat()
    store.wipe()
    await member.beat()
    assert member.live() == ("one", "two")
    assert not await two.hold()
    clock.now += 3.1
    assert await two.hold()
    assert not await one.hold()
