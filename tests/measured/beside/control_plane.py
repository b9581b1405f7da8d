"""A control plane of Kubernetes as it is, on this machine's loopback: etcd, API server, controllers."""

import os
import secrets
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from urllib.request import urlopen

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.e2e.cluster import PATIENCE_S
from tests.given.servers.ports import free_port
from tests.measured.beside.programs import program

#: Those that pods, Jobs, namespaces and nodes need.
_CONTROLLERS = (
    "serviceaccount-controller,serviceaccount-token-controller,namespace-controller,job-controller,"
    "garbage-collector-controller,pod-garbage-collector-controller,node-lifecycle-controller,"
    "replicaset-controller,deployment-controller,daemonset-controller,resourceclaim-controller,"
    "podgroup-protection-controller"
)


class Program:
    """A running program of theirs; its output goes to a file."""

    def __init__(self, root: Path, name: str, *flags: str, environment: Mapping[str, str] | None = None) -> None:
        self.log = root / f"{name}.log"
        command = [str(program(name)), *flags]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                cwd=root,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def until(self, ready: Callable[[], bool]) -> Self:
        """Wait until something holds of it."""
        deadline = time.monotonic() + PATIENCE_S
        while not ready():
            assert self._process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.2)
        return self

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ControlPlane:
    """Runs it; its account is an administrator's.

    Attributes:
        kubeconfig: of the administrator.
    """

    def __init__(self, root: Path, *, gates: str = "", controllers: str = _CONTROLLERS) -> None:
        """Args:
        root: for what it keeps.
        gates: feature gates that are on besides those of the version, as `A=true,B=true`.
        controllers: those that run, with commas between them.
        """
        self._root = root
        self._controllers = controllers
        self._gates = ("--feature-gates", gates) if gates else ()
        self._programs: list[Program] = []
        self.kubeconfig = root / "admin.kubeconfig"

    def start(self) -> None:
        root = self._root
        root.mkdir(exist_ok=True)
        client, peer, api = (free_port() for _ in range(3))
        url, peers = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        self._run(
            "etcd",
            *("--data-dir", str(root / "etcd"), "--unsafe-no-fsync"),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}"),
        ).until(lambda: _answers(f"{url}/health"))
        token = secrets.token_urlsafe(32)
        _private_file(root / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
        key = _account_key(root)
        self._run(
            "kube-apiserver",
            *("--etcd-servers", url, "--bind-address", "127.0.0.1", "--secure-port", str(api)),
            *("--cert-dir", str(root / "certificates"), "--token-auth-file", str(root / "tokens.csv")),
            *("--service-account-key-file", str(key), "--service-account-signing-key-file", str(key)),
            *("--service-account-issuer", "https://kubernetes.default.svc"),
            *("--service-cluster-ip-range", "10.0.0.0/24"),
            *("--authorization-mode", "Node,RBAC", "--endpoint-reconciler-type", "none"),
            "--allow-privileged=true",
            *self._gates,
            *(("--runtime-config", "scheduling.k8s.io/v1beta1=true") if self._gates else ()),
        )
        authority = root / "certificates/apiserver.crt"
        self._programs[-1].until(authority.exists)
        self.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(f"https://127.0.0.1:{api}", authority, token)))
        self._programs[-1].until(lambda: _serves(api, authority))
        self._run(
            "kube-controller-manager",
            *("--kubeconfig", str(self.kubeconfig), "--leader-elect=false", "--secure-port=0"),
            *("--controllers", self._controllers, "--service-account-private-key-file", str(key)),
            "--use-service-account-credentials=false",
            *self._gates,
        )

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by program."""
        return {one.log.stem: one.pid for one in self._programs}

    def _run(self, name: str, *flags: str) -> Program:
        self._programs.append(Program(self._root, name, *flags))
        return self._programs[-1]

    def stop(self) -> None:
        """End it, the last started first."""
        for one in reversed(self._programs):
            one.stop()


@contextmanager
def control_plane(root: Path, *, gates: str = "") -> Iterator[Path]:
    """Run one; yield the administrator's kubeconfig."""
    plane = ControlPlane(root, gates=gates)
    try:
        plane.start()
        yield plane.kubeconfig
    finally:
        plane.stop()


def _private_file(path: Path) -> Path:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    return path


def _account_key(root: Path) -> Path:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    path = _private_file(root / "accounts.key")
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    return path


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


def _serves(port: int, authority: Path) -> bool:
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with urlopen(f"https://127.0.0.1:{port}/readyz", timeout=5, context=context) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


def _kubeconfig(server: str, authority: Path, token: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "real", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "real", "context": {"cluster": "real", "user": "admin"}}],
        "current-context": "real",
    }
