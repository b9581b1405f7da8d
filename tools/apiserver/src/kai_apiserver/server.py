"""The API server as one thing to start and stop: for the process, for tests, for programs that need a cluster."""

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Self

from kaicore.runtime.service import get_logger

from kai_apiserver.auth.rbac import Authorizer, Reviews, RightsUse
from kai_apiserver.auth.tokens import Secrets, Tokens
from kai_apiserver.controllers.claims import ResourceClaimController, VolumeController
from kai_apiserver.controllers.default_scheduler import DefaultScheduler
from kai_apiserver.controllers.deployments import DeploymentController, ReplicaSetController
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerOptions:
    """The controllers' behaviour.

    Attributes:
        default_scheduler: whether pods of `default-scheduler` are scheduled.
        job_backoff_s: seconds until a Job's first failed pod is replaced, and that of any other owner; doubles with
            each further failure. The real Job controller takes 10.
        event_ttl_s: seconds after which an event is forgotten.
        node_grace_s: seconds without a sign of life after which a node counts as unreachable; 0: never.
    """

    default_scheduler: bool = False
    job_backoff_s: float = 1.0
    node_grace_s: float = 40.0
    event_ttl_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServerOptions:
    """The settings of a server.

    Attributes:
        host: address of both listeners.
        advertise_host: how clients reach the server: its name or address in kubeconfigs and in the certificate; empty:
            the address of the listeners.
        http_port: port of the plain listener; 0: any.
        http_fd: descriptor of a socket that is the plain listener, instead of host and http_port.
        https_port: port of the TLS listener; 0: any; None: no TLS listener.
        data_dir: where everything is kept; None: in memory, gone with the server.
        sync: wait for the disk on every write.
        history: events that each resource remembers; who asks for older ones gets a 410.
        bookmark_s: seconds between bookmarks on a watch.
        demonstration: have what a demonstration needs: CRDs of PodGroups, queues and batch work, and a namespace for
            first tries.
        controllers: which controllers run, and how.
        clock: the time.
    """

    host: str = "127.0.0.1"
    advertise_host: str = ""
    http_port: int = 0
    http_fd: int | None = None
    https_port: int | None = None
    data_dir: Path | None = None
    sync: bool = False
    history: int = 50_000
    bookmark_s: float = 60.0
    demonstration: bool = False
    controllers: ControllerOptions | None = field(default_factory=ControllerOptions)
    clock: Callable[[], datetime] | None = None


class ApiServer:
    """One simulated API server, on the running event loop.

    ```
    async with ApiServer() as server:
        ...  # server.http_url, server.admin_token
    ```
    """

    def __init__(self, options: ApiServerOptions | None = None) -> None:
        """Read the data directory, if there is one; nothing listens yet.

        Raises:
            CorruptJournal: the data directory cannot be read, or is in use.
        """
        self.options = options or ApiServerOptions()
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
        self.backend = Backend(registry, self.store, clock=self.options.clock)
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
        advertised = options.advertise_host or _reachable(options.host)
        certificate = None
        if options.https_port is not None:
            self._authority, *files = certificate_files(self._certificate_directory(), advertised)
            certificate = (files[0], files[1])
        self._listeners = Listeners.start(
            handler,
            host=options.host,
            advertise_host=advertised,
            http_port=options.http_port,
            http_fd=options.http_fd,
            https_port=options.https_port,
            certificate=certificate,
        )
        self.checks["listeners"] = ""
        if options.controllers is not None:
            self._controllers = Controllers(self.backend, options.controllers, died=self._controller_died)
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

    def __init__(self, backend: Backend, options: ControllerOptions, *, died: Callable[[str], None]) -> None:
        """`died` is called if a controller ends by an error of its own."""
        self._died = died
        self._controllers: list[Controller[str] | GarbageCollector | WorkloadController] = [
            JobController(backend, base_backoff_s=options.job_backoff_s),
            DeploymentController(backend),
            ReplicaSetController(backend, base_backoff_s=options.job_backoff_s),
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
