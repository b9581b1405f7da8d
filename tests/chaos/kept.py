"""The contents that a log must have, whatever died meanwhile."""

from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.audit import verify

from tests.chaos.appender import SHARED
from tests.chaos.conftest import Appender


async def assert_kept(url: str, cluster: str, appenders: list[Appender]) -> None:
    """All that was acknowledged is in the log, once, whole, at its position, and an audit finds nothing."""
    async with await PostgresLog.open(url) as log:
        events = await log.read(cluster, limit=1_000_000)
        report = await verify(log, cluster)
    assert report.ok, str(report)
    assert [event.position for event in events] == list(range(1, len(events) + 1))
    recorded = {str(event.id): event.position for event in events}
    assert len(recorded) == len(events)
    acknowledged = {key: position for one in appenders for key, position in one.acknowledged.items()}
    assert acknowledged.items() <= recorded.items()
    assert [event.stream == SHARED for event in events] == [False, True] * (len(events) // 2)
