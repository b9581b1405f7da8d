"""Exporters between a kubelet on its socket and an ingest on Postgres."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kai_exporter.exporter import Exporter, Pace
from kai_exporter.ingest_client import FixedToken, IngestClient, TokenFile, Tokens
from kai_exporter.main import main as exporter_main
from kai_exporter.main import sockets_below
from kai_exporter.metrics import ExporterMetrics
from kai_ingest.main import main as ingest_main
from kaicore.kube.kubelet_checkpoints import CPU_STATE
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events import payloads
from kaicore.rules.model.pod import ContainerKind
from kaicore.runtime.service import Health
from kaicore.runtime.service.node_tokens import EVERY_NODE, node_token
from prometheus_client import CollectorRegistry

from tests.factory import container
from tests.factory import pod as model_pod
from tests.ingest_service import SECRET, Facts, Observations, RunningIngest, running_ingest
from tests.podresources import Kubelet, pod, serving, write_sysfs
from tests.reports import pod_report, report
from tests.service_process import service_process
from tests.state_files import write_state_files

GI = 2**30


@pytest.fixture
async def log(database_url: str) -> AsyncIterator[PostgresLog]:
    async with await PostgresLog.open(database_url, patience_s=5) as opened:
        yield opened


@pytest.fixture
def facts(log: PostgresLog, cluster_name: str) -> Facts:
    return Facts(log, cluster_name)


@pytest.fixture
def observed(log: PostgresLog, cluster_name: str) -> Observations:
    return Observations(log, cluster_name)


@pytest.fixture
async def ingest(log: PostgresLog, cluster_name: str) -> AsyncIterator[RunningIngest]:
    async with running_ingest(log, cluster_name) as running:
        yield running


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    write_sysfs(tmp_path / "n1/sys", {0: "0-3", 1: "4-7"})
    async with serving(Kubelet(), tmp_path / "n1/kubelet.sock") as running:
        yield running


class Running:
    """A running exporter, and what it logs and counts."""

    def __init__(self, exporter: Exporter, health: Health, registry: CollectorRegistry) -> None:
        self.exporter = exporter
        self.health = health
        self.logs: list[Mapping[str, Any]] = []
        self._registry = registry

    def counted(self, name: str, **labels: str) -> float:
        return self._registry.get_sample_value(f"kai_exporter_{name}", labels) or 0.0

    def lines(self, event: str) -> list[str]:
        return [str(line.get("error")) for line in self.logs if line["event"] == event]


class Exporting:
    """Starts exporters of the test's nodes."""

    def __init__(self, url: str, cluster: str, directory: Path) -> None:
        self.url, self.cluster, self.directory = url, cluster, directory

    @asynccontextmanager
    async def __call__(
        self, *nodes: str, tokens: Tokens | None = None, drift_s: float = 60.0, ca_file: Path | None = None
    ) -> AsyncIterator[Running]:
        single = nodes[0] if len(nodes) == 1 else None
        registry, health = CollectorRegistry(), Health("kubelet", "ingest")
        logs: list[Mapping[str, Any]] = []

        def keep(_: Any, method: str, line: Mapping[str, Any]) -> Mapping[str, Any]:
            logs.append({**line, "level": method})
            raise structlog.DropEvent

        client = IngestClient(
            self.url,
            cluster=self.cluster,
            tokens=tokens or FixedToken(node_token(SECRET, cluster=self.cluster, node=single or EVERY_NODE)),
            node=single,
            timeout_s=10,
            ca_file=ca_file,
        )
        exporter = Exporter(
            client,
            pace=Pace(poll_s=0.05, quiet_s=60.0, drift_s=drift_s, linger_s=0.0 if single else 0.02),
            metrics=ExporterMetrics(registry=registry),
            health=health,
            log=structlog.wrap_logger(None, processors=[keep]),
        )
        running = Running(exporter, health, registry)
        running.logs = logs
        for name in nodes:
            self.add(running, name)
        sending = asyncio.ensure_future(exporter.run())
        try:
            yield running
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending
            await exporter.close()
            await client.close()

    def add(self, running: Running, name: str) -> None:
        directory = self.directory / name
        running.exporter.add_node(
            name, socket=directory / "kubelet.sock", sysfs_root=directory / "sys", state_dir=directory
        )


@pytest.fixture
def exporting(ingest: RunningIngest, cluster_name: str, tmp_path: Path) -> Exporting:
    return Exporting(ingest.url, cluster_name, tmp_path)


def seen(name: str, node: str = "n1", uid: str = "", **fields: Any) -> tuple[str, payloads.Payload]:
    one = model_pod(name, cpu=8, memory=8, gpu=4, node_name=node, uid=uid or f"uid-{name}", **fields)
    return f"pod/{one.uid}", payloads.PodObserved(one)


async def test_from_the_kubelet_into_the_log(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations
) -> None:
    await facts.append(seen("a"), seen("b"))
    kubelet.pods = [
        pod("a", cpus=[4, 5], gpus={"g0": [1], "g1": [0, 1], "g2": []}, memory=[("memory", GI, (0, 1))]),
        pod("b"),
    ]
    async with exporting("n1") as running:
        (payload,) = await observed.reach(1)
        (container,) = payload.placement.containers
        assert [(zone.zone, zone.amount) for zone in container.zones] == [
            ("node-1", {"cpu": 2000, "nvidia.com/gpu": 1})
        ]
        assert [(span.zones, span.amount) for span in container.spans] == [
            (("node-0", "node-1"), {"memory": GI, "nvidia.com/gpu": 1})
        ]
        kubelet.pods = [pod("b", cpus=[0]), pod("a", cpus=[0, 1])]
        await observed.reach(3)
        assert sorted((await observed.summary())[1:]) == ["a node-0:cpu=2000", "b node-0:cpu=1000"]
        assert running.health.ready
        assert running.logs == []


async def test_state_files_tell_init_containers_and_a_torn_one_is_done_without(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations
) -> None:
    directory = exporting.directory / "n1"
    setup, main = container("setup", ContainerKind.INIT, cpu=3), container("main", cpu=1)
    for name in ("a", "b"):
        await facts.append(seen(name, containers=(setup, main)))
    write_state_files(directory, {"uid-a": {"setup": "4-6", "main": "4"}})
    kubelet.pods = [pod("a", cpus=[4])]
    async with exporting("n1") as running:
        (payload,) = await observed.reach(1)
        assert (payload.uid, payload.placement.init) == ("uid-a", ("setup",))
        assert [item.zones[0].amount for item in payload.placement.containers] == [{"cpu": 1000}, {"cpu": 2000}]
        (directory / CPU_STATE).write_text('{"policyName":"static","defaultCpuSet":"0","entr')
        kubelet.pods = [pod("a", cpus=[4]), pod("b", cpus=[1])]
        _, payload = await observed.reach(2)
        assert (payload.name, payload.placement.init) == ("b", None)
        (line,) = running.lines("state files are not used, only podresources")
        assert line.startswith(f"Node n1: {directory / CPU_STATE}: content: ")
        assert running.counted("state_file_problems_total") > 0
        write_state_files(directory, {"uid-a": {"setup": "4-6", "main": "4"}, "uid-b": {"main": "1"}})
        *_, payload = await observed.reach(3)
        assert (payload.name, payload.placement.init) == ("b", ())


async def test_what_does_not_change_is_not_sent_again(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations, ingest: RunningIngest
) -> None:
    await facts.append(seen("a"), seen("b"))
    kubelet.pods = [pod("a", cpus=[0])]
    async with exporting("n1"):
        await observed.reach(1)
        await kubelet.asked(5)
        kubelet.pods = [pod("a", cpus=[0]), pod("b", cpus=[1])]
        await observed.reach(2)
    assert ingest.counted("unchanged_pods_total") == 0


async def test_the_drift_pass_mends_what_a_poll_cannot_see(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations
) -> None:
    """A pod is made anew under its name and gets the very same CPUs between two polls."""
    await facts.append(seen("a", uid="u1"))
    kubelet.pods = [pod("a", cpus=[0])]
    async with exporting("n1", drift_s=0.2):
        await observed.reach(1)
        await facts.append(("pod/u1", payloads.PodDeleted("u1", "default", "a")), seen("a", uid="u2"))
        await observed.reach(2)
    assert [payload.uid for payload in await observed.payloads()] == ["u1", "u2"]


async def test_a_pod_that_ingest_does_not_know_yet_is_repeated(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations, ingest: RunningIngest
) -> None:
    kubelet.pods = [pod("a", cpus=[0])]
    async with exporting("n1") as running:
        while not running.counted("pods_total", result="unknown"):
            await kubelet.asked()
        await facts.append(seen("a"))
        await observed.reach(1)
        while running.counted("untold_pods"):
            await kubelet.asked()
    assert len(ingest.lines("observation refused")) == 1


async def test_a_kubelet_that_comes_late_and_goes(
    exporting: Exporting, facts: Facts, observed: Observations, tmp_path: Path
) -> None:
    write_sysfs(tmp_path / "n1/sys", {0: "0-3"})
    await facts.append(seen("a"), seen("b"))
    kubelet, socket = Kubelet(), tmp_path / "n1/kubelet.sock"
    kubelet.pods = [pod("a", cpus=[0])]
    async with exporting("n1") as running:
        async with serving(kubelet, socket):
            await observed.reach(1)
        socket.unlink(missing_ok=True)
        kubelet.pods = [pod("a", cpus=[0]), pod("b", cpus=[1])]
        async with serving(kubelet, socket):
            await observed.reach(2)
            kubelet.error = grpc.StatusCode.RESOURCE_EXHAUSTED
            await kubelet.asked(2)
            assert not running.health.ready
            kubelet.error = None
            kubelet.pods = [pod("b", cpus=[2, 3])]
            await observed.reach(3)
            assert running.health.ready
        lines = running.lines("kubelet cannot be asked")
        assert any("n1/kubelet.sock: RESOURCE_EXHAUSTED: as the test wants it" in line for line in lines)


async def test_an_ingest_that_restarts_gets_what_happened_meanwhile(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations, log: PostgresLog
) -> None:
    await facts.append(seen("a"), seen("b"))
    kubelet.pods = [pod("a", cpus=[0])]
    async with AsyncExitStack() as stack:
        async with running_ingest(log, exporting.cluster) as first:
            exporting.url = first.url
            running = await stack.enter_async_context(exporting("n1"))
            await observed.reach(1)
        kubelet.pods = [pod("a", cpus=[4]), pod("b", cpus=[0])]
        while not running.counted("reports_total", result="failed"):
            await kubelet.asked()
        assert not running.health.ready
        line = running.lines("ingest does not take reports")[-1]
        assert line.startswith(f"{first.url}/v1/clusters/{exporting.cluster}/nodes/n1/placements: ")
        port = int(first.url.rpartition(":")[2])
        await stack.enter_async_context(running_ingest(log, exporting.cluster, port=port))
        await observed.reach(3)
        while not running.health.ready:
            await kubelet.asked()
    assert sorted((await observed.summary())[1:]) == ["a node-1:cpu=1000", "b node-0:cpu=1000"]


async def test_a_token_that_is_renewed(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations, tmp_path: Path
) -> None:
    await facts.append(seen("a"))
    kubelet.pods = [pod("a", cpus=[0])]
    path = tmp_path / "token"
    path.write_text("expired")
    async with exporting("n1", tokens=TokenFile(path)) as running:
        while not running.lines("ingest does not take reports"):
            await kubelet.asked()
        path.write_text(node_token(SECRET, cluster=exporting.cluster, node="n1") + "\n")
        await observed.reach(1)
        assert "HTTP 401" in running.lines("ingest does not take reports")[0]


async def test_over_tls(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations, log: PostgresLog
) -> None:
    await facts.append(seen("a"))
    kubelet.pods = [pod("a", cpus=[0])]
    certificate = exporting.directory / "ingest.pem"
    certificate.write_bytes(_self_signed())
    async with running_ingest(log, exporting.cluster, cert_file=certificate) as ingest:
        exporting.url = ingest.url.replace("http:", "https:")
        async with exporting("n1") as stranger:
            while not stranger.lines("ingest does not take reports"):
                await kubelet.asked()
            assert "certificate verify failed" in stranger.lines("ingest does not take reports")[0]
        async with exporting("n1", ca_file=certificate):
            await observed.reach(1)


def _self_signed() -> bytes:
    """A certificate for 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ingest")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + private


async def test_cpus_that_are_plugged_in(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations, tmp_path: Path
) -> None:
    await facts.append(seen("a"), seen("b"))
    kubelet.pods = [pod("a", cpus=[8, 9]), pod("b", cpus=[0])]
    async with exporting("n1") as running:
        await observed.reach(1)
        assert running.counted("withheld_pods") == 1
        assert "Node n1: Pod default/a: containers[main].cpu_ids: " in running.lines("pod cannot be reported")[0]
        write_sysfs(tmp_path / "n1/sys", {2: "8-9"})
        await observed.reach(2)
        assert running.counted("withheld_pods") == 0
        assert running.counted("problems_total") == 1
    assert await observed.summary() == ["b node-0:cpu=1000", "a node-2:cpu=2000"]


async def test_state_files_tell_when_to_ask(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations, tmp_path: Path
) -> None:
    """Nothing but a change of a state file makes it ask again here; one that comes before its pod does not mislead."""
    await facts.append(*(seen(f"p{index}") for index in range(5)))
    state = tmp_path / "n1/cpu_manager_state"
    state.write_text("")
    async with exporting("n1"):
        for index in range(5):
            state.write_text(f"{index}")
            await kubelet.asked()
            kubelet.pods = [pod(f"p{number}", cpus=[number]) for number in range(index + 1)]
            await observed.reach(index + 1)
    assert await observed.summary() == [f"p{index} node-{index // 4}:cpu=1000" for index in range(5)]


async def test_an_exporter_that_was_replaced_and_lives_on(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations, ingest: RunningIngest
) -> None:
    await facts.append(seen("a"), seen("b"))
    kubelet.pods = [pod("a", cpus=[0])]
    async with exporting("n1") as running:
        await observed.reach(1)
        assert (await ingest.post(report(pod_report("b", node_1={"cpu": 1000}), instance="other")))[0] == 200
        kubelet.pods = [pod("a", cpus=[4])]
        await observed.reach(3)
        assert running.counted("reports_total", result="superseded") == 1
    assert await observed.summary() == ["a node-0:cpu=1000", "b node-1:cpu=1000", "a node-1:cpu=1000"]


async def test_many_nodes_from_one_process(
    exporting: Exporting, facts: Facts, observed: Observations, tmp_path: Path, ingest: RunningIngest
) -> None:
    names = [f"n{index}" for index in range(12)]
    kubelets = {name: Kubelet() for name in names}
    await facts.append(*(seen(f"p-{name}", name) for name in names))
    async with AsyncExitStack() as stack:
        for name, kubelet in kubelets.items():
            write_sysfs(tmp_path / name / "sys", {0: "0-3"})
            kubelet.pods = [pod(f"p-{name}", cpus=[0])]
            await stack.enter_async_context(serving(kubelet, tmp_path / name / "kubelet.sock"))
        assert sorted(sockets_below(tmp_path)) == sorted(names)
        running = await stack.enter_async_context(exporting(*names[:10]))
        await observed.reach(10)
        assert ingest.counted("requests_total", status="200") < 10, "reports travel together"
        for name in names[10:]:
            exporting.add(running, name)
        await observed.reach(12)
        await running.exporter.remove_node("n0")
        kubelets["n1"].pods = [pod("p-n1", cpus=[1, 2])]
        await observed.reach(13)
        assert running.exporter.nodes == frozenset(names[1:])
    assert sorted(await observed.summary()) == sorted(
        [f"p-{name} node-0:cpu=1000" for name in names] + ["p-n1 node-0:cpu=2000"]
    )


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_as_processes(
    kubelet: Kubelet, facts: Facts, observed: Observations, database_url: str, tmp_path: Path
) -> None:
    """Both services as they are started, with a restart of each."""
    await facts.append(seen("a"))
    kubelet.pods = [pod("a", cpus=[0])]
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    common = {
        "KAI_CLUSTER": observed.cluster,
        "KAI_NODE_TOKEN_SECRET_FILE": str(secret),
        "KAI_DATABASE_URL": database_url,
        "KAI_POLL_INTERVAL_S": "0.05",
    }
    fleet = ["--podresources-dir", str(tmp_path)]
    async with service_process("kai_ingest.main", common) as address:
        ingest = ["--ingest-url", f"http://{address}"]
        async with service_process("kai_exporter.main", common, *ingest, *fleet) as health:
            await observed.reach(1)
            async with aiohttp.ClientSession() as session, session.get(f"http://{health}/metrics") as response:
                assert "kai_exporter_nodes 1.0" in await response.text()
        node = ["--node-name", "n1", "--podresources-socket", str(tmp_path / "n1/kubelet.sock")]
        kubelet.pods = [pod("a", cpus=[4])]
        async with service_process(
            "kai_exporter.main", common, *ingest, *node, "--sysfs-root", str(tmp_path / "n1/sys")
        ):
            await observed.reach(2)
    async with service_process("kai_ingest.main", common) as address:
        await facts.append(seen("b"))
        kubelet.pods = [pod("a", cpus=[4]), pod("b", cpus=[5])]
        async with service_process("kai_exporter.main", common, "--ingest-url", f"http://{address}", *fleet):
            await observed.reach(3)
    assert await observed.summary() == ["a node-0:cpu=1000", "a node-1:cpu=1000", "b node-1:cpu=1000"]


@pytest.mark.parametrize(
    ("main", "arguments", "message"),
    [
        (exporter_main, "", "cluster: Field required"),
        (exporter_main, "--cluster c --ingest-url x", "ingest_url: String should match pattern"),
        (exporter_main, "--cluster c --ingest-url http://x --token t", "give either node_name or podresources_dir"),
        (
            exporter_main,
            "--cluster c --ingest-url http://x --node-name n",
            "exactly one of token_file, token and node_token_secret_file",
        ),
        (ingest_main, "--cluster c --database-url x", "either token_review or node_token_secret_file"),
    ],
)
def test_settings_that_cannot_work(
    main: Callable[[], None],
    arguments: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["kai", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
