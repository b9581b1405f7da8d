"""No dispatch ever runs in two clusters, whatever the network, the clocks and the processes do.

A world of one log, two hubs and three clusters with two binders each. Anything may be cut off, late, restarted, or
have a clock that is fast or slow; what a binder has begun may arrive at its API server any time later.
"""

from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import unhashed_event
from kaicore.rules.events.envelope import Event, NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import Offer
from kaicore.rules.hub.choosing import WEIGHTS
from kaicore.rules.hub.cluster_side import DRIFT_PER_MILLE, HeldLease, LeaseWatch, Term, held_entry, to_clear, to_make
from kaicore.rules.hub.hub_state import (
    HUB,
    DispatchStage,
    HubState,
    cluster_stream,
    dispatch_stream,
    lease_stream,
)
from kaicore.rules.hub.steps import dispatch_unit, give, take_back, unfit_by_itself

from tests.given.examples import examples

SECOND = 1_000_000
LEASE_US, GUARD_US = 30 * SECOND, 5 * SECOND
CLUSTERS = ("a", "b", "c")


class Log:
    """Takes units with true expectations."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._versions: dict[str, int] = {}

    def append(self, unit: Unit, *, at: int) -> bool:
        if any(self._versions.get(stream, 0) != version for stream, version in unit.expect.items()):
            return False
        for new in unit.events:
            version = self._versions[new.stream] = self._versions.get(new.stream, 0) + 1
            self.events.append(
                unhashed_event(new, cluster=HUB, position=len(self.events) + 1, version=version, recorded_at=at)
            )
        return True

    def add(self, payload: payloads.HubPayload, stream: str, *, at: int) -> None:
        number = str(len(self.events))
        self.append(Unit((NewEvent(derived_id("test", number), stream, payload, "test", at),)), at=at)


@dataclass
class Actor:
    """A process with a clock of its own, which reads the log."""

    log: Log
    per_mille: int
    offset: int
    state: HubState = field(default_factory=HubState)
    connected: bool = True
    #: Whether what it reads is late, while what it appends arrives.
    late: bool = False

    def clock(self, now: int) -> int:
        return self.offset + now * (1000 + self.per_mille) // 1000

    def news(self) -> list[Event]:
        fresh = [] if self.late else self.log.events[self.state.position :]
        for event in fresh:
            self.state.fold(event)
        return fresh


@dataclass
class Hub(Actor):
    watch: LeaseWatch = field(default_factory=lambda: LeaseWatch(started_at=0))

    def restart(self, now: int) -> None:
        self.state, self.watch = HubState(), LeaseWatch(started_at=self.clock(now))

    def work(self, world: "World") -> None:
        for event in self.news():
            if event.type == "LeaseRenewed":
                self.watch.heard(event.stream.partition("/")[2], now=self.clock(world.now))
        clock = self.clock(world.now)
        for unit in take_back(self.state, self.watch, now=clock, clock=world.now, actor="hub"):
            released = unit.events[0].payload
            if self.log.append(unit, at=world.now) and isinstance(released, payloads.DispatchReleased):
                world.released(released)
        self.news()
        for entry in list(self.state.dispatches.values()):
            if entry.stage is DispatchStage.WAITING:
                offers, first = [], entry.number % 3
                for name, cluster in self.state.present():
                    lost = self.watch.is_over(name, cluster.lease_us, now=clock)
                    unfit = unfit_by_itself(self.state, entry, name, lost=lost)
                    score = (ord(name) + first) % 3
                    offers.append(Offer(cluster=name, unfit=unfit, capacity=0 if unfit else 100, score=score))
                unit = give(entry, offers, weights=WEIGHTS, clock=world.now, actor="hub")
                if unit is not None:
                    self.log.append(unit, at=world.now)
                self.news()


@dataclass
class Binder(Actor):
    cluster: str = ""
    lease: HeldLease = field(default_factory=lambda: HeldLease(LEASE_US, GUARD_US))
    #: Acknowledgements of renewals that are on their way, by when they were asked for.
    renewals: list[int] = field(default_factory=list)

    def restart(self, now: int) -> None:
        self.state, self.lease, self.renewals = HubState(), HeldLease(LEASE_US, GUARD_US), []

    def renew(self, world: "World") -> None:
        self.news()
        entry = self.state.clusters.get(self.cluster)
        if entry is not None and not entry.removed:
            self.renewals.append(self.clock(world.now))
            renewed = payloads.LeaseRenewed(cluster=self.cluster, holder="x", lease_us=LEASE_US)
            self.log.add(renewed, lease_stream(self.cluster), at=world.now)

    def acknowledge(self) -> None:
        while self.renewals:
            self.lease.renewed(asked_at=self.renewals.pop())

    def work(self, world: "World") -> None:
        """Make what was given, start it, and clear what is asked for."""
        self.news()
        objects, running = world.objects[self.cluster], world.running
        if self.lease.holds(self.clock(world.now)):
            objects |= set(to_make(self.state, self.cluster))
            for term in sorted(objects) if world.places[self.cluster] else ():
                self._start(world, term)
        for term in to_clear(self.state, self.cluster):
            # Clearing ends when nothing is there: what was begun before is over by then, or is refused.
            objects.discard(term)
            world.binds[self.cluster] = {bind for bind in world.binds[self.cluster] if bind != term}
            running.discard((self.cluster, term.dispatch))
            returned = payloads.DispatchReturned(dispatch=term.dispatch, term=term.number, cluster=self.cluster)
            entry = self.state.dispatches[term.dispatch]
            self.log.append(dispatch_unit(entry, returned, actor=self.cluster, now=world.now), at=world.now)
            self.news()

    def _start(self, world: "World", term: Term) -> None:
        entry = held_entry(self.state, self.cluster, term)
        if entry is not None and entry.stage is DispatchStage.GIVEN:
            started = payloads.DispatchStarted(dispatch=term.dispatch, term=term.number, cluster=self.cluster)
            self.log.append(dispatch_unit(entry, started, actor=self.cluster, now=world.now), at=world.now)
            self.news()
            entry = held_entry(self.state, self.cluster, term)
        if entry is not None and entry.stage is DispatchStage.STARTED:
            world.binds[self.cluster].add(term)


class World:
    def __init__(self, drifts: list[int]) -> None:
        self.now, self.log = 0, Log()
        self.hubs = [Hub(self.log, drifts[0], 17), Hub(self.log, drifts[1], 10**9)]
        self.binders = [
            Binder(self.log, drifts[2 + number], number * 10**7, cluster=CLUSTERS[number % 3]) for number in range(6)
        ]
        #: On the API servers: objects, binds that were sent, and dispatches that run.
        self.objects: dict[str, set[Term]] = {name: set() for name in CLUSTERS}
        self.binds: dict[str, set[Term]] = {name: set() for name in CLUSTERS}
        self.running: set[tuple[str, str]] = set()
        #: Whether a cluster's scheduler finds nodes.
        self.places = dict.fromkeys(CLUSTERS, True)
        self.submitted = 0
        for name in CLUSTERS:
            self.log.add(payloads.ClusterRegistered(cluster=name), cluster_stream(name), at=0)

    def submit(self) -> None:
        self.submitted += 1
        name = f"d{self.submitted}"
        self.log.add(payloads.DispatchSubmitted(dispatch=name, manifests="[]"), dispatch_stream(name), at=self.now)

    def released(self, event: payloads.DispatchReleased) -> None:
        """The hub took a dispatch from a cluster: none of its binders may hold the lease by its own clock."""
        if max(abs(actor.per_mille) for actor in (*self.hubs, *self.binders)) <= DRIFT_PER_MILLE:
            for binder in self.binders:
                assert binder.cluster != event.cluster or not binder.lease.holds(binder.clock(self.now))

    def arrive(self, cluster: str) -> None:
        """Binds that were sent arrive, however late: pods that are there still are bound."""
        for term in self.binds[cluster]:
            if term in self.objects[cluster]:
                self.running.add((cluster, term.dispatch))
        self.binds[cluster].clear()
        self.check()

    def check(self) -> None:
        dispatches = [dispatch for _, dispatch in self.running]
        assert len(dispatches) == len(set(dispatches)), f"runs twice: {sorted(self.running)}"

    def step(self, op: str, number: int) -> None:
        binder, hub, name = self.binders[number % 6], self.hubs[number % 2], CLUSTERS[number % 3]
        match op:
            case "time":
                self.now += (number + 1) * SECOND
            case "work":
                self.now += SECOND
                for actor in (*self.hubs, *self.binders):
                    if actor.connected and isinstance(actor, Binder):
                        actor.renew(self)
                        actor.acknowledge()
                        actor.work(self)
                    elif actor.connected and isinstance(actor, Hub):
                        actor.work(self)
            case "hub" if hub.connected:
                hub.work(self)
            case "renew" if binder.connected:
                binder.renew(self)
            case "acknowledge":
                binder.acknowledge()
            case "binder" if binder.connected:
                binder.work(self)
            case "arrive":
                self.arrive(name)
            case "cut" if number % 2:
                (*self.binders, *self.hubs)[number % 8].connected ^= True
            case "cut":
                for one in self.binders:
                    one.connected ^= one.cluster == name
            case "late":
                (*self.binders, *self.hubs)[number % 8].late ^= True
            case "submit":
                self.submit()
            case "places":
                self.places[name] ^= True
            case "restart":
                (*self.binders, *self.hubs)[number % 8].restart(self.now)
            case "drain":
                self.log.add(payloads.ClusterDrained(cluster=name), cluster_stream(name), at=self.now)
            case "resume":
                self.log.add(payloads.ClusterResumed(cluster=name), cluster_stream(name), at=self.now)
            case _:
                pass
        self.check()

    def round(self) -> None:
        """Everything works for a second."""
        self.step("work", 0)
        for name in CLUSTERS:
            self.arrive(name)


#: What happens, the likely more often.
OPS = {
    **dict.fromkeys(("submit", "places", "cut", "late", "restart", "resume"), 2),
    **dict.fromkeys(("time", "arrive", "hub", "renew", "acknowledge", "binder"), 4),
    "work": 8,
    "drain": 1,
}


def storm(seed: int, *, drift: int, steps: int = 150) -> World:
    random = Random(seed)
    world = World([random.randint(-drift, drift) for _ in range(8)])
    for op in random.choices(list(OPS), list(OPS.values()), k=steps):
        world.step(op, random.randrange(48))
    return world


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_dispatch_in_any_storm_runs_once_and_runs_in_the_end(seed: int) -> None:
    world = storm(seed, drift=DRIFT_PER_MILLE)
    for actor in (*world.hubs, *world.binders):
        actor.connected, actor.late = True, False
    for name in CLUSTERS:
        world.places[name] = True
        world.log.add(payloads.ClusterResumed(cluster=name), cluster_stream(name), at=world.now)
    for _ in range(5):
        world.round()
    assert len(world.running) == world.submitted


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_dispatch_with_clocks_beyond_any_bound_still_runs_once(seed: int) -> None:
    storm(seed, drift=500)
