"""Keep the logs of all clusters of a data directory after its `kai` has ended: `python -m tests.given.recorded DIR`."""

import asyncio
import sys
from pathlib import Path

from kaicore.analysis.replay.log_states import events_of
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.engine.config import ENGINE_VERSION
from kaicore.runtime.embedded import EmbeddedPostgres

from tests.given.recorded import DIRECTORY, write_log


async def keep(data_directory: Path) -> None:
    """Start the directory's Postgres, read its logs, and stop it."""
    server = EmbeddedPostgres(data_directory / "postgres")
    await server.start()
    try:
        async with await PostgresLog.open(server.url, application="tests.given.recorded") as log:
            for cluster in await log.clusters():
                path = DIRECTORY / f"engine-{ENGINE_VERSION}" / f"{cluster}.jsonl.xz"
                events = [event async for event in events_of(log, cluster)]
                write_log(path, events)
                print(f"{path}: {len(events)} events, {path.stat().st_size} bytes")
    finally:
        await server.stop()


if __name__ == "__main__":
    asyncio.run(keep(Path(sys.argv[1])))
