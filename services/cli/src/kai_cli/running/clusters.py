"""`kai cluster`: which clusters the hub has, from when to when (docs/how-to/several-clusters.md).

Kubeconfigs by service, so that each service reaches the API server with its own account's rights.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kaicore.analysis.ask.answers import HubClusterRow
from kaicore.analysis.ask.hub_rows import hub_cluster_rows
from kaicore.analysis.replay.log_states import folded
from kaicore.analysis.trial.dispatching import HubLog, hub_of
from kaicore.analysis.trial.simulation.kubelets import find_kubelets
from kaicore.errors import ApiStatus, ClusterUnavailable, ConfigurationError
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.rules.events.payloads import (
    ClusterDrained,
    ClusterRegistered,
    ClusterRemoved,
    ClusterResumed,
    QueueBounded,
)
from kaicore.rules.hub.hub_state import HUB, ClusterEntry, HubState, cluster_stream, queue_stream
from kaicore.rules.model.quantity import parse_amount
from kaicore.rules.state.pods.pod_entry import Stage
from kaicore.spelling import did_you_mean

from kai_cli.output import OutputFlag, print_answer, table
from kai_cli.sources.answers import open_answers
from kai_cli.sources.log_access import open_log
from kai_cli.sources.paths import check_cluster_name, data_directory
from kai_cli.sources.source import ANY_HUB, AnswerSource, HubFlags

#: Seconds that an API server has to answer when its cluster is added.
_ANSWER_S = 5.0
#: Names that are shown of several.
_MOST_NAMED = 5


#: The services that talk to the API server; ingest only to have tokens reviewed.
SERVICES = ("watcher", "binder", "ingest")


@dataclass(frozen=True, slots=True)
class Kubeconfigs:
    """The kubeconfigs of an existing cluster.

    Attributes:
        shared: of whatever has none of its own; None where every service has one.
        own: kubeconfigs of single services.
    """

    shared: Path | None
    own: dict[str, Path] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Sequence[str], *, binds: bool = True) -> "Kubeconfigs":
        """Read the values of `--kubeconfig`: `FILE`, or `SERVICE=FILE`.

        Raises ConfigurationError: a file is not there, a service is unknown, named twice, or left without a kubeconfig.

        Args:
            binds: whether there is a binder, which needs one.
        """
        shared: Path | None = None
        own: dict[str, Path] = {}
        for value in given:
            service, equals, file = value.partition("=")
            if not equals or (service not in SERVICES and Path(value).exists()):
                if shared is not None:
                    raise ConfigurationError(f"--kubeconfig: {shared} and {value} are both for all services")
                shared = _existing(value)
            elif service not in SERVICES:
                raise ConfigurationError(f"--kubeconfig {value}: no service {service}, only {', '.join(SERVICES)}")
            elif service in own:
                raise ConfigurationError(f"--kubeconfig: {service} is named twice")
            else:
                own[service] = _existing(file)
        for service in ("watcher", "binder") if binds else ("watcher",):
            if shared is None and service not in own:
                raise ConfigurationError(f"--kubeconfig: none for {service}; give {service}=FILE, or a FILE for all")
        return cls(shared, own)

    def of(self, service: str) -> Path:
        """The kubeconfig of a service."""
        return self.own.get(service) or self.shared or self.own["watcher"]

    @property
    def of_people(self) -> Path:
        """The kubeconfig for `kubectl` and `kai load`: the shared one, else the watcher's, which may only read."""
        return self.shared or self.own["watcher"]


def _existing(path: str) -> Path:
    if not Path(path).is_file():
        raise ConfigurationError(f"--kubeconfig {path}: no such file")
    return Path(path)


async def cluster_add(
    name: str,
    /,
    *,
    kubeconfig: list[str] | None = None,
    simulated: str = "",
    data: list[str] | None = None,
    cost: int = 0,
    source: HubFlags = ANY_HUB,
) -> None:
    """Register a cluster with the hub: `kai up` starts its processes, or an agent in the cluster dials out.

    Repeating the command changes nothing.

    Args:
        name: of the cluster, a DNS label; it is the cluster's in the log, also when it was there before.
        kubeconfig: by which the machine of `kai up` reaches it: FILE, or SERVICE=FILE, repeated; without it an agent
            in the cluster dials out (`kai agent`).
        simulated: simulate it, with this profile of a fleet.
        data: data sets that are near it; give it again for each.
        cost: what a GPU costs there, as you compare clusters; 0 is as cheap as the cheapest.
    """
    check_cluster_name(name)
    if name == HUB:
        raise ConfigurationError(f"{name}: the hub itself is called so in the log; name the cluster otherwise")
    if cost < 0:
        raise ConfigurationError(f"--cost {cost}: must not be negative")
    if kubeconfig and simulated:
        raise ConfigurationError("--simulated: a cluster with a --kubeconfig is not simulated")
    paths: tuple[str, ...] = ()
    if simulated:
        find_kubelets(simulated)
    if kubeconfig:
        paths = absolute_kubeconfigs(kubeconfig)
        await _check_api_server(Kubeconfigs.read(paths))
    registered = ClusterRegistered(
        cluster=name, kubeconfigs=paths, simulated=simulated, data=tuple(sorted(set(data or ()))), cost=cost
    )
    async with _hub(source) as hub:
        new = await register(hub, registered)
    dials_out = not (paths or simulated)
    how = "an agent in the cluster has to dial out: `kai agent`" if dials_out else "`kai up` starts its processes"
    print(f"cluster {name}: {'registered' if new else 'is registered already'}; {how}")


async def register(hub: HubLog, registered: ClusterRegistered) -> bool:
    """Register a cluster; return False where it is there already, and the same.

    Raises ConfigurationError: there is another one of the name.
    """
    before = hub.state.clusters.get(registered.cluster)
    if before is not None and not before.removed:
        if before.registered == registered:
            return False
        raise ConfigurationError(
            f"cluster {registered.cluster}: is registered already, otherwise; remove it first: `kai cluster remove`"
        )
    await hub.append(cluster_stream(registered.cluster), registered, subject=registered.cluster)
    return True


async def cluster_remove(
    name: str, /, *, lost: bool = False, leave_running: bool = False, source: HubFlags = ANY_HUB
) -> None:
    """Take a cluster from the hub: its processes end, its log stays. Refused while anything runs there.

    Args:
        name: of the cluster.
        lost: you vouch that nothing runs there any more, and never will: its machines are off. What had started there
            is started elsewhere, as soon as its lease has run out.
        leave_running: remove it although pods that are none of the hub's run there; they go on.
    """
    async with _hub(source) as hub:
        _entry(hub.state, name)
        with_it = hub.state.of_cluster(name)
        if with_it and not lost:
            named = ", ".join(f"{entry.name} ({entry.stage})" for entry in with_it[:_MOST_NAMED])
            raise ConfigurationError(
                f"cluster {name}: has {len(with_it)} dispatches still: {named}; drain it first (`kai cluster drain`), "
                "or say --lost where nothing runs there any more"
            )
        if not lost and not leave_running:
            state = await folded(hub.log, name)
            running = sorted(
                f"{entry.pod.namespace}/{entry.pod.name}" for entry in state.pods.values() if entry.stage is Stage.BOUND
            )
            if running:
                raise ConfigurationError(
                    f"cluster {name}: runs {len(running)} pods still, such as {running[0]}; --leave-running leaves "
                    "them to themselves"
                )
        await hub.append(cluster_stream(name), ClusterRemoved(cluster=name, lost=lost), subject=name)
    print(f"cluster {name}: removed; its log stays")


async def cluster_drain(name: str, /, *, source: HubFlags = ANY_HUB) -> None:
    """Give a cluster nothing more; what waits there goes elsewhere, what runs there runs to its end.

    Args:
        name: of the cluster.
    """
    async with _hub(source) as hub:
        if _entry(hub.state, name).drained:
            raise ConfigurationError(f"cluster {name}: is being drained already")
        await hub.append(cluster_stream(name), ClusterDrained(cluster=name), subject=name)
        runs = [entry.name for entry in hub.state.of_cluster(name) if entry.started]
    print(f"cluster {name}: is being drained; {len(runs)} dispatches run there to their end")


async def cluster_resume(name: str, /, *, source: HubFlags = ANY_HUB) -> None:
    """Give a cluster that was drained dispatches again.

    Args:
        name: of the cluster.
    """
    async with _hub(source) as hub:
        if not _entry(hub.state, name).drained:
            raise ConfigurationError(f"cluster {name}: is not being drained")
        await hub.append(cluster_stream(name), ClusterResumed(cluster=name), subject=name)
    print(f"cluster {name}: is given dispatches again")


async def cluster_bound(queue: str, /, *limits: str, source: HubFlags = ANY_HUB) -> None:
    """Limit what a queue's work may hold in all clusters together; without LIMITS the limit is removed.

    Args:
        queue: name of the queue.
        limits: RESOURCE=AMOUNT, as queues count them: gpu=16, cpu=200, memory=1Ti.
    """
    amounts = {}
    for limit in limits:
        resource, equals, amount = limit.partition("=")
        if not equals or not resource:
            raise ConfigurationError(f"{limit}: must be RESOURCE=AMOUNT, such as gpu=16")
        amounts[resource] = parse_amount(amount, resource=resource, subject=f"queue {queue}", field=resource)
    async with _hub(source) as hub:
        await hub.append(queue_stream(queue), QueueBounded(queue=queue, limits=amounts), subject=queue)
    print(f"queue {queue}: {'is bounded' if amounts else 'has no bound'} over all clusters")


async def cluster_list(*, source: HubFlags = ANY_HUB, output: OutputFlag = "table") -> None:
    """List the hub's clusters: their state, last sign of life, and work from the hub."""
    async with _hub(source) as hub:
        rows = hub_cluster_rows(hub.state, now=time.time_ns() // 1000)
    none = "the hub has no cluster; `kai cluster add` registers one"
    print_answer(rows, output, lambda: clusters_table(rows) if rows else none)


async def cluster_use(name: str = "", /, *, first: bool = False, data_dir: Path | None = None) -> None:
    """Choose the current cluster, for commands about one cluster that name none; or show it.

    Questions that suit all clusters ask all. $KAI_CLUSTER overrides this choice, and --cluster overrides both.

    Args:
        name: of the cluster; without it the choice is only shown.
        first: choose none: then it is the first by name.
        data_dir: of the `kai up` that is meant; by default .kai, or $KAI_DATA_DIR.
    """
    if name and first:
        raise ConfigurationError(f"{name} --first: name a cluster, or say --first")
    directory = data_directory(data_dir)
    if name or first:
        if name:
            async with open_answers(AnswerSource(data_dir=data_dir, cluster=name)):
                pass  # it is there
        directory.use_cluster(name)
    chosen = directory.current_cluster()
    print(f"current cluster: {chosen or 'the first by name'}")


def clusters_table(rows: list[HubClusterRow]) -> str:
    """Write clusters of the hub for people."""
    head = ("CLUSTER", "STATE", "HEARD", "DISPATCHES", "COST", "DATA")
    return table(
        head,
        [
            (
                row.name,
                row.state,
                f"{row.silent_seconds} s ago" if row.silent_seconds is not None else "never",
                f"{row.running} running, {row.waiting} waiting",
                str(row.cost) if row.cost else "",
                ", ".join(row.data),
            )
            for row in rows
        ],
    )


def absolute_kubeconfigs(given: list[str]) -> tuple[str, ...]:
    """Return the values of `--kubeconfig` with absolute paths, as another process can read them.

    Raises ConfigurationError: they make no sense, or a file is not there.
    """
    read = Kubeconfigs.read(given)
    shared = (str(read.shared.absolute()),) if read.shared is not None else ()
    return (*shared, *(f"{service}={path.absolute()}" for service, path in sorted(read.own.items())))


async def _check_api_server(kubeconfigs: Kubeconfigs) -> None:
    for path in sorted({kubeconfigs.of(service) for service in ("watcher", "binder")}):
        async with KubeClient(configured_access(str(path)), timeout_s=_ANSWER_S) as client:
            try:
                await client.get("/version")
            except ClusterUnavailable as error:
                raise ConfigurationError(f"--kubeconfig {path}: its API server does not answer: {error}") from error
            except ApiStatus as error:
                raise ConfigurationError(f"--kubeconfig {path}: its API server lets us not in: {error}") from error


def _entry(state: HubState, name: str) -> ClusterEntry:
    entry = state.clusters.get(name)
    if entry is None or entry.removed:
        there = [other for other, _ in state.present()]
        removed = " any more" if entry is not None else ""
        raise ConfigurationError(
            f"no cluster {name!r} is registered{removed}{did_you_mean(name, there)}; "
            f"there are: {', '.join(there) or '-'}"
        )
    return entry


@asynccontextmanager
async def _hub(source: HubFlags) -> AsyncIterator[HubLog]:
    async with open_log(source.log) as log, hub_of(log) as hub:
        yield hub
