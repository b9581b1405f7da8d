"""A watcher on a simulated API server and a real log."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from kai_watcher.metrics import WatcherMetrics
from kai_watcher.watcher import API, LISTS, LOG, Watcher, WatcherOptions
from kaicore.errors import ApiStatus, KaiError, unheard
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.reflector_core import Backoff, ObjectKey
from kaicore.kube.kinds.facts import Facts
from kaicore.kube.kinds.kind import Kind, Model, without_version
from kaicore.kube.kinds.table import KINDS, subject_of_fact
from kaicore.kube.wire.resources import Resource
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.runtime.service import Health
from msgspec import json

from tests.conftest import module_database_url as superuser_url
from tests.given.processes.service_task import PATIENCE_S, ServiceTask
from tests.given.processes.waiting import eventually
from tests.given.servers.kube import Api

__all__ = ["superuser_url"]

View = dict[str, dict[ObjectKey, Model]]

_instances = count()
_SOURCES: list[tuple[Kind[Any], Resource[Any]]] = [
    (kind, kind.resource.at(version)) for kind in KINDS for version in reversed(kind.resource.versions)
]


class AwaitedHealth(Health):
    """Health that can be waited for."""

    def __init__(self, *conditions: str) -> None:
        super().__init__(*conditions)
        self._changed = asyncio.Event()

    def met(self, condition: str) -> None:
        super().met(condition)
        self._tell()

    def unmet(self, condition: str, why: str) -> None:
        super().unmet(condition, why)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that only changes of conditions can bring about."""
        while not holds():
            await self._changed.wait()


class RunningWatcher(ServiceTask):
    def __init__(self, api: Api, log: EventLog, cluster: str, **options: Any) -> None:
        self.health = AwaitedHealth(LOG, API, LISTS)
        super().__init__("watcher", cluster, KubeClient(api.access(), user_agent="kai-watcher"), self.health)
        self._watcher = Watcher(
            cluster=cluster,
            instance=f"test/{next(_instances)}",
            log=log,
            client=self.client,
            context=self.context,
            metrics=WatcherMetrics(cluster, registry=self.registry),
            clock=lambda: time.time_ns() // 1000,
            options=WatcherOptions(**{"recheck_s": 1.0, "page": 7, **options}),
            backoff=Backoff(0.001, 0.05),
            log_retry_s=0.01,
        )
        self.task = asyncio.create_task(self._watcher.run())

    async def ready(self) -> "RunningWatcher":
        """Wait until it has listed everything."""
        await self._until(lambda: self.health.ready)
        return self

    async def unready(self, condition: str) -> None:
        """Wait until a condition is not met."""
        await self._until(lambda: bool(self.health.conditions[condition]))

    async def _until(self, holds: Callable[[], bool]) -> None:
        waiting = asyncio.ensure_future(self.health.until(holds))
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait({waiting, self.task}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self.task.done():
            self.task.result()


class World:
    """An API server, a log, and whatever watchers a test starts."""

    def __init__(self, api: Api, log: EventLog, cluster: str) -> None:
        self.api = api
        self.log = log
        self.cluster = cluster
        self.watchers: list[RunningWatcher] = []
        self._read: list[Event] = []

    async def __aenter__(self) -> "World":
        return self

    async def __aexit__(self, *_: object) -> None:
        for watcher in self.watchers:
            await watcher.kill()

    def start(self, **options: Any) -> RunningWatcher:
        watcher = RunningWatcher(self.api, self.log, self.cluster, **options)
        self.watchers.append(watcher)
        return watcher

    async def settled(self, **options: Any) -> RunningWatcher:
        """Start a watcher, and wait until it has listed everything and the log says what is true."""
        watcher = await self.start(**options).ready()
        await self.converged()
        return watcher

    async def events(self, *types: str, after: int = 0) -> list[Event]:
        known = self._read
        self._read = known + await self.log.read(self.cluster, after=known[-1].position if known else 0, limit=100_000)
        return [event for event in self._read if event.position > after and (not types or event.type in types)]

    async def payloads(self, *types: str, after: int = 0) -> list[Any]:
        """Payloads of the log, of some types."""
        return [decode_payload(event) for event in await self.events(*types, after=after)]

    async def head(self) -> int:
        """The log's last position."""
        return (await self.log.head(self.cluster)).position

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds(events := await self.events()):
                await self.log.wait_beyond(self.cluster, events[-1].position if events else 0, timeout_s=0.2)

    async def truth(self) -> View:
        """The API server's objects, in the model's words, versions aside."""
        models: View = {kind: {} for kind in Facts("").by_kind}
        stored = {(one.resource.group, one.resource.plural) for one in self.api.server.store.collections if len(one)}
        for kind, resource in _SOURCES:
            # To ask for each of 83 took longer than all else.
            if (resource.group, resource.plural) not in stored:
                continue
            try:
                items = await self.api.items(resource.path)
            except ApiStatus:
                continue
            for item in items:
                with suppress(KaiError):
                    key = ObjectKey(item["metadata"].get("namespace", ""), item["metadata"]["name"])
                    seen = kind.normalize(resource.decode(json.encode(item)), unheard)
                    models[kind.name][key] = without_version(seen)
        return models

    async def converged(self) -> None:
        """Wait until the log says what is true, and check that it never said anything twice."""
        async with asyncio.timeout(PATIENCE_S):
            truth = await self.truth()
            while shown(events := await self.events()) != truth:
                position = events[-1].position if events else 0
                try:
                    async with asyncio.timeout(PATIENCE_S / 2):
                        head = await self.log.wait_beyond(self.cluster, position, timeout_s=0.5)
                    if head <= position:
                        # Nothing more is said: what is true may have changed.
                        truth = await self.truth()
                except TimeoutError:
                    assert shown(events) == truth
        # A watcher counts what the log has taken as soon as it learns of it.
        await eventually(lambda: not any(not one.task.done() and one.metric("pending_facts") for one in self.watchers))
        check_no_repetition(events)
        ClusterState(self.cluster).fold_all(events)


_decoded: dict[UUID, tuple[str, ObjectKey, Model | None] | None] = {}


def _about(event: Event) -> tuple[str, ObjectKey, Model | None] | None:
    """A fact's kind, object and model, versions aside; each is decoded once."""
    if event.id not in _decoded:
        about = subject_of_fact(decode_payload(event))
        if about is not None and about[2] is not None:
            about = (*about[:2], without_version(about[2]))
        _decoded[event.id] = about
    return _decoded[event.id]


def shown(events: list[Event]) -> View:
    """The log's objects of a cluster, versions aside."""
    models: View = {kind: {} for kind in Facts("").by_kind}
    for kind, key, model in filter(None, map(_about, events)):
        if model is None:
            models[kind].pop(key, None)
        else:
            models[kind][key] = model
    return models


def check_no_repetition(events: list[Event]) -> None:
    """Each fact differs from the one before it of the same object, and nothing has ended that was not there."""
    last: dict[tuple[str, ObjectKey], Model | None] = {}
    for event in events:
        if (about := _about(event)) is not None:
            kind, key, now = about
            assert now != last.get((kind, key)), event
            last[kind, key] = now


@pytest.fixture
async def world(api: Api, log: PostgresLog, cluster_name: str) -> AsyncIterator[World]:
    async with World(api, log, cluster_name) as world:
        yield world
