"""Wrong arguments of a command are reported at once, before any server starts, and nothing is written."""

import asyncio
import io
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kai_cli.running.load import service_kubeconfig
from kai_cli.running.preflight import check_nats
from kai_cli.running.up import up
from kai_cli.sources.paths import DataDirectory, RunningCluster, RunningStack
from kai_cli.trials.simulate import simulate_command
from kaicore.errors import ConfigurationError
from kaicore.kube.api.access import configured_access

from tests.given.servers.servers import scratch_directory


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"cluster": "../../evil"}, "--cluster '../../evil': a cluster's name is a DNS label"),
        ({"cluster": ""}, "a cluster's name is a DNS label"),
        ({"cluster": "a" * 64}, "a cluster's name is a DNS label"),
        ({"profile": "demo42"}, "profile demo42: neither one of bench1000, demo24, mini nor a file: No such file"),
        ({"scheduler_config": Path("/no/such.yaml")}, "/no/such.yaml: No such file or directory"),
        ({"kubeconfig": ["/no/such"]}, "--kubeconfig /no/such: no such file"),
        ({"kubeconfig": [__file__]}, "cannot get access to Kubernetes by"),
        ({"nats_url": "localhost"}, "--nats-url localhost: must be nats://HOST:PORT"),
        ({"nats_url": "nats://127.0.0.1:1"}, "--nats-url nats://127.0.0.1:1: Connection refused"),
        ({"database_url": "postgresql://a:secret@127.0.0.1:1/x"}, "--database-url: connection failed"),
        ({"database_url": "garbage"}, "--database-url: not the url of a Postgres database: missing"),
    ],
)
def test_up_with_something_wrong_says_so_and_leaves_nothing_behind(given: dict[str, object], problem: str) -> None:
    with scratch_directory() as root:
        directory = root / "data"
        with pytest.raises(ConfigurationError, match=re.escape(problem)):
            up(data_dir=directory, **given)  # type: ignore[arg-type]
        assert not directory.exists()


def test_data_directory_that_is_a_file_or_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigurationError, match="file: is no directory"):
            up(data_dir=directory)
    with pytest.raises(ConfigurationError, match="/proc/kai: No such file or directory"):
        up(data_dir=Path("/proc/kai"))


@contextmanager
def listening(greeting: bytes) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(greeting)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"nats://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_nats_url_of_another_server_is_refused_and_of_nats_taken() -> None:
    with listening(b"SSH-2.0-OpenSSH\r\n") as url, pytest.raises(ConfigurationError, match="is no NATS server"):
        check_nats(url)
    with listening(b'INFO {"server_id":"x"}\r\n') as url:
        check_nats(url)


def test_load_on_a_cluster_that_does_not_run_names_those_that_do() -> None:
    with scratch_directory() as root:
        directory = DataDirectory(root)
        directory.claim()
        with directory.lock():
            directory.note_running(RunningStack(os.getpid(), clusters={"demo": RunningCluster("k", "s")}))
            with pytest.raises(ConfigurationError, match=r"no such cluster runs in .*: demo; did you mean 'demo'\?"):
                service_kubeconfig(root, "dem", None)
            assert service_kubeconfig(root, None, None) == Path("s")


def test_simulate_of_an_empty_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b" \n")))
    with pytest.raises(ConfigurationError, match="standard input is empty"):
        simulate_command(Path("-"))


def test_kubeconfig_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigurationError, match="/no/such: no such kubeconfig"):
        asyncio.run(configured_access("/no/such")())
