"""One run: a cluster, its services and all that happens to them, from a plan."""

import asyncio
import gc
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

from kai_api import live
from kai_binder import hub_side
from kaicore.analysis.trial import dispatching
from kaicore.errors import KaiError
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.envelope import Event, NewEvent, Unit, UnitOutcome, derived_id
from kaicore.rules.events.payloads import ClusterDrained, ClusterRegistered, ClusterResumed, HubPayload
from kaicore.rules.hub.hub_state import HUB, cluster_stream, dispatch_stream

from tests.given.doubles.memory_leases import MemoryLeaseStore
from tests.simulation import load, services
from tests.simulation.bus import BusServer, NetworkBus
from tests.simulation.checker import Checker
from tests.simulation.ending import check_end
from tests.simulation.http import AppServer
from tests.simulation.hub_checker import HubChecker
from tests.simulation.leases import NetworkLeaseStore
from tests.simulation.log import LogServer, NetworkLog
from tests.simulation.loop import EPOCH_S, Process, SimulatedLoop, Stuck, at_once, boot_us_here, bury, clock_here
from tests.simulation.network import Fate, Network, Server
from tests.simulation.plan import GANG_GRACE_S, Arrival, Plan
from tests.simulation.plants import PLANTS
from tests.simulation.reading_services import hub_app
from tests.simulation.site import Site

#: Seconds that a supervisor leaves a process down that has ended by itself.
_RESTART_S = 0.5

#: Seconds after the last fault until everything that can run must have run.
_SETTLE_S = 150.0

#: How far a clock that is never set is wrong at most: a hub's and a binder's together by less than 1 in 100 (0340).
_BOOT_DRIFT = 0.004

#: Seconds without any event or write before the end is looked at.
_SILENCE_S = 3.0


@dataclass(slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        violations: what did not hold.
        digest: of the trace.
        trace: everything that happened, a line each.
        counts: of events by type, and of what else is counted.
        faults: how many calls did not go well and how many faults struck, by kind.
        seconds: of the simulation.
        steps: that the first process of each role had run when all was healed: nothing is killed later.
        logs: of the clusters.
    """

    violations: list[str]
    digest: str
    trace: list[str]
    counts: Counter[str]
    faults: Counter[str]
    seconds: float
    steps: dict[str, int]
    logs: dict[str, list[Event]]


@dataclass(slots=True)
class Role:
    """A place for a process, which a supervisor fills again and again."""

    name: str
    begin: Callable[[Process], Coroutine[Any, Any, None]]
    starts: int = 0
    process: Process | None = None
    others: list[Process] = field(default_factory=list)


class World:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = SimulatedLoop()
        self.trace: list[str] = []
        self.faults: Counter[str] = Counter()
        self.network = Network(self.loop, plan.seed)
        self.network.on_fate = self._fate
        self._chance = random.Random(f"world/{plan.seed}")
        self._last_change = 0.0
        self.pace = services.Pace(side_writes=plan.side_writes, shares=plan.shares)
        self.config = EngineConfig(
            bind_backoff_us=200_000,
            bind_backoff_max_us=3_000_000,
            recheck_us=3_000_000,
            nomination_us=10_000_000,
            gpu_sharing=plan.shares,
        )
        self._graves: list[Process] = []
        self._servers: list[Process] = []
        self.log_server = self.server("log")
        self.bus_server = self.server("bus")
        self.log = LogServer(lambda: int((EPOCH_S + self.loop.time()) * 1e6), self._appended, self._taken)
        self.leases = MemoryLeaseStore()
        self.bus: BusServer
        self.roles: dict[str, Role] = {}
        self._steps: dict[str, int] = {}
        self.sites = [Site(self, services.CLUSTER, "")]
        self.sites += [Site(self, f"c{number}", f"-c{number}") for number in range(2, plan.clusters + 1)]
        self.hub_checker = HubChecker()
        names = [f"hub-{number}" for number in range(2 if plan.readers and plan.clusters > 1 else 0)]
        self.hub_servers = [AppServer(name, self.server(name).process) for name in names]

    # --- the run ----------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._main())
        except Stuck as error:
            self.wrong(str(error))
        finally:
            for process in self._graves:
                bury(process)
            asyncio.set_event_loop(None)
            self.loop.close()
        for context in self.loop.defects:
            if isinstance(error := context.get("exception"), Exception) and not isinstance(error, KaiError):
                self.wrong(f"defect: {context['message']}: {error!r}")
        text = "\n".join(self.trace)
        counts, violations = Counter(self.hub_checker.counts), list(self.hub_checker.violations)
        for site in self.sites:
            counts += Counter(site.checker.counts) + Counter(rejected=len(site.rejected))
            violations += site.checker.violations
        digest = sha256(text.encode()).hexdigest()
        logs = {site.cluster: self.log.events(site.cluster) for site in self.sites}
        return Outcome(violations, digest, self.trace, counts, self.faults, self.loop.time(), self._steps, logs)

    def wrong(self, what: str) -> None:
        """Hold something against the code that is of no cluster alone."""
        self.hub_checker.now = self.loop.time()
        self.hub_checker.wrong(what)

    async def _main(self) -> None:
        from tests.simulation.faults import Faults  # it needs this class

        self.bus = BusServer()
        for site in self.sites:
            site.begin()
        for number in range(2):
            self.add(f"relay-{number}", self._of_all(partial(services.relay, pace=self.pace)))
        if len(self.sites) > 1:
            for site in self.sites:
                self.append(HUB, cluster_stream(site.cluster), ClusterRegistered(cluster=site.cluster))
            for number in range(2):
                self.add(f"hub-{number}", self._hub)
        faults = Faults(self)
        for one in self.plan.arrivals:
            self.loop.call_later(one.at, self._arrive, one)
        for fault in self.plan.faults:
            self.loop.call_later(fault.at, faults.strike, fault)
        await asyncio.sleep(self.plan.seconds)
        self.tell("healed")
        self._steps = {process.role: process.steps for process in self._graves if process.name.endswith(".1")}
        faults.heal()
        await self._settle()
        for site in self.sites:
            check_end(self, site)
            if site.reading is not None:
                await site.reading.check_end()
        self.hub_checker.now = self.loop.time()
        self.hub_checker.check_end()
        await self._close()

    async def _close(self) -> None:
        """Let nobody do anything any more, and end what servers do for them."""
        for process in self._graves:
            if process not in self._servers:
                process.dead = True
        for site in self.sites:
            await site.api.close()

    async def _settle(self) -> None:
        """Wait until nothing happens any more, and watch gangs meanwhile."""
        end = self.loop.time() + _SETTLE_S
        since_of: dict[tuple[str, str], float] = {}
        while self.loop.time() < end:
            await asyncio.sleep(1.0)
            now = self.loop.time()
            partial = [(site.cluster, gang) for site in self.sites for gang in site.checker.partial_gangs(site.members)]
            since_of = {key: since_of.get(key, now) for key in partial}
            for (_, gang), since in since_of.items():
                if now - since > GANG_GRACE_S + _SILENCE_S + 8:
                    self.wrong(f"gang {gang} has been partial since {since:.1f} s")
                    return
            if self._failed() or (now - self._last_change > _SILENCE_S and self._is_over()):
                return

    def _failed(self) -> bool:
        """True if something is wrong already, so that the end adds nothing."""
        return bool(self.hub_checker.violations) or any(site.checker.violations for site in self.sites)

    def _is_over(self) -> bool:
        """True if no work with a known end waits or runs any more."""
        authors = [site.reading.author for site in self.sites if site.reading is not None]
        if self.hub_checker.waiting or any(author.pending for author in authors):
            return False
        return all(site.is_over() for site in self.sites)

    # --- processes --------------------------------------------------------------------------------------------------

    def _plain(self, name: str) -> Process:
        process = Process(self.loop, name)
        self._graves.append(process)
        return process

    def server(self, name: str) -> Server:
        """Make a server, which is never killed."""
        self._servers.append(self._plain(name))
        return Server(name, self._servers[-1])

    def add(self, name: str, begin: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        """Have a place for a process, and start it."""
        self.roles[name] = Role(name, begin)
        self.start(name)

    def start(self, name: str, *, beside: bool = False) -> Process:
        """Start a process of a role, instead of the one that is there or beside it."""
        role = self.roles[name]
        role.starts += 1
        process = self._plain(f"{name}.{role.starts}")
        process.offset_s = self.plan.skew_s * (2 * self._chance.random() - 1)
        process.boot_rate = 1 + _BOOT_DRIFT * (2 * self._chance.random() - 1)
        if beside:
            role.others.append(process)
        else:
            role.process = process
        self.tell(f"start {process.name}")
        process.start(role.begin(process)).add_done_callback(partial(self._ended, role, process))
        return process

    def _ended(self, role: Role, process: Process, task: "asyncio.Task[None]") -> None:
        if process.dead or task.cancelled():
            return
        error = task.exception()
        self.tell(f"ended {process.name} {type(error).__name__}")
        if error is not None and not isinstance(error, KaiError):
            self.wrong(f"{process.name} ended by a defect: {error!r}")
        process.kill()
        if role.process is process:
            self.loop.call_later(_RESTART_S, self.start_again, role.name)

    def start_again(self, name: str) -> None:
        role = self.roles[name]
        if role.process is None or role.process.dead:
            self.start(name)

    def place(self, process: Process, site: Site) -> services.Place:
        """The inputs of a process of a service."""
        return services.Place(
            site.cluster,
            process,
            NetworkLog(process, self.network, self.log_server, self.log, self),
            NetworkBus(self.loop, process, self.network, self.bus_server, self.bus),
            site.client(process),
            services.context_of(process.role, self.tell),
            random.Random(f"{self.plan.seed}/{process.name}"),
            NetworkLeaseStore(process, self.network, self.bus_server, self.leases),
        )

    def _of_all(self, body: services.Body) -> Callable[[Process], Coroutine[Any, Any, None]]:
        return lambda process: body(self.place(process, self.sites[0]))

    def _hub(self, process: Process) -> Coroutine[Any, Any, None]:
        place = self.place(process, self.sites[0])
        for server in self.hub_servers:
            if server.name == process.role:
                server.begin(process, hub_app(place))
        return services.hub(place, self.pace)

    # --- what happens -----------------------------------------------------------------------------------------------

    def tell(self, what: str) -> None:
        """Put a line into the trace."""
        self.trace.append(f"{self.loop.time():.6f} {what}")

    def _arrive(self, one: Arrival) -> None:
        self.tell(f"arrival {one.kind} {one.name}")
        match one.kind:
            case "dispatch":
                for site in self.sites:
                    site.gangs[one.name] = one.pods
                if self.sites[0].reading is not None:
                    self.sites[0].reading.submit(one.name, load.manifests(one))
                else:
                    self.append(HUB, dispatch_stream(one.name), load.dispatch(one))
            case "drain":
                self.append(HUB, cluster_stream(one.name), ClusterDrained(cluster=one.name))
            case "resume":
                self.append(HUB, cluster_stream(one.name), ClusterResumed(cluster=one.name))
            case _:
                self.sites[0].arrive(one)

    def append(self, cluster: str, stream: str, payload: HubPayload) -> None:
        """Append what an operator says; it never fails on the way."""
        number = str(len(self.log.events(cluster)))
        event = NewEvent(
            id=derived_id(cluster, stream, "operator", number),
            stream=stream,
            payload=payload,
            actor="kai",
            occurred_at=int((EPOCH_S + self.loop.time()) * 1e6),
            subject=stream.partition("/")[2],
            correlation=stream,
        )
        at_once(self.log.append(cluster, [Unit((event,))]))

    def _fate(self, process: str, server: str, name: str, fate: Fate) -> None:
        self.faults[f"call {fate}"] += 1
        self.tell(f"{fate} {process} {server} {name}")

    def changed(self, checker: Checker | HubChecker) -> None:
        """Take note that something happens now."""
        self._last_change = checker.now = self.hub_checker.now = self.loop.time()

    def _checker(self, cluster: str) -> Checker | HubChecker:
        return next((site.checker for site in self.sites if site.cluster == cluster), self.hub_checker)

    def _appended(self, events: list[Event]) -> None:
        cluster = events[0].cluster
        checker = self._checker(cluster)
        if any(event.type != "LeaseRenewed" for event in events):
            self.changed(checker)
        where = "" if cluster == services.CLUSTER else f"{cluster} "
        for event in events:
            self.tell(f"event {where}{event.position} {event.type} {event.stream} {event.actor} {event.hash[:6].hex()}")
        checker.appended(events)
        for site in self.sites:
            if site.cluster == cluster and site.reading is not None:
                site.reading.checker.appended(events)

    def _taken(self, cluster: str, expectations: Sequence[Mapping[str, int]], position: int) -> None:
        if isinstance(checker := self._checker(cluster), Checker):
            checker.now = self.loop.time()
            checker.taken(expectations, position)

    def proposing(self, process: Process, cluster: str, units: Sequence[Unit]) -> None:
        if isinstance(checker := self._checker(cluster), Checker):
            checker.now = self.loop.time()
            checker.proposing(process.name, units)

    def acknowledged(
        self, process: Process, cluster: str, units: Sequence[Unit], outcomes: Sequence[UnitOutcome]
    ) -> None:
        checker = self._checker(cluster)
        checker.now = self.loop.time()
        checker.acknowledged(process.name, units, outcomes)


@contextmanager
def _made_repeatable(plan: Plan) -> Iterator[None]:
    """Have what asks the machine for time and chance ask the simulation."""
    chance = random.Random(f"ids/{plan.seed}")
    ids, clock = (lambda: UUID(int=chance.getrandbits(128))), SimpleNamespace(time_ns=clock_here)
    with (
        patch.object(hub_side, "boot_us", boot_us_here),
        patch.object(dispatching, "uuid4", ids),
        patch.object(dispatching, "time", clock),
        patch.object(live, "_logger", services.Silence(lambda text: None)),
    ):
        yield


def run(plan: Plan) -> Outcome:
    collecting, logging_off = gc.isenabled(), logging.root.manager.disable
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        with PLANTS[plan.plant](), _made_repeatable(plan):
            return World(plan).run()
    finally:
        logging.disable(logging_off)
        if collecting:
            gc.enable()
