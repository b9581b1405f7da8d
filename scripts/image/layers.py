"""Files of an image by their paths, and layers of them: the same files give the same bytes, on any machine."""

import hashlib
import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, replace

import zstandard

MEDIA_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"
#: The one that zstandard's locked wheel has; another one compresses to other bytes.
_LEVEL = 9


@dataclass(frozen=True)
class File:
    """A file, a folder or a link of an image.

    Attributes:
        content: a file's bytes; None for a folder or a link.
        target: where a symbolic link leads; "" for others.
        mode: permissions.
        owner: numbers of user and group, the same.
    """

    content: bytes | None = None
    target: str = ""
    mode: int = 0o644
    owner: int = 0


Tree = dict[str, File]


def folder(*, mode: int = 0o755, owner: int = 0) -> File:
    """Return a folder."""
    return File(mode=mode, owner=owner)


@dataclass(frozen=True)
class Layer:
    """A packed layer.

    Attributes:
        blob: what is stored, compressed.
        diff_id: digest of the tar in it, by which configurations name it.
    """

    blob: bytes
    diff_id: str

    @property
    def digest(self) -> str:
        """The digest that manifests name it by."""
        return digest(self.blob)


def digest(blob: bytes) -> str:
    """Return a digest as OCI writes it."""
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def packed(tree: Tree, *, epoch: int) -> Layer:
    """Pack a tree: sorted, with every folder on the way to a file, all times the same, in seconds since 1970."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, file in sorted(with_folders(tree).items()):
            entry = tarfile.TarInfo(path)
            entry.mode, entry.mtime = file.mode, epoch
            entry.uid = entry.gid = file.owner
            if file.target:
                entry.type, entry.linkname = tarfile.SYMTYPE, file.target
                tar.addfile(entry)
            elif file.content is None:
                entry.type = tarfile.DIRTYPE
                tar.addfile(entry)
            else:
                entry.size = len(file.content)
                tar.addfile(entry, io.BytesIO(file.content))
    plain = output.getvalue()
    return Layer(zstandard.ZstdCompressor(level=_LEVEL).compress(plain), digest(plain))


def with_folders(tree: Tree) -> Tree:
    """Return a tree with the folders that its paths go through, each as root's where it does not say otherwise."""
    parents = {parent for path in tree for parent in _parents(path)}
    return {parent: folder() for parent in parents if parent not in tree} | tree


def _parents(path: str) -> Iterable[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def readable(file: File) -> File:
    """Return a file that every user can read, and nobody but root can write."""
    mode = 0o755 if file.content is None or file.mode & 0o100 else 0o644
    return file if file.target else replace(file, mode=mode, owner=0)
