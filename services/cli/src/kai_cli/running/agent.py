"""`kai agent`: a cluster's own processes, run beside it; they dial out, and nothing dials in.

The agent is no protocol of its own. Watcher, binder and ingest open connections to the hub's Postgres and NATS, and to
the API server next to them. So the cluster needs no address that the hub can reach, and the hub no kubeconfig.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from kaicore.analysis.trial.dispatching import hub_of
from kaicore.errors import ConfigurationError, KaiError
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.payloads import ClusterRegistered

from kai_cli.running.clusters import Kubeconfigs, absolute_kubeconfigs, register
from kai_cli.running.preflight import check_database, check_nats
from kai_cli.running.processes import Ports, ProcessSpec, SupervisedProcess, service_spec
from kai_cli.running.stack import node_secret
from kai_cli.running.up import interruption, print_line
from kai_cli.sources.paths import check_cluster_name, data_directory


def agent(
    cluster: str,
    /,
    *,
    database_url: str,
    nats_url: str,
    kubeconfig: list[str] | None = None,
    data: list[str] | None = None,
    cost: int = 0,
    data_dir: Path | None = None,
) -> None:
    """Run a cluster's watcher, binder and ingest beside it: they dial out to the hub's Postgres and NATS.

    Registers the cluster where it is not yet. In Kubernetes the three are deployments of their own, with the same
    settings (docs/how-to/several-clusters.md).

    Args:
        cluster: its name in the log.
        database_url: the hub's Postgres, as the role of this cluster (deploy/postgres/spoke-role.sql).
        nats_url: the hub's NATS.
        kubeconfig: of the cluster's API server: FILE, or SERVICE=FILE, repeated; by default the pod's service account.
        data: data sets that are near it; give it again for each.
        cost: what a GPU costs there, as you compare clusters.
        data_dir: for logs and the exporters' secret; by default .kai, or $KAI_DATA_DIR.
    """
    check_cluster_name(cluster)
    check_database(database_url)
    check_nats(nats_url)
    paths = absolute_kubeconfigs(kubeconfig) if kubeconfig else ()
    directory = data_directory(data_dir)
    registered = ClusterRegistered(cluster=cluster, data=tuple(sorted(set(data or ()))), cost=cost)
    common = {"KAI_CLUSTER": cluster, "KAI_DATABASE_URL": database_url, "KAI_NATS_URL": nats_url}
    with directory.lock():
        directory.claim()
        directory.logs.mkdir(exist_ok=True)
        asyncio.run(_agent(directory.root, registered, common, Kubeconfigs.read(paths) if paths else None))


async def _agent(
    root: Path, registered: ClusterRegistered, common: Mapping[str, str], kubeconfigs: Kubeconfigs | None
) -> None:
    async with await PostgresLog.open(common["KAI_DATABASE_URL"], application="kai-agent") as log, hub_of(log) as hub:
        entry = hub.state.clusters.get(registered.cluster)
        if entry is not None and entry.removed:
            raise ConfigurationError(
                f"cluster {registered.cluster}: was removed from the hub; register it again: `kai cluster add`"
            )
        if entry is None:
            await register(hub, registered)
    interrupted = interruption()
    ports = Ports(root / "ports.json")
    processes = [
        SupervisedProcess(spec, log_file=root / "logs" / f"{spec.name}.log", report=print_line)
        for spec in _specs(root, ports, registered.cluster, common, kubeconfigs)
    ]
    try:
        for process in processes:
            process.start()
        print_line(f"cluster {registered.cluster}: watcher, binder and ingest dial out; logs in {root / 'logs'}")
        print_line("Ctrl-C stops it.")
        ends = [interrupted, *(process.hopeless for process in processes)]
        waiting = [asyncio.create_task(event.wait()) for event in ends]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        for process in processes:
            if process.hopeless.is_set():
                raise KaiError(process.why_hopeless)
    finally:
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*(process.stop() for process in processes))
        ports.close()


def _specs(
    root: Path, ports: Ports, cluster: str, common: Mapping[str, str], kubeconfigs: Kubeconfigs | None
) -> list[ProcessSpec]:
    secret = node_secret(root)
    specs = []
    for service in ("watcher", "binder", "ingest"):
        environment = dict(common)
        if kubeconfigs is not None:
            environment["KAI_KUBECONFIG"] = str(kubeconfigs.of(service))
        if service == "ingest":
            environment["KAI_NODE_TOKEN_SECRET_FILE"] = str(secret)
        specs.append(service_spec(ports, f"{cluster}-{service}", f"kai_{service}.main", environment))
    return specs
