"""Start and stop the controllers."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from kai_simulator.apiserver.controllers.disruption import DisruptionController
from kai_simulator.apiserver.controllers.garbage import GarbageCollector
from kai_simulator.apiserver.controllers.jobs import JobController
from kai_simulator.apiserver.controllers.namespaces import NamespaceController
from kai_simulator.apiserver.controllers.nodes import NodeLifecycleController
from kai_simulator.apiserver.controllers.reconciling import Controller
from kai_simulator.apiserver.rest.backend import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerOptions:
    """How the controllers behave.

    Attributes:
        job_backoff_s: seconds until a Job's first failed pod is replaced; doubles with each further failure. The real
            controller takes 10.
        node_grace_s: seconds without a sign of life after which a node counts as unreachable; 0: never.
    """

    job_backoff_s: float = 1.0
    node_grace_s: float = 40.0


class Controllers:
    """All controllers of a server."""

    def __init__(self, backend: Backend, options: ControllerOptions) -> None:
        self._controllers: list[Controller[str] | GarbageCollector] = [
            JobController(backend, base_backoff_s=options.job_backoff_s),
            GarbageCollector(backend),
            NamespaceController(backend),
            DisruptionController(backend),
        ]
        if options.node_grace_s > 0:
            self._controllers.append(NodeLifecycleController(backend, grace_s=options.node_grace_s))
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Run them as tasks."""
        self._tasks = [asyncio.create_task(controller.run(), name=controller.name) for controller in self._controllers]

    async def stop(self) -> None:
        """End them."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
