"""The base of the services: Python and the libraries that it needs, from packages of Debian, by hash.

`deploy/image/base.lock` names each file by its SHA-256. apt-get downloads it; nothing of it is run while the image is
built, no maintainer script either. What Debian's archive has dropped since comes from its snapshot of the lock's day.
"""

import hashlib
import io
import lzma
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.image.layers import File, Tree, folder

SUITE = "trixie"
DISTRIBUTION = "debian-13"
PYTHON = "3.13"
ARCHITECTURES = ("amd64", "arm64")
#: Those that are the same on all architectures.
_INDEPENDENT = ("ca-certificates", "media-types", "netbase", "tzdata")
#: Python with what its modules need; nothing that could be used as a shell.
_PACKAGES = (
    *("base-files", "libbz2-1.0", "libc6", "libexpat1", "libffi8", "libgcc-s1", "liblzma5", "libssl3t64", "libstdc++6"),
    *("libuuid1", "libzstd1", "zlib1g"),
    *(f"libpython{PYTHON}-minimal", f"libpython{PYTHON}-stdlib", f"python{PYTHON}-minimal"),
)
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_LEFT_OUT = re.compile(
    r"(usr/share/(doc/(?!.*/copyright$)|man|info|lintian|locale|bug|base-files|bash-completion|python3/runtime\.d|"
    r"apport|applications|pixmaps|binfmts)|usr/sbin/|etc/(profile|motd|issue|update-motd|ca-certificates|init\.d)|"
    r"usr/lib/python3\.13/(test|idlelib|ensurepip|turtledemo|config-)|var/(backups|spool|mail|local|lock|run))"
)
_USER = 65532
#: Debian's archives as they were at any time.
_SNAPSHOTS = "http://snapshot.debian.org/archive"
_TITLE = "# The base of the image: Debian packages by hash, for `make image`; renewed by `make image ARGS=--lock`."
_MADE_AT = "# as Debian had them at "
#: Folders that volumes are mounted on take their owner from here: those of the Compose file.
_FOLDERS = ("data", "kubeconfig", "node-tokens", "podresources")


@dataclass(frozen=True)
class Package:
    """A package of Debian that is part of the image; its architecture is `all` where it is the same on each."""

    architecture: str
    name: str
    version: str
    sha256: str


def of(packages: list[Package], architecture: str) -> list[Package]:
    """Return the packages of an architecture's image."""
    return [package for package in packages if package.architecture in (architecture, "all")]


def read_lock(path: Path) -> list[Package]:
    """Return what a lock file names."""
    lines = (line.split() for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return [Package(*line) for line in lines]


def made_at(path: Path) -> str:
    """Return when a lock file was made, such as 20261123T190000Z; empty where it does not say so."""
    said = (line for line in path.read_text().splitlines() if line.startswith(_MADE_AT))
    return next(said, "").removeprefix(_MADE_AT).strip()


def written_lock(packages: list[Package], at: str) -> str:
    """Return the text of a lock file of packages, which was made at a time like 20261123T190000Z."""
    lines = [f"{one.architecture} {one.name} {one.version} {one.sha256}" for one in packages]
    return "\n".join((_TITLE, _MADE_AT + at, "# architecture name version sha256", *lines, ""))


class Archive:
    """Debian's packages, by apt-get with a state of its own.

    Args:
        cache: the folder that its files are in.
        mirror: another archive than the one that this machine's apt uses, such as one of a certain day.
    """

    def __init__(self, cache: Path, mirror: str = "") -> None:
        self._cache = cache
        self._mirror = mirror

    def fetch(self, packages: list[Package], at: str = "") -> dict[str, bytes]:
        """Return the files of packages by their hashes; those that are not in the cache are downloaded.

        Args:
            packages: of the lock.
            at: when the lock was made, as `made_at`; empty: what is not in the archive now is not to be had.

        Raises:
            LookupError: some are in no archive, or none answers.
        """
        refusals: list[str] = []
        tries = [self._sources(), *([_snapshot(at)] if at and not self._mirror else [])]
        for sources in tries:
            if missing := [package for package in packages if not self._file(package).exists()]:
                try:
                    self._update(sources)
                    self._download([_request(one) for one in missing])
                except LookupError as error:
                    refusals.append(str(error))
        if absent := [str(package) for package in packages if not self._file(package).exists()]:
            raise LookupError(
                f"not to be had: {', '.join(absent)} ({'; '.join(refusals)}); renew the lock (make image ARGS=--lock), "
                "or name an archive that has them (KAI_DEBIAN_MIRROR)"
            )
        return {package.sha256: self._file(package).read_bytes() for package in packages}

    def _file(self, package: Package) -> Path:
        return self._cache / f"{package.sha256}.deb"

    def newest(self) -> list[Package]:
        """Return what a lock that is made now would name."""
        self._update(self._sources())
        names = [f"{name}:{architecture}" for architecture in ARCHITECTURES for name in _PACKAGES]
        files = self._download([*_INDEPENDENT, *names])
        return sorted((_described(file) for file in files), key=lambda one: (one.architecture, one.name))

    def _options(self) -> list[str]:
        state = self._cache / "apt"
        settings = {
            "Dir::State::lists": state / "lists",
            "Dir::State::status": "/dev/null",
            "Dir::Cache": state / "cache",
            "Dir::Etc::sourcelist": state / "sources.sources",
            "Dir::Etc::sourceparts": "/dev/null",
            "APT::Sandbox::User": "root",
        }
        options = [f"-o{name}={value}" for name, value in settings.items()]
        return [*options, *(f"-oAPT::Architectures::={architecture}" for architecture in ARCHITECTURES)]

    def _update(self, sources: Iterable[str]) -> None:
        if shutil.which("apt-get") is None:
            raise LookupError("apt-get is not installed here; the packages of deploy/image/base.lock come by it")
        state = self._cache / "apt"
        for name in ("lists/partial", "cache/archives/partial"):
            (state / name).mkdir(parents=True, exist_ok=True)
        (state / "sources.sources").write_text("\n\n".join(sources))
        self._run("update", "-q")

    def _sources(self) -> Iterator[str]:
        """The sources of this machine's own apt, for another release of Debian."""
        listed = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"],
            capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        sites = [self._mirror] if self._mirror else sorted({site for site in listed if "debian" in site})
        for site in sites:
            yield _source(site)

    def _download(self, names: list[str]) -> list[Path]:
        into = self._cache / "new"
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        self._run("download", "-q", *names, cwd=into)
        digests = {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in into.glob("*.deb")}
        return [file.rename(self._cache / f"{digest}.deb") for file, digest in digests.items()]

    def _run(self, *arguments: str, cwd: Path | None = None) -> None:
        done = subprocess.run(
            ["apt-get", *self._options(), *arguments], cwd=cwd, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise LookupError(f"apt-get {arguments[0]}: {done.stderr.strip().splitlines()[-1]}")


def _source(site: str, options: str = "") -> str:
    suites = f"{SUITE}-security" if "security" in site else f"{SUITE} {SUITE}-updates"
    return f"Types: deb\nURIs: {site}\nSuites: {suites}\nComponents: main\nSigned-By: {_KEYRING}\n{options}"


def _snapshot(at: str) -> Iterator[str]:
    """Debian's packages at a time; its lists were valid for a week, so their age is not checked."""
    for archive in ("debian", "debian-security"):
        yield _source(f"{_SNAPSHOTS}/{archive}/{at}", "Check-Valid-Until: no\n")


def _request(package: Package) -> str:
    independent = package.architecture == "all"
    return f"{package.name}{'' if independent else f':{package.architecture}'}={package.version}"


def _described(file: Path) -> Package:
    """A file's contents in the cache, by its hash as name."""
    control = dict(line.split(": ", 1) for line in _control(file.read_bytes()).splitlines() if ": " in line)
    return Package(control["Architecture"], control["Package"], control["Version"], file.stem)


def unpacked(debs: list[bytes]) -> Tree:
    """Return the files of packages, and what their scripts would have made of them where it is needed."""
    tree: Tree = {}
    for deb in debs:
        for path, file in _data(deb):
            if not _LEFT_OUT.match(path):
                tree[path] = file
        control = _control(deb)
        name = control.partition("Package: ")[2].partition("\n")[0]
        # Where scanners look for packages of images without dpkg.
        tree[f"var/lib/dpkg/status.d/{name}"] = File(control.encode())
    used = {path for path, file in tree.items() if file.content is not None or file.target}
    tree = {
        path: file
        for path, file in tree.items()
        if path in used or not path.startswith(("usr/share/", "etc/", "var/")) or any(
            other.startswith(f"{path}/") for other in used)
    }  # fmt: skip
    certificates = sorted(path for path in tree if path.startswith("usr/share/ca-certificates/") and path in used)
    tree["etc/ssl/certs/ca-certificates.crt"] = File(b"".join(tree[path].content or b"" for path in certificates))
    tree["etc/passwd"] = File(
        f"root:x:0:0:root:/root:/usr/sbin/nologin\nkai:x:{_USER}:{_USER}:kai:/:/usr/sbin/nologin\n".encode()
    )
    tree["etc/group"] = File(f"root:x:0:\nkai:x:{_USER}:\n".encode())
    tree["tmp"] = folder(mode=0o1777)
    return tree | {name: folder(owner=_USER) for name in _FOLDERS}


def _members(deb: bytes) -> Iterator[tuple[str, bytes]]:
    """The members of an ar archive."""
    at = len(b"!<arch>\n")
    while at < len(deb):
        header = deb[at : at + 60]
        size = int(header[48:58])
        yield header[:16].decode().strip().rstrip("/"), deb[at + 60 : at + 60 + size]
        at += 60 + size + size % 2


def _tar(deb: bytes, name: str) -> tarfile.TarFile:
    (content,) = [content for member, content in _members(deb) if member == f"{name}.tar.xz"]
    return tarfile.open(fileobj=io.BytesIO(lzma.decompress(content)))


def _control(deb: bytes) -> str:
    with _tar(deb, "control") as tar:
        (member,) = [member for member in tar if member.name.removeprefix("./") == "control"]
        file = tar.extractfile(member)
        assert file is not None
        return file.read().decode()


def _data(deb: bytes) -> Iterator[tuple[str, File]]:
    with _tar(deb, "data") as tar:
        for member in tar:
            path = member.name.removeprefix("./").rstrip("/")
            if not path or path == ".":
                continue
            if member.issym():
                yield path, File(target=member.linkname, mode=0o777)
            elif member.isdir():
                yield path, folder(mode=member.mode)
            else:
                file = tar.extractfile(member)
                assert file is not None, path
                # No bits of other users' rights: nothing in the image changes users.
                yield path, File(file.read(), mode=member.mode & 0o755)
