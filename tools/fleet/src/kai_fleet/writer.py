"""Writes to the API server: many at a time, those about one object in order, and again until they are answered.

A write that the server refuses is over, and its outcome is reported. A write is sent again, with growing pauses, when
it was not answered, or answered with 429, 5xx, 401, 403, or 409 without another uid in the message. Others go on
meanwhile.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
from kaicore.backoff import backoff, jittered
from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.kube.api.client import MERGE_PATCH, KubeClient
from kaicore.runtime.process_context import end_all
from kaicore.runtime.service import get_logger
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """The fleet's metrics in one registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.registry = registry
        self.admissions = Counter("kai_fleet_admissions_total", "Pods that a kubelet admitted.", registry=registry)
        self.rejections = Counter(
            "kai_fleet_rejections_total", "Pods that a kubelet rejected.", ["reason"], registry=registry
        )
        self.active_pods = Gauge("kai_fleet_active_pods", "Pods that hold resources on a node.", registry=registry)
        self.nodes = Gauge("kai_fleet_nodes", "Nodes that are registered.", registry=registry)
        self.nrt_publishes = Counter(
            "kai_fleet_nrt_publishes_total",
            "NodeResourceTopologies written (sent), found unchanged (unchanged) or lost on purpose (lost).",
            ["result"],
            registry=registry,
        )
        self.nrt_lag = Histogram(
            "kai_fleet_nrt_lag_seconds",
            "From a change on a node until the API server has its NodeResourceTopology.",
            buckets=(0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120),
            registry=registry,
        )
        self.requests = Counter(
            "kai_fleet_api_requests_total", "Writes that the API server answered.", ["kind", "code"], registry=registry
        )
        self.retries = Counter(
            "kai_fleet_api_retries_total", "Writes that had to be sent again.", ["kind"], registry=registry
        )
        self.ignored = Counter(
            "kai_fleet_malformed_objects_total", "Objects that could not be read and were ignored.", registry=registry
        )


_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 10.0
#: A conflict that lasts this many tries is an answer.
_CONFLICT_TRIES: Final = 5


#: Merges lists of built-in types by their keys: what others wrote into a status stays.
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"


Method = Literal["POST", "PATCH", "DELETE"]


@dataclass(slots=True)
class Write:
    """One request, and what to do with its outcome: the answer's body, or the server's refusal."""

    #: What it is about; writes with one key are sent one after the other.
    key: str
    #: Label of metrics and logs.
    kind: str
    method: Method
    path: str
    body: bytes
    #: Of a patch.
    content_type: str = MERGE_PATCH
    done: Callable[[bytes | ApiStatus], None] | None = None
    tries: int = 0


class Writer:
    """Sends writes, `limit` at a time."""

    def __init__(self, client: KubeClient, metrics: Metrics, *, limit: int) -> None:
        self._client = client
        self._metrics = metrics
        self._limit = limit
        self._ready: deque[Write] = deque()
        #: Keys with a write that is under way, in the queue or waiting for its next try → those behind it.
        self._behind: dict[str, deque[Write]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pauses: set[asyncio.TimerHandle] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._silent_until, self._unsaid = 0.0, 0

    def submit(self, write: Write) -> None:
        """Send a write when its turn comes."""
        behind = self._behind.get(write.key)
        if behind is not None:
            behind.append(write)
            return
        self._behind[write.key] = deque()
        self._idle.clear()
        self._start(write)

    def is_busy(self, key: str) -> bool:
        """True if a write with that key is still to be answered."""
        return key in self._behind

    async def idle(self) -> None:
        """Wait until every write has been answered."""
        await self._idle.wait()

    async def close(self) -> None:
        """Give up what has not been answered."""
        for pause in self._pauses:
            pause.cancel()
        self._ready.clear()
        await end_all(self._tasks)

    def _start(self, write: Write) -> None:
        if len(self._tasks) >= self._limit:
            self._ready.append(write)
            return
        task = asyncio.get_running_loop().create_task(self._run(write))
        self._tasks.add(task)

    async def _run(self, write: Write) -> None:
        task = asyncio.current_task()
        try:
            following: Write | None = write
            while following is not None:
                await self._send(following)
                following = self._ready.popleft() if self._ready else None
        finally:
            if task is not None:
                self._tasks.discard(task)

    async def _send(self, write: Write) -> None:
        outcome: bytes | ApiStatus
        write.tries += 1
        try:
            outcome = await self._request(write)
        except ClusterUnavailable as error:
            self._again(write, error, error.retry_after_s)
            return
        except ApiStatus as error:
            if _is_passing(error, write):
                self._again(write, error, None)
                return
            outcome = error
        self._metrics.requests.labels(write.kind, str(outcome.code) if isinstance(outcome, ApiStatus) else "2xx").inc()
        self._answered(write, outcome)

    async def _request(self, write: Write) -> bytes:
        body = msgspec.Raw(write.body)
        match write.method:
            case "POST":
                return await self._client.post(write.path, body)
            case "PATCH":
                return await self._client.patch(write.path, body, content_type=write.content_type)
            case "DELETE":
                return await self._client.delete(write.path, body)

    def _again(self, write: Write, error: Exception, retry_after_s: int | None) -> None:
        self._metrics.retries.labels(write.kind).inc()
        pause = jittered(backoff(write.tries, first=_FIRST_RETRY_S, most=_LAST_RETRY_S), random.random())
        pause = max(pause, min(retry_after_s or 0, _LAST_RETRY_S))
        self._complain(write, error)

        def resume() -> None:
            self._pauses.discard(handle)
            self._start(write)

        handle = asyncio.get_running_loop().call_later(pause, resume)
        self._pauses.add(handle)

    def _complain(self, write: Write, error: Exception) -> None:
        """Log one in a second: when an API server goes, thousands of writes fail at once."""
        self._unsaid += 1
        now = asyncio.get_running_loop().time()
        if now >= self._silent_until:
            get_logger().warning(
                "writes are sent again", failed=self._unsaid, kind=write.kind, tries=write.tries, error=str(error)
            )
            self._silent_until, self._unsaid = now + 1, 0

    def _answered(self, write: Write, outcome: bytes | ApiStatus) -> None:
        if write.done is not None:
            try:
                write.done(outcome)
            except Exception as error:
                get_logger().exception("an answer could not be used", kind=write.kind, error=repr(error))
        elif isinstance(outcome, ApiStatus) and outcome.code not in (404, 409):
            get_logger().error("write refused", kind=write.kind, path=write.path, error=str(outcome))
        behind = self._behind[write.key]
        if behind:
            self._start(behind.popleft())
            return
        del self._behind[write.key]
        if not self._behind:
            self._idle.set()


def _is_passing(error: ApiStatus, write: Write) -> bool:
    """True if the refusal is not final.

    Credentials and permissions come and go. A conflict is between writers, unless it is about another object of the
    same name. One that lasts is an answer, but not to a deletion: kubelets ask for it until the pod is gone.
    """
    if error.code in (401, 403):
        return True
    lasts = write.tries >= _CONFLICT_TRIES and write.method != "DELETE"
    return error.code == 409 and error.reason == "Conflict" and "UID" not in error.message and not lasts
