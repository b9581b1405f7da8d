"""Writes that can wait: observed placements, nominations, conditions, statuses, and events for people who ask kubectl.

The log has all of it anyway. So these writes give way to bindings, keep to a rate, and are dropped rather than piled
up. Of several writes of one kind about one object, only the last is made. The kinds take turns, so that many events do
not delay a condition.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.kube.api.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH, KubeClient
from kaicore.kube.kinds.table import GROUP_KINDS, KAI_QUEUES, TOPOLOGY_KINDS
from kaicore.rules.events.payloads import BindFailed, PodPlaced, QueueFigures, WaitingPod
from kaicore.rules.groups.labels import NATIVE_POD_GROUP
from kaicore.rules.groups.status import native_conditions
from kaicore.rules.model.placement import OBSERVED_ANNOTATION
from kaicore.rules.objects.wire import kubernetes_time
from msgspec.structs import replace

from kai_binder.metrics import BinderMetrics
from kai_binder.projection.group_statuses import GroupStatus
from kai_binder.projection.open_work import NominatedNode, Observation, PodBinding
from kai_binder.projection.topology_statuses import TopologyStatus
from kai_binder.projection.topology_statuses import status_document as queue_document
from kai_binder.projection.waiting_pods import PodCondition, WaitingPods
from kai_binder.writes.attempt import pod_path

#: Most writes of a kind that wait; further ones push out the oldest.
MAX_WAITING = 100_000

#: Seconds until a write is tried again that was not answered.
_RETRY_S = 1.0

#: While bindings wait, this part of the rate is left for other writes.
_SHARE_WHEN_BUSY = 10

#: Longest note of an event, bytes (Kubernetes 1.36, `pkg/apis/core/validation/events.go`).
_LONGEST_NOTE = 1024

#: Who tells, in events.
_CONTROLLER = "kai-ledger"

_NOT_FOUND = 404

#: What the API server calls us in `managedFields`: the first part of our User-Agent.
FIELD_MANAGER = "kai-binder"

Document = dict[str, Any]


class SideWrite(msgspec.Struct, frozen=True):
    """A write about an object.

    Attributes:
        kind: `annotation`, `nomination`, `condition`, `event`, `group-status`, `queue-status` or `topology-status`.
        method: `PATCH` or `POST`.
        path: where.
        body: what; a function is asked when it is the write's turn, and returns None when there is nothing to write.
        then: called when it is done with, however.
        otherwise: where else, and what there, one after the other, if there is no such place.
        ours_only: whether it is left undone where another client has written the object's status.
    """

    kind: str
    uid: str
    method: str
    path: str
    body: Document | Callable[[], Document | None]
    then: Callable[[], None] = lambda: None
    otherwise: tuple[tuple[str, Document], ...] = ()
    content_type: str = MERGE_PATCH
    ours_only: bool = False


def observed_annotation(observation: Observation, *, then: Callable[[], None]) -> SideWrite:
    """Return the write of an observed placement; the uid in it keeps it off a successor of the same name."""
    metadata = {"uid": observation.uid, "annotations": {OBSERVED_ANNOTATION: observation.placement}}
    path = pod_path(observation.namespace, observation.name)
    return SideWrite("annotation", observation.uid, "PATCH", path, {"metadata": metadata}, then)


def nominated_node(nomination: NominatedNode, *, then: Callable[[], None]) -> SideWrite:
    """Return the write of the node for which a pod is nominated, or of there being none."""
    body = {"metadata": {"uid": nomination.uid}, "status": {"nominatedNodeName": nomination.node or None}}
    path = f"{pod_path(nomination.namespace, nomination.name)}/status"
    return SideWrite("nomination", nomination.uid, "PATCH", path, body, then)


def pod_condition(pod: WaitingPod, waiting: WaitingPods) -> SideWrite:
    """Return the write of the condition PodScheduled of a pod that waits, as it is to be when it is written.

    It is cleared by the binding: the API server then sets the condition to True.
    """
    written: list[PodCondition] = []

    def body() -> Document | None:
        condition = waiting.condition(pod.uid)
        if condition is None or not waiting.is_new(condition):
            return None
        written[:] = [condition]
        waits = {
            "type": "PodScheduled",
            "status": "False",
            "reason": condition.reason,
            "message": condition.message,
            "lastProbeTime": None,
            "lastTransitionTime": kubernetes_time(condition.since),
        }
        return {"metadata": {"uid": pod.uid}, "status": {"conditions": [waits]}}

    def then() -> None:
        for condition in written:
            waiting.mark_written(condition, event=False)

    path = f"{pod_path(pod.namespace, pod.name)}/status"
    return SideWrite("condition", pod.uid, "PATCH", path, body, then, content_type=STRATEGIC_MERGE_PATCH)


def failed_scheduling_event(pod: WaitingPod, waiting: WaitingPods, *, now: Callable[[], int]) -> SideWrite:
    """Return the write of the event that tells why a pod waits, once for each set of reasons."""
    written: list[PodCondition] = []

    def body() -> Document | None:
        condition = waiting.condition(pod.uid)
        if condition is None or not waiting.is_new_event(condition):
            return None
        written[:] = [condition]
        where = f" (log position {condition.position}; `kai why {pod.namespace}/{pod.name}`)"
        note = _cut(condition.message, _LONGEST_NOTE - len(where.encode())) + where
        return _event(pod, "Warning", "FailedScheduling", action="Scheduling", note=note, now=now())

    def then() -> None:
        for condition in written:
            waiting.mark_written(condition, event=True)

    return SideWrite("event", pod.uid, "POST", _events_path(pod.namespace), body, then)


def scheduled_event(binding: PodBinding, *, now: int) -> SideWrite:
    """Return the write of the event that a scheduler tells of a bound pod; `now` in microseconds since the epoch."""
    note = f"Successfully assigned {binding.subject} to {binding.decision.node} (log position {binding.position})"
    body = _event(binding.decision, "Normal", "Scheduled", action="Binding", note=note, now=now)
    return SideWrite("event", binding.decision.uid, "POST", _events_path(binding.decision.namespace), body)


def failed_binding_event(binding: PodBinding, failed: BindFailed, *, now: int) -> SideWrite:
    """Return the write of the event that tells why a pod was not bound; `now` in microseconds since the epoch."""
    where, code = f" (log position {binding.position})", f"{failed.code} " if failed.code else ""
    note = f"Binding to {failed.node} failed: {code}{failed.reason}: {failed.message}"
    note = _cut(note, _LONGEST_NOTE - len(where.encode())) + where
    body = _event(binding.decision, "Warning", "FailedScheduling", action="Binding", note=note, now=now)
    return SideWrite("event", failed.uid, "POST", _events_path(failed.namespace), body)


def _events_path(namespace: str) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"


def _event(pod: WaitingPod | PodPlaced, kind: str, reason: str, *, action: str, note: str, now: int) -> Document:
    return {
        "metadata": {"generateName": f"{pod.name}-", "namespace": pod.namespace},
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
        "type": kind,
        "reason": reason,
        "action": action,
        "note": note,
        # Half the time of strftime.
        "eventTime": datetime.fromtimestamp(now / 1e6, UTC).isoformat(timespec="microseconds")[:-6] + "Z",
        "reportingController": _CONTROLLER,
        "reportingInstance": _CONTROLLER,
    }


def _cut(text: str, size: int) -> str:
    data = text.encode()
    return text if len(data) <= size else data[: size - 3].decode(errors="ignore") + "…"


def group_status(status: GroupStatus, *, then: Callable[[], None]) -> SideWrite:
    """Return the write of a PodGroup's status: to its status subresource, or to itself where it has none."""
    resource = next(kind.resource for kind in GROUP_KINDS if kind.name == status.kind)
    places = []
    for version in resource.versions:
        served = f"/apis/{resource.group}/{version}/namespaces/{status.namespace}/{resource.plural}/{status.name}"
        written = native_conditions(status.status, version) if status.kind == NATIVE_POD_GROUP else status.status
        places += [(f"{served}/status", {"status": written}), (served, {"status": written})]
    (path, body), *others = places
    return SideWrite("group-status", status.uid, "PATCH", path, body, then, tuple(others))


def queue_status(figures: QueueFigures, *, then: Callable[[], None]) -> SideWrite:
    """Return the write of a Queue's status; the uid in it keeps it off another queue of the name."""
    served = f"/apis/{KAI_QUEUES.group}/{KAI_QUEUES.versions[0]}/{KAI_QUEUES.plural}/{figures.queue}"
    body = {"metadata": {"uid": figures.uid}, "status": queue_document(figures)}
    return SideWrite("queue-status", figures.uid, "PATCH", f"{served}/status", body, then, ((served, body),))


def topology_status(status: TopologyStatus, *, ours_only: bool, then: Callable[[], None]) -> SideWrite:
    """Return the write of the status of an object that defines a topology."""
    resource = next(kind.resource for kind in TOPOLOGY_KINDS if kind.name == status.kind)
    path = f"/apis/{resource.group}/{resource.versions[0]}/{resource.plural}/{status.name}/status"
    body = {"metadata": {"uid": status.uid}, "status": status.status}
    return SideWrite("topology-status", status.uid, "PATCH", path, body, then, ours_only=ours_only)


def _family(write: SideWrite) -> tuple[str, str]:
    """Return what has its place in common: the kind of write, and the API group."""
    return write.kind, write.path.split("/")[2]


def _place(path: str) -> tuple[str, bool]:
    """Return which version of an API group a path is in, and whether it is a status subresource."""
    return path.split("/")[3], path.endswith("/status")


class SideWrites:
    """Writes one after another, slowly while bindings wait."""

    def __init__(self, client: KubeClient, *, rate: float, busy: Callable[[], bool], observer: BinderMetrics) -> None:
        """Args:
        rate: writes per second at most.
        busy: whether bindings wait.
        observer: is called with what became of writes.
        """
        self._client = client
        self._pause_s = 1 / rate
        self._busy = busy
        self._observer = observer
        #: Writes by kind and uid; the kind in turn comes first, and of each kind the oldest.
        self._waiting: dict[str, dict[str, SideWrite]] = {}
        self._filled = asyncio.Event()
        #: Where writes with several places were last taken, by family.
        self._served: dict[tuple[str, str], tuple[str, bool]] = {}
        #: Uid of the object that is being written about.
        self._writing = ""
        self._idle = asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, write: SideWrite) -> None:
        """Have something written, instead of what waits to be written of that kind about that object."""
        of_kind = self._waiting.setdefault(write.kind, {})
        of_kind[write.uid] = self._where_served(write)
        if len(of_kind) > MAX_WAITING:
            self._end(of_kind.pop(next(iter(of_kind))), "given-up")
        self._filled.set()

    async def settled(self, uid: str) -> None:
        """Wait until nothing is being written about an object."""
        while self._writing == uid:
            await self._idle.wait()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._filled.wait()
            while self._waiting:
                write = self._next()
                body = write.body() if callable(write.body) else write.body
                if body is None:
                    # Others' turn: there may be many that have nothing to say any more.
                    await asyncio.sleep(0)
                    continue
                await self._write(write, body)
                await asyncio.sleep(self._pause_s * (_SHARE_WHEN_BUSY if self._busy() else 1))
            self._filled.clear()

    def _next(self) -> SideWrite:
        """Take the oldest write of the kind in turn, which then goes behind the other kinds."""
        kind = next(iter(self._waiting))
        of_kind = self._waiting.pop(kind)
        write = of_kind.pop(next(iter(of_kind)))
        if of_kind:
            self._waiting[kind] = of_kind
        return write

    async def _write(self, write: SideWrite, body: Document) -> None:
        self._writing = write.uid
        self._idle.clear()
        try:
            await self._ask(write, body)
        finally:
            self._writing = ""
            self._idle.set()

    async def _ask(self, write: SideWrite, body: Document) -> None:
        try:
            if write.ours_only and await self._is_anothers(write):
                self._end(write, "left")
                return
            if write.method == "PATCH":
                await self._client.patch(write.path, body, content_type=write.content_type)
            else:
                await self._client.post(write.path, body)
        except ClusterUnavailable:
            self._again(write)
            await asyncio.sleep(_RETRY_S)
        except ApiStatus as error:
            if error.code == _NOT_FOUND and write.otherwise:
                (path, there), *others = write.otherwise
                self._again(replace(write, path=path, body=there, otherwise=tuple(others)))
                return
            # The pod is gone, is another one, or is not ours to write on: none of it passes.
            self._end(write, "refused")
        else:
            self._served[_family(write)] = _place(write.path)
            self._end(write, "written")

    async def _is_anothers(self, write: SideWrite) -> bool:
        """Tell whether another client has written the status of a write's object."""
        document = msgspec.json.decode(await self._client.get(write.path.removesuffix("/status")))
        entries = document.get("metadata", {}).get("managedFields") or ()
        return any(
            entry.get("manager") != FIELD_MANAGER
            and (entry.get("subresource") == "status" or "f:status" in (entry.get("fieldsV1") or {}))
            for entry in entries
        )

    def _where_served(self, write: SideWrite) -> SideWrite:
        """Return a write that begins where the last one of its family found its place."""
        served = self._served.get(_family(write))
        if not write.otherwise or served is None or callable(write.body):
            return write
        places = [(write.path, write.body), *write.otherwise]
        (path, body), *others = sorted(places, key=lambda place: _place(place[0]) != served)
        return replace(write, path=path, body=body, otherwise=tuple(others))

    def _again(self, write: SideWrite) -> None:
        """Have a write tried again, unless there is something newer to write by now."""
        self._waiting.setdefault(write.kind, {}).setdefault(write.uid, write)

    def _end(self, write: SideWrite, result: str) -> None:
        self._observer.side_write(write.kind, result)
        write.then()
