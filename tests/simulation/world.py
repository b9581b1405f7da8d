"""One run: a cluster, its services and all that happens to them, from a plan."""

import asyncio
import gc
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec
from kai_apiserver.store import Collection, EventType
from kai_apiserver.store import Event as Written
from kai_fleet.checkpoint import NodeState
from kai_ingest.answer import Answer
from kai_ingest.reports import Report
from kaicore.errors import KaiError, LogUnavailable
from kaicore.ledger.bus.leases.memory import MemoryLeaseStore
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.envelope import Event, Unit, UnitOutcome

from tests.simulation import load, services
from tests.simulation.api import ApiServer, NetworkKubeClient
from tests.simulation.bus import BusServer, NetworkBus
from tests.simulation.checker import Checker
from tests.simulation.ending import check_end
from tests.simulation.kubelets import Kubelet
from tests.simulation.leases import NetworkLeaseStore
from tests.simulation.log import LogServer, NetworkLog
from tests.simulation.loop import EPOCH_S, Process, SimulatedLoop, Stuck, bury
from tests.simulation.network import Fate, Network, Server
from tests.simulation.plan import GANG_GRACE_S, NODES, Arrival, Plan
from tests.simulation.plants import PLANTS

#: Seconds that a supervisor leaves a process down that has ended by itself.
_RESTART_S = 0.5

#: Seconds after the last fault until everything that can run must have run.
_SETTLE_S = 150.0

#: Seconds without any event or write before the end is looked at.
_SILENCE_S = 3.0


@dataclass(slots=True)
class Outcome:
    """What became of a run.

    Attributes:
        violations: what did not hold.
        digest: of the trace.
        trace: everything that happened, a line each.
        counts: of events by type, and of what else is counted.
        faults: how many calls did not go well and how many faults struck, by kind.
        seconds: of the simulation.
    """

    violations: list[str]
    digest: str
    trace: list[str]
    counts: Counter[str]
    faults: Counter[str]
    seconds: float


@dataclass(slots=True)
class Role:
    """A place for a process, which a supervisor fills again and again."""

    name: str
    begin: Callable[[Process], Coroutine[Any, Any, None]]
    starts: int = 0
    process: Process | None = None
    others: list[Process] = field(default_factory=list)


class World:
    """See the module."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = SimulatedLoop()
        self.trace: list[str] = []
        self.faults: Counter[str] = Counter()
        self.gangs: dict[str, int] = {}
        self.members: dict[str, list[str]] = {}
        self.checker = Checker(gangs=self.gangs)
        self.network = Network(self.loop, plan.seed)
        self.network.on_fate = self._fate
        self._chance = random.Random(f"world/{plan.seed}")
        self._last_change = 0.0
        self.pace = services.Pace(side_writes=plan.side_writes)
        self.config = EngineConfig(
            bind_backoff_us=200_000, bind_backoff_max_us=3_000_000, recheck_us=3_000_000, nomination_us=10_000_000
        )
        self._graves: list[Process] = []
        self._servers: list[Process] = []
        self.log_server = self._server("log")
        self.bus_server = self._server("bus")
        self.api_server = self._server("api")
        self.ingest_server = self._server("ingest")
        self.log = LogServer(lambda: int((EPOCH_S + self.loop.time()) * 1e6), self._appended)
        self.leases = MemoryLeaseStore()
        self.bus: BusServer
        self.api: ApiServer
        self.disks: dict[str, NodeState] = {}
        self.roles: dict[str, Role] = {}
        self.rejected: list[tuple[str, str]] = []

    # --- the run ----------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run it, and check it."""
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._main())
        except Stuck as error:
            self.checker.wrong(str(error))
        finally:
            for process in self._graves:
                bury(process)
            asyncio.set_event_loop(None)
            self.loop.close()
        for context in self.loop.defects:
            if isinstance(error := context.get("exception"), Exception) and not isinstance(error, KaiError):
                self.checker.wrong(f"defect: {context['message']}: {error!r}")
        text = "\n".join(self.trace)
        counts = Counter(self.checker.counts) + Counter(rejected=len(self.rejected))
        digest = sha256(text.encode()).hexdigest()
        return Outcome(self.checker.violations, digest, self.trace, counts, self.faults, self.loop.time())

    async def _main(self) -> None:
        from tests.simulation.faults import Faults  # it needs this class

        self.bus = BusServer()
        self.api = ApiServer(self.loop, random.Random(f"api/{self.plan.seed}"), self.api_server.process)
        load.prepare(self.api)
        self.api.store.subscribe(self._written)
        for spec in load.nodes(lag=self.plan.lag):
            self._add(f"kubelet-{spec.name}", partial(self._kubelet, spec))
        self._add("watcher-0", self._service(partial(services.watch, pace=self.pace)))
        self._add("ingest-0", self._ingest)
        for number in range(2):
            self._add(f"relay-{number}", self._service(partial(services.relay, pace=self.pace)))
            schedule = partial(
                services.schedule, pace=self.pace, config=self.config, now=self.loop.time, shared=self.plan.shared
            )
            self._add(f"scheduler-{number}", self._service(schedule))
        for number in range(self.plan.binders):
            self._add(f"binder-{number}", self._service(partial(services.bind, pace=self.pace)))
        faults = Faults(self)
        for one in self.plan.arrivals:
            self.loop.call_later(one.at, self._arrive, one)
        for fault in self.plan.faults:
            self.loop.call_later(fault.at, faults.strike, fault)
        await asyncio.sleep(self.plan.seconds)
        self.tell("healed")
        faults.heal()
        await self._settle()
        check_end(self)
        await self._close()

    async def _close(self) -> None:
        """Let nobody do anything any more, and end what servers do for them."""
        for process in self._graves:
            if process not in self._servers:
                process.dead = True
        await self.api.close()

    async def _settle(self) -> None:
        """Wait until nothing happens any more, and watch gangs meanwhile."""
        end = self.loop.time() + _SETTLE_S
        partial_since: dict[str, float] = {}
        while self.loop.time() < end:
            await asyncio.sleep(1.0)
            now = self.loop.time()
            partial = self.checker.partial_gangs(self.members)
            partial_since = {gang: partial_since.get(gang, now) for gang in partial}
            for gang, since in partial_since.items():
                if now - since > GANG_GRACE_S + _SILENCE_S + 8:
                    self.checker.wrong(f"gang {gang} has been partial since {since:.1f} s")
                    return
            if now - self._last_change > _SILENCE_S and self._is_over():
                return

    def _is_over(self) -> bool:
        """Whether nothing waits or runs any more of which it is known that it ends."""
        return all(pod.phase in ("Succeeded", "Failed") for pod in self.checker.api_pods.values())

    # --- processes --------------------------------------------------------------------------------------------------

    def _plain(self, name: str) -> Process:
        process = Process(self.loop, name)
        self._graves.append(process)
        return process

    def _server(self, name: str) -> Server:
        self._servers.append(self._plain(name))
        return Server(name, self._servers[-1])

    def _add(self, name: str, begin: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        self.roles[name] = Role(name, begin)
        self.start(name)

    def start(self, name: str, *, beside: bool = False) -> Process:
        """Start a process of a role, instead of the one that is there or beside it."""
        role = self.roles[name]
        role.starts += 1
        process = self._plain(f"{name}.{role.starts}")
        process.offset_s = self.plan.skew_s * (2 * self._chance.random() - 1)
        if beside:
            role.others.append(process)
        else:
            role.process = process
        self.tell(f"start {process.name}")
        task = process.start(role.begin(process))
        task.add_done_callback(partial(self._ended, role, process))
        return process

    def _ended(self, role: Role, process: Process, task: "asyncio.Task[None]") -> None:
        if process.dead or task.cancelled():
            return
        error = task.exception()
        self.tell(f"ended {process.name} {type(error).__name__}")
        if error is not None and not isinstance(error, KaiError):
            self.checker.wrong(f"{process.name} ended by a defect: {error!r}")
        process.kill()
        if role.process is process:
            self.loop.call_later(_RESTART_S, self.start_again, role.name)

    def start_again(self, name: str) -> None:
        """Start a role whose process is dead."""
        role = self.roles[name]
        if role.process is None or role.process.dead:
            self.start(name)

    def _place(self, process: Process, role: str) -> services.Place:
        log = NetworkLog(process, self.network, self.log_server, self.log, self)
        return services.Place(
            process,
            log,
            NetworkBus(self.loop, process, self.network, self.bus_server, self.bus),
            NetworkKubeClient(self.loop, process, self.network, self.api_server, self.api),
            services.context_of(role, self.tell),
            random.Random(f"{self.plan.seed}/{process.name}"),
            NetworkLeaseStore(process, self.network, self.bus_server, self.leases),
        )

    def _service(self, body: services.Body) -> Callable[[Process], Coroutine[Any, Any, None]]:
        return lambda process: body(self._place(process, process.role))

    def _ingest(self, process: Process) -> Coroutine[Any, Any, None]:
        service = services.IngestService(self._place(process, process.role), self.pace)
        self.ingest_server.process = process
        self.ingest_server.service = service  # type: ignore[attr-defined]
        process.on_death = self.ingest_server.break_connections
        return service.run()

    def _kubelet(self, spec: Any, process: Process) -> Coroutine[Any, Any, None]:
        async def report(report: Report) -> Answer:
            service = self.ingest_server.service  # type: ignore[attr-defined]
            answer: Answer = await self.network.ask(
                process,
                self.ingest_server,
                "report",
                lambda: service.take(report),
                error=LogUnavailable,
                patience_s=5.0,
                waits=True,
            )
            return answer

        return Kubelet(
            self.loop,
            process,
            spec,
            client=NetworkKubeClient(self.loop, process, self.network, self.api_server, self.api),
            report=report,
            disk=self.disks,
            rejected=lambda pod, why: self.rejected.append((pod, why)),
            jitter=random.Random(f"{self.plan.seed}/{process.name}").random,
        ).run()

    # --- what happens -----------------------------------------------------------------------------------------------

    def tell(self, what: str) -> None:
        """Put a line into the trace."""
        self.trace.append(f"{self.loop.time():.6f} {what}")

    def _arrive(self, one: Arrival) -> None:
        self.tell(f"arrival {one.kind} {one.name}")
        match one.kind:
            case "pod" | "job" | "gang":
                if one.kind == "gang":
                    self.gangs[one.name] = one.pods
                uids = load.come(self.api, one)
                if one.kind == "gang":
                    self.members[one.name] = uids
            case "delete":
                self.api.delete("pods", self._pod_of(one.name), grace_s=None)
            case "evict":
                self.api.evict(self._pod_of(one.name))
            case "delete-job":
                self.api.delete("jobs", one.name, group="batch", grace_s=None)
            case "cordon" | "uncordon":
                self.api.patch("", "nodes", one.name, {"spec": {"unschedulable": one.kind == "cordon"}})

    def _pod_of(self, work: str) -> str:
        """The first pod of some work."""
        names = sorted(pod.name for pod in self.checker.api_pods.values() if pod.name.startswith(f"{work}-"))
        return names[0] if names else work

    def _fate(self, process: str, server: str, name: str, fate: Fate) -> None:
        self.faults[f"call {fate}"] += 1
        self.tell(f"{fate} {process} {server} {name}")

    def _appended(self, events: list[Event]) -> None:
        self._last_change = self.checker.now = self.loop.time()
        for event in events:
            self.tell(f"event {event.position} {event.type} {event.stream} {event.actor} {event.hash[:6].hex()}")
        self.checker.appended(events)

    def proposing(self, process: Process, units: Sequence[Unit]) -> None:
        """See `Witness`."""
        self.checker.now = self.loop.time()
        self.checker.proposing(process.name, units)

    def acknowledged(self, process: Process, units: Sequence[Unit], outcomes: Sequence[UnitOutcome]) -> None:
        """See `Witness`."""
        self.checker.now = self.loop.time()
        self.checker.acknowledged(process.name, units, outcomes)

    def _written(self, collection: Collection, event: Written) -> None:
        self._last_change = self.checker.now = self.loop.time()
        stored = event.stored
        self.tell(f"write {event.type} {collection.resource.storage} {stored.key} {stored.rv}")
        if collection.resource.storage == "pods":
            self.checker.pod_written(msgspec.json.decode(stored.body), gone=event.type is EventType.DELETED)

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes of the cluster."""
        return NODES


def run(plan: Plan) -> Outcome:
    """Run a plan."""
    collecting, logging_off = gc.isenabled(), logging.root.manager.disable
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        with PLANTS[plan.plant]():
            return World(plan).run()
    finally:
        logging.disable(logging_off)
        if collecting:
            gc.enable()
