"""Carrying out of a plan: reads the objects that exist, and sends one request after the other.

The operator's metrics count these requests.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import msgspec
from kaicore.errors import ApiStatus
from kaicore.kube.api.client import KubeClient
from kaicore.kube.operands.conditions import status_of
from kaicore.kube.operands.names import API_VERSION, OPERAND_KINDS, OPERATOR, Key, Object, key_of, title_of
from kaicore.kube.operands.plan import Part, PresentObjects
from kaicore.runtime.service.logs import Logger
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge


class OperatorMetrics:
    """Metrics of `kai-operator`."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.writes = Counter(
            "kai_operator_writes_total", "Operands made, restored or deleted", ["kind", "verb"], registry=registry
        )
        self.refused = Counter(
            "kai_operator_refused_total", "Writes of operands that the API server refused", ["kind"], registry=registry
        )
        self.degraded = Gauge(
            "kai_operator_degraded",
            "1 while a Config or SchedulingShard is Degraded",
            ["kind", "name"],
            registry=registry,
        )


_OWNERS = {"Config": "configs", "SchedulingShard": "schedulingshards"}
_APPLY = "application/apply-patch+yaml"
_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"

#: Longest note of an event, bytes.
_LONGEST_NOTE = 1024

_CONFLICT, _NOT_FOUND = 409, 404


@dataclass(slots=True)
class _Round:
    """The result of a part's writes."""

    failures: dict[Key, str] = field(default_factory=dict)
    conflict: bool = False


class Hands:
    """The operator's writes, and what it reads for them."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        *,
        metrics: OperatorMetrics,
        log: Logger,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Args:
        client: of the API server.
        namespace: of the operands.
        metrics: what is counted.
        log: of the service.
        now: the time for conditions and events.
        """
        self._client = client
        self._namespace = namespace
        self._metrics = metrics
        self._log = log
        self._now = now

    async def read(self) -> PresentObjects:
        """Read what there is; raises as `KubeClient.get` does."""
        owners = [self._list(f"/apis/{API_VERSION}/{plural}", kind, API_VERSION) for kind, plural in _OWNERS.items()]
        operands = [
            self._list(f"/{path}/namespaces/{self._namespace}/{plural}", kind, path.partition("/")[2])
            for kind, (path, plural) in OPERAND_KINDS.items()
        ]
        configs, shards, *lists = await asyncio.gather(*owners, *operands)
        return PresentObjects(configs=configs, shards=shards, objects=[obj for listed in lists for obj in listed])

    async def _list(self, path: str, kind: str, api_version: str) -> list[Object]:
        items: list[Object] = msgspec.json.decode(await self._client.get(path))["items"] or []
        return [{"apiVersion": api_version, "kind": kind, **item} for item in items]

    async def carry_out(self, part: Part, seen: PresentObjects) -> bool:
        """Make and delete operands, and tell of it in the owner's status; return whether a write met another one.

        Raises:
            ClusterUnavailable: the API server does not answer; what was not done is found lacking the next time.
        """
        live = {key_of(obj): obj for obj in seen.objects}
        done = _Round()
        for operand, lacking in part.apply:
            await self._apply(part.owner, operand, lacking, live, done)
        for operand in part.prune:
            await self._delete(part.owner, operand, done)
        status = status_of(part, live, done.failures, now=self._now().strftime("%Y-%m-%dT%H:%M:%SZ"))
        if status is not None:
            await self._tell(part.owner, status, done)
        degraded = _condition(status or part.owner.get("status") or {}, "Degraded").get("status") == "True"
        self._metrics.degraded.labels(part.owner["kind"], part.owner["metadata"]["name"]).set(degraded)
        return done.conflict

    async def _apply(self, owner: Object, operand: Object, lacking: str, live: dict[Key, Object], done: _Round) -> None:
        kind, name = key = key_of(operand)
        try:
            body = await self._client.patch(
                f"{self._path(operand)}?fieldManager={OPERATOR}&force=true", operand, content_type=_APPLY
            )
        except ApiStatus as error:
            self._refused(key, error, done)
            return
        verb = "restore" if key in live else "create"
        live[key] = {"apiVersion": operand["apiVersion"], "kind": kind, **msgspec.json.decode(body)}
        self._metrics.writes.labels(kind, verb).inc()
        self._log.info("made" if verb == "create" else "restored", kind=kind, name=name, lacking=lacking)
        reason, note = ("Created", "made") if verb == "create" else ("Restored", f"restored: {lacking}")
        await self._event(owner, "Normal", reason, f"{kind} {name} {note}")

    async def _delete(self, owner: Object, operand: Object, done: _Round) -> None:
        metadata = operand["metadata"]
        preconditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        options = {"preconditions": preconditions, "propagationPolicy": "Background"}
        try:
            await self._client.delete(self._path(operand), options)
        except ApiStatus as error:
            if error.code != _NOT_FOUND:
                self._refused(key_of(operand), error, done)
            return
        self._metrics.writes.labels(operand["kind"], "delete").inc()
        self._log.info("deleted", kind=operand["kind"], name=metadata["name"])
        await self._event(owner, "Normal", "Deleted", f"{title_of(operand)} deleted: it is not wanted any more")

    def _refused(self, key: Key, error: ApiStatus, done: _Round) -> None:
        if error.code == _CONFLICT:
            done.conflict = True
            return
        self._metrics.refused.labels(key[0]).inc()
        self._log.warning("refused", kind=key[0], name=key[1], error=str(error))
        done.failures[key] = str(error)

    async def _tell(self, owner: Object, status: Object, done: _Round) -> None:
        path = f"/apis/{API_VERSION}/{_OWNERS[owner['kind']]}/{owner['metadata']['name']}/status"
        body = {"metadata": {"uid": owner["metadata"]["uid"]}, "status": status}
        try:
            await self._client.patch(path, body)
        except ApiStatus as error:
            if error.code not in (_CONFLICT, _NOT_FOUND):
                self._log.warning("status refused", owner=title_of(owner), error=str(error))
            done.conflict = done.conflict or error.code == _CONFLICT
            return
        degraded = _condition(status, "Degraded")
        before = _condition(owner.get("status") or {}, "Degraded")
        if degraded["status"] == "True" and degraded["message"] != before.get("message"):
            await self._event(owner, "Warning", degraded["reason"], degraded["message"])

    async def _event(self, owner: Object, kind: str, reason: str, note: str) -> None:
        """Tell of something by an event; one that is refused is not missed."""
        metadata = owner["metadata"]
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            # Events about what is in no namespace are in `default`.
            "metadata": {"name": f"{metadata['name']}.{uuid4().hex[:16]}", "namespace": "default"},
            "eventTime": self._now().isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "reportingController": f"kai.scheduler/{OPERATOR}",
            "reportingInstance": OPERATOR,
            "action": "Reconciling",
            "reason": reason,
            "type": kind,
            "note": note.encode()[:_LONGEST_NOTE].decode(errors="ignore"),
            "regarding": {
                "apiVersion": API_VERSION, "kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"]
            },
        }  # fmt: skip
        try:
            await self._client.post(_EVENTS, event)
        except ApiStatus as error:
            self._log.warning("event refused", reason=reason, error=str(error))

    def _path(self, operand: Object) -> str:
        path, plural = OPERAND_KINDS[operand["kind"]]
        return f"/{path}/namespaces/{self._namespace}/{plural}/{operand['metadata']['name']}"


def _condition(status: Object, name: str) -> dict[str, Any]:
    return next((one for one in status.get("conditions") or () if one.get("type") == name), {})
