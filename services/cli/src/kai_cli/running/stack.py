"""Everything on one machine: servers, clusters and services, in the order in which they need each other."""

import asyncio
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kaicore.errors import ApiStatus, ConfigurationError, KaiError
from kaicore.runtime.access.secret_files import kept_secret
from kaicore.runtime.embedded import EmbeddedNats, EmbeddedPostgres
from kaicore.runtime.embedded.process import EmbeddedServer
from kaicore.runtime.file_lock import FileLock
from kaicore.runtime.fork_server import ForkServer
from kaicore.runtime.supervision import Child, last_lines_of

from kai_cli.running.hints import kubectl
from kai_cli.running.processes import KeptServer, Ports, ProcessSpec, SupervisedProcess, service_spec, sharing
from kai_cli.sources.api_requests import ApiUnreachable, login_address
from kai_cli.sources.paths import DataDirectory, RunningCluster, RunningStack
from kai_cli.upkeep.keys import ApiAccess

# This process forks the others and then supervises them: it imports little, and what few need only for these.
if TYPE_CHECKING:
    from kaicore.rules.engine.config import EngineConfig

    from kai_cli.running.clusters import Kubeconfigs

#: Seconds that a process has to become ready before the start is given up.
_READY_S = 120.0
#: The simulated fleet by default.
DEMO_PROFILE = "demo24"
#: What runs where a cluster is simulated only.
_SIMULATED = tuple(f"kai_{name}.main" for name in ("apiserver", "fleet", "exporter"))
#: What is imported before the processes of an existing cluster are forked, and what those import as they are asked.
IMPORTED_FOR_EXISTING = (
    *(f"kai_{name}.main" for name in ("relay", "projector", "api", "watcher", "scheduler", "binder", "ingest")),
    "kaicore.kube.api.kubeconfig_reader",
    "pydantic.v1",
    "anyio._backends._asyncio",
    "uvicorn.lifespan.off",
    "encodings.idna",
)
#: The same where clusters are simulated.
IMPORTED = (*_SIMULATED, *IMPORTED_FOR_EXISTING)
#: What is imported before the database is migrated.
MIGRATING = ("kai_cli.main", "kaicore.ledger.log.migrate", "alembic.command", "sqlalchemy.dialects.postgresql.psycopg")
#: How often an API that does not answer yet is asked for a login, and seconds between.
_LOGIN_TRIES, _LOGIN_PAUSE_S = 50, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """A cluster to schedule on.

    Attributes:
        name: in the log and on the bus.
        kubeconfigs: of an existing API server; None for a simulated one.
        profile: of the simulated fleet, a name or a file; None for no fleet.
        scheduler_config: YAML file with the shard's settings, None for the defaults.
        exporter: whether placements are observed.
        shadow: names of other schedulers (`NAME,NAME`, `*` for all): decide on their pods and nothing else;
            empty to schedule.
        schedulers: how many share its groups, as replicas of one shard.
    """

    name: str
    kubeconfigs: "Kubeconfigs | None" = None
    profile: str | None = None
    scheduler_config: Path | None = None
    exporter: bool = True
    shadow: str = ""
    schedulers: int = 1


def make_for_all() -> None:
    """Make, before the processes are forked, what each of them would make at its start: 4 MB of each.

    It is what OpenSSL makes when it is used first, for a login to Postgres and for one to NATS, and what Python notes
    about the types of settings.
    """
    import psycopg  # noqa: PLC0415
    from kaicore.ledger.nkeys import Nkey, new_seed  # noqa: PLC0415
    from kaicore.runtime.service.settings import ServiceSettings, read_settings  # noqa: PLC0415

    kinds = [ServiceSettings]
    for settings in kinds:
        kinds += settings.__subclasses__()
        with suppress(KaiError):
            read_settings(settings, [])
    with suppress(KaiError, psycopg.Error):
        Nkey(new_seed()).sign("")
        # It connects to nothing.
        nowhere = psycopg.pq.PGconn.connect_start(b"host=/")
        nowhere.encrypt_password(b"", b"", b"scram-sha-256")
        nowhere.finish()


def sharing_settings(scheduler_config: Path | None) -> "EngineConfig | None":
    """Return a shard's settings where it shares GPUs; None where it does not, as without a file.

    Raises ConfigurationError: naming the file, the field and what is wrong.
    """
    if scheduler_config is None:
        return None
    from kaicore.runtime.shard_settings import read_shard_settings  # noqa: PLC0415

    settings = read_shard_settings(scheduler_config)
    return settings if settings.gpu_sharing else None


def node_secret(home: Path) -> Path:
    """Return the file with the secret of nodes' tokens; it is made once."""
    file = home / "node-token-secret"
    kept_secret(file, lambda: secrets.token_urlsafe(32).encode())
    return file


def _sharing(scheduler_config: Path | None) -> dict[str, str]:
    """Return the binder's settings for shares of GPUs, which the scheduler's own say."""
    if sharing_settings(scheduler_config) is None:
        return {}
    # Simulated kubelets pull no images.
    return {"KAI_GPU_SHARING": "true", "KAI_GPU_RESERVATION_IMAGE": "kai-ledger"}


async def make_reservation_namespace(kubeconfig: str, scheduler_config: Path | None) -> None:
    """Make the namespace of the pods that hold shared GPUs, unless it is there or GPUs are not shared.

    Args:
        scheduler_config: file with the shard's settings, None for the defaults.

    Raises:
        ApiStatus: the API server refuses it.
        ClusterUnavailable: the API server does not answer.
    """
    settings = sharing_settings(scheduler_config)
    if settings is None:
        return
    from kaicore.kube.api.access import configured_access  # noqa: PLC0415
    from kaicore.kube.api.client import KubeClient  # noqa: PLC0415

    async with KubeClient(configured_access(kubeconfig)) as client:
        await client.ensure("/api/v1/namespaces", {"metadata": {"name": settings.gpu_reservation_namespace}})


class Stack:
    """A running stack; start and stop it from one task."""

    def __init__(
        self,
        directory: DataDirectory,
        *,
        lock: FileLock,
        report: Callable[[str], None],
        database_url: str | None = None,
        nats_url: str | None = None,
        log_level: str = "info",
        ha: bool = False,
        compact: bool = False,
        forks: ForkServer | None = None,
        migrating: ForkServer | None = None,
        policies: Path | None = None,
    ) -> None:
        """Args:
        directory: data, logs, kubeconfigs.
        lock: on the directory, held until the stack has stopped; every process inherits it.
        report: gets the lines that an operator should see.
        database_url: of an existing Postgres, instead of the embedded one.
        nats_url: of an existing NATS, instead of the embedded one.
        log_level: of the services.
        ha: whether each service has a second instance.
        compact: whether services that start together share a process.
        forks: has imported `IMPORTED`, and forks the processes.
        migrating: forks what migrates the database, to be rid of its imports afterwards; None to do that here.
        policies: the shards' settings, of which the API takes the code of policies; None for no policies.
        """
        self.directory = directory
        self._policies = {} if policies is None else {"KAI_POLICIES": str(policies)}
        self._forks, self._migrating = forks, migrating
        self._imported, self._log_is_up = asyncio.Event(), asyncio.Event()
        self.clusters: dict[str, RunningCluster] = {}
        self._lock = lock
        self._report = report
        self._given_database_url = database_url
        self._given_nats_url = nats_url
        self._log_level = log_level
        self._ha = ha
        self._compact = compact
        self._ports = Ports(directory.root / "ports.json")
        self._servers: list[EmbeddedServer] = []
        self._groups: list[list[SupervisedProcess]] = []
        #: Those among them that are a cluster's own.
        self._of_clusters: dict[str, list[list[SupervisedProcess]]] = {}
        self._guards: list[KeptServer] = []
        self.database_url = ""
        self.nats_url = ""
        #: By role, and by service, the urls of what is connected to.
        self._database_of: Callable[[str], str] = lambda _: database_url or ""
        self._nats_of: Callable[[str], str] = lambda _: nats_url or ""
        self.api_url = ""
        self._api_key = ""

    @property
    def processes(self) -> tuple[SupervisedProcess, ...]:
        """The supervised processes, in order of start."""
        return tuple(process for group in self._groups for process in group)

    @property
    def servers(self) -> tuple[EmbeddedServer, ...]:
        """The embedded servers."""
        return tuple(self._servers)

    async def start(self) -> None:
        """Start the servers and the services that serve all clusters."""
        self.directory.claim()
        self._report(f"dashboard: {self._address('api')}/ (starting; the address that logs in follows)")
        self._note_running()
        self.directory.logs.mkdir(exist_ok=True)
        if os.geteuid() == 0:
            self.directory.root.chmod(0o755)
        inherit = (self._lock.fd,)
        postgres = EmbeddedPostgres(self.directory.postgres, port=self._ports.port("postgres"), inherit=inherit)
        nats = EmbeddedNats(self.directory.nats, port=self._ports.port("nats"), inherit=inherit)
        starting = []
        if self._given_database_url is None:
            self._servers.append(postgres)
            starting.append(postgres.start())
        if self._given_nats_url is None:
            self._servers.append(nats)
            starting.append(nats.start())
        importing = asyncio.create_task(self._import())
        await asyncio.gather(*starting)
        given = self._given_database_url
        if given is None:
            self._database_of = postgres.url_of
        if self._given_nats_url is None:
            self._nats_of = nats.url_of
        self.database_url = given or postgres.url_of("kai_append")
        self.nats_url = self._given_nats_url or nats.url
        await self._migrate(given or postgres.url_of("kai_migrate"))
        self._note_running()
        self._guards = [KeptServer(server, self._report) for server in self._servers]
        for guard in self._guards:
            guard.start()
        self._report(f"Postgres and NATS are up, data in {self.directory.root}")
        self._log_is_up.set()
        await importing
        reading = {"KAI_DATABASE_URL": self._database_of("kai_read")}
        relay = reading | {"KAI_NATS_URL": self._nats_of("relay")}
        if os.environ.get("KAI_SEAL_KEY_FILE") and not os.environ.get("KAI_SEAL_KEEP_FILE"):
            self.directory.seals.mkdir(exist_ok=True)
            relay["KAI_SEAL_KEEP_FILE"] = str(self.directory.seals / "kept")
        if self._given_nats_url is None:
            relay["KAI_NATS_STORE_DIR"] = str(self.directory.nats)
        projecting = {"KAI_DATABASE_URL": self._database_of("kai_project")}
        access = ApiAccess(self.directory.api)
        self._api_key = access.key()
        answering = access.environment() | self._policies | {"KAI_SERVICES_FILE": str(self.directory.running_file)}
        if self._ha:
            projecting["KAI_NATS_URL"] = self._nats_of("projector")
        await self._run(
            *self._instances("relay", "kai_relay.main", relay),
            *self._instances("projector", "kai_projector.main", projecting),
            *self._instances("api", "kai_api.main", reading | answering, one_port=True),
        )
        self.api_url = self._address("api")
        self._note_running()
        self._report(f"dashboard and API at {await self._dashboard()}")
        self._report(f"logs in {self.directory.logs}")

    async def start_with(self, spec: ClusterSpec) -> RunningCluster:
        """Start everything with a first cluster: what simulates it waits for no server, and its services for the log.

        Raises KaiError: as `start` and `add_cluster`.
        """
        starting = asyncio.create_task(self.start())
        adding = asyncio.create_task(self.add_cluster(spec))
        try:
            return (await asyncio.gather(starting, adding))[1]
        finally:
            for task in (starting, adding):
                task.cancel()
            await asyncio.wait([starting, adding])

    async def _import(self) -> None:
        if self._forks is not None:
            await self._forks.imported()
        self._imported.set()

    async def _migrate(self, url: str) -> None:
        """Bring the log's database to the newest schema. Raises KaiError: that failed."""
        if self._migrating is None:
            from kaicore.ledger.log.migrate import upgrade  # noqa: PLC0415

            await asyncio.to_thread(upgrade, url)
            return
        await self._migrating.imported()
        log_file = self.directory.logs / "migrate.log"
        with log_file.open("wb") as log:
            environment = {**os.environ, "KAI_DATABASE_URL": url, "KAI_PARENT_PID": str(os.getpid())}
            command = (sys.executable, "-m", "kai_cli.main", "migrate")
            child = Child(command, environment=environment, stdout=log, stderr=log, forks=self._migrating)
            code = await child.ended()
        self._migrating.close()
        if code:
            raise KaiError(last_lines_of(log_file, since=0))

    async def _dashboard(self) -> str:
        """Return the address that logs a browser in; an API that is alive may not answer yet, or not just now.

        Where nobody looks at a terminal, what is printed is kept, and an address that logs in would be kept with it.
        """
        if not sys.stdout.isatty():
            return f"{self.api_url}; `kai dashboard` prints the address that logs in"
        for _ in range(_LOGIN_TRIES):
            try:
                address = await asyncio.to_thread(login_address, self.api_url, self._api_key)
            except ApiUnreachable:
                await asyncio.sleep(_LOGIN_PAUSE_S)
            else:
                return f"{address} (once; `kai dashboard` prints another)"
        return f"{self.api_url}, which does not answer yet; `kai dashboard` prints the address that logs in"

    async def start_hub(self) -> None:
        """Start the service that gives dispatches to clusters."""
        access = {"KAI_ACCESS_FILE": str(ApiAccess(self.directory.api).access_file)}
        await self._run(*self._instances("hub", "kai_hub.main", self._bus_and_log("hub") | access | self._policies))

    async def add_cluster(self, spec: ClusterSpec) -> RunningCluster:
        """Start a cluster's processes and wait until all are ready.

        Raises KaiError: one of them does not get ready; the cluster's others are stopped.
        """
        try:
            return await self._start_cluster(spec)
        except KaiError:
            await self.remove_cluster(spec.name)
            raise

    async def remove_cluster(self, name: str) -> None:
        """Stop a cluster's processes; its log stays, and so does what runs on it."""
        self.clusters.pop(name, None)
        for group in reversed(self._of_clusters.pop(name, [])):
            await asyncio.gather(*(process.stop() for process in group))
            self._groups.remove(group)
        self._note_running()

    async def add_scheduler(self, name: str) -> None:
        """Start the hub's side of a cluster with its other processes run elsewhere, by an agent."""
        environment = {"KAI_CLUSTER": name, **self._bus_and_log("scheduler")}
        await self._run(*self._instances(f"{name}-scheduler", "kai_scheduler.main", environment), cluster=name)

    async def _make_reservation_namespace(self, spec: ClusterSpec, cluster: RunningCluster) -> None:
        """Make it; on an existing cluster it may be there, and these rights may not reach so far."""
        try:
            await make_reservation_namespace(cluster.kubeconfig, spec.scheduler_config)
        except ApiStatus as error:
            if spec.kubeconfigs is None:
                raise
            self._report(f"cluster {spec.name}: no namespace for reservation pods, unless it is there already: {error}")

    async def _start_cluster(self, spec: ClusterSpec) -> RunningCluster:
        home = self.directory.cluster(spec.name)
        home.mkdir(parents=True, exist_ok=True)
        if spec.kubeconfigs is None:
            cluster = RunningCluster(str(home / "kubeconfig"), str(home / "service.kubeconfig"))
            await self._run(self._api_server(spec, home, cluster), cluster=spec.name)
        else:
            for_people = str(spec.kubeconfigs.of_people)
            cluster = RunningCluster(for_people, for_people)
        await self._make_reservation_namespace(spec, cluster)
        self._report(f"cluster {spec.name}: {kubectl(cluster.kubeconfig, 'get', 'nodes')}")
        secret = node_secret(home)
        if spec.profile is not None:
            # First the nodes and their zones: a pod that comes before those would be placed as if there were none.
            await self._run(self._fleet(spec, home, cluster), cluster=spec.name)
        await self._log_is_up.wait()
        common = {"KAI_CLUSTER": spec.name, **self._bus_and_log("scheduler")}

        def access(service: str) -> dict[str, str]:
            own = cluster.service_kubeconfig if spec.kubeconfigs is None else spec.kubeconfigs.of(service)
            return {**common, **self._bus_and_log(service), "KAI_KUBECONFIG": str(own)}

        # Of what there is one of, none has to ask whether it leads.
        watcher = {name: value for name, value in access("watcher").items() if self._ha or name != "KAI_NATS_URL"}
        specs = self._instances(f"{spec.name}-watcher", "kai_watcher.main", watcher)
        config = self._config(spec)
        if spec.shadow:
            shadow = common | config | {"KAI_SHADOW": spec.shadow}
            specs += self._instances(f"{spec.name}-shadow", "kai_scheduler.main", shadow)
        else:
            specs += self._instances(
                f"{spec.name}-scheduler",
                "kai_scheduler.main",
                common | config,
                named=spec.schedulers > 1,
                count=spec.schedulers,
            )
            binder = access("binder") | _sharing(spec.scheduler_config)
            specs += self._instances(f"{spec.name}-binder", "kai_binder.main", binder, named=True)
        if spec.exporter:
            ingest = {"KAI_NODE_TOKEN_SECRET_FILE": str(secret)}
            if spec.kubeconfigs is not None and "ingest" in spec.kubeconfigs.own:
                ingest = {"KAI_TOKEN_REVIEW": "true"}
            ingest |= access("ingest")
            specs += self._instances(f"{spec.name}-ingest", "kai_ingest.main", ingest, one_port=True)
            if spec.profile is not None:
                exporter = {
                    "KAI_CLUSTER": spec.name,
                    "KAI_INGEST_URL": self._address(f"{spec.name}-ingest"),
                    "KAI_PODRESOURCES_DIR": str(home / "podresources"),
                    "KAI_NODE_TOKEN_SECRET_FILE": str(secret),
                    # Simulated kubelets write state files with each change.
                    "KAI_QUIET_INTERVAL_S": "300",
                }
                specs.append(self._service(f"{spec.name}-exporter", "kai_exporter.main", exporter))
        await self._run(*specs, cluster=spec.name)
        self.clusters[spec.name] = cluster
        self._note_running()
        return cluster

    def _config(self, spec: ClusterSpec) -> dict[str, str]:
        """Return settings of a cluster's schedulers."""
        alone = {} if self._ha or spec.schedulers > 1 else {"KAI_LEASE_MS": "0", "KAI_STANDBY_MS": "0"}
        return alone if spec.scheduler_config is None else {**alone, "KAI_SCHEDULER_CONFIG": str(spec.scheduler_config)}

    def stop_restarting(self) -> None:
        """Start no process again that ends, as those do that get our signal, too."""
        for process in self.processes:
            process.stop_restarting()

    async def stop(self) -> None:
        """Stop everything, the last started first."""
        self.stop_restarting()
        with suppress(FileNotFoundError):
            self.directory.running_file.unlink()
        for group in reversed(self._groups):
            await asyncio.gather(*(process.stop() for process in group))
        for guard in self._guards:
            await guard.stop()
        self._ports.close()
        for server in reversed(self._servers):
            await server.stop()

    def _note_running(self) -> None:
        self.directory.note_running(
            RunningStack(
                os.getpid(),
                self.database_url,
                self.nats_url,
                self.clusters,
                self.api_url,
                {
                    spec.name: spec.ready_url.removesuffix("/readyz")
                    for process in self.processes
                    for spec in process.spec.services
                },
                self._api_key,
            )
        )

    async def _run(self, *specs: ProcessSpec, cluster: str = "") -> None:
        """Start processes, of a cluster or of all, and wait until all are ready."""
        await self._imported.wait()
        started: list[SupervisedProcess] = []
        self._groups.append(started)
        if cluster:
            self._of_clusters.setdefault(cluster, []).append(started)
        for spec in self._together(specs, cluster) if self._compact else specs:
            log_file = self.directory.logs / f"{spec.name}.log"
            process = SupervisedProcess(
                spec, log_file=log_file, report=self._report, inherit=(self._lock.fd,), forks=self._forks
            )
            started.append(process)
            process.start()
        self._note_running()
        for process in started:
            outcomes = [asyncio.ensure_future(event.wait()) for event in (process.ready, process.hopeless)]
            await asyncio.wait(outcomes, timeout=_READY_S, return_when=asyncio.FIRST_COMPLETED)
            for outcome in outcomes:
                outcome.cancel()
            if process.hopeless.is_set():
                raise ConfigurationError(process.why_hopeless)
            if not process.ready.is_set():
                raise KaiError(f"{process.spec.name} is not ready after {_READY_S:.0f} s; see {process.log_file}")

    def _together(self, specs: Sequence[ProcessSpec], cluster: str) -> list[ProcessSpec]:
        """Return the processes for these: one for services of ours."""
        ours = [spec for spec in specs if spec.command[-1] not in _SIMULATED]
        if len(ours) < 2:
            return list(specs)
        shared = sharing(f"{cluster}-services" if cluster else "services", ours)
        return [shared, *(spec for spec in specs if spec not in ours)]

    def _address(self, name: str) -> str:
        return f"http://127.0.0.1:{self._ports.port(name)}"

    def _bus_and_log(self, service: str) -> dict[str, str]:
        """Return what a service connects to, with its own credentials; servers that were named, as they were named."""
        return {"KAI_DATABASE_URL": self._database_of(f"kai_{service}"), "KAI_NATS_URL": self._nats_of(service)}

    def _instances(
        self,
        name: str,
        module: str,
        environment: Mapping[str, str],
        *,
        one_port: bool = False,
        named: bool = False,
        count: int = 1,
    ) -> list[ProcessSpec]:
        """Return a service, and its other instances where there are to be any.

        Args:
            name: of the service; the second instance has `-2` behind it, and so on.
            one_port: whether all answer at one address: they take connections from one socket.
            named: whether they share work by their names.
            count: how many there are; at least two where each service has a second instance.
        """
        names = [name, *(f"{name}-{number}" for number in range(2, max(count, 2 if self._ha else 1) + 1))]
        return [
            self._service(
                one,
                module,
                {**environment, "KAI_REPLICA": one} if named and len(names) > 1 else environment,
                port=name if one_port else one,
            )
            for one in names
        ]

    def _service(self, name: str, module: str, environment: Mapping[str, str], *, port: str = "") -> ProcessSpec:
        return service_spec(self._ports, name, module, {**environment, "KAI_LOG_LEVEL": self._log_level}, port=port)

    def _api_server(self, spec: ClusterSpec, home: Path, cluster: RunningCluster) -> ProcessSpec:
        name = f"{spec.name}-apiserver"
        environment = {
            "KAI_DATA_DIR": str(home / "apiserver"),
            "KAI_HTTPS_PORT": str(self._ports.port(f"{name}-https")),
            "KAI_KUBECONFIG_OUT": cluster.kubeconfig,
            "KAI_HTTP_KUBECONFIG_OUT": cluster.service_kubeconfig,
            "KAI_DEFAULT_SCHEDULER": "true",
            "KAI_DEMONSTRATION": "true",
        }
        return self._service(name, "kai_apiserver.main", environment)

    def _fleet(self, spec: ClusterSpec, home: Path, cluster: RunningCluster) -> ProcessSpec:
        environment = {
            "KAI_KUBECONFIG": cluster.service_kubeconfig,
            "KAI_PROFILE": str(spec.profile),
            "KAI_DATA_DIR": str(home / "fleet"),
            "KAI_PODRESOURCES_DIR": str(home / "podresources"),
            "KAI_INSTALL_CRDS": "true",
        }
        return self._service(f"{spec.name}-fleet", "kai_fleet.main", environment)
