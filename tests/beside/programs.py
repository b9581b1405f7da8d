"""The real programs of Kubernetes and etcd, built once through the Go module proxy."""

import os
import shutil
import subprocess
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
    go = shutil.which("go")
    if go is None:
        raise FileNotFoundError(f"{name}: not built yet, and there is no Go here to build it with")
    place.parent.mkdir(parents=True, exist_ok=True)
    building = place.with_suffix(".part")
    command = [go, "build", "-mod=mod", "-trimpath", "-ldflags", _FLAGS, "-o", str(building), _PACKAGES[name]]
    subprocess.run(command, cwd=SOURCES, check=True)
    building.rename(place)
    return place
