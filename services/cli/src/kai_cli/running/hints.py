"""Commands that an operator can paste: with this program's path, and the data directory unless it is the default."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from kai_cli.sources.paths import DataDirectory, data_directory


def kai(directory: DataDirectory, *words: str) -> str:
    """Return a `kai` command that means a data directory, as it can be pasted into a shell here."""
    flag = () if _is_default(directory) else ("--data-dir", str(directory.root))
    return " ".join((_program(), *map(shlex.quote, (*words, *flag))))


def how_to_ask(directory: DataDirectory, *questions: str) -> Iterator[str]:
    """Yield lines with commands to try.

    Args:
        questions: more of them, which only this stack can answer.
    """
    yield "try:"
    for question in (
        "get pods",
        "get nodes",
        "status",
        *questions,
        "logs scheduler --follow",
        "replay",
        "audit verify",
    ):
        yield f"  {kai(directory, *question.split())}"


def kubectl(kubeconfig: str, *words: str) -> str:
    """Return a `kubectl` command for a cluster, as it can be pasted into a shell."""
    return " ".join(map(shlex.quote, ("kubectl", "--kubeconfig", kubeconfig, *words)))


def _is_default(directory: DataDirectory) -> bool:
    return "KAI_DATA_DIR" not in os.environ and data_directory(None).root == directory.root


def _program() -> str:
    """Return how this program is called here: by its name where the shell would find it, else by its path."""
    called = Path(sys.argv[0])
    if called.name != "kai":
        # Such as `python -m kai_cli.main`.
        called = Path(sys.executable).parent / "kai"
        if not called.exists():
            return f"{shlex.quote(sys.executable)} -m kai_cli.main"
    on_path = shutil.which("kai")
    if on_path is not None and Path(on_path).resolve() == called.resolve():
        return "kai"
    return shlex.quote(str(called))
