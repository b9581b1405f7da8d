"""Checks of the arguments of `kai up`, before any server starts."""

import asyncio
import os
from pathlib import Path
from urllib.parse import urlsplit

from kaicore.errors import ConfigurationError
from kaicore.runtime.embedded.nats import greeting

from kai_cli.running.fleet import check_tool
from kai_cli.running.stack import DEMO_PROFILE, ClusterSpec, sharing_settings
from kai_cli.sources.paths import check_cluster_name

#: How long a server may take to say who it is.
_ANSWER_S = 5.0
_NATS_PORT = 4222


def check_cluster(spec: ClusterSpec) -> None:
    """Check what a cluster is to be started with.

    Raises ConfigurationError: naming the flag, its value and what is wrong.
    """
    check_cluster_name(spec.name)
    sharing_settings(spec.scheduler_config)
    if spec.profile is not None:
        check_tool("kai_fleet", purpose="simulates kubelets")
        if spec.profile != DEMO_PROFILE:
            # The engine, which this process needs for nothing else.
            from kaicore.analysis.trial.simulation.kubelets import find_kubelets  # noqa: PLC0415

            find_kubelets(spec.profile)
    if spec.kubeconfigs is None:
        check_tool("kai_apiserver", purpose="without --kubeconfig simulates an API server")
    else:
        used = {spec.kubeconfigs.of(service) for service in ("watcher", "binder", "ingest")}
        for path in sorted(used):
            asyncio.run(_check_kubeconfig(path))


async def _check_kubeconfig(path: Path) -> None:
    # aiohttp, a fifth of a second, which this process needs for nothing else.
    from kaicore.kube.api.access import configured_access  # noqa: PLC0415

    await configured_access(str(path))()


def check_nats(url: str) -> None:
    """Check that a NATS server answers. Raises ConfigurationError: none does, or the URL is none of NATS."""
    parts = urlsplit(url)
    if parts.scheme not in ("nats", "tls") or not parts.hostname:
        raise ConfigurationError(f"--nats-url {url}: must be nats://HOST:PORT")
    try:
        line = asyncio.run(_nats_greeting(parts.hostname, parts.port or _NATS_PORT))
    except (OSError, TimeoutError) as error:
        problem = "does not answer" if isinstance(error, TimeoutError) else os.strerror(error.errno or 0)
        raise ConfigurationError(f"--nats-url {url}: {problem}") from error
    if not line.startswith(b"INFO "):
        raise ConfigurationError(f"--nats-url {url}: what answers there is no NATS server")


def check_database(url: str) -> None:
    """Check that a Postgres answers and lets us in; the URL, which may hold a password, is not repeated.

    Raises ConfigurationError: none does, or the URL is none of Postgres.
    """
    # Half a second, for who has a database.
    import psycopg  # noqa: PLC0415
    from kaicore.ledger.connections import check_ports, without_login  # noqa: PLC0415

    try:
        check_ports(url)
    except ConfigurationError as error:
        raise ConfigurationError(f"--database-url: {error}") from None
    try:
        psycopg.connect(url, connect_timeout=int(_ANSWER_S)).close()
    except psycopg.Error as error:
        raise ConfigurationError(f"--database-url: {' '.join(without_login(url, error).split())}") from None


async def _nats_greeting(host: str, port: int) -> bytes:
    async with asyncio.timeout(_ANSWER_S):
        return await greeting(host, port)
