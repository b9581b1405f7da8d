"""Exporters with tokens and TLS, of many nodes, replaced, and as processes."""

import socket
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kai_exporter.ingest_client import token_in
from kai_exporter.main import main as exporter_main
from kai_exporter.main import sockets_below
from kai_ingest.main import main as ingest_main
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.runtime.access.node_tokens import node_token

from tests.given.cluster.podresources import Kubelet, pod, serving, write_sysfs
from tests.given.cluster.state_files import write_state_files
from tests.given.processes.exporting import Exporting, seen
from tests.given.processes.ingest_service import SECRET, Facts, Observations, RunningIngest, running_ingest
from tests.given.processes.kai_commands import talking
from tests.given.processes.service_process import service_process
from tests.given.work.reports import pod_report, report


async def test_a_token_that_is_renewed(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations, tmp_path: Path
) -> None:
    await facts.append(seen("a"))
    kubelet.pods = [pod("a", cpus=[0])]
    path = tmp_path / "token"
    path.write_text("expired")
    async with exporting("n1", token=partial(token_in, path)) as running:
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


async def test_cpus_that_are_plugged_in_are_reported(
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


async def test_an_admission_is_reported_when_the_state_files_change_and_not_at_the_next_look(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations, tmp_path: Path
) -> None:
    cpus = {f"uid-{name}": {"main": str(cpu)} for cpu, name in enumerate("abc")}
    await facts.append(*(seen(name) for name in "abc"))
    write_state_files(tmp_path / "n1", {})
    async with exporting("n1", poll_s=3600):
        await kubelet.asked()
        for count, uid in enumerate(cpus, 1):
            kubelet.pods = [pod(name, cpus=[cpu]) for cpu, name in enumerate("abc"[:count])]
            write_state_files(tmp_path / "n1", {known: cpus[known] for known in list(cpus)[:count]})
            assert (await observed.reach(count))[-1].uid == uid


async def test_reports_of_an_exporter_that_was_replaced_are_ignored(
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


async def test_one_process_reports_many_nodes(
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
async def test_exporter_and_ingest_work_as_processes(
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


def test_an_exporter_without_its_port_names_it_and_does_not_begin() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        node = ("--cluster", "c", "--ingest-url", "http://x", "--node-name", "n", "--token", "t")
        process, said = talking("kai_exporter.main", *node, "--http-host", "127.0.0.1", "--http-port", port)
        with said:
            lines = said.read()
        assert process.wait(60) != 0
    assert port in lines
    assert "never awaited" not in lines


@pytest.mark.parametrize(
    ("main", "arguments", "message"),
    [
        (exporter_main, "", "--cluster or $KAI_CLUSTER: is required"),
        (exporter_main, "--cluster c --ingest-url x", "--ingest-url: Expected `str` matching regex"),
        (exporter_main, "--cluster c --ingest-url http://x --token t", "give either node_name or podresources_dir"),
        (
            exporter_main,
            "--cluster c --ingest-url http://x --node-name n",
            "exactly one of token_file, token and node_token_secret_file",
        ),
        (ingest_main, "--cluster c --database-url x", "either token_review or node_token_secret_file"),
    ],
)
def test_settings_that_cannot_work_are_refused(
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
