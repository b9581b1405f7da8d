"""The real programs of Kubernetes, etcd and other schedulers, built once through the Go module proxy."""

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "tools/beside"
VERSION = "1.37.2"
_PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
}
_FLAGS = (
    "-s -w "
    f"-X k8s.io/component-base/version.gitVersion=v{VERSION} -X k8s.io/client-go/pkg/version.gitVersion=v{VERSION} "
    "-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"
)


@dataclass(frozen=True, slots=True)
class Peer:
    """A module whose programs are built where they lie, with the versions that its own go.mod and go.sum have.

    Attributes:
        version: with the `v`.
        programs: the folders of their commands, by the name under which they are run here.
        flags: for the linker.
    """

    module: str
    version: str
    programs: dict[str, str]
    flags: str = "-s -w"


KAI = Peer(
    "github.com/NVIDIA/KAI-scheduler",
    "v0.12.0",
    {
        "kai-scheduler": "./cmd/scheduler",
        "kai-podgrouper": "./cmd/podgrouper",
        "kai-binder": "./cmd/binder",
        "kai-podgroupcontroller": "./cmd/podgroupcontroller",
        "kai-queuecontroller": "./cmd/queuecontroller",
    },
)
#: kube-scheduler with the plugins of SIG Scheduling, NodeResourceTopologyMatch among them.
SCHEDULER_PLUGINS = Peer(
    "sigs.k8s.io/scheduler-plugins",
    "v0.33.5",
    {"topology-aware-scheduler": "./cmd/scheduler"},
    "-s -w -X k8s.io/component-base/version.gitVersion=v1.33.5",
)
KUEUE = Peer("sigs.k8s.io/kueue", "v0.17.0", {"kueue": "./cmd/kueue"})
VOLCANO = Peer(
    "volcano.sh/volcano",
    "v1.10.0",
    {"vc-scheduler": "./cmd/scheduler", "vc-controller-manager": "./cmd/controller-manager"},
)
KOORDINATOR = Peer("github.com/koordinator-sh/koordinator", "v1.8.0", {"koord-scheduler": "./cmd/koord-scheduler"})
HELM = Peer("helm.sh/helm/v3", "v3.22.0", {"helm": "./cmd/helm"})
_PEERS = {name: peer for peer in (KAI, SCHEDULER_PLUGINS, KUEUE, VOLCANO, KOORDINATOR, HELM) for name in peer.programs}


def program(name: str) -> Path:
    """Return a program, and build it where it is not there yet: in `KAI_BESIDE_BIN`, by default the user's cache.

    Raises:
        FileNotFoundError: there is no Go to build it with.
        subprocess.CalledProcessError: it cannot be built.
    """
    peer = _PEERS.get(name)
    folder = f"kubernetes-{VERSION}" if peer is None else _folder(peer)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kai-ledger" / folder
    place = Path(os.environ.get("KAI_BESIDE_BIN") or cache) / name
    if place.exists():
        return place
    go = _go(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    building = place.with_suffix(".part")
    # A module in the cache cannot be written to: its go.mod and go.sum stay as they were published.
    modified, flags, package = (
        ("mod", _FLAGS, _PACKAGES[name]) if peer is None else ("readonly", peer.flags, peer.programs[name])
    )
    command = [go, "build", f"-mod={modified}", "-trimpath", "-ldflags", flags, "-o", str(building), package]
    # Beside version control of ours, a module's folder is none.
    environment = {**os.environ, "GOFLAGS": f"{os.environ.get('GOFLAGS', '')} -buildvcs=false".strip()}
    subprocess.run(command, cwd=SOURCES if peer is None else sources(peer), check=True, env=environment)
    building.rename(place)
    return place


def _folder(peer: Peer) -> str:
    # A module's path may end with its major version.
    path, _, last = peer.module.rpartition("/")
    return f"{(path if last[1:].isdigit() else last).lower()}-{peer.version}"


def sources(peer: Peer) -> Path:
    """Return the folder with a peer's sources, in Go's module cache; fetched where it is not there yet.

    Raises:
        FileNotFoundError: there is no Go to fetch it with.
        subprocess.CalledProcessError: it cannot be fetched.
    """
    command = [_go(peer.module), "mod", "download", "-json", f"{peer.module}@{peer.version}"]
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(command, cwd=elsewhere, check=True, capture_output=True)
    return Path(json.loads(done.stdout)["Dir"])


def required(peer: Peer, module: str) -> Path:
    """Return the folder of a module that a peer requires, in the version that it requires.

    Raises:
        FileNotFoundError: there is no Go to fetch it with.
        subprocess.CalledProcessError: it cannot be fetched.
    """
    go, folder = _go(module), sources(peer)
    subprocess.run([go, "mod", "download", module], cwd=folder, check=True)
    command = [go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return Path(done.stdout.strip())


def _go(name: str) -> str:
    go = shutil.which("go")
    if go is None:
        raise FileNotFoundError(f"{name}: not built yet, and there is no Go here to build it with")
    return go
