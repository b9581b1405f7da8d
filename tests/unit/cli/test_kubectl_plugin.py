"""`kubectl kai`: what its command lines mean, and the way that it opens to the API."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from kai_cli.sources.kubectl_plugin import Meant, meant
from kaicore.errors import ConfigurationError

from tests.given.processes.kai_commands import kai

#: A kubectl that says what it was called with, and leads to a port as port-forward does.
KUBECTL = """#!{python} -u
import json, sys, time
with open({log!r}, "a") as log:
    print(json.dumps(sys.argv[1:]), file=log)
if "config" in sys.argv:
    print("team-a", end="")
elif {port}:
    print("Forwarding from 127.0.0.1:{port} -> 8080", flush=True)
    time.sleep(600)
else:
    sys.exit("error: services \\"kai-api\\" not found")
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("get pods", Meant(["get", "pods"], [], True, True)),
        ("get po -A --context east", Meant(["get", "po"], ["--context", "east"], True, False)),
        ("get nodes", Meant(["get", "nodes"], [], True, False)),
        ("why a --kubeconfig=k", Meant(["why", "a"], ["--kubeconfig", "k"], True, True)),
        ("why a -n b", Meant(["why", "a", "-n", "b"], [], True, False)),
        ("topology", Meant(["topology"], [], True, False)),
        ("get pods --file log.gz", Meant(["get", "pods", "--file", "log.gz"], [], False, True)),
        # What talks to the cluster itself has such a flag.
        ("dump --kubeconfig k", Meant(["dump", "--kubeconfig", "k"], [], False, False)),
        ("simulate a.yaml", Meant(["simulate", "a.yaml"], [], False, False)),
        ("--version", Meant(["--version"], [], False, False)),
        ("nothing such", Meant(["nothing", "such"], [], False, False)),
    ],
)
def test_kubectls_flags_are_kubectls_and_the_rest_is_kais(line: str, expected: Meant) -> None:
    assert meant(line.split(), {}) == expected


def test_a_place_to_ask_by_environment_wins_and_a_flag_without_its_value_is_told() -> None:
    assert not meant(["get", "pods"], {"KAI_API_URL": "http://x"}).asks_api
    with pytest.raises(ConfigurationError, match="--context: kai dump takes none"):
        meant(["dump", "--context", "east"], {})
    with pytest.raises(ConfigurationError, match="--context: a value is missing"):
        meant(["get", "pods", "--context"], {})


class Recorder(BaseHTTPRequestHandler):
    seen: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers["Authorization"]))
        body = json.dumps({"error": "not here"}).encode()
        self.send_response(404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[tuple[int, list[tuple[str, str | None]]]]:
    seen: list[tuple[str, str | None]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Recorder,), {"seen": seen}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port, seen
    server.shutdown()
    thread.join()
    server.server_close()


def run(tmp_path: Path, port: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(KUBECTL.format(python=sys.executable, log=str(tmp_path / "log"), port=port))
    kubectl.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KAI_")}
    environment |= {"KUBECTL": str(kubectl), "KAI_API_TOKEN": "secret"}
    return kai(*arguments, module="kai_cli.sources.kubectl_plugin", environment=environment, cwd=tmp_path)


def test_a_question_goes_through_kubectl_to_the_api_and_the_way_is_closed_after_it(
    tmp_path: Path, api: tuple[int, list[tuple[str, str | None]]]
) -> None:
    port, seen = api
    done = run(tmp_path, port, "get", "pods", "--context", "east")
    assert done.returncode != 0
    assert "not here" in done.stderr
    assert {token for _, token in seen} == {"Bearer secret"}
    view, forward = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert view[:3] == ["--context", "east", "config"]
    assert forward == ["--context", "east", "port-forward", "--namespace", "kai-system", "service/kai-api", ":8080"]


def test_what_kubectl_says_against_it_is_told(tmp_path: Path) -> None:
    done = run(tmp_path, 0, "get", "nodes")
    assert (done.returncode, done.stderr) == (
        1,
        'kubectl kai: kubectl port-forward to kai-system/kai-api: error: services "kai-api" not found\n',
    )


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed here")
def test_kubectl_takes_it_for_a_plugin() -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["kubectl", "kai", "--version"], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout[:4]) == (0, "kai "), done.stderr
