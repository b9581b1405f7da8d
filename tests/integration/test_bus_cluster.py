"""A client of three NATS servers with its own server cut off from the two others; the long form is in `tests/chaos`."""

import asyncio
from contextlib import suppress

from kaicore.errors import BusUnavailable, Fenced
from kaicore.ledger.bus import Limits, Message, NatsBus
from kaicore.ledger.bus.connection import Connection

from tests.given.processes.relay_process import PATIENCE_S
from tests.given.servers.nats_cluster import NatsCluster
from tests.given.servers.servers import scratch_directory


async def test_a_client_leaves_a_server_that_was_cut_off_and_finds_its_messages_at_another() -> None:
    with scratch_directory() as directory:
        async with NatsCluster(directory) as cluster, asyncio.timeout(PATIENCE_S):
            connection = Connection(cluster.url, name="test")
            connection.dial()
            bus = NatsBus(connection)
            assert await bus.wait_connected(timeout_s=PATIENCE_S)
            while not await there_is_stream(bus):
                with suppress(BusUnavailable):
                    await bus.create_stream("c", first=1, limits=Limits(replicas=3))
                await asyncio.sleep(0.1)
            await published(bus, 1)
            client = connection._client
            assert client is not None
            url = client.connected_url
            assert url is not None
            cluster.cut_off(next(server for server in cluster.servers if server.url.endswith(f":{url.port}")))
            # The one that was cut off never has the second message: an answer with it is another server's.
            await published(bus, 2)
            assert await bus.read("c", 1) == Message(1, "PodObserved", b"1")
            await bus.close()


async def there_is_stream(bus: NatsBus) -> bool:
    with suppress(BusUnavailable):
        return await bus.stream("c") is not None
    return False


async def published(bus: NatsBus, position: int) -> None:
    """Publish a message until the stream has it, however often the bus does not answer."""
    while True:
        with suppress(BusUnavailable):
            # Fenced: stored, and only the answer was lost; or a server that is cut off keeps what it cannot store.
            with suppress(Fenced):
                await bus.publish("c", [Message(position, "PodObserved", b"%d" % position)])
            state = await bus.stream("c")
            if state is not None and state.last >= position:
                return
        await asyncio.sleep(0.1)
