"""Open the log itself for a question: of a running stack, of a named database, or of a data directory at rest."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from kaicore.errors import ConfigurationError, KaiError
from kaicore.ledger.log.files.log import FileLog
from kaicore.ledger.log.files.retired import with_retired
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.postgres import QUESTION_PATIENCE_S, PostgresLog
from kaicore.ledger.log.snapshots import take_state
from kaicore.rules.hub.hub_state import without_hub
from kaicore.runtime.embedded import EmbeddedPostgres, embedded_url_of

from kai_cli.output import Progress
from kai_cli.sources.paths import LOOK_S, PATIENCE_S, DataDirectory, data_directory, try_lock
from kai_cli.sources.source import AnswerSource, LogSource, one_cluster

if TYPE_CHECKING:
    from kaicore.analysis.ask.queries import Inquiry
    from kaicore.analysis.replay.past_states import KeptState


@asynccontextmanager
async def open_log(source: LogSource) -> AsyncIterator[EventLog]:
    """Open the log that `source` means, to read it and to leave snapshots.

    Raises:
        ConfigurationError: there is none.
        CorruptLog: it is a file that is cut off or damaged.
        LogUnavailable: its server does not answer.
    """
    if source.file is not None:
        async with FileLog(source.file) as exported:
            yield exported
        return
    async with _open(source, role="kai_append") as log:
        if source.retired is None:
            yield log
            return
        with TemporaryDirectory(prefix="kai-retired-") as scratch:
            async with with_retired(log, source.retired, Path(scratch)) as whole:
                yield whole


@asynccontextmanager
async def open_cluster_log(source: LogSource) -> AsyncIterator[tuple[EventLog, str]]:
    """Open the log likewise, and yield it with the one of its clusters that is meant."""
    async with open_log(source) as log:
        yield log, one_cluster(source, without_hub(await log.clusters()))


@asynccontextmanager
async def opened_source(source: LogSource, *, role: str = "kai_append") -> AsyncIterator[LogSource]:
    """Yield where the log that `source` means can be opened any number of times, also by other processes.

    A database that is named is opened as the role named with it, whatever `role` is.

    Raises:
        ConfigurationError: there is none.
        LogUnavailable: its server does not answer.
    """
    async with AsyncExitStack() as stack:
        if source.file is None and source.database() is None:
            url = await _log_in(data_directory(source.data_dir), stack, role=role)
            source = replace(source, data_dir=None, database_url=url)
        yield source


@asynccontextmanager
async def open_log_as_owner(source: LogSource) -> AsyncIterator[PostgresLog]:
    """Open the log that `source` means as the role that owns it; where a database is named, as the role named with it.

    Raises:
        ConfigurationError: there is none, or it is a file, or to be read with retired months.
        LogUnavailable: its server does not answer.
    """
    if source.file is not None:
        raise ConfigurationError("--file: an exported log is only read; this needs a database")
    if source.retired is not None:
        raise ConfigurationError("--retired: retired months are only read; leave it out")
    async with _open(source, role="kai_migrate") as log:
        yield log


@asynccontextmanager
async def _open(source: LogSource, *, role: str) -> AsyncIterator[PostgresLog]:
    async with AsyncExitStack() as stack:
        url = source.database()
        if url is None:
            url = await _log_in(data_directory(source.data_dir), stack, role=role)
        log = await stack.enter_async_context(
            await PostgresLog.open(url, application="kai", patience_s=QUESTION_PATIENCE_S)
        )
        yield log


async def _log_in(directory: DataDirectory, stack: AsyncExitStack, *, role: str) -> str:
    """Return the database of what runs in a directory, or is starting there; else start the one that rests there.

    Raises ConfigurationError: there is no data, or what uses the directory does not get ready.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    while loop.time() < deadline:
        running = directory.running()
        if running is not None and running.database_url:
            return embedded_url_of(directory.postgres, running.database_url, role)
        if running is None and not (directory.postgres / "data").exists():
            raise ConfigurationError(
                f"no log: nothing runs in {directory.root} and it holds no data; "
                "start `kai up`, or name --database-url ($KAI_DATABASE_URL) or --data-dir"
            )
        if running is None and (held := try_lock(directory.root)) is not None:
            stack.enter_context(held)
            server = EmbeddedPostgres(directory.postgres, inherit=(held.fd,))
            await stack.enter_async_context(server)
            upgrade(server.url_of("kai_migrate"))
            return server.url_of(role)
        await asyncio.sleep(LOOK_S)
    raise ConfigurationError(f"{directory.root}: another kai is using it, and does not get ready")


#: Events that a question may fold without leaving a snapshot: about half a second's.
_WORTH_KEEPING = 3000


@asynccontextmanager
async def open_log_answers(source: AnswerSource, *, once: bool = True) -> AsyncIterator["Inquiry"]:
    """Yield answers from the log that is meant; `once` for a single question: then no state is kept for more."""
    # Folding needs the engine and NumPy, which an export does not.
    from kaicore.analysis.ask.queries import Inquiry  # noqa: PLC0415

    from kai_cli.sources.policies import book_of  # noqa: PLC0415

    async with open_log(source) as log:
        with Progress("folding the log") as progress:
            inquiry = Inquiry(log, once=once, progress=progress, policies=book_of())
            yield inquiry
        for state in inquiry.states:
            await _keep(inquiry, state)


async def _keep(inquiry: "Inquiry", kept: "KeptState") -> None:
    if kept.folded < _WORTH_KEEPING:
        return
    state = await kept.current()
    try:
        await inquiry.log.save_snapshot(kept.cluster, take_state(state))
    except KaiError as error:
        sys.stderr.write(
            f"kai: {kept.folded} events of cluster {kept.cluster} were folded for this answer, and will be for the "
            f"next: no snapshot can be stored here: {error}\n"
        )
