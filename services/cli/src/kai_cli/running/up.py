"""`kai up`: everything on one machine, until Ctrl-C."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number
from kaicore.errors import ConfigurationError
from kaicore.runtime.fork_server import forking

from kai_cli.running.hints import how_to_ask
from kai_cli.running.preflight import check_cluster, check_database, check_nats
from kai_cli.running.stack import (
    DEMO_PROFILE,
    IMPORTED,
    IMPORTED_FOR_EXISTING,
    MIGRATING,
    ClusterSpec,
    Stack,
    make_for_all,
)
from kai_cli.sources.paths import data_directory

if TYPE_CHECKING:
    from kai_cli.running.clusters import Kubeconfigs
    from kai_cli.running.registered_clusters import RegisteredClusters

#: Seconds between two looks for a hub.
_HUB_LOOK_S = 5.0


def print_line(line: str) -> None:
    """Tell the operator."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def up(  # long: one parameter a line, and one line for each
    *,
    data_dir: Path | None = None,
    cluster: str = "kai",
    clusters: Annotated[int, Parameter(validator=Number(gte=1, lte=16))] = 1,
    kubeconfig: list[str] | None = None,
    profile: str | None = DEMO_PROFILE,
    scheduler_config: Path | None = None,
    shadow: str = "",
    database_url: str | None = None,
    nats_url: str | None = None,
    ha: bool = False,
    schedulers: Annotated[int, Parameter(validator=Number(gte=1, lte=16))] = 1,
    compact: bool = False,
    log_level: Literal["debug", "info", "warning", "error"] = "info",
) -> None:
    """Run Postgres, NATS, a cluster and every service until Ctrl-C; a later `kai up` goes on where this one ended.

    Args:
        data_dir: where everything is kept; by default .kai, or $KAI_DATA_DIR.
        cluster: the cluster's name in the log.
        clusters: simulate so many, under one hub: NAME, NAME-2, …; more can be added later (`kai cluster add`).
        kubeconfig: schedule on this API server, instead of a simulated cluster: FILE for all services, or SERVICE=FILE,
            repeated, for the watcher, the binder and ingest (which then has it review the exporters' tokens).
        profile: the simulated fleet: a profile's name or file.
        scheduler_config: YAML file with the scheduler's settings.
        shadow: schedule nothing; record where the pods of these schedulers would go (NAME,NAME; * for all). No service
            writes to the cluster then, and the watcher's kubeconfig is enough.
        database_url: an existing Postgres, instead of the embedded one; also $KAI_DATABASE_URL.
        nats_url: an existing NATS with JetStream, instead of the embedded one; also $KAI_NATS_URL.
        ha: run two of each service: one does the work of the other when that fails.
        schedulers: so many share the groups of each cluster on the same nodes, and take over from each other.
        compact: run services that start together in one process: less memory, and where one ends they start again
            together.
        log_level: of the services.
    """
    directory = data_directory(data_dir)
    spec = ClusterSpec(
        name=cluster,
        kubeconfigs=_kubeconfigs(kubeconfig, binds=not shadow) if kubeconfig else None,
        profile=profile if not kubeconfig else None,
        scheduler_config=scheduler_config,
        shadow=shadow,
        schedulers=schedulers,
    )
    if compact and (ha or schedulers > 1):
        raise ConfigurationError("--compact: what shares a process ends together; leave --ha and --schedulers out")
    if shadow and schedulers > 1:
        raise ConfigurationError("--shadow: has one scheduler; leave --schedulers out")
    if shadow and clusters > 1:
        raise ConfigurationError("--shadow: is of one cluster; --clusters would have a hub give work to several")
    if clusters > 1 and kubeconfig:
        raise ConfigurationError("--clusters: is of simulated clusters; `kai cluster add` registers others")
    check_cluster(spec)
    specs = [spec, *(replace(spec, name=f"{cluster}-{number}") for number in range(2, clusters + 1))]
    nats_url = nats_url or os.environ.get("KAI_NATS_URL")
    if nats_url:
        check_nats(nats_url)
    database_url = database_url or os.environ.get("KAI_DATABASE_URL")
    if database_url:
        check_database(database_url)
    _import_before_forking()
    # With data of its own the database has been migrated before, or nearly.
    migrating = () if database_url or directory.postgres.exists() else MIGRATING
    imported = IMPORTED_FOR_EXISTING if kubeconfig else IMPORTED
    with directory.lock() as held, forking(imported, then=make_for_all) as forks, forking(migrating) as forks_migration:
        stack = Stack(
            directory,
            lock=held,
            report=print_line,
            database_url=database_url,
            nats_url=nats_url,
            log_level=log_level,
            ha=ha,
            compact=compact,
            forks=forks,
            migrating=forks_migration,
            policies=scheduler_config,
        )
        asyncio.run(_up(stack, specs))


def _import_before_forking() -> None:
    """Import what this process and those that are forked from it need, to be shared by all: 11 MB."""
    import psycopg  # noqa: F401, PLC0415
    from kaicore.ledger import nkeys  # noqa: F401, PLC0415


async def _up(stack: Stack, specs: list[ClusterSpec]) -> None:
    interrupted = interruption()
    starting = asyncio.create_task(_start(stack, specs))
    waiting = asyncio.create_task(interrupted.wait())
    try:
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
    finally:
        starting.cancel()
        waiting.cancel()
        print_line("stopping ...")
        await stack.stop()
        print_line(f"stopped; everything is kept in {stack.directory.root}")


async def _start(stack: Stack, specs: list[ClusterSpec]) -> None:
    """Start everything, and keep the clusters as the hub's log says until cancelled."""
    keeping = _keeping(stack, specs) if len(specs) > 1 else None
    if keeping is not None:
        await stack.start()
        await keeping.register_own_first()
        await asyncio.gather(*(stack.add_cluster(spec) for spec in specs))
    else:
        await stack.start_with(specs[0])
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_follow_hub(stack, specs) if keeping is None else keeping.run())
            if keeping is not None:
                await keeping.hub_started.wait()
            more = ("cluster list", "get dispatches") if keeping is not None else ()
            for line in how_to_ask(stack.directory, *more):
                print_line(line)
            print_line("Ctrl-C stops it.")
    except ExceptionGroup as errors:
        raise first_error(errors) from errors


def first_error(errors: ExceptionGroup) -> Exception:
    """Return the first error of a group and of the groups in it."""
    first = errors.exceptions[0]
    return first_error(first) if isinstance(first, ExceptionGroup) else first


async def _follow_hub(stack: Stack, specs: list[ClusterSpec]) -> None:
    """Wait until there is a hub, which most stacks never have, and follow its log then."""
    import psycopg  # noqa: PLC0415

    begun = False
    while not begun:
        await asyncio.sleep(_HUB_LOOK_S)
        with suppress(psycopg.Error):
            async with await psycopg.AsyncConnection.connect(stack.database_url, autocommit=True) as connection:
                while not begun:
                    rows = await connection.execute("SELECT FROM log_head WHERE cluster = 'hub' AND position > 0")
                    begun = rows.rowcount > 0
                    await asyncio.sleep(0 if begun else _HUB_LOOK_S)
    await _keeping(stack, specs).run()


def _keeping(stack: Stack, specs: list[ClusterSpec]) -> "RegisteredClusters":
    # With the log, the engine and what folds: 60 MB.
    from kai_cli.running.registered_clusters import RegisteredClusters  # noqa: PLC0415

    return RegisteredClusters(stack, specs, report=print_line)


def _kubeconfigs(given: list[str], *, binds: bool) -> "Kubeconfigs":
    from kai_cli.running.clusters import Kubeconfigs  # noqa: PLC0415

    return Kubeconfigs.read(given, binds=binds)


def interruption() -> asyncio.Event:
    """Return an event that a Ctrl-C, or a SIGTERM, sets."""
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    return interrupted
