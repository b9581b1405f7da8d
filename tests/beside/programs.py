"""The real programs of Kubernetes, etcd and Kueue, built once through the Go module proxy."""

import os
import shutil
import subprocess
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "tools/beside"
KUEUE_SOURCES = SOURCES / "kueue"
VERSION = "1.37.2"
_PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
}
#: Programs that need modules of other versions, by the folder of their `go.mod`.
_APART = {"kueue": (KUEUE_SOURCES, "sigs.k8s.io/kueue/cmd/kueue")}
_FLAGS = (
    "-s -w "
    f"-X k8s.io/component-base/version.gitVersion=v{VERSION} -X k8s.io/client-go/pkg/version.gitVersion=v{VERSION} "
    "-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"
)


def program(name: str) -> Path:
    """Return a program, and build it where it is not there yet: in `KAI_BESIDE_BIN`, by default the user's cache.

    Raises:
        FileNotFoundError: there is no Go to build it with.
        subprocess.CalledProcessError: it cannot be built.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kai-ledger" / f"kubernetes-{VERSION}"
    place = Path(os.environ.get("KAI_BESIDE_BIN") or cache) / name
    if place.exists():
        return place
    sources, package = _APART.get(name) or (SOURCES, _PACKAGES[name])
    place.parent.mkdir(parents=True, exist_ok=True)
    building = place.with_suffix(".part")
    flags = ("-mod=mod", "-trimpath", "-ldflags", _FLAGS if sources == SOURCES else "-s -w")
    subprocess.run([_go(name), "build", *flags, "-o", str(building), package], cwd=sources, check=True)
    building.rename(place)
    return place


def module_directory(sources: Path, module: str) -> Path:
    """Return where Go keeps a module's files, after it fetched them if need be.

    Raises:
        FileNotFoundError: there is no Go here.
    """
    command = [_go(module), "list", "-mod=mod", "-m", "-f", "{{.Dir}}", module]
    subprocess.run([_go(module), "mod", "download", module], cwd=sources, check=True)
    done = subprocess.run(command, cwd=sources, check=True, capture_output=True, text=True)
    return Path(done.stdout.strip())


def _go(wanted: str) -> str:
    go = shutil.which("go")
    if go is None:
        raise FileNotFoundError(f"{wanted}: not there yet, and there is no Go here to get it with")
    return go
