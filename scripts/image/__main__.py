"""`make image`: build the image of all services as an OCI layout in build/image, for amd64 and arm64.

    python -m scripts.image [--output FOLDER] [--cache FOLDER] [--lock | --test]

No container engine is needed, no root and no registry of images. Prints the digest of the index; the same commit gives
the same digest on any machine. With --lock: renew deploy/image/base.lock and build nothing. With --test: also build
it a second time from a copy elsewhere, and run what was built (tests/integration/test_image.py); where
Go is, push it to a registry and pull it again (tests/integration/test_registry.py).
"""

import argparse
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from scripts.image import base, bill, wheels
from scripts.image.compiled import Compiler, host_architecture
from scripts.image.layers import Tree, packed, readable
from scripts.image.layout import Layout

ROOT = Path(__file__).resolve().parents[2]
_TESTS = ("tests/integration/test_image.py", "tests/integration/test_registry.py")
LOCK = ROOT / "deploy/image/base.lock"


def main() -> int:
    """Do it; 1 when something is not to be had, in one line."""
    parser = argparse.ArgumentParser(prog="make image")
    parser.add_argument("--output", type=Path, default=ROOT / "build/image")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/kai-ledger/image")
    parser.add_argument("--lock", action="store_true")
    parser.add_argument("--test", action="store_true")
    given = parser.parse_args()
    archive = base.Archive(given.cache / "debian", os.environ.get("KAI_DEBIAN_MIRROR", ""))
    try:
        if given.lock:
            LOCK.write_text(base.written_lock(archive.newest(), datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")))
        else:
            sys.stdout.write(f"{build(ROOT, given.output, given.cache, archive)}\n")
            sys.stdout.flush()
            if given.test:
                return _tested(given.output, given.cache)
    except (LookupError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"make image: {error}\n")
        return 1
    return 0


def _tested(layout: Path, cache: Path) -> int:
    settings = {"KAI_TEST_IMAGE": str(layout.resolve()), "KAI_TEST_IMAGE_CACHE": str(cache.resolve())}
    command = [sys.executable, "-m", "pytest", "--quiet", *_TESTS]
    return subprocess.run(command, cwd=ROOT, env=os.environ | settings, check=False).returncode


def build(root: Path, output: Path, cache: Path, archive: base.Archive) -> str:
    """Build the image of a checkout, and return the digest of its index.

    Args:
        root: the checkout.
        output: the layout's folder, which is made anew.
        cache: where what is downloaded is kept.
        archive: where the base's packages come from.

    Raises:
        LookupError: something is not to be had, or this machine cannot build.
    """
    host = host_architecture()
    lock = root / "deploy/image/base.lock"
    packages = base.read_lock(lock)
    debs = archive.fetch(packages, base.made_at(lock))
    bases = {
        architecture: base.unpacked([debs[one.sha256] for one in base.of(packages, architecture)])
        for architecture in base.ARCHITECTURES
    }
    index = wheels.Index(root / "requirements/runtime.lock", cache / "wheels")
    dependencies = {architecture: index.fetch(architecture) for architecture in base.ARCHITECTURES}
    compiler = Compiler(bases[host])
    epoch, revision = _commit(root)
    with tempfile.TemporaryDirectory() as folder:
        own = wheels.described(_own_wheel(root, Path(folder)))
        layout = Layout(output)
        labels = _labels(own, revision, epoch)
        images = []
        for architecture in base.ARCHITECTURES:
            trees = [
                bases[architecture],
                wheels.installed(dependencies[architecture]),
                wheels.installed([own]) | wheels.programs(own),
            ]
            layers = [packed(_whole(tree, compiler, own=number > 0), epoch=epoch) for number, tree in enumerate(trees)]
            image = layout.image(architecture, layers, _config(labels), _time(epoch))
            parts = [*dependencies[architecture], own]
            document = bill.bill(own.version, architecture, base.of(packages, architecture), parts)
            images.append((image, document))
        made = layout.index([image for image, _ in images], own.version, labels)
        for image, document in images:
            layout.attach(image, document, bill.BILL_TYPE, "bill-of-materials.cdx.json")
        statement = bill.provenance(made["digest"], revision, epoch, packages, dependencies)
        layout.attach(made, statement, bill.PROVENANCE_TYPE, "provenance.intoto.json")
    layout.finish()
    return str(made["digest"])


def _whole(tree: Tree, compiler: Compiler, *, own: bool) -> Tree:
    """A layer's files with the compiled ones; those that are not the base's are root's, and readable for all."""
    whole = tree | compiler.compiled(tree)
    return {path: readable(file) for path, file in whole.items()} if own else whole


def _own_wheel(root: Path, into: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", into],
        cwd=root, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = into.glob("*.whl")
    return wheel


def _commit(root: Path) -> tuple[int, str]:
    """The time of the commit, and the commit where nothing was changed since."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    given = os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct") or "315532800"
    return int(given), "" if git("status", "--porcelain") else git("rev-parse", "HEAD")


def _time(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _labels(own: wheels.Wheel, revision: str, epoch: int) -> dict[str, str]:
    labels = {
        "title": "kai-ledger",
        "description": "An event-sourced, NUMA-aware Kubernetes scheduler for GPU clusters: all services",
        "version": own.version,
        "licenses": own.licence,
        "created": _time(epoch),
        "base.name": f"debian:{base.SUITE}, packages of deploy/image/base.lock",
    }
    if revision:
        labels["revision"] = revision
    return {f"org.opencontainers.image.{name}": value for name, value in sorted(labels.items())}


def _config(labels: dict[str, str]) -> dict[str, object]:
    variables = {
        "PATH": "/opt/kai/bin:/usr/bin",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
        "KAI_HTTP_HOST": "0.0.0.0",  # noqa: S104  # a container's ports are its own
        "KAI_HTTP_PORT": "8080",
    }
    return {
        "User": "65532:65532",
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "Cmd": ["kai", "--help"],
        "ExposedPorts": {"8080/tcp": {}},
        "WorkingDir": "/",
        "Labels": labels,
    }


if __name__ == "__main__":
    sys.exit(main())
