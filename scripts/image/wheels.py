"""The services and what they depend on: wheels of one platform, by the hashes of `requirements/runtime.lock`."""

import configparser
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement

from scripts.image.base import PYTHON
from scripts.image.layers import File, Tree

#: What Python calls the architectures of images.
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
SITE = f"opt/kai/lib/python{PYTHON}/site-packages"
#: What the C library of the base is new enough for.
_PLATFORMS = (*(f"manylinux_2_{minor}" for minor in range(41, 16, -1)), "manylinux2014")


@dataclass(frozen=True)
class Wheel:
    """A wheel that is part of the image.

    Attributes:
        name: of the distribution, and its version.
        licence: as its metadata tell; "" where they do not.
    """

    path: Path
    name: str
    version: str
    licence: str


class Index:
    """Wheels by pip, kept in a folder between two builds."""

    def __init__(self, lock: Path, cache: Path) -> None:
        self._lock = lock
        self._cache = cache

    def fetch(self, architecture: str) -> list[Wheel]:
        """Return the wheels of an architecture; pip holds each to the lock's hashes.

        Raises:
            LookupError: one is neither here nor to be had.
        """
        folder = self._cache / architecture
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            wanted = Path(scratch, "requirements.txt")
            wanted.write_text(requirements_of(self._lock.read_text(), architecture))
            into = Path(scratch, "wheels")
            offline = self._download(wanted, into, architecture, "--no-index", "--find-links", str(folder))
            if offline.returncode != 0:
                online = self._download(wanted, into, architecture, "--find-links", str(folder))
                if online.returncode != 0:
                    raise LookupError(f"wheels for {architecture}: {online.stderr.strip().splitlines()[-1]}")
            names = sorted(path.name for path in into.glob("*.whl"))
            for name in names:
                (into / name).replace(folder / name)
        return [described(folder / name) for name in names]

    def _download(self, wanted: Path, into: Path, architecture: str, *where: str) -> subprocess.CompletedProcess[str]:
        platforms = [f"--platform={name}_{MACHINES[architecture]}" for name in _PLATFORMS]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        which = [f"--python-version={PYTHON}", "--implementation=cp", "--only-binary=:all:", *platforms]
        return subprocess.run(
            [*command, "--require-hashes", *which, *where, "--dest", str(into), "--requirement", str(wanted)],
            capture_output=True,
            text=True,
            check=False,
        )


def requirements_of(lock: str, architecture: str) -> str:
    """Return the lines of a lock that are for the image's Python on an architecture.

    pip would ask the Python that it runs on, which is another one.
    """
    environment = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": MACHINES[architecture],
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{PYTHON}.0",
        "python_version": PYTHON,
        "sys_platform": "linux",
    }
    kept = []
    for entry in re.split(r"\n(?=[A-Za-z0-9])", lock):
        first, _, rest = entry.partition(" \\\n")
        requirement = Requirement(first.partition("#")[0].strip())
        if requirement.marker is None or requirement.marker.evaluate(environment):
            requirement.marker = None
            kept.append(f"{requirement} \\\n{rest}")
    return "\n".join(kept)


def described(path: Path) -> Wheel:
    """Return a wheel with what its metadata tell."""
    with zipfile.ZipFile(path) as files:
        (name,) = [name for name in files.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
        metadata = Parser().parsestr(files.read(name).decode())
    licence = metadata.get("License-Expression") or metadata.get("License") or ""
    return Wheel(path, metadata["Name"], metadata["Version"], licence.strip().splitlines()[0] if licence else "")


#: Programs, and the 1,291 files of other projects that were taken along where a wheel of `cel-expr-python` was built.
_LEFT_OUT = re.compile(r"[^/]+\.data/|bazel-project/")


def installed(wheels: list[Wheel]) -> Tree:
    """Return the files of wheels where Python looks for them, without programs: those are of ours alone."""
    tree: Tree = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel.path) as files:
            for entry in files.infolist():
                path = re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", entry.filename)
                if not entry.is_dir() and not _LEFT_OUT.match(path):
                    executable = entry.external_attr >> 16 & 0o100
                    tree[f"{SITE}/{path}"] = File(files.read(entry), mode=0o755 if executable else 0o644)
    return tree


def programs(wheel: Wheel) -> Tree:
    """Return the environment of Python that a wheel's programs run in, and these."""
    with zipfile.ZipFile(wheel.path) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".dist-info/entry_points.txt")]
        points = configparser.ConfigParser()
        points.read_string(files.read(name).decode())
    home = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {PYTHON}\n"
    tree = {
        "opt/kai/pyvenv.cfg": File(home.encode()),
        "opt/kai/bin/python": File(target=f"/usr/bin/python{PYTHON}", mode=0o777),
        "opt/kai/bin/python3": File(target="python", mode=0o777),
    }
    return tree | dict(_scripts(dict(points["console_scripts"])))


def _scripts(points: dict[str, str]) -> Iterator[tuple[str, File]]:
    for name, place in points.items():
        module, _, function = place.partition(":")
        text = f"#!/opt/kai/bin/python\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
        yield f"opt/kai/bin/{name}", File(text.encode(), mode=0o755)
