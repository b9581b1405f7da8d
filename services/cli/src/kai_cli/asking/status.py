"""`kai status`: what runs, whether it is well, and how far behind the log it is."""

import asyncio
import re
import socket
import sys
import urllib.parse
from collections import Counter
from collections.abc import Iterator

from kaicore.analysis.ask.answers import ClusterRow
from kaicore.analysis.json_spelling import Answer
from kaicore.errors import ConfigurationError, KaiError
from kaicore.runtime.asked_health import ask_health, ask_path

from kai_cli.output import OutputFlag, print_answer, rows_text, table
from kai_cli.sources.answers import ApiAnswers
from kai_cli.sources.api_requests import login_address
from kai_cli.sources.paths import RunningStack, data_directory
from kai_cli.sources.source import ANY_ANSWER, AnswerSource, SourceFlags

#: Seconds in which a service must answer.
_ANSWER_S = 3.0
#: Metrics that tell how far in the log a service has come, of the clusters that it serves.
_POSITION = re.compile(
    r'^kai_(?:feed|relay|api|ingest)_position(?:\{cluster="(?P<cluster>[^"]*)"\})? (?P<position>[0-9.e+]+)$',
    re.MULTILINE,
)

#: Metrics that tell how work is shared.
_SHARE = re.compile(
    r'^(?P<name>kai_shard_replicas|kai_pending_pods|kai_binder_live)\{(?:shard|cluster)="(?P<label>[^"]*)"\} '
    r"(?P<value>[0-9.e+]+)$",
    re.MULTILINE,
)

#: Of schedulers: reserved starts of the cluster, by what became of them.
_PROMISES = re.compile(
    r'^kai_promised_starts_total\{outcome="(?P<outcome>[^"]*)",reason="[^"]*"\} (?P<value>[0-9.e+]+)$', re.MULTILINE
)


class ServiceStatus(Answer, frozen=True, kw_only=True):
    """A service's status.

    Attributes:
        status: ready, not ready, or no answer.
        lag: by cluster, how many events of the log it has not read yet.
        details: what it waits for, and what it warns of, such as policies that cycles leave out.
        share: which part of the work it has, where several share it; empty where it has all of it.
        promises: of a scheduler, how well reserved starts of its cluster were kept; empty where none was promised.
    """

    name: str
    status: str
    address: str
    lag: dict[str, int]
    details: str
    share: str = ""
    promises: str = ""


class StackStatus(Answer, frozen=True, kw_only=True):
    """The running processes.

    Attributes:
        data_dir: where its data is; empty for an API elsewhere.
        pid: of `kai up`; 0 where none runs.
        ready: whether every service is, and a cluster is up.
        starting: whether `kai up` runs and no cluster is up yet.
        left_over: whether processes use the directory of a `kai up` that was killed, or that `running.json` does not
            tell of.
    """

    data_dir: str
    pid: int
    ready: bool
    starting: bool
    api: str
    services: list[ServiceStatus]
    clusters: list[ClusterRow]
    left_over: bool = False


def status(*, source: SourceFlags = ANY_ANSWER, output: OutputFlag = "table") -> int:
    """Show what runs, whether it is ready, its lag behind the log, and the end of each log.

    Exit 1 where anything is not ready, or nothing runs.

    Args:
        source: which `kai up` is meant, or which API.
    """
    status = asyncio.run(stack_status(source))
    print_answer(status, output, lambda: "\n".join(_lines(status)))
    return 0 if status.ready else 1


async def stack_status(source: AnswerSource) -> StackStatus:
    """Return what runs, and whether it is ready. Raises ConfigurationError: a file is named, which has no services."""
    if source.file is not None:
        raise ConfigurationError("--file: status is about running services; an exported log has none")
    directory = data_directory(source.data_dir)
    local = not source.api_named and source.database() is None
    running = directory.running() if local else None
    left_over = local and running is None and directory.in_use()
    # What a killed `kai up` has noted says where its processes answer, as long as they do.
    noted = directory.noted() if left_over else running
    api = source.api() or ""
    clusters: list[ClusterRow] = []
    if api:
        try:
            clusters = [
                row
                for row in await ApiAnswers(api, source.api_token()).clusters()
                if source.cluster in (None, row.name)
            ]
        except KaiError as error:
            sys.stderr.write(f"kai: {error}\n")
    addresses = noted.services if noted is not None else {"api": api} if api else {}
    heads = {row.name: row.position for row in clusters}
    services = await asyncio.gather(
        *(asyncio.to_thread(_service, name, address, heads) for name, address in addresses.items())
    )
    servers = [] if noted is None else await asyncio.gather(*(asyncio.to_thread(_server, *one) for one in _urls(noted)))
    ready = bool(services) and all(item.status == "ready" for item in (*servers, *services))
    # A cluster is named when all of it has been ready once.
    starting = running is not None and not running.clusters
    return StackStatus(
        data_dir="" if source.api_named else str(directory.root),
        pid=0 if running is None else running.pid,
        ready=ready and not starting and not left_over,
        starting=starting,
        api=api,
        services=[*servers, *services],
        clusters=clusters,
        left_over=left_over,
    )


def _urls(running: RunningStack) -> list[tuple[str, str]]:
    return [("postgres", running.database_url), ("nats", running.nats_url)]


def _server(name: str, url: str) -> ServiceStatus:
    """Look whether something listens; the services' readiness tells whether it is any good."""
    parts = urllib.parse.urlsplit(url)
    host, port = parts.hostname or "", parts.port or (5432 if name == "postgres" else 4222)
    try:
        socket.create_connection((host, port), timeout=_ANSWER_S).close()
    except OSError as error:
        status, details = ("no answer", str(error)) if host else ("not ready", "starting")
    else:
        status, details = "ready", ""
    return ServiceStatus(name=name, status=status, address=f"{host}:{port}" if host else "", lag={}, details=details)


def _service(name: str, address: str, heads: dict[str, int]) -> ServiceStatus:
    status, details = ask_health(address)
    _, metrics = ask_path(f"{address}/metrics") if status != "no answer" else (0, "")
    # Ingest serves one cluster, and does not say which: the one that it is called after.
    lag = {
        cluster: max(0, heads[cluster] - int(float(match["position"])))
        for match in _POSITION.finditer(metrics)
        if (cluster := match["cluster"] or name.removesuffix("-ingest")) in heads
    }
    return ServiceStatus(
        name=name,
        status=status,
        address=address,
        lag=lag,
        details=details,
        share=share_of(metrics),
        promises=promises_of(metrics),
    )


def share_of(metrics: str) -> str:
    """Return which part of the work a service has, by its metrics; empty where it has all of it."""
    figures = {(one["name"], one["label"]): int(float(one["value"])) for one in _SHARE.finditer(metrics)}
    for (name, label), value in figures.items():
        if name == "kai_shard_replicas":
            pods = figures.get(("kai_pending_pods", label), 0)
            return f"{label}, of {value} replicas; its last cycle left {pods} pods"
        if name == "kai_binder_live" and value > 1:
            return f"of {value} binders"
    return ""


def promises_of(metrics: str) -> str:
    """Return how well reserved starts were kept, by the metrics of a scheduler; empty where none was promised."""
    counts = Counter[str]()
    for one in _PROMISES.finditer(metrics):
        counts[one["outcome"]] += int(float(one["value"]))
    if not counts["made"]:
        return ""
    timed = counts["kept"] + counts["late"]
    kept = f"{counts['kept']} of {timed} started in time" if timed else "none with a time has come to its start"
    return f"reserved starts: {counts['made']} promised, {kept}, {counts['given up']} given up"


def _lines(status: StackStatus) -> Iterator[str]:
    if status.left_over:
        yield (
            f"{status.data_dir}: `running.json` names no run of `kai up`, but processes of one still use it; "
            "they end by themselves"
        )
    elif not status.services:
        yield f"nothing runs in {status.data_dir}"
    else:
        where = f"{status.data_dir}, process {status.pid}" if status.pid else status.api
        yield f"{where}: {'all ready' if status.ready else 'something is not ready'}"
    if not status.services:
        return
    if status.starting:
        yield "no cluster is up yet"
    rows = [
        (item.name, item.status, _lag(item), item.address.removeprefix("http://"), item.details or item.share)
        for item in status.services
    ]
    yield table(("SERVICE", "STATUS", "LAG", "ADDRESS", "REMARKS"), rows)
    # Each scheduler has the figures of its whole cluster.
    promises = {item.name.partition("-scheduler")[0]: item.promises for item in status.services if item.promises}
    yield from (f"{name}: {text}" for name, text in sorted(promises.items()))
    if status.clusters:
        yield rows_text("clusters", status.clusters)


def _lag(item: ServiceStatus) -> str:
    if len(item.lag) == 1:
        return str(*item.lag.values())
    return ", ".join(f"{cluster} {events}" for cluster, events in sorted(item.lag.items()))


def dashboard(*, source: SourceFlags = ANY_ANSWER) -> None:
    """Print an address at which a browser is logged in to the API: once, within a day.

    Args:
        source: which API.
    """
    address = source.api()
    if address is None:
        raise ConfigurationError("no API runs here: start `kai up`, or name --api-url")
    token = source.api_token()
    if not token:
        raise ConfigurationError("no key is named for the login: --token or $KAI_API_TOKEN")
    try:
        print(login_address(address, token))
    except KaiError as error:
        raise ConfigurationError(str(error)) from error
