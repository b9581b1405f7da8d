"""Everything that a cluster needs, as real processes that a test may do anything to.

`kai up` runs one of each service, all on one machine, each with the address of each server. Here relay, watcher,
scheduler, binder and projector are there twice, and between each process and each server is a link
(`tests.chaos.link`). Where network namespaces can be made, the first ones live on one machine and the second ones on
another. Where clocks can be set, all of them go by one clock, and Postgres by another.
"""

import asyncio
import os
import secrets
import shutil
import signal
import sys
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml
from kai_cli.running.processes import KeptServer, Ports, ProcessSpec, SupervisedProcess
from kai_cli.upkeep.webhook_certificates import make_certificate
from kaicore.errors import KaiError
from kaicore.kube.api.access import AccessSource, configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.ledger.log.migrate import upgrade
from kaicore.runtime.embedded import EmbeddedNats, EmbeddedPostgres
from kaicore.yaml_text import load_yaml

from tests.chaos.clocks import Clock
from tests.chaos.link import Link
from tests.chaos.machines import Machine
from tests.given.processes.kai_commands import Forks
from tests.given.servers.servers import lay_out_postgres

CLUSTER = "e2e"

#: Seconds in which all of it must be ready.
_READY_S = 120.0

#: The services: module, the servers that they use, the machine that they are on.
_SERVICES = {
    "relay-a": ("kai_relay.main", ("postgres", "nats"), "a"),
    "relay-b": ("kai_relay.main", ("postgres", "nats"), "b"),
    "watcher-a": ("kai_watcher.main", ("postgres", "nats", "api"), "a"),
    "watcher-b": ("kai_watcher.main", ("postgres", "nats", "api"), "b"),
    "scheduler-a": ("kai_scheduler.main", ("postgres", "nats"), "a"),
    "scheduler-b": ("kai_scheduler.main", ("postgres", "nats"), "b"),
    "binder-a": ("kai_binder.main", ("postgres", "nats", "api"), "a"),
    "binder-b": ("kai_binder.main", ("postgres", "nats", "api"), "b"),
    "ingest": ("kai_ingest.main", ("postgres", "nats", "api"), ""),
    "exporter": ("kai_exporter.main", (), ""),
    "projector-a": ("kai_projector.main", ("postgres", "nats"), "a"),
    "projector-b": ("kai_projector.main", ("postgres", "nats"), "b"),
    "api": ("kai_api.main", ("postgres",), ""),
    "webhook": ("kai_webhook.main", ("postgres",), ""),
}

#: Those among them that nothing else waits for: they read the log, and answer.
READERS = ("projector-a", "projector-b", "api", "webhook")

#: As which role a service comes to the log, where it has none of its own.
_ROLES = {"relay": "kai_read", "api": "kai_read", "webhook": "kai_read", "projector": "kai_project"}

SERVERS = ("postgres", "nats")


class ClockedPostgres(EmbeddedPostgres):
    def __init__(self, directory: Path, clock: Clock | None, *, port: int) -> None:
        super().__init__(directory, port=port)
        self._clock = clock

    def _command(self, port: int) -> list[str]:
        set_ = [f"{key}={value}" for key, value in self._clock.environment.items()] if self._clock else []
        return ["/usr/bin/env", *set_, *super()._command(port)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldOptions:
    """The parts of a world.

    Attributes:
        profile: of the simulated fleet.
        readers: whether projectors, API and webhook are there.
        pairs: whether relay, watcher, scheduler and binder are there twice.
        replicas: whether the two schedulers share the groups; otherwise one stands by for the other.
        clocks: whether clocks can be set.
        machines: whether there are machines with cables that can be pulled.
        shares: whether GPUs are shared.
    """

    profile: Path
    readers: bool = False
    pairs: bool = True
    replicas: bool = False
    clocks: bool = False
    machines: bool = False
    shares: bool = False


class World:
    """The processes; `async with` starts and ends them.

    Attributes:
        links: by client and server.
        processes: by name.
        clocks: `machine` and `postgres`, where they can be set.
        machines: `a` and `b`, where there are any.
        said: what the supervisors had to say.
    """

    def __init__(self, root: Path, options: WorldOptions) -> None:
        self.root = root
        self.options = options
        self.links: dict[tuple[str, str], Link] = {}
        self.processes: dict[str, SupervisedProcess] = {}
        self.clocks: dict[str, Clock] = {}
        self.machines: dict[str, Machine] = {}
        self.said: list[str] = []
        self._ports = Ports(root / "ports.json")
        self._stack = AsyncExitStack()
        self._namespaces = ExitStack()
        self._guards: dict[str, KeptServer] = {}
        self._admin: AccessSource | None = None
        self._forks: Forks | None = None

    # --- start and end --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.processes.values():
            self._wake(process.pid)
        for names in (["exporter"], list(_SERVICES), ["fleet"], ["apiserver"]):
            await self.end(*names)
        for guard in self._guards.values():
            await guard.stop()
        for server in (self.nats, self.postgres):
            self._wake(server.pid)
            await server.kill()
        await self._stack.aclose()
        self._namespaces.close()
        self._ports.close()

    async def _start(self) -> None:
        self.root.chmod(0o755)
        (self.root / "logs").mkdir()
        # What goes by a clock of its own has it from its start.
        self._forks = None if self.options.clocks else self._namespaces.enter_context(Forks())
        if self.options.clocks:
            self.clocks = {name: Clock(self.root / f"clock-{name}") for name in ("machine", "postgres")}
        if self.options.machines:
            for number, name in enumerate("ab"):
                self.machines[name] = self._namespaces.enter_context(Machine(name, number))
        self.postgres = ClockedPostgres(
            self.root / "postgres", self.clocks.get("postgres"), port=self._ports.port("postgres")
        )
        self.nats = EmbeddedNats(self.root / "nats", port=self._ports.port("nats"))
        await asyncio.to_thread(lay_out_postgres, self.root / "postgres")
        await asyncio.gather(self.postgres.start(), self.nats.start())
        await asyncio.to_thread(upgrade, self.postgres.url_of("kai_migrate"))
        for name, server in (("postgres", self.postgres), ("nats", self.nats)):
            self._guards[name] = KeptServer(server, self.said.append)
            self._guards[name].start()
        kubeconfig = self.root / "admin.kubeconfig"
        await self._run("apiserver", "kai_apiserver.main", self._api_server(kubeconfig))
        self._admin = configured_access(str(kubeconfig))
        secret = self.root / "node-token-secret"
        secret.write_text(secrets.token_urlsafe(32))
        await self._run("fleet", "kai_fleet.main", await self._fleet())
        names = [
            name
            for name in _SERVICES
            if (self.options.pairs or not name.endswith("-b")) and (self.options.readers or name not in READERS)
        ]
        environments = {name: await self._service(name) for name in names}
        await asyncio.gather(*(self._run(name, _SERVICES[name][0], environments[name]) for name in names))

    def _api_server(self, kubeconfig: Path) -> dict[str, str]:
        return {
            "KAI_DATA_DIR": str(self.root / "apiserver"),
            "KAI_HTTPS": "false",
            "KAI_HTTP_KUBECONFIG_OUT": str(kubeconfig),
            "KAI_DEMONSTRATION": "true",
        }

    async def _fleet(self) -> dict[str, str]:
        return {
            "KAI_KUBECONFIG": await self._to_api("fleet"),
            "KAI_PROFILE": str(self.options.profile),
            "KAI_DATA_DIR": str(self.root / "fleet"),
            "KAI_PODRESOURCES_DIR": str(self.root / "podresources"),
            "KAI_INSTALL_CRDS": "true",
        }

    async def _service(self, name: str) -> dict[str, str]:
        _, servers, _ = _SERVICES[name]
        kind = name.partition("-")[0]
        environment = {"KAI_CLUSTER": CLUSTER, "KAI_CLUSTERS": CLUSTER}
        if self.options.readers and kind in ("watcher", "scheduler", "binder", "projector"):
            environment["KAI_CHECK_S"] = "20"
        if "postgres" in servers:
            url = self.postgres.url_of(_ROLES.get(kind, f"kai_{kind}"))
            environment["KAI_DATABASE_URL"] = await self._to(name, "postgres", url)
        if "nats" in servers:
            environment["KAI_NATS_URL"] = await self._to(name, "nats", self.nats.url_of(kind))
        if "api" in servers:
            environment["KAI_KUBECONFIG"] = await self._to_api(name)
        if self.options.shares and kind == "scheduler":
            config = self.root / "scheduler.yaml"
            config.write_text("gpu_sharing: true\n")
            environment["KAI_SCHEDULER_CONFIG"] = str(config)
        if self.options.shares and kind == "binder":
            # Simulated kubelets pull no images.
            environment |= {"KAI_GPU_SHARING": "true", "KAI_GPU_RESERVATION_IMAGE": "kai-ledger"}
        if kind == "scheduler" and self.options.replicas:
            environment["KAI_REPLICA"] = name
        if kind in ("ingest", "exporter"):
            environment["KAI_NODE_TOKEN_SECRET_FILE"] = str(self.root / "node-token-secret")
        if kind == "exporter":
            environment["KAI_INGEST_URL"] = f"http://127.0.0.1:{self._ports.port('ingest')}"
            environment["KAI_PODRESOURCES_DIR"] = str(self.root / "podresources")
        if kind == "api":
            environment["KAI_ANONYMOUS"] = "loopback"
        if kind == "webhook":
            for file, content in make_certificate(["localhost"], days=1).items():
                (self.root / file).write_bytes(content)
            environment |= {"KAI_TLS_CERT_FILE": f"{self.root}/tls.crt", "KAI_TLS_KEY_FILE": f"{self.root}/tls.key"}
        return environment

    async def _to(self, client: str, server: str, url: str) -> str:
        machine = self.machines.get(_SERVICES[client][2]) if client in _SERVICES else None
        link = Link(url, listen=machine.host if machine is not None else "127.0.0.1")
        self.links[client, server] = await self._stack.enter_async_context(link)
        return link.url

    async def _to_api(self, client: str) -> str:
        config = load_yaml((self.root / "admin.kubeconfig").read_text())
        (cluster,) = config["clusters"]
        cluster["cluster"]["server"] = await self._to(client, "api", cluster["cluster"]["server"])
        path = self.root / f"{client}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return str(path)

    async def to_log(self, client: str) -> str:
        """Give a client of the log, which is no process of this world, its way there."""
        return await self._to(client, "postgres", self.postgres.url_of("kai_append"))

    async def _run(self, name: str, module: str, environment: dict[str, str]) -> None:
        command = (sys.executable, "-m", module)
        machine = self.machines.get(_SERVICES[name][2]) if name in _SERVICES else None
        if machine is not None:
            command = machine.command(*command)
        clock = self.clocks["machine"].environment if self.clocks else {}
        spec = ProcessSpec(
            name=name,
            command=command,
            ready_url=f"http://127.0.0.1:{self._ports.port(name)}/readyz",
            environment={**environment, **clock, "KAI_LOG_LEVEL": "info"},
            listening=self._ports.listen(name),
        )
        process = SupervisedProcess(
            spec, log_file=self.root / "logs" / f"{name}.log", report=self.said.append, forks=self._forks
        )
        self.processes[name] = process
        process.start()
        # The webhook speaks HTTPS, with a certificate that its supervisor does not know.
        standby = name.endswith("-b") or name == "webhook"
        try:
            async with asyncio.timeout(_READY_S):
                # One that stands by for another may not call itself ready.
                while not process.ready.is_set() and not (standby and process.pid is not None):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise KaiError(f"{name} is not ready: {process.log_file.read_text()[-3000:]}") from None

    # --- what can be done to it -----------------------------------------------------------------------------------

    def address(self, name: str, path: str) -> str:
        """The address where a service answers."""
        return f"{'https' if name == 'webhook' else 'http'}://127.0.0.1:{self._ports.port(name)}/{path}"

    def pid_of(self, name: str) -> int | None:
        """The process id of a service or server; None while it does not run."""
        if name in SERVERS:
            return (self.postgres if name == "postgres" else self.nats).pid
        process = self.processes.get(name)
        return process.pid if process is not None else None

    def send(self, name: str, number: signal.Signals) -> bool:
        pid = self.pid_of(name)
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False

    async def end(self, *names: str) -> None:
        """End services for good, in order."""
        there = [self.processes.pop(name) for name in names if name in self.processes]
        await asyncio.gather(*(process.stop() for process in there))

    def wipe_nats(self) -> None:
        """Delete NATS' store, whether or not it runs."""
        shutil.rmtree(self.root / "nats" / "data", ignore_errors=True)

    def client(self) -> KubeClient:
        """A client with the administrator's rights, on a way of its own."""
        assert self._admin is not None
        return KubeClient(self._admin)

    async def control_fleet(self, node: str, what: str, body: dict[str, Any]) -> bool:
        """Do something to a node of the fleet; return whether it was done."""
        assert self._admin is not None
        headers = await (await self._admin()).headers()
        url = self.address("fleet", f"simulator/nodes/{node}/{what}")
        timeout = aiohttp.ClientTimeout(total=5)
        with suppress(aiohttp.ClientError, TimeoutError):
            session = aiohttp.ClientSession(headers=headers, timeout=timeout)
            async with session, session.post(url, json=body) as response:
                return response.status == 200
        return False

    @staticmethod
    def _wake(pid: int | None) -> None:
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
