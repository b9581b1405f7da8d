"""One cluster of a run: its API server, its nodes and services, and what is held against them."""

import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from kai_apiserver.store import Collection, EventType
from kai_apiserver.store import Event as Written
from kai_fleet.node.checkpoint import NodeState
from kai_ingest.reports import Report
from kaicore.errors import LogUnavailable
from kaicore.rules.objects.reports import ReportAnswer

from tests.simulation import load, services
from tests.simulation.api import ApiServer, NetworkKubeClient
from tests.simulation.checker import Checker
from tests.simulation.kubelets import Kubelet
from tests.simulation.loop import Process
from tests.simulation.plan import Arrival
from tests.simulation.reading import Reading
from tests.simulation.shares import NAMESPACE

if TYPE_CHECKING:
    from tests.simulation.world import World


class Site:
    """See the module.

    Attributes:
        cluster: its name in the log.
        suffix: of the names of its processes and servers.
        gangs: minimum of each gang that came.
        members: uids of each gang's pods.
        rejected: pods that kubelets did not admit, and why.
    """

    def __init__(self, world: "World", cluster: str, suffix: str) -> None:
        self.cluster, self.suffix = cluster, suffix
        self._world = world
        self.gangs: dict[str, int] = {}
        self.members: dict[str, list[str]] = {}
        self.rejected: list[tuple[str, str]] = []
        self.checker = Checker(gangs=self.gangs)
        self.api_server = world.server(f"api{suffix}")
        self.ingest_server = world.server(f"ingest{suffix}")
        self.reading = Reading(world, self) if world.plan.readers else None
        self._disks: dict[str, NodeState] = {}
        self.api: ApiServer

    def begin(self) -> None:
        """Start its API server, its kubelets, and its services."""
        world, plan = self._world, self._world.plan
        chance = random.Random(f"api{self.suffix}/{plan.seed}")
        self.api = ApiServer(world.loop, chance, self.api_server.process)
        load.prepare(self.api)
        self.api.store.subscribe(self._written)
        for spec in load.nodes(lag=plan.lag):
            self._add(f"kubelet-{spec.name}", partial(self._kubelet, spec))
        self._add("watcher-0", self._service(partial(services.watch, pace=world.pace)))
        self._add("ingest-0", self._ingest)
        schedule = partial(
            services.schedule, pace=world.pace, config=world.config, now=world.loop.time, shared=plan.shared
        )
        for number in range(2):
            self._add(f"scheduler-{number}", self._service(schedule))
        for number in range(plan.binders):
            self._add(f"binder-{number}", self._service(partial(services.bind, pace=world.pace)))

        if self.reading is not None:
            self.reading.begin(self._add, self.api)

    def arrive(self, one: Arrival) -> None:
        """Have users or the control plane do something here."""
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
            case "lose":
                self._lose(one.name)
            case "delete-job":
                self.api.delete("jobs", one.name, group="batch", grace_s=None)
            case "topology" | "no-topology" | "judged" if self.reading is not None:
                self.reading.create(one)
            case "cordon" | "uncordon":
                self.api.patch("", "nodes", one.name, {"spec": {"unschedulable": one.kind == "cordon"}})

    def _lose(self, node: str) -> None:
        """Delete the first reservation pod of a node, as somebody may by hand."""
        names = sorted(
            pod.name
            for pod in self.checker.api_pods.values()
            if pod.reservation and pod.node == node and not pod.deleting
        )
        if names:
            self.checker.shares.lost.add(node)
            self.api.delete("pods", names[0], namespace=NAMESPACE, grace_s=None)

    def is_over(self) -> bool:
        """True if no work with a known end waits or runs any more."""
        return all(pod.phase in ("Succeeded", "Failed") for pod in self.checker.api_pods.values())

    def _pod_of(self, work: str) -> str:
        names = sorted(pod.name for pod in self.checker.api_pods.values() if pod.name.startswith(f"{work}-"))
        return names[0] if names else work

    def _add(self, name: str, begin: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        self._world.add(f"{name}{self.suffix}", begin)

    def _service(self, body: services.Body) -> Callable[[Process], Coroutine[Any, Any, None]]:
        return lambda process: body(self._world.place(process, self))

    def _ingest(self, process: Process) -> Coroutine[Any, Any, None]:
        service = services.IngestService(self._world.place(process, self), self._world.pace)
        self.ingest_server.process = process
        self.ingest_server.service = service  # type: ignore[attr-defined]
        process.on_death = self.ingest_server.break_connections
        return service.run()

    def client(self, process: Process) -> NetworkKubeClient:
        """A process's client of the API server."""
        return NetworkKubeClient(self._world.loop, process, self._world.network, self.api_server, self.api)

    def _kubelet(self, spec: Any, process: Process) -> Coroutine[Any, Any, None]:
        world = self._world

        async def report(report: Report) -> ReportAnswer:
            service = self.ingest_server.service  # type: ignore[attr-defined]
            answer: ReportAnswer = await world.network.ask(
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
            world.loop,
            process,
            spec,
            client=self.client(process),
            report=report,
            disk=self._disks,
            rejected=lambda pod, why: self.rejected.append((pod, why)),
            jitter=random.Random(f"{world.plan.seed}/{process.name}").random,
        ).run()

    def _written(self, collection: Collection, event: Written) -> None:
        world, stored = self._world, event.stored
        world.changed(self.checker)
        world.tell(f"write{self.suffix} {event.type} {collection.resource.storage} {stored.key} {stored.rv}")
        if collection.resource.storage == "pods":
            body = msgspec.json.decode(stored.body)
            self.checker.pod_written(body, gone=event.type is EventType.DELETED)
            world.hub_checker.pod_written(self.cluster, body)
        elif collection.resource.storage == "configmaps" and event.type is not EventType.DELETED:
            self.checker.shares.config_map_written(msgspec.json.decode(stored.body))
