"""`kai status` and `kai logs` where not all is well, where work is shared, and where starts are reserved."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from kai_cli.asking.service_logs import logs
from kai_cli.asking.status import promises_of, share_of, status
from kai_cli.sources.paths import DataDirectory, RunningCluster, RunningStack
from kai_cli.sources.source import AnswerSource
from kai_scheduler.metrics import SchedulerMetrics
from kaicore.errors import ConfigurationError
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.state.cluster_state import ClusterState
from prometheus_client import CollectorRegistry, generate_latest

from tests.given.servers.servers import scratch_directory


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[DataDirectory]:
    for name in ("KAI_DATABASE_URL", "KAI_API_URL"):
        monkeypatch.delenv(name, raising=False)
    with scratch_directory() as root:
        made = DataDirectory(root)
        made.claim()
        made.logs.mkdir()
        yield made


def test_where_nothing_runs_status_says_so_and_fails(
    directory: DataDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(source=AnswerSource(data_dir=directory.root)) == 1
    assert capsys.readouterr().out == f"nothing runs in {directory.root}\n"


def test_processes_that_running_json_does_not_tell_of_are_seen_by_the_lock(
    directory: DataDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    with directory.lock(), ready_service() as service:
        assert status(source=AnswerSource(data_dir=directory.root)) == 1
        assert "but processes of one still use it" in capsys.readouterr().out
        # That of a `kai up` that was killed: its services answer, and nobody starts them anew.
        killed = subprocess.Popen([sys.executable, "-c", ""])
        killed.wait()
        directory.note_running(RunningStack(killed.pid, services={"relay": service}))
        assert status(source=AnswerSource(data_dir=directory.root), output="json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["leftOver"], answer["ready"], answer["pid"]) == (True, False, 0)
    assert [row["status"] for row in answer["services"] if row["name"] == "relay"] == ["ready"]


def test_a_service_that_does_not_answer_is_named_and_status_fails(
    directory: DataDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    with directory.lock():
        directory.note_running(RunningStack(os.getpid(), services={"relay": "http://127.0.0.1:1"}))
        assert status(source=AnswerSource(data_dir=directory.root), output="json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert not answer["ready"]
    statuses = {service["name"]: service["status"] for service in answer["services"]}
    assert statuses == {"postgres": "not ready", "nats": "not ready", "relay": "no answer"}


def test_what_a_ready_service_warns_of_is_shown(directory: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    warning = "policies: policy spot-last: TooSlow: score: took longer than 1 s"
    with directory.lock(), ready_service(f"[+]log ok\n[!]{warning}\nready\n") as service:
        directory.note_running(RunningStack(os.getpid(), services={"kai-scheduler": service}))
        status(source=AnswerSource(data_dir=directory.root))
    assert warning in capsys.readouterr().out


def test_while_no_cluster_is_up_yet_not_all_is_ready(
    directory: DataDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Servers, relay and API are ready seconds before anything is scheduled."""
    with socket.create_server(("127.0.0.1", 0)) as server, ready_service() as service, directory.lock():
        url = f"127.0.0.1:{server.getsockname()[1]}"
        stack = RunningStack(os.getpid(), f"postgresql://{url}/kai", f"nats://{url}", services={"relay": service})
        directory.note_running(stack)
        assert status(source=AnswerSource(data_dir=directory.root)) == 1
        stack.clusters = {"kai": RunningCluster("k", "s")}
        directory.note_running(stack)
        assert status(source=AnswerSource(data_dir=directory.root)) == 0
    assert "no cluster is up yet" in capsys.readouterr().out


@contextmanager
def ready_service(report: str = "") -> Iterator[str]:
    """A service that says that it is ready, whatever it is asked."""

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(report.encode())

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Ready) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_logs_are_told_by_a_services_name_with_or_without_its_cluster(
    directory: DataDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"event": "bound", "service": "binder", "level": "info", "timestamp": "2026-11-22T00:00:00Z", "pod": "ns/p"}
    (directory.logs / "demo-binder.log").write_text(f"{json.dumps(line)}\nTraceback: no JSON\n")
    for name in ("binder", "demo-binder"):
        logs(name, data_dir=directory.root)
        assert capsys.readouterr().out == "2026-11-22T00:00:00Z  info  bound  pod=ns/p\nTraceback: no JSON\n"
    logs("binder", data_dir=directory.root, tail=1)
    assert capsys.readouterr().out == "Traceback: no JSON\n"
    logs("binder", data_dir=directory.root, output="json")
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == line


def test_of_several_services_the_current_clusters_is_read_and_one_that_is_not_there_is_refused(
    directory: DataDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match="nothing has run"):
        logs("binder", data_dir=directory.root)
    for name in ("a-binder", "b-binder", "relay"):
        (directory.logs / f"{name}.log").write_text(f"of {name}\n")
    for cluster, read in ((None, "a-binder"), ("b", "b-binder")):
        logs("binder", data_dir=directory.root, cluster=cluster)
        assert capsys.readouterr().out == f"of {read}\n"
    directory.use_cluster("b")
    logs("binder", data_dir=directory.root)
    assert capsys.readouterr() == ("of b-binder\n", "kai: cluster b, of `kai cluster use`; --cluster names another\n")
    with pytest.raises(ConfigurationError, match=r"no binder of a cluster 'c'.* there are: a, b"):
        logs("binder", data_dir=directory.root, cluster="c")
    with pytest.raises(ConfigurationError, match="did you mean 'relay'"):
        logs("relai", data_dir=directory.root)


def test_followed_logs_go_on_when_the_file_is_put_aside(directory: DataDirectory) -> None:
    file = directory.logs / "relay.log"
    file.write_text('{"event": "one"}\n')
    command = [
        sys.executable,
        "-u",
        "-m",
        "kai_cli.main",
        "logs",
        "relay",
        "--follow",
        "--data-dir",
        str(directory.root),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "one\n"
        with file.open("a") as opened:
            opened.write('{"event": "two"}\n')
        assert following.stdout.readline() == "two\n"
        file.rename(Path(f"{file}.1"))
        file.write_text('{"event": "three"}\n')
        assert following.stdout.readline() == "three\n"
        following.kill()


@pytest.mark.parametrize(
    ("metrics", "share"),
    [
        ('kai_pending_pods{shard="default"} 3.0\n', ""),
        ('kai_binder_live{cluster="a"} 1.0\n', ""),
        ('kai_binder_live{cluster="a"} 3.0\n', "of 3 binders"),
        (
            'kai_pending_pods{shard="default/r0"} 7.0\nkai_shard_replicas{shard="default/r0"} 2.0\n',
            "default/r0, of 2 replicas; its last cycle left 7 pods",
        ),
    ],
)
def test_a_service_tells_its_part_of_the_work(metrics: str, share: str) -> None:
    assert share_of(metrics) == share


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({}, ""),
        ({"made": 2, "untimed": 1}, "reserved starts: 2 promised, none with a time has come to its start, 0 given up"),
        (
            {"made": 9, "kept": 5, "late": 1, "given up/nodes are gone": 1, "given up/queue": 1},
            "reserved starts: 9 promised, 5 of 6 started in time, 2 given up",
        ),
    ],
)
def test_reserved_starts_are_summed_up_from_what_a_scheduler_exports(counts: dict[str, int], text: str) -> None:
    state = ClusterState("test")
    state.counters.promises.update(counts)
    registry = CollectorRegistry()
    SchedulerMetrics(registry).watch(state, EngineConfig(), lambda: 0)
    assert promises_of(generate_latest(registry).decode()) == text
