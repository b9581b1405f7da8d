"""Programs of Kubernetes, etcd and Helm, built once by Go modules of ours; those of other schedulers, from a folder.

The folder is named by `KAI_BESIDE_BIN`. It holds the other schedulers' programs, and beside these a checkout of each
release (`Peer.folder`), for the definitions and configurations that they ship.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

TOOLS = Path(__file__).parents[3] / "tools"
VERSION = "1.37.2"
_KUBERNETES_FLAGS = (
    "-s -w "
    f"-X k8s.io/component-base/version.gitVersion=v{VERSION} -X k8s.io/client-go/pkg/version.gitVersion=v{VERSION} "
    "-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"
)


@dataclass(frozen=True, slots=True)
class _Built:
    """A program that a module of ours requires.

    Attributes:
        package: its command.
        module: folder of the module, below `tools`.
        flags: for the linker.
    """

    package: str
    module: str = "beside"
    flags: str = _KUBERNETES_FLAGS


_BUILT = {
    "etcd": _Built("go.etcd.io/etcd/server/v3"),
    "helm": _Built("helm.sh/helm/v3/cmd/helm", "helm", "-s -w"),
    "kube-apiserver": _Built("k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": _Built("k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler": _Built("k8s.io/kubernetes/cmd/kube-scheduler"),
}


@dataclass(frozen=True, slots=True)
class Peer:
    """Another scheduler: its release's checkout, and its programs, in the folder that `KAI_BESIDE_BIN` names."""

    folder: str
    programs: tuple[str, ...]


KAI = Peer(
    "kai-scheduler-v0.12.0",
    ("kai-scheduler", "kai-podgrouper", "kai-binder", "kai-podgroupcontroller", "kai-queuecontroller"),
)
KUEUE = Peer("kueue-v0.17.0", ("kueue",))
VOLCANO = Peer("volcano-v1.10.0", ("vc-scheduler", "vc-controller-manager"))
KOORDINATOR = Peer("koordinator-v1.8.0", ("koord-scheduler",))
#: Of cluster-autoscaler, for its definition of ProvisioningRequest.
AUTOSCALER = Peer("autoscaler", ())


def program(name: str) -> Path:
    """Return a program: of the folder that `KAI_BESIDE_BIN` names, otherwise built once in the user's cache.

    Raises:
        FileNotFoundError: it is not in that folder, and not ours to build, or there is no Go to build it with.
        subprocess.CalledProcessError: it cannot be built.
    """
    folder = os.environ.get("KAI_BESIDE_BIN")
    if folder and (Path(folder) / name).exists():
        return Path(folder) / name
    built = _BUILT.get(name)
    if built is None:
        raise FileNotFoundError(f"{name}: not in the folder that KAI_BESIDE_BIN names ({folder or 'not set'})")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kai-ledger"
    place = cache / (f"{built.module}-{VERSION}") / name
    if place.exists():
        return place
    go = shutil.which("go")
    if go is None:
        raise FileNotFoundError(f"{name}: not built yet, and there is no Go here to build it with")
    place.parent.mkdir(parents=True, exist_ok=True)
    building = place.with_suffix(".part")
    command = [go, "build", "-trimpath", "-ldflags", built.flags, "-o", str(building), built.package]
    subprocess.run(command, cwd=TOOLS / built.module, check=True)
    building.rename(place)
    return place


def sources(peer: Peer) -> Path:
    """Return the checkout of a peer's release.

    Raises:
        FileNotFoundError: it is not in the folder that `KAI_BESIDE_BIN` names.
    """
    folder = os.environ.get("KAI_BESIDE_BIN")
    place = Path(folder or ".") / peer.folder
    if not folder or not place.is_dir():
        raise FileNotFoundError(f"{peer.folder}: no such checkout in KAI_BESIDE_BIN ({folder or 'not set'})")
    return place
