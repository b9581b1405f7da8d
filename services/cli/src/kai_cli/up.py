"""`kai up`: everything on one machine, until Ctrl-C."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Literal

from kai_cli.hints import how_to_ask
from kai_cli.kubeconfigs import Kubeconfigs
from kai_cli.paths import data_directory
from kai_cli.preflight import check_cluster, check_database, check_nats
from kai_cli.stack import ClusterSpec, Stack


def print_line(line: str) -> None:
    """Tell the operator."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def up(
    *,
    data_dir: Path | None = None,
    cluster: str = "kai",
    kubeconfig: list[str] | None = None,
    profile: str | None = "demo24",
    scheduler_config: Path | None = None,
    database_url: str | None = None,
    nats_url: str | None = None,
    log_level: Literal["debug", "info", "warning", "error"] = "info",
) -> int:
    """Run Postgres, NATS, a cluster and every service until Ctrl-C; a later `kai up` goes on where this one ended.

    Args:
        data_dir: where everything is kept; by default .kai, or $KAI_DATA_DIR.
        cluster: the cluster's name in the log.
        kubeconfig: schedule on this API server, instead of a simulated cluster: FILE for all services, or SERVICE=FILE,
            repeated, for the watcher, the binder and ingest (which then has it review the exporters' tokens).
        profile: the simulated fleet: a profile's name or file.
        scheduler_config: YAML file with the scheduler's settings.
        database_url: an existing Postgres, instead of the embedded one; also $KAI_DATABASE_URL.
        nats_url: an existing NATS with JetStream, instead of the embedded one; also $KAI_NATS_URL.
        log_level: of the services.
    """
    directory = data_directory(data_dir)
    spec = ClusterSpec(
        name=cluster,
        kubeconfigs=Kubeconfigs.read(kubeconfig) if kubeconfig else None,
        profile=profile if not kubeconfig else None,
        scheduler_config=scheduler_config,
    )
    check_cluster(spec)
    nats_url = nats_url or os.environ.get("KAI_NATS_URL")
    if nats_url:
        check_nats(nats_url)
    database_url = database_url or os.environ.get("KAI_DATABASE_URL")
    if database_url:
        check_database(database_url)
    with directory.lock() as held:
        stack = Stack(
            directory,
            lock=held,
            report=print_line,
            database_url=database_url,
            nats_url=nats_url,
            log_level=log_level,
        )
        return asyncio.run(_up(stack, spec))


async def _up(stack: Stack, spec: ClusterSpec) -> int:
    interrupted = interruption()
    starting = asyncio.create_task(_start(stack, spec))
    waiting = asyncio.create_task(interrupted.wait())
    try:
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            await interrupted.wait()
    finally:
        starting.cancel()
        waiting.cancel()
        print_line("stopping ...")
        await stack.stop()
        print_line(f"stopped; everything is kept in {stack.directory.root}")
    return 0


async def _start(stack: Stack, spec: ClusterSpec) -> None:
    await stack.start()
    await stack.add_cluster(spec)
    for line in how_to_ask(stack.directory):
        print_line(line)
    print_line("Ctrl-C stops it.")


def interruption() -> asyncio.Event:
    """Return an event that a Ctrl-C, or a SIGTERM, sets."""
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    return interrupted
