"""The API server in memory: the simulated server's own code without a socket, and a client that reaches it."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
import yaml
from kai_apiserver.auth.rbac import Authorizer
from kai_apiserver.auth.reviews import Reviews
from kai_apiserver.auth.rights_use import RightsUse
from kai_apiserver.auth.tokens import Secrets, Tokens
from kai_apiserver.bootstrap import bootstrap
from kai_apiserver.builtin import BUILTIN_RESOURCES
from kai_apiserver.controllers.garbage import GarbageCollector
from kai_apiserver.controllers.jobs import JobController
from kai_apiserver.crd.lifecycle import DefinitionLifecycle
from kai_apiserver.errors import StatusError
from kai_apiserver.faults import Faults
from kai_apiserver.http.handler import Handler
from kai_apiserver.http.resource_verbs import ResourceVerbs
from kai_apiserver.resources import Registry
from kai_apiserver.rest.backend import Backend, Operation, Target
from kai_apiserver.rest.deletion import DeleteOptions, delete
from kai_apiserver.rest.patching import Patch, patch
from kai_apiserver.rest.pod_actions import evict
from kai_apiserver.rest.watch_stream import Watches
from kai_apiserver.rest.writing import create
from kai_apiserver.store import Store, Stored
from kaicore.errors import ClusterUnavailable
from kaicore.kube.access import Access
from kaicore.kube.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH, KubeClient, error_of
from kaicore.kube.shipped_crds import shipped_crds
from kaicore.runtime.service.http_limits import CONNECTION

from tests.simulation.loop import EPOCH_S, Process, SimulatedLoop
from tests.simulation.network import Network, Server

_TOKEN = "simulation"

#: Definitions that the load needs.
_DEFINITIONS = (
    "noderesourcetopologies.topology.node.k8s.io",
    "podgroups.scheduling.run.ai",
    "queues.scheduling.run.ai",
    "topologies.kai.scheduler",
)

#: Seconds after which a connection that is silent because the network is cut in two is given up (`_KEEPALIVE`).
_KEEPALIVE_S = 25.0


@cache
def _definitions() -> list[dict[str, Any]]:
    texts = shipped_crds().values()
    every = [one for text in texts if any(name in text for name in _DEFINITIONS) for one in yaml.safe_load_all(text)]
    return [one for one in every if one["metadata"]["name"] in _DEFINITIONS]


class ApiServer:
    """The objects, and what answers requests about them."""

    def __init__(self, loop: SimulatedLoop, chance: random.Random, process: Process) -> None:
        self._loop = loop
        registry = Registry(BUILTIN_RESOURCES)
        self.store = Store(registry, None, history=10_000)
        self.backend = Backend(registry, self.store, clock=self._now, chance=chance)
        self._faults = Faults()
        self.watches = Watches(self._faults, 60.0)
        self._definitions = DefinitionLifecycle(self.backend)
        bootstrap(self.backend)
        for definition in _definitions():
            self.create("apiextensions.k8s.io", "customresourcedefinitions", definition, namespace="")
        tokens = Tokens(self.backend, Secrets(_TOKEN, b"simulation"))
        authorizer = Authorizer(self.backend, observer=RightsUse())
        verbs = ResourceVerbs(
            self.backend,
            tokens=tokens,
            reviews=Reviews(self.backend, tokens=tokens, authorizer=authorizer),
            watches=self.watches,
            definitions=self._definitions,
        )
        self.handler = Handler(
            self.backend,
            tokens=tokens,
            authorizer=authorizer,
            rights_use=RightsUse(),
            verbs=verbs,
            faults=self._faults,
            watches=self.watches,
            checks={},
        )
        self._controllers = [JobController(self.backend, base_backoff_s=0.5), GarbageCollector(self.backend)]
        self._tasks = [process.start(controller.run()) for controller in self._controllers]

    def _now(self) -> datetime:
        return datetime.fromtimestamp(EPOCH_S + self._loop.time(), UTC)

    async def close(self) -> None:
        """End all watches and controllers."""
        self.watches.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.sleep(1)

    def compact(self) -> None:
        """Forget what happened: who watched has to list again."""
        for collection in self.store.collections:
            collection.compact(self.store.rv)

    # --- what users and the control plane do; it never fails on the way ---------------------------------------------

    def _target(self, group: str, plural: str, name: str, namespace: str, subresource: str = "") -> Target:
        resources = [one for one in self.backend.registry if (one.group, one.plural) == (group, plural)]
        return Target(resources[-1], namespace, name, subresource)

    def create(self, group: str, plural: str, given: dict[str, Any], *, namespace: str = "default") -> Stored | None:
        """Create an object; None where it is refused."""
        try:
            return create(self.backend, self._target(group, plural, "", namespace), given=given, operation=Operation())
        except StatusError:
            return None

    def patch(
        self, group: str, plural: str, name: str, body: Any, *, namespace: str = "", subresource: str = ""
    ) -> bool:
        """Patch an object; whether that was taken."""
        target = self._target(group, plural, name, namespace, subresource)
        content_type = MERGE_PATCH if target.resource.custom is not None else STRATEGIC_MERGE_PATCH
        try:
            patch(self.backend, target, patch=Patch(content_type, msgspec.json.encode(body)), operation=Operation())
        except StatusError:
            return False
        return True

    def delete(
        self, plural: str, name: str, *, namespace: str = "default", group: str = "", grace_s: int | None
    ) -> None:
        """Delete an object, if it is there."""
        target = self._target(group, plural, name, namespace)
        stored = self.backend.collection(target.resource).get(target.key)
        if stored is not None:
            options = DeleteOptions(grace_s=grace_s, propagation="Background")
            delete(self.backend, stored, resource=target.resource, options=options, operation=Operation())

    def evict(self, name: str) -> None:
        """Evict a pod, if it is there and may be."""
        try:
            evict(self.backend, self._target("", "pods", name, "default"), eviction={}, operation=Operation())
        except StatusError:
            return


class _Cut:
    """What the handler takes for the connection's transport."""

    def __init__(self, cut: Callable[[], None]) -> None:
        self.abort = self.close = cut


def _scope(method: str, path: str, params: Mapping[str, str] | None, content_type: str, agent: str) -> dict[str, Any]:
    raw, _, query = path.partition("?")
    more = "&".join(f"{name}={value}" for name, value in (params or {}).items())
    headers = [
        (b"authorization", f"Bearer {_TOKEN}".encode()),
        (b"accept", b"application/json"),
        (b"user-agent", agent.encode()),
    ]
    if content_type:
        headers.append((b"content-type", content_type.encode()))
    return {
        "type": "http",
        "method": method,
        "path": raw,
        "raw_path": raw.encode(),
        "query_string": "&".join(part for part in (query, more) if part).encode(),
        "headers": headers,
    }


class _Response:
    """An answer, as far as `KubeClient` looks at it."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self._body = status, headers, body

    async def read(self) -> bytes:
        return self._body

    def release(self) -> None:
        """There is no connection to give back."""

    close = release


class _Stream:
    """A watch's answer: pieces that arrive in order, and at last an end."""

    def __init__(
        self, loop: SimulatedLoop, process: Process, network: Network, server: Server, silent_s: float
    ) -> None:
        self._loop, self._process, self._server = loop, process, server
        self._link = network.link(process.role, server.name)
        self._silent_s = silent_s
        self._pieces: deque[bytes | Exception | None] = deque()
        self._grown = asyncio.Event()
        self._last_at = 0.0
        self._gone: asyncio.Future[None] = loop.create_future()
        self.opened: asyncio.Future[tuple[int, bytes]] = loop.create_future()
        self._body = b""
        server.on_break.append(self.cut)

    @property
    def content(self) -> "_Stream":
        return self

    async def readany(self) -> bytes:
        """See `aiohttp.StreamReader.readany`."""
        while not self._pieces:
            self._grown.clear()
            silent_s = self._silent_s if self._link.whole else _KEEPALIVE_S
            try:
                async with asyncio.timeout(silent_s):
                    await self._grown.wait()
            except TimeoutError:
                if silent_s == self._silent_s or not self._link.whole:
                    raise aiohttp.ServerTimeoutError("silent for too long") from None
        piece = self._pieces[0]
        if piece is None:
            return b""
        if isinstance(piece, Exception):
            raise piece
        self._pieces.popleft()
        return piece

    def release(self) -> None:
        """See `close`."""

    def close(self) -> None:
        """The client goes; the server hears of it a little later."""
        if self.cut in self._server.on_break:
            self._server.on_break.remove(self.cut)
        self._loop.call_later(self._link.delay(), self._leave, context=self._server.process.context)

    def _leave(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)

    def cut(self) -> None:
        """Break the connection, from the server's side."""
        self._leave()
        self._deliver(aiohttp.ClientOSError("connection reset"))

    def _deliver(self, piece: bytes | Exception | None) -> None:
        self._last_at = max(self._loop.time() + self._link.delay(), self._last_at + 1e-6)
        self._loop.call_at(self._last_at, self._arrive, piece, context=self._process.context)

    def _arrive(self, piece: bytes | Exception | None) -> None:
        self._pieces.append(piece)
        self._grown.set()

    async def receive(self) -> dict[str, Any]:
        """ASGI: the request has no body; then the client goes."""
        await self._gone
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """ASGI."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            if self._status < 300 and not self.opened.done():
                self.opened.set_result((self._status, b""))
        elif self._status >= 300:
            self._body += message["body"]
            if not message.get("more_body"):
                self.opened.set_result((self._status, self._body))
                self._leave()
        else:
            if message["body"]:
                self._deliver(message["body"])
            if not message.get("more_body"):
                self._deliver(None)
                self._leave()


class NetworkKubeClient(KubeClient):
    """A client over the simulated network; all but the transport is `KubeClient`'s own."""

    def __init__(
        self,
        loop: SimulatedLoop,
        process: Process,
        network: Network,
        server: Server,
        api: ApiServer,
        *,
        timeout_s: float = 10.0,
    ) -> None:
        async def access() -> Access:
            raise AssertionError("no credentials are needed")

        super().__init__(access, timeout_s=timeout_s, user_agent=f"kai-{process.role.partition('-')[0]}")
        self._loop, self._process, self._network, self._server, self._api = loop, process, network, server, api
        self._timeout_s = timeout_s

    async def _send(  # type: ignore[override]
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object | None = None,
        content_type: str = "",
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> Any:
        data = msgspec.json.encode(body) if body is not None else b""
        scope = _scope(method, path, params, content_type if data else "", self._user_agent)
        if params is not None and "watch" in params:
            return await self._open_watch(scope, timeout)

        async def serve() -> _Response:
            return await _answered(self._api.handler, scope, data)

        response = await self._network.ask(
            self._process,
            self._server,
            f"{method} {path}",
            serve,
            error=lambda why: ClusterUnavailable(f"{method} {path}: {why}"),
            patience_s=self._timeout_s,
        )
        if response.status < 300:
            return response
        retry_after = response.headers.get("retry-after", "")
        raise error_of(method, path, response.status, retry_after, await response.read())

    async def _open_watch(self, scope: dict[str, Any], timeout: aiohttp.ClientTimeout | None) -> _Stream:
        path = scope["path"]
        silent_s = timeout.sock_read if timeout is not None and timeout.sock_read else 60.0
        stream = _Stream(self._loop, self._process, self._network, self._server, silent_s)
        scope["extensions"] = {CONNECTION: {"transport": _Cut(stream.cut)}}

        async def serve() -> tuple[int, bytes]:
            self._server.process.start(self._api.handler(scope, stream.receive, stream.send))
            return await stream.opened

        try:
            status, body = await self._network.ask(
                self._process,
                self._server,
                f"WATCH {path}",
                serve,
                error=lambda why: ClusterUnavailable(f"WATCH {path}: {why}"),
                patience_s=self._timeout_s,
                waits=True,
            )
        except BaseException:
            stream.close()
            raise
        if status >= 300:
            stream.close()
            raise error_of("WATCH", path, status, "", body)
        return stream


async def _answered(handler: Handler, scope: dict[str, Any], data: bytes) -> _Response:
    """Have the handler answer a request that is no watch."""
    answer = SimpleNamespace(status=500, headers={}, body=b"")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message["body"]

    await handler(scope, receive, send)
    return _Response(answer.status, answer.headers, answer.body)
