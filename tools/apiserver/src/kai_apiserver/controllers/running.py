"""Start and stop the controllers."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from kaicore.runtime.service import get_logger

from kai_apiserver.controllers.default_scheduler import DefaultScheduler
from kai_apiserver.controllers.deployments import DeploymentController, ReplicaSetController
from kai_apiserver.controllers.garbage import EventExpiry, GarbageCollector, NamespaceController
from kai_apiserver.controllers.jobs import JobController
from kai_apiserver.controllers.nodes import DeviceTaintEviction, NodeLifecycleController
from kai_apiserver.controllers.reconciling import Controller
from kai_apiserver.controllers.resource_claims import ResourceClaimController
from kai_apiserver.controllers.volumes import VolumeController
from kai_apiserver.controllers.workloads.controller import WorkloadController
from kai_apiserver.rest.backend import Backend
from kai_apiserver.rest.disruption import DisruptionController


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
