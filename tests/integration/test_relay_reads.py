"""The relay needs no right but to read the log: deploy/ gives it the role kai_read."""

from kaicore.ledger.bus import NatsBus
from kaicore.ledger.log.postgres import PostgresLog

from tests.conftest import as_role
from tests.given.logs.new_events import new_event, unit
from tests.given.processes.relay_process import PATIENCE_S, RelayProcess, relayed


async def test_a_relay_that_may_only_read_the_log_publishes_it(
    superuser_url: str, postgres_log: PostgresLog, nats_url: str, cluster_name: str
) -> None:
    await postgres_log.append(cluster_name, [unit(new_event()) for _ in range(20)])
    bus = await NatsBus.open(nats_url, name="test")
    assert await bus.wait_connected(timeout_s=PATIENCE_S)
    async with RelayProcess(as_role(superuser_url, "kai_read"), nats_url):
        await relayed(bus, cluster_name, 20)
        await postgres_log.append(cluster_name, [unit(new_event())])
        await relayed(bus, cluster_name, 21)
    await bus.delete_stream(cluster_name)
    await bus.close()
