"""A database url without a valid port ends every service that has a log, with a clear error and a non-zero status."""

import os
import sys
from importlib.metadata import distribution
from typing import Any

import pytest
import structlog
from kai_cli.upkeep.webhook_certificates import make_certificate
from kaicore.runtime.service import process

#: Programs that are given no log: the command line says it by itself, one reads a kubelet, one an API server.
WITHOUT_LOG = {"kai", "kubectl-kai", "kai-exporter", "kai-gpu-reservation", "kai-operator"}
SERVICES = sorted(
    script.name
    for script in distribution("kai-ledger").entry_points
    if script.group == "console_scripts" and script.name not in WITHOUT_LOG
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A service's settings, of which each takes what it knows."""
    directory = tmp_path_factory.mktemp("files")
    for name, content in make_certificate(["localhost"], days=1).items():
        (directory / name).write_bytes(content)
    secret = directory / "secret"
    secret.write_text("x" * 64)
    secret.chmod(0o600)
    return {
        "KAI_DATABASE_URL": "postgresql://kai:s3cret@127.0.0.1:5432a/kai",
        "KAI_NATS_URL": "nats://127.0.0.1:1",
        "KAI_CLUSTER": "c",
        "KAI_ANONYMOUS": "loopback",
        "KAI_NODE_TOKEN_SECRET_FILE": str(secret),
        "KAI_TLS_CERT_FILE": str(directory / "tls.crt"),
        "KAI_TLS_KEY_FILE": str(directory / "tls.key"),
    }


@pytest.fixture
def errors(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The errors that a service logs, which has these settings and leaves this process's logging as it is."""
    said: list[str] = []

    def keep(_logger: Any, method: str, line: Any) -> Any:
        # It would be said for ever.
        assert line["event"] != "log is not there yet", line
        if method == "error":
            said.append(line["error"])
        raise structlog.DropEvent

    for name in [name for name in os.environ if name.startswith("KAI_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(process, "configure_logging", lambda *_, **__: None)
    monkeypatch.setattr(process, "get_logger", lambda: structlog.wrap_logger(None, processors=[keep]))
    return said


@pytest.mark.parametrize("service", SERVICES)
def test_a_port_that_is_no_number_ends_the_service(
    service: str, errors: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [service])
    (script,) = distribution("kai-ledger").entry_points.select(group="console_scripts", name=service)
    with pytest.raises(SystemExit) as ended:
        script.load()()
    assert ended.value.code == 2, "settings that cannot work"
    assert errors == ['not the url of a Postgres database: port "5432a" is no number from 1 to 65535']
