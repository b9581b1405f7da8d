"""The clusters of a running stack follow the hub's log: those that are registered run, those that are removed end.

A stack of one cluster has no hub. With the first event in the hub's log it gets one, and its own clusters are
registered there as well.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from kaicore.analysis.trial.dispatching import hub_of
from kaicore.errors import ConfigurationError, KaiError, LogUnavailable
from kaicore.ledger.feed import EventFeed
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.snapshots import restored_hub
from kaicore.rules.events.payloads import ClusterRegistered
from kaicore.rules.hub.hub_state import HUB, HubState
from kaicore.runtime.process_context import end_all

from kai_cli.running.clusters import Kubeconfigs, absolute_kubeconfigs, register
from kai_cli.running.stack import ClusterSpec, Stack

#: Seconds before a cluster that did not start is tried again.
_PAUSE_S = 10.0


class RegisteredClusters:
    """Keeps a stack's clusters as the hub's log says."""

    def __init__(self, stack: Stack, own: Sequence[ClusterSpec], *, report: Callable[[str], None]) -> None:
        """Args:
        own: clusters that it was started with.
        report: gets the lines that an operator should see.
        """
        self._stack, self._report = stack, report
        self._own = {spec.name: spec for spec in own}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._hub_runs = False
        #: Set once the hub is ready.
        self.hub_started = asyncio.Event()

    async def run(self) -> None:
        """Follow the hub's log until cancelled."""
        async with await PostgresLog.open(self._stack.database_url, application="kai-up") as log:
            state = await restored_hub(log)
            feed = EventFeed(log, None, HUB, after=state.position)
            try:
                while True:
                    with suppress(LogUnavailable):
                        for event in await feed.next_batch(timeout_s=_PAUSE_S):
                            state.fold(event)
                        if state.position:
                            await self._hub()
                            await self._register_own(log)
                            await self._keep(state)
            finally:
                await end_all(self._tasks.values())
                await feed.close()

    async def register_own_first(self) -> None:
        """Register the stack's own clusters before any of them runs."""
        async with await PostgresLog.open(self._stack.database_url, application="kai-up") as log:
            await self._register_own(log)

    async def _register_own(self, log: PostgresLog) -> None:
        async with hub_of(log) as hub:
            for name, spec in self._own.items():
                if name not in hub.state.clusters:
                    with suppress(ConfigurationError):
                        await register(hub, _registration(spec))

    async def _hub(self) -> None:
        if not self._hub_runs:
            self._hub_runs = True
            await self._stack.start_hub()
            self.hub_started.set()

    async def _keep(self, state: HubState) -> None:
        wanted = {name: entry.registered for name, entry in state.present()}
        for name, registered in wanted.items():
            task = self._tasks.get(name)
            # A cluster with an agent that dials out is not the stack's, and runs all the same once its task has ended.
            if (task is None or _failed(task)) and name not in self._stack.clusters:
                self._tasks[name] = asyncio.create_task(self._start(registered))
        for name, entry in state.clusters.items():
            if entry.removed and (name in self._tasks or name in self._stack.clusters):
                await self._stop(name)

    async def _start(self, registered: ClusterRegistered) -> None:
        name = registered.cluster
        while name not in self._stack.clusters:
            try:
                if name in self._own or registered.kubeconfigs or registered.simulated:
                    await self._stack.add_cluster(self._own.get(name) or _spec(registered))
                else:
                    await self._stack.add_scheduler(name)
                self._report(f"cluster {name}: is one of the hub's, and runs")
                return
            except KaiError as error:
                self._report(f"cluster {name}: does not start: {error}; tried again in {_PAUSE_S:.0f} s")
                await asyncio.sleep(_PAUSE_S)

    async def _stop(self, name: str) -> None:
        if (task := self._tasks.pop(name, None)) is not None:
            await end_all((task,))
        await self._stack.remove_cluster(name)
        self._report(f"cluster {name}: was removed; its processes have ended")


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _registration(spec: ClusterSpec) -> ClusterRegistered:
    paths: tuple[str, ...] = ()
    if spec.kubeconfigs is not None:
        shared = [str(spec.kubeconfigs.shared)] if spec.kubeconfigs.shared is not None else []
        own = [f"{service}={path}" for service, path in spec.kubeconfigs.own.items()]
        paths = absolute_kubeconfigs([*shared, *own])
    return ClusterRegistered(cluster=spec.name, kubeconfigs=paths, simulated=spec.profile or "")


def _spec(registered: ClusterRegistered) -> ClusterSpec:
    if registered.kubeconfigs:
        kubeconfigs = Kubeconfigs.read(registered.kubeconfigs)
        return ClusterSpec(name=registered.cluster, kubeconfigs=kubeconfigs)
    profile = registered.simulated
    return ClusterSpec(name=registered.cluster, profile=str(Path(profile)) if profile else None)
