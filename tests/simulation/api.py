"""The API server in memory: the simulated server's own code without a socket, and a client that reaches it."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
from kai_apiserver.auth.rbac import Authorizer, Reviews, RightsUse
from kai_apiserver.auth.tokens import Secrets, Tokens
from kai_apiserver.controllers.garbage import GarbageCollector
from kai_apiserver.controllers.jobs import JobController
from kai_apiserver.errors import StatusError
from kai_apiserver.http.admission_webhooks import AdmissionWebhooks
from kai_apiserver.http.faults import Faults
from kai_apiserver.http.handler import Handler
from kai_apiserver.http.resource_verbs import ResourceVerbs
from kai_apiserver.resources.builtin import BUILTIN_RESOURCES
from kai_apiserver.resources.crd_lifecycle import DefinitionLifecycle
from kai_apiserver.resources.registry import Registry
from kai_apiserver.rest.backend import Backend, Operation, Target
from kai_apiserver.rest.deletion import DeleteOptions, delete
from kai_apiserver.rest.patching import Patch, patch
from kai_apiserver.rest.pod_actions import evict
from kai_apiserver.rest.watch_stream import Watches
from kai_apiserver.rest.writing import create
from kai_apiserver.server import bootstrap
from kai_apiserver.store import Store, Stored
from kaicore.errors import ClusterUnavailable
from kaicore.kube.api.access import Access
from kaicore.kube.api.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH, KubeClient
from kaicore.kube.api.failures import error_of
from kaicore.kube.kinds.shipped_crds import shipped_crds
from kaicore.runtime.service.http_limits import CONNECTION
from kaicore.yaml_text import load_yaml_all

from tests.simulation.http import Response, Stream, answered, scope_of
from tests.simulation.loop import EPOCH_S, Process, SimulatedLoop
from tests.simulation.network import Network, Server

_TOKEN = "simulation"

#: Sends a webhook a review, and returns its response.
Post = Callable[[Any, Any], Awaitable[Any]]

#: Definitions that the load needs.
_DEFINITIONS = (
    "noderesourcetopologies.topology.node.k8s.io",
    "podgroups.scheduling.run.ai",
    "queues.scheduling.run.ai",
    "topologies.kai.scheduler",
)


@cache
def _definitions() -> list[dict[str, Any]]:
    texts = shipped_crds().values()
    every = [one for text in texts if any(name in text for name in _DEFINITIONS) for one in load_yaml_all(text)]
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
        self._post: Post | None = None
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
            webhooks=AdmissionWebhooks(self.backend, self._reviewed),
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

    @property
    def reviewed(self) -> bool:
        """True if a webhook judges new objects."""
        return self._post is not None

    def webhooks_answer(self, post: "Post") -> None:
        """Have a webhook judge topologies and groups that are created; `post` sends it a review."""
        self._post = post
        webhook = {
            "name": "topology.kai.scheduler",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "rules": [
                {
                    "apiGroups": ["kai.scheduler", "scheduling.run.ai"],
                    "apiVersions": ["*"],
                    "operations": ["CREATE"],
                    "resources": ["topologies", "podgroups"],
                }
            ],
            "clientConfig": {"url": "https://webhook/validate"},
        }
        group, plural = "admissionregistration.k8s.io", "validatingwebhookconfigurations"
        body = {"metadata": {"name": "kai-ledger"}, "webhooks": [webhook]}
        assert self.create(group, plural, body, namespace="") is not None

    async def _reviewed(self, webhook: Any, review: Any) -> Any:
        assert self._post is not None
        return await self._post(webhook, review)

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
    """The connection's transport for the handler."""

    def __init__(self, cut: Callable[[], None]) -> None:
        self.abort = self.close = cut


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

    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object | None = None,
        content_type: str = "",
        accept: str = "application/json",
    ) -> bytes:
        del accept
        data = msgspec.json.encode(body) if body is not None else b""
        scope = self._scope(method, path, params, content_type if data else "")

        async def serve() -> Response:
            return await answered(self._api.handler, scope, data)

        response = await self._network.ask(
            self._process,
            self._server,
            f"{method} {path}",
            serve,
            error=lambda why: ClusterUnavailable(f"{method} {path}: {why}"),
            patience_s=self._timeout_s,
            waits=self._api.reviewed,
        )
        if response.status < 300:
            return response.body
        retry_after = response.headers.get("retry-after", "")
        raise error_of(method, path, response.status, retry_after, response.body)

    def _scope(self, method: str, path: str, params: Mapping[str, str] | None, content_type: str) -> dict[str, Any]:
        proof = ((b"authorization", f"Bearer {_TOKEN}".encode()),)
        return scope_of(method, path, params, content_type, self._user_agent, proof)

    async def _open_watch(self, path: str, params: Mapping[str, str], *, silent_s: float) -> Any:
        scope = self._scope("GET", path, params, "")
        stream = Stream(self._loop, self._process, self._network, self._server, silent_s)
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
