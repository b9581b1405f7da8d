"""Writes that can wait: observed placements, nominations, statuses of groups, and events for people who ask kubectl.

They tell what the log knows anyway, so they give way to bindings, keep to a rate, and are given up rather than piled
up. Of several of one kind about one object only the last is written.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.events.payloads import QueueFigures
from kaicore.k8s.client import KubeClient
from kaicore.k8s.group_kinds import GROUP_KINDS
from kaicore.k8s.queue_kinds import KAI_QUEUES
from kaicore.model.placement import OBSERVED_ANNOTATION

from kai_binder.attempt import pod_path
from kai_binder.group_statuses import GroupStatus
from kai_binder.projection import Decision, Nomination, Observation
from kai_binder.queue_statuses import status_document as queue_document

#: Most writes that wait; further ones push out the oldest.
MAX_WAITING = 100_000

#: Seconds until a write is tried again that was not answered.
_RETRY_S = 1.0

_NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class SideWrite:
    """A write about an object.

    Attributes:
        kind: `annotation`, `nomination`, `event`, `group-status` or `queue-status`.
        uid: of the object.
        method: `PATCH` or `POST`.
        path: where.
        body: what.
        then: called when it is done with, however.
        otherwise: where else, one after the other, if there is no such place.
    """

    kind: str
    uid: str
    method: str
    path: str
    body: dict[str, Any]
    then: Callable[[], None] = lambda: None
    otherwise: tuple[str, ...] = ()


def observed_annotation(observation: Observation, *, then: Callable[[], None]) -> SideWrite:
    """Return the write of an observed placement; the uid in it keeps it off a successor of the same name."""
    metadata = {"uid": observation.uid, "annotations": {OBSERVED_ANNOTATION: observation.placement}}
    path = pod_path(observation.namespace, observation.name)
    return SideWrite("annotation", observation.uid, "PATCH", path, {"metadata": metadata}, then)


def nominated_node(nomination: Nomination, *, then: Callable[[], None]) -> SideWrite:
    """Return the write of the node for which a pod is nominated, or of there being none."""
    body = {"metadata": {"uid": nomination.uid}, "status": {"nominatedNodeName": nomination.node or None}}
    path = f"{pod_path(nomination.namespace, nomination.name)}/status"
    return SideWrite("nomination", nomination.uid, "PATCH", path, body, then)


def scheduled_event(decision: Decision, *, now: int) -> SideWrite:
    """Return the write of the event that a scheduler tells of a bound pod; `now` in microseconds since the epoch."""
    at = datetime.fromtimestamp(now / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {
        "metadata": {"generateName": f"{decision.name}.", "namespace": decision.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": decision.namespace,
            "name": decision.name,
            "uid": decision.uid,
        },
        "reason": "Scheduled",
        "message": f"Successfully assigned {decision.subject} to {decision.node}",
        "type": "Normal",
        "source": {"component": "kai-binder"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
    return SideWrite("event", decision.uid, "POST", f"/api/v1/namespaces/{decision.namespace}/events", body)


def group_status(status: GroupStatus, *, then: Callable[[], None]) -> SideWrite:
    """Return the write of a PodGroup's status: to its status subresource, or to itself where it has none."""
    resource = next(resource for kind, resource in GROUP_KINDS if kind.name == status.kind)
    paths = []
    for version in resource.versions:
        served = f"/apis/{resource.group}/{version}/namespaces/{status.namespace}/{resource.plural}/{status.name}"
        paths += [f"{served}/status", served]
    body = {"status": status.status}
    return SideWrite("group-status", status.uid, "PATCH", paths[0], body, then, tuple(paths[1:]))


def queue_status(figures: QueueFigures, *, then: Callable[[], None]) -> SideWrite:
    """Return the write of a Queue's status; the uid in it keeps it off another queue of the name."""
    served = f"/apis/{KAI_QUEUES.group}/{KAI_QUEUES.versions[0]}/{KAI_QUEUES.plural}/{figures.queue}"
    body = {"metadata": {"uid": figures.uid}, "status": queue_document(figures)}
    return SideWrite("queue-status", figures.uid, "PATCH", f"{served}/status", body, then, (served,))


class SideWritesObserver(Protocol):
    """Gets told what became of writes."""

    def side_write(self, kind: str, result: str) -> None:
        """A write is done with: `written`, `refused` or `given-up`."""
        ...


class SideWrites:
    """Writes one after another while nothing more important is to be done."""

    def __init__(
        self, client: KubeClient, *, rate: float, busy: Callable[[], bool], observer: SideWritesObserver
    ) -> None:
        """Args:
        client: to write with.
        rate: writes per second at most.
        busy: whether bindings wait.
        observer: gets told what became of writes.
        """
        self._client = client
        self._pause_s = 1 / rate
        self._busy = busy
        self._observer = observer
        self._waiting: dict[tuple[str, str], SideWrite] = {}
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, write: SideWrite) -> None:
        """Have something written, instead of what waits to be written of that kind about that pod."""
        self._waiting[write.kind, write.uid] = write
        if len(self._waiting) > MAX_WAITING:
            self._end(self._waiting.pop(next(iter(self._waiting))), "given-up")
        self._filled.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._filled.wait()
            while self._waiting:
                await asyncio.sleep(self._pause_s)
                if self._waiting and not self._busy():
                    await self._write(self._waiting.pop(next(iter(self._waiting))))
            self._filled.clear()

    async def _write(self, write: SideWrite) -> None:
        try:
            if write.method == "PATCH":
                await self._client.patch(write.path, write.body)
            else:
                await self._client.post(write.path, write.body)
        except ClusterUnavailable:
            # Unless there is something newer to write by now.
            self._waiting.setdefault((write.kind, write.uid), write)
            await asyncio.sleep(_RETRY_S)
        except ApiStatus as error:
            if error.code == _NOT_FOUND and write.otherwise:
                self._waiting.setdefault(
                    (write.kind, write.uid), replace(write, path=write.otherwise[0], otherwise=write.otherwise[1:])
                )
                return
            # The pod is gone, is another one, or is not ours to write on: none of it passes.
            self._end(write, "refused")
        else:
            self._end(write, "written")

    def _end(self, write: SideWrite, result: str) -> None:
        self._observer.side_write(write.kind, result)
        write.then()
