"""A binder on a simulated API server, with decisions that the test makes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import pytest
from kai_binder.binder import API, LOG, Binder, BinderOptions
from kai_binder.metrics import BinderMetrics
from kai_binder.work_share import WorkShare
from kaicore.kube.api.client import KubeClient
from kaicore.ledger.log.outbox import OutboxOptions
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event, NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import BindFailed, Payload, PlacementObserved, PodBound, PodDeleted, PodPlaced
from kaicore.rules.model.device import Allocation, ExtendedClaim
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount
from kaicore.runtime.service import Health

from tests.conftest import module_database_url as superuser_url
from tests.given.logs.new_events import cycle_id, cycle_unit
from tests.given.processes.service_task import PATIENCE_S, ServiceTask
from tests.given.processes.waiting import until_events
from tests.given.servers.kube import PODS, Api, Json

__all__ = ["superuser_url"]


def placement(provenance: Provenance = Provenance.PREDICTED, *, cpus: int = 1, zone: str = "node-0") -> Placement:
    zones = (ZoneAmount(zone=zone, amount={"cpu": cpus * 1000}),)
    return Placement(provenance, (ContainerPlacement("main", (zone,), zones),))


class RunningBinder(ServiceTask):
    def __init__(
        self,
        api: Api,
        log: EventLog,
        cluster: str,
        *,
        share: WorkShare | None = None,
        client: KubeClient | None = None,
        **options: Any,
    ) -> None:
        client = client or KubeClient(api.access(), user_agent="kai-binder", timeout_s=PATIENCE_S)
        self.health = Health(LOG, API)
        super().__init__("binder", cluster, client, self.health)
        self._binder = Binder(
            cluster=cluster,
            log=log,
            bus=None,
            client=self.client,
            context=self.context,
            metrics=BinderMetrics(cluster, registry=self.registry),
            clock=lambda: time.time_ns() // 1000,
            options=BinderOptions(**{"side_writes_per_s": 1000.0, **options}),
            recording=OutboxOptions(retry_s=0.01),
            jitter=lambda: 0.0,
            share=share,
        )
        self.task = asyncio.create_task(self._binder.run())


class Scene:
    """An API server, a log, and whatever binders a test starts."""

    def __init__(self, api: Api, log: EventLog, cluster: str) -> None:
        self.api = api
        self.log = log
        self.cluster = cluster
        self.binders: list[RunningBinder] = []
        self.cycles = 0

    async def __aenter__(self) -> "Scene":
        return self

    async def __aexit__(self, *_: object) -> None:
        for binder in self.binders:
            await binder.kill()

    def start(self, **options: Any) -> RunningBinder:
        binder = RunningBinder(self.api, self.log, self.cluster, **options)
        self.binders.append(binder)
        return binder

    async def record(self, *decided: tuple[str, Payload]) -> None:
        """Record payloads on their streams, as of one cycle."""
        self.cycles += 1
        record = cycle_unit(self.cluster, self.cycles, *(payload for _, payload in decided))
        events = [
            NewEvent(
                id=derived_id(self.cluster, str(self.cycles), str(number)),
                stream=stream,
                payload=payload,
                actor="test",
                occurred_at=0,
                cause=cycle_id(self.cluster, self.cycles),
                correlation=f"default/{self.cycles}",
            )
            for number, (stream, payload) in enumerate(decided)
        ]
        await self.log.append(self.cluster, [*record, *(Unit((event,)) for event in events)])

    async def append(self, *events: tuple[str, Payload]) -> None:
        """Record payloads, each on a pod's stream."""
        await self.record(*((f"pod/{uid}", payload) for uid, payload in events))

    async def decide(
        self,
        *pods: tuple[Json, str],
        predicted: Placement | None = None,
        claims: tuple[str, ...] = (),
        volumes: dict[str, str] | None = None,
        devices: dict[str, Allocation] | None = None,
        reserved_claims: tuple[str, ...] = (),
        extended_claim: ExtendedClaim | None = None,
    ) -> None:
        """Record decisions for pods."""
        await self.append(
            *(
                (
                    pod["metadata"]["uid"],
                    PodPlaced(
                        uid=pod["metadata"]["uid"],
                        namespace=pod["metadata"]["namespace"],
                        name=pod["metadata"]["name"],
                        node=node,
                        cycle=f"default/{self.cycles + 1}",
                        pod_class="class",
                        placement=predicted,
                        claims=claims,
                        volumes=volumes or {},
                        devices=devices or {},
                        reserved_claims=reserved_claims,
                        extended_claim=extended_claim,
                    ),
                )
                for pod, node in pods
            )
        )

    async def observe(self, pod: Json, *, cpus: int = 1, source: str = "exporter") -> None:
        """Record an observation of a pod."""
        meta = pod["metadata"]
        seen = placement(Provenance.OBSERVED, cpus=cpus)
        payload = PlacementObserved(meta["uid"], meta["namespace"], meta["name"], "n1", seen, source)
        await self.append((meta["uid"], payload))

    async def deleted(self, pod: Json) -> None:
        """Record that a pod is gone."""
        meta = pod["metadata"]
        await self.append((meta["uid"], PodDeleted(meta["uid"], meta["namespace"], meta["name"])))

    async def outcomes(self, count: int) -> dict[str, Any]:
        """Wait for so many outcomes; return them by the pod's name, and check that there is one per decision."""

        def enough(events: list[Event]) -> bool:
            self.check_binders()
            return len(events) >= count

        events = await until_events(self.log, self.cluster, "PodBound", "BindFailed", holds=enough)
        causes = [event.cause for event in events]
        assert len(set(causes)) == len(causes)
        await self.check_causes(events)
        return {payload.name: payload for payload in (decode_payload(event) for event in events)}  # type: ignore[attr-defined]

    async def failure(self, name: str = "a", *, count: int = 1) -> BindFailed:
        """Wait for so many outcomes; that of a pod which could not be bound."""
        outcome = (await self.outcomes(count))[name]
        assert isinstance(outcome, BindFailed)
        return outcome

    async def bound(self, count: int = 1) -> None:
        """Wait for so many outcomes, and see that each is a pod on its node."""
        assert {type(outcome) for outcome in (await self.outcomes(count)).values()} == {PodBound}

    def check_binders(self) -> None:
        """Raise what made a binder end that the test did not end."""
        for binder in self.binders:
            if binder.task.done() and not binder.task.cancelled():
                binder.task.result()

    async def check_causes(self, events: list[Event]) -> None:
        """Each outcome tells which decision it is of."""
        placed: dict[UUID, Event] = {
            event.id: event
            for event in await self.log.read(self.cluster, limit=100_000, where=Filter(types=("PodPlaced",)))
        }
        for event in events:
            assert event.cause is not None
            decision = placed[event.cause]
            assert (event.stream, event.correlation) == (decision.stream, decode_payload(decision).cycle)  # type: ignore[attr-defined]

    async def until_pod(self, name: str, holds: Callable[[Json], Any]) -> Json:
        """Wait until something holds for a pod."""
        return await self.api.until(f"{PODS}/{name}", holds)


@pytest.fixture
async def scene(api: Api, log: PostgresLog, cluster_name: str) -> AsyncIterator[Scene]:
    async with Scene(api, log, cluster_name) as scene:
        yield scene
