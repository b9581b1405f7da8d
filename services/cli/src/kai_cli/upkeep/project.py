"""`kai project`: make the read models, or make them anew, beside those that are read."""

import asyncio

from kaicore.analysis.ask.projections.building import Builder
from kaicore.analysis.ask.projections.store import ViewStore
from kaicore.errors import ConfigurationError
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.hub.hub_state import without_hub

from kai_cli.output.progress import Progress
from kai_cli.sources.log_access import opened_source
from kai_cli.sources.source import LogSource, LogSourceFlags


def project(*, rebuild: bool = False, source: LogSourceFlags | None = None) -> int:
    """Bring the read models up to the log's end; `kai-projector` does so all the time.

    Args:
        rebuild: make them from the log's first event on, beside those that are read; they take their place when they
            have caught up.
        source: which log; with --database-url, as the role kai_project.
    """
    return asyncio.run(_project(source or LogSource(), rebuild=rebuild))


async def _project(source: LogSource, *, rebuild: bool) -> int:
    if source.file is not None:
        raise ConfigurationError("--file: read models are kept in the database of a log, and a file has none")
    async with opened_source(source, role="kai_project") as opened:
        url = opened.database()
        assert url is not None
        async with (
            await PostgresLog.open(url, application="kai-project") as log,
            await ViewStore.open(url, application="kai-project") as store,
        ):
            for cluster in source.clusters(without_hub(await log.clusters())):
                begin = Builder.anew if rebuild else Builder.resume
                builder = await begin(log, store, cluster)
                with Progress(f"{cluster}: read models") as progress:
                    await builder.catch_up(progress=progress)
                print(f"cluster {cluster}: read models as of position {builder.generation.position}")
    return 0
