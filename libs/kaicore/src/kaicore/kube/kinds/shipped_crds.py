"""The CRDs that are deployed with kai-ledger: inside the installed package, or in the repository."""

from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

_SUFFIX = ".yaml"


def shipped_crds() -> dict[str, str]:
    """The text of every file of `deploy/k8s/crds`, by its path there."""
    installed = resources.files("kaicore") / "_crds"
    root = installed if installed.is_dir() else Path(__file__).parents[6] / "deploy" / "k8s" / "crds"
    return dict(sorted(_files(root, "")))


def _files(directory: Traversable, path: str) -> Iterator[tuple[str, str]]:
    for entry in directory.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{path}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            yield f"{path}{entry.name}", entry.read_text("utf-8")
