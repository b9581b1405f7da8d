"""Open the log for a question: of a running stack, of a named database, or of a data directory that nobody runs."""

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

from kai_cli.paths import data_directory


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
            directory = data_directory(source.data_dir)
            running = directory.running()
            if running is not None:
                url = running.database_url
            elif (directory.postgres / "data").exists():
                server = await stack.enter_async_context(EmbeddedPostgres(directory.postgres))
                url = server.url
            else:
                raise ConfigurationError(
                    f"no log: nothing runs in {directory.root} and it holds no data; "
                    "start `kai up`, or name --database-url ($KAI_DATABASE_URL) or --data-dir"
                )
            upgrade(url)
        log = await stack.enter_async_context(await PostgresLog.open(url, application="kai"))
        yield log


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
