"""The API server as one thing to start and stop: for the process, for tests, for programs that need a cluster."""

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Self

from kaicore.runtime.service import get_logger
from pydantic import BaseModel, Field

from kai_apiserver.auth.rbac import Authorizer, Reviews, RightsUse
from kai_apiserver.auth.tokens import Secrets, Tokens
from kai_apiserver.controllers.claims import ResourceClaimController, VolumeController
from kai_apiserver.controllers.default_scheduler import DefaultScheduler
from kai_apiserver.controllers.garbage import EventExpiry, GarbageCollector, NamespaceController
from kai_apiserver.controllers.jobs import JobController
from kai_apiserver.controllers.nodes import DeviceTaintEviction, NodeLifecycleController
from kai_apiserver.controllers.reconciling import Controller
from kai_apiserver.controllers.workloads.kinds import WorkloadController
from kai_apiserver.http.faults import Faults
from kai_apiserver.http.handler import Handler
from kai_apiserver.http.listeners import Listeners, certificate_files, write_kubeconfig
from kai_apiserver.http.resource_verbs import ResourceVerbs
from kai_apiserver.objects import Object
from kai_apiserver.resources.builtin import BUILTIN_RESOURCES
from kai_apiserver.resources.crd_lifecycle import DefinitionLifecycle, serve
from kai_apiserver.resources.demonstration import demonstrate
from kai_apiserver.resources.registry import Registry
from kai_apiserver.rest.backend import Backend, Operation, Target
from kai_apiserver.rest.disruption import DisruptionController
from kai_apiserver.rest.watch_stream import Watches
from kai_apiserver.rest.writing import create
from kai_apiserver.store import Store
from kai_apiserver.store.records import Journal

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}


def _initial() -> list[tuple[str, str, Object]]:
    """Group, plural and object of each thing."""
    namespaces: list[tuple[str, str, Object]] = [
        ("", "namespaces", {"metadata": {"name": name}}) for name in _NAMESPACES
    ]
    classes: list[tuple[str, str, Object]] = [
        (
            "scheduling.k8s.io",
            "priorityclasses",
            {"metadata": {"name": name}, "value": value, "description": description},
        )
        for name, value, description in (
            ("system-cluster-critical", 2_000_000_000, "For pods that the cluster needs but that may move."),
            ("system-node-critical", 2_000_001_000, "For pods that their node needs."),
        )
    ]
    roles: list[tuple[str, str, Object]] = [
        (
            "rbac.authorization.k8s.io",
            "clusterroles",
            {"metadata": {"name": "cluster-admin"}, "rules": [_EVERYTHING, {"nonResourceURLs": ["*"], "verbs": ["*"]}]},
        )
    ]
    return namespaces + classes + roles


def bootstrap(backend: Backend) -> None:
    """Create what is missing of the initial objects."""
    for group, plural, obj in _initial():
        resource = backend.registry.find(group, "v1", plural=plural)
        if backend.collection(resource).get(obj["metadata"]["name"]) is None:
            create(backend, Target(resource), given=obj, operation=Operation())


class ApiServerOptions(BaseModel):
    """The settings of a server; `kai_apiserver.main.ApiServerSettings` adds those of its process."""

    http_host: str = Field("127.0.0.1", description="address of both listeners")
    http_port: int = Field(0, ge=0, le=65535, description="port of the plain listener; 0: any")
    http_fd: int | None = Field(None, ge=3, description="descriptor of a socket that is the plain listener, instead")
    https: bool = Field(False, description="have a TLS listener, which kubectl needs")
    https_port: int = Field(0, ge=0, le=65535, description="port of the TLS listener; 0: any")
    advertise_host: str = Field(
        "", description="name or address in kubeconfigs and in the certificate; default: that of the listeners"
    )
    data_dir: Path | None = Field(None, description="where everything is kept; without it, in memory")
    sync: bool = Field(False, description="wait for the disk on every write")
    history: int = Field(50_000, ge=1, description="events that each resource remembers for watches")
    bookmark_s: float = Field(60.0, gt=0, description="seconds between bookmarks on a watch")
    controllers: bool = Field(True, description="run the controllers")
    default_scheduler: bool = Field(False, description="schedule pods of default-scheduler")
    demonstration: bool = Field(
        False, description="have the CRDs of PodGroups, queues and batch work, and a namespace for first tries"
    )
    # The real Job controller takes 10.
    job_backoff_s: float = Field(1.0, gt=0, description="seconds until a Job's first failed pod is replaced")
    node_grace_s: float = Field(40.0, ge=0, description="seconds of silence that make a node unreachable; 0: never")
    event_ttl_s: float = Field(3600.0, gt=0, description="seconds after which an event is forgotten")


class ApiServer:
    """One simulated API server, on the running event loop.

    ```
    async with ApiServer(ApiServerOptions()) as server:
        ...  # server.http_url, server.admin_token
    ```
    """

    def __init__(self, options: ApiServerOptions, *, clock: Callable[[], datetime] | None = None) -> None:
        """Read the data directory, if there is one; nothing listens yet.

        Args: clock: returns the time; by default the machine's.

        Raises:
            CorruptJournal: the data directory cannot be read, or is in use.
        """
        self.options = options
        self.checks: dict[str, str] = {
            "ping": "",
            "journal": "",
            "listeners": "not started",
            "controllers": "not started",
        }
        directory = self.options.data_dir
        journal = Journal(directory / "objects", sync=self.options.sync) if directory is not None else None
        registry = Registry(BUILTIN_RESOURCES)
        self.store = Store(registry, journal, history=self.options.history)
        self.store.load(lambda definition: serve(registry, self.store, definition=definition.decode()))
        self.backend = Backend(registry, self.store, clock=clock)
        self.faults = Faults()
        self.rights_use = RightsUse()
        self._watches = Watches(self.faults, self.options.bookmark_s)
        self._tokens = Tokens(
            self.backend, Secrets.kept_in(directory / "secrets") if directory is not None else Secrets.fresh()
        )
        self._definitions = DefinitionLifecycle(self.backend)
        self._listeners: Listeners | None = None
        self._controllers: Controllers | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._authority: Path | None = None
        bootstrap(self.backend)
        if self.options.demonstration:
            demonstrate(self.backend)

    async def start(self) -> None:
        """Listen, and run the controllers."""
        options = self.options
        authorizer = Authorizer(self.backend, observer=self.rights_use)
        verbs = ResourceVerbs(
            self.backend,
            tokens=self._tokens,
            reviews=Reviews(self.backend, tokens=self._tokens, authorizer=authorizer),
            watches=self._watches,
            definitions=self._definitions,
        )
        handler = Handler(
            self.backend,
            tokens=self._tokens,
            authorizer=authorizer,
            rights_use=self.rights_use,
            verbs=verbs,
            faults=self.faults,
            watches=self._watches,
            checks=self.checks,
        )
        advertised = options.advertise_host or _reachable(options.http_host)
        certificate = None
        if options.https:
            self._authority, *files = certificate_files(self._certificate_directory(), advertised)
            certificate = (files[0], files[1])
        self._listeners = Listeners.start(
            handler,
            host=options.http_host,
            advertise_host=advertised,
            http_port=options.http_port,
            http_fd=options.http_fd,
            https_port=options.https_port if options.https else None,
            certificate=certificate,
        )
        self.checks["listeners"] = ""
        if options.controllers:
            self._controllers = Controllers(self.backend, options, died=self._controller_died)
            self._controllers.start()
        self.checks["controllers"] = ""

    def _controller_died(self, name: str) -> None:
        self.checks["controllers"] = f"{name} died"

    def _certificate_directory(self) -> Path:
        if self.options.data_dir is not None:
            return self.options.data_dir / "certificates"
        self._temporary = tempfile.TemporaryDirectory(prefix="kai-apiserver-")
        return Path(self._temporary.name)

    async def stop(self) -> None:
        """End all watches, stop listening, finish writing."""
        if self._controllers is not None:
            await self._controllers.stop()
        self._watches.close()
        if self._listeners is not None:
            await self._listeners.stop()
        await self.store.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self.stop())

    @property
    def http_url(self) -> str:
        """Base URL of the plain listener."""
        assert self._listeners is not None, "not started"
        return self._listeners.http_url

    @property
    def https_url(self) -> str:
        """Base URL of the TLS listener; empty without one."""
        assert self._listeners is not None, "not started"
        return self._listeners.https_url

    @property
    def admin_token(self) -> str:
        """The administrator's bearer token."""
        return self._tokens.admin_token

    @property
    def authority(self) -> bytes | None:
        """The CA's certificate (PEM) of the TLS listener."""
        return self._authority.read_bytes() if self._authority is not None else None

    def write_kubeconfig(self, path: Path) -> None:
        """Write a kubeconfig over HTTPS, for `kubectl`."""
        write_kubeconfig(path, server=self.https_url, token=self.admin_token, authority=self.authority)

    def write_http_kubeconfig(self, path: Path) -> None:
        """Write a kubeconfig over plain HTTP, for our own services."""
        write_kubeconfig(path, server=self.http_url, token=self.admin_token)


def _reachable(host: str) -> str:
    """The address for clients on this machine of a server at `host`, which may be all addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # what is meant by it


class Controllers:
    """All controllers of a server."""

    def __init__(self, backend: Backend, options: ApiServerOptions, *, died: Callable[[str], None]) -> None:
        """`died` is called if a controller ends by an error of its own."""
        self._died = died
        self._controllers: list[Controller[str] | GarbageCollector | WorkloadController] = [
            JobController(backend, base_backoff_s=options.job_backoff_s),
            WorkloadController(backend, base_backoff_s=options.job_backoff_s),
            GarbageCollector(backend),
            NamespaceController(backend),
            DisruptionController(backend),
            VolumeController(backend),
            ResourceClaimController(backend),
            DeviceTaintEviction(backend),
            EventExpiry(backend, ttl_s=options.event_ttl_s),
        ]
        if options.node_grace_s > 0:
            self._controllers.append(NodeLifecycleController(backend, grace_s=options.node_grace_s))
        if options.default_scheduler:
            self._controllers.append(DefaultScheduler(backend))
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Run them as tasks."""
        for controller in self._controllers:
            task = asyncio.create_task(controller.run(), name=controller.name)
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            get_logger().error("controller died", controller=task.get_name(), exc_info=task.exception())
            self._died(task.get_name())

    async def stop(self) -> None:
        """End them."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError, Exception):  # an error was reported when it happened
                await task
