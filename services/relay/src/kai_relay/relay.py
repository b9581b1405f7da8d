"""The relay of all clusters of a log: one task for each, begun as the log gets to know it."""

import asyncio

from kaicore.errors import InvalidObject, LogUnavailable
from kaicore.ledger.bus import Bus
from kaicore.ledger.log.port import EventLog
from kaicore.runtime.service.log_access import LOG
from kaicore.runtime.service.logs import Logger

from kai_relay.cluster_relay import ClusterRelay, RelayOptions
from kai_relay.metrics import RelayMetrics
from kai_relay.readiness import BUS, Readiness

#: Seconds between two looks for new clusters.
_DISCOVER_S = 2.0

#: For troubles that belong to no cluster.
_ALL = "all"


class Relay:
    """Relays some clusters of a log, or all."""

    def __init__(
        self,
        log: EventLog,
        bus: Bus,
        *,
        clusters: tuple[str, ...],
        options: RelayOptions,
        metrics: RelayMetrics,
        readiness: Readiness,
        logger: Logger,
    ) -> None:
        """Args:
        log: what to relay.
        bus: where to.
        clusters: which; empty for all that the log has.
        options: how.
        metrics: what is counted.
        readiness: is told what works.
        logger: the service's.
        """
        self._log = log
        self._bus = bus
        self._clusters = clusters
        self._options = options
        self._metrics = metrics
        self._readiness = readiness
        self._logger = logger
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._relays: dict[str, ClusterRelay] = {}

    def leads(self) -> tuple[str, ...]:
        """Return the clusters that no other relay is known to publish, sorted."""
        return tuple(sorted(name for name, relay in self._relays.items() if not relay.stands_by))

    async def run(self, stopping: asyncio.Event) -> None:
        """Relay until `stopping` is set."""
        stop = asyncio.ensure_future(stopping.wait())
        try:
            while not stop.done():
                for cluster in await self._find_clusters():
                    if cluster not in self._tasks:
                        self._tasks[cluster] = asyncio.ensure_future(self._relay(cluster))
                running = [task for task in self._tasks.values() if not task.done()]
                await asyncio.wait([stop, *running], timeout=_DISCOVER_S, return_when=asyncio.FIRST_COMPLETED)
                for task in self._tasks.values():
                    if task.done():
                        task.result()
        finally:
            stop.cancel()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(stop, *self._tasks.values(), return_exceptions=True)

    async def _find_clusters(self) -> tuple[str, ...]:
        if not self._bus.connected:
            self._readiness.fails(_ALL, BUS, "not connected")
        try:
            with_events = tuple(await self._log.clusters())
        except LogUnavailable as error:
            self._readiness.fails(_ALL, LOG, str(error))
            return ()
        if self._bus.connected:
            self._readiness.works(_ALL)
        return self._clusters or with_events

    async def _relay(self, cluster: str) -> None:
        relay = ClusterRelay(
            self._log,
            self._bus,
            cluster,
            options=self._options,
            metrics=self._metrics,
            readiness=self._readiness,
            logger=self._logger,
        )
        self._relays[cluster] = relay
        try:
            await relay.run()
        except InvalidObject as error:
            self._logger.error("cluster is not relayed; its readers use the log", error=str(error))
