"""Open the log for a question: of a running stack, of a named database, or of a data directory that nobody runs."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from kaicore.embedded import EmbeddedPostgres
from kaicore.errors import ConfigurationError
from kaicore.log.migrate import upgrade
from kaicore.log.port import EventLog
from kaicore.log.postgres import PostgresLog

from kai_cli.directory_lock import LOOK_S, PATIENCE_S, try_lock
from kai_cli.paths import DataDirectory, data_directory


@dataclass(frozen=True, slots=True)
class Source:
    """Where to ask: the flags that all asking commands share.

    Attributes:
        data_dir: of the `kai up` whose log is meant, whether it runs or not; by default .kai, or $KAI_DATA_DIR.
        database_url: of the log's Postgres, instead; also $KAI_DATABASE_URL, unless a --data-dir is named.
        cluster: which of the log's clusters.
    """

    data_dir: Path | None = None
    database_url: str | None = None
    cluster: str | None = None


@asynccontextmanager
async def open_log(source: Source) -> AsyncIterator[EventLog]:
    """Open the log that `source` means.

    Raises:
        ConfigurationError: there is none.
        LogUnavailable: its server does not answer.
    """
    async with AsyncExitStack() as stack:
        url = source.database_url
        if url is None and source.data_dir is None:
            url = os.environ.get("KAI_DATABASE_URL") or None
        if url is None:
            url = await _log_in(data_directory(source.data_dir), stack)
        log = await stack.enter_async_context(await PostgresLog.open(url, application="kai"))
        yield log


async def _log_in(directory: DataDirectory, stack: AsyncExitStack) -> str:
    """Return the database of what runs in a directory, or is starting there; else start the one that rests there.

    Raises:
        ConfigurationError: there is no data, or what uses the directory does not get ready.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    while loop.time() < deadline:
        running = directory.running()
        if running is not None and running.database_url:
            return running.database_url
        if running is None and not (directory.postgres / "data").exists():
            raise ConfigurationError(
                f"no log: nothing runs in {directory.root} and it holds no data; "
                "start `kai up`, or name --database-url ($KAI_DATABASE_URL) or --data-dir"
            )
        if running is None and (held := try_lock(directory.root)) is not None:
            stack.enter_context(held)
            server = EmbeddedPostgres(directory.postgres, inherit=(held.fd,))
            await stack.enter_async_context(server)
            upgrade(server.url)
            return server.url
        await asyncio.sleep(LOOK_S)
    raise ConfigurationError(f"{directory.root}: another kai is using it, and does not get ready")


async def the_cluster(log: EventLog, source: Source) -> str:
    """Return the cluster that is meant: the named one, or the only one.

    Raises:
        ConfigurationError: there is no such cluster, or several and none was named.
    """
    clusters = await log.clusters()
    if source.cluster is not None:
        if source.cluster not in clusters:
            raise ConfigurationError(
                f"no cluster {source.cluster!r} in the log; there are: {', '.join(clusters) or '-'}"
            )
        return source.cluster
    if len(clusters) != 1:
        raise ConfigurationError(f"name one with --cluster: {', '.join(clusters) or 'the log is empty'}")
    return clusters[0]
