"""Take-overs of what clients ask: an exporter reports to two ingests, and somebody asks two APIs a question.

A client has both addresses, and asks that one first to which something is about to happen.
"""

import asyncio
from contextlib import suppress
from tempfile import NamedTemporaryFile

import aiohttp
from kai_exporter.holdings import ContainerHoldings, PodHoldings, ZoneHolding
from kai_exporter.ingest_client import IngestClient, IngestUnavailable
from kai_exporter.node_pods import Outgoing
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.payloads import PodObserved
from kaicore.runtime.access.node_tokens import node_token

from tests.given.cluster.factory import pod
from tests.given.logs.new_events import new_event
from tests.measured.bench.scale.one_scheduler import fill, nodes, waiting_pods
from tests.measured.bench.scale.services import Servers, recorded
from tests.measured.bench.scale.trials import Seconds, Size, taken_over

_NODE = "n00000"

#: Seconds after which an exporter gives up an address, as it does by default, and between two tries.
_TIMEOUT_S, _AGAIN_S = 20.0, 0.05

#: Seconds that somebody who asks waits for an answer until he asks the other API.
_PATIENCE_S = 1.0


async def of_ingest(servers: Servers, cluster: str, size: Size) -> Seconds:
    """Measure ingests: a kubelet has given a pod its zones, an exporter reports that, and it is in the log."""
    secret = b"a secret of some length"
    token = node_token(secret, cluster=cluster, node=_NODE)
    clients: list[IngestClient] = []

    def exporter_of(addresses: tuple[str, ...]) -> None:
        urls = ",".join(f"http://{address}" for address in addresses)
        clients.append(IngestClient(urls, cluster=cluster, token=lambda: token, node=_NODE, timeout_s=_TIMEOUT_S))

    async with await PostgresLog.open(servers.database_url) as log:
        await fill(log, cluster, nodes(1))
        sequence = 0

        async def work() -> None:
            nonlocal sequence
            sequence += 1
            one = pod(f"p{sequence:06}", cpu=1, node_name=_NODE)
            head = await log.head(cluster)
            await fill(log, cluster, [new_event(f"pod/{one.uid}", payload=PodObserved(one), subject=one.name)])
            holds = ContainerHoldings(one.containers[0].name, (ZoneHolding("node-0", {"cpu": 1000}),))
            holdings = PodHoldings(one.namespace, one.name, (holds,))
            # After all that the simulated watcher has said, by whatever clock.
            outgoing = Outgoing(_NODE, sequence, 1 << 60, full=False, pods=(holdings,), versions={})
            while not await _accepted(clients[-1], outgoing):  # noqa: ASYNC110  # ingest tells nobody when it may be asked
                await asyncio.sleep(_AGAIN_S)
            await recorded(log, cluster, "PlacementObserved", count=1, after=head.position)

        with NamedTemporaryFile() as file:
            file.write(secret)
            file.flush()
            settings = servers.settings(cluster) | {"NODE_TOKEN_SECRET_FILE": file.name}
            try:
                return await taken_over("kai_ingest.main", settings, work, size, shown=exporter_of)
            finally:
                for client in clients:
                    await client.close()


async def _accepted(client: IngestClient, outgoing: Outgoing) -> bool:
    try:
        (answer,) = await client.send([outgoing])
    except IngestUnavailable:
        return False
    assert not answer.refused, answer.refused
    return answer.status == "taken" and not answer.unknown


async def of_api(servers: Servers, cluster: str, size: Size) -> Seconds:
    """Measure APIs: a pod has come, and somebody learns why it waits."""
    asked: tuple[str, ...] = ()

    def known(addresses: tuple[str, ...]) -> None:
        nonlocal asked
        asked = addresses

    async with (
        await PostgresLog.open(servers.database_url) as log,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PATIENCE_S)) as session,
    ):
        pods = iter(waiting_pods(size.together))

        async def work() -> None:
            came = next(pods)
            await fill(log, cluster, [came])
            assert isinstance(came.payload, PodObserved)
            one = came.payload.pod
            path = f"/v1/clusters/{cluster}/pods/{one.namespace}/{one.name}/why"
            while True:
                for address in asked:
                    with suppress(aiohttp.ClientError, TimeoutError):
                        async with session.get(f"http://{address}{path}") as answer:
                            if answer.status == 200:
                                return
                await asyncio.sleep(_AGAIN_S)

        settings = servers.settings(cluster) | {"ANONYMOUS": "loopback"}
        return await taken_over("kai_api.main", settings, work, size, shown=known)
