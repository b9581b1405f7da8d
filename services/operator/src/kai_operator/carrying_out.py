"""Carrying out of a plan: reads the objects that exist, sends one request after the other, and reports conditions.

A condition in the status of a Config or a shard has the form of `metav1.Condition`. `Available`: all operands are
there. `Progressing`: a change is under way. `Degraded`: there is a fault that does not go away by itself.
`SettingsIgnored`: some fields have no effect. The operator's metrics count the requests.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
from kaicore.errors import ApiStatus
from kaicore.kube.api.client import KubeClient
from kaicore.kube.kinds.operands.plan import Part, PresentObjects
from kaicore.kube.kinds.operands.specs import API_VERSION, OPERAND_KINDS, OPERATOR, Key, key_of, title_of
from kaicore.rules.objects.mappings import Object
from kaicore.rules.objects.wire import kubernetes_time
from kaicore.runtime.service.logs import Logger
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

#: Longest message that a definition of conditions takes.
_LONGEST = 32_768

_CONDITIONS = ("Available", "Progressing", "Degraded", "SettingsIgnored")


class _Told(NamedTuple):
    status: bool
    reason: str
    message: str


class _Rollout(NamedTuple):
    """The progress of a workload."""

    available: bool
    done: bool
    text: str


def status_of(part: Part, live: Mapping[Key, Object], failures: Mapping[Key, str], *, now: str) -> Object | None:
    """Return the status that an owner is to have; None where it has it.

    Args:
        live: the operands as they are, by kind and name.
        failures: what the API server refused, by the operand's kind and name.
        now: RFC 3339.
    """
    metadata, before = part.owner["metadata"], part.owner.get("status") or {}
    generation = metadata.get("generation", 0)
    known = {condition.get("type"): condition for condition in before.get("conditions") or ()}
    conditions = [condition for name, condition in known.items() if name not in _CONDITIONS]
    for name, condition in zip(_CONDITIONS, _conditions(part, live, failures), strict=True):
        status = str(condition.status)
        last = known.get(name, {})
        conditions.append(
            {
                "type": name,
                "status": status,
                "reason": condition.reason,
                "message": condition.message[:_LONGEST],
                "observedGeneration": generation,
                "lastTransitionTime": last["lastTransitionTime"] if last.get("status") == status else now,
            }
        )
    wanted = {"observedGeneration": generation, "conditions": conditions}
    return None if all(before.get(name) == value for name, value in wanted.items()) else wanted


def _conditions(part: Part, live: Mapping[Key, Object], failures: Mapping[Key, str]) -> Iterator[_Told]:
    refused = [
        f"{kind} {name}: {problem}"
        for (kind, name), problem in failures.items()
        if (kind, name) in {key_of(obj) for obj in (*(part.wanted or ()), *part.prune)}
    ]
    rollouts = list(_rollouts(part, live))
    missing = [title_of(operand) for operand in part.wanted or () if key_of(operand) not in live]
    yield _available(part, rollouts, missing)
    unfinished = [rollout.text for rollout in rollouts if not rollout.done]
    changing = [*missing, *(title_of(operand) for operand in part.prune)]
    if changing or unfinished:
        yield _Told(True, "RollingOut", "; ".join([*changing, *unfinished]))
    else:
        yield _Told(False, "AsWanted", "")
    if part.reason in ("InvalidSpec", "NoConfig", "NotTheConfig"):
        yield _Told(part.reason != "NoConfig", part.reason, part.because)
    elif part.taken:
        yield _Told(True, "NameTaken", "; ".join(part.taken))
    elif refused:
        yield _Told(True, "Refused", "; ".join(refused))
    else:
        yield _Told(False, "AsWanted", "")
    if part.ignored:
        yield _Told(True, "NoCounterpart", f"{', '.join(part.ignored)}: nothing here corresponds to it")
    else:
        yield _Told(False, "AllUsed", "")


def _available(part: Part, rollouts: list[_Rollout], missing: list[str]) -> _Told:
    if part.wanted is None:
        return _Told(False, part.reason, part.because)
    if not part.wanted:
        return _Told(True, part.reason, part.because)
    if missing:
        return _Told(False, "Missing", ", ".join(missing))
    text = "; ".join([rollout.text for rollout in rollouts] + ([part.because] if part.because else []))
    return _Told(True, "Available", text) if all(one.available for one in rollouts) else _Told(False, "NotReady", text)


def _rollouts(part: Part, live: Mapping[Key, Object]) -> Iterator[_Rollout]:
    for operand in part.wanted or ():
        there = live.get(key_of(operand))
        if there is not None and operand["kind"] in ("DaemonSet", "Deployment", "StatefulSet"):
            yield _rollout(there)


def _rollout(workload: Object) -> _Rollout:
    """Return how far a workload has come, as `kubectl rollout status` judges it."""
    status, title = workload.get("status") or {}, title_of(workload)
    if status.get("observedGeneration", 0) < workload["metadata"].get("generation", 0):
        return _Rollout(False, False, f"{title}: not seen by its controller yet")
    if workload["kind"] == "DaemonSet":
        wanted, available = status.get("desiredNumberScheduled", 0), status.get("numberAvailable", 0)
        updated = status.get("updatedNumberScheduled", 0)
        text = f"{title}: {available} of {wanted} nodes"
        return _Rollout(available >= wanted, available >= wanted and updated >= wanted, text)
    wanted = workload["spec"].get("replicas", 1)
    available = status.get("availableReplicas", status.get("readyReplicas", 0))
    done = available >= wanted and status.get("updatedReplicas", 0) >= wanted and status.get("replicas", 0) == wanted
    # One of a shard's schedulers is enough for pods to be placed.
    return _Rollout(available >= 1, done, f"{title}: {available} of {wanted} replicas")


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

    def __init__(self, client: KubeClient, namespace: str, *, metrics: OperatorMetrics, log: Logger) -> None:
        self._client = client
        self._namespace = namespace
        self._metrics = metrics
        self._log = log

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

        Raises ClusterUnavailable: the API server does not answer; what was not done is found lacking the next time.
        """
        live = {key_of(obj): obj for obj in seen.objects}
        done = _Round()
        for operand, lacking in part.apply:
            await self._apply(part.owner, operand, lacking, live, done)
        for operand in part.prune:
            await self._delete(part.owner, operand, done)
        status = status_of(part, live, done.failures, now=kubernetes_time(time.time_ns() // 1000))
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
            "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
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
