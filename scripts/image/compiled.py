"""Python files compiled by the image's own Python, so that services start as fast with a root that is read-only."""

import platform
import subprocess
import tempfile
from pathlib import Path

from scripts.image.base import PYTHON
from scripts.image.layers import File, Tree, with_folders
from scripts.image.wheels import MACHINES

_COMPILE = """
import pathlib, py_compile, sys
for name in sys.stdin.read().splitlines():
    # By the hash of the source, which is not looked at again: times are all the same in an image.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    try:
        py_compile.compile(name, dfile="/" + name, doraise=True, invalidation_mode=mode)
    except (py_compile.PyCompileError, SyntaxError, ValueError):
        pass  # templates and tests that are no modules
"""


def host_architecture() -> str:
    """Return this machine's architecture, as images call it.

    Raises:
        LookupError: none of those that images are built for.
    """
    names = {machine: architecture for architecture, machine in MACHINES.items()}
    if platform.system() != "Linux" or platform.machine() not in names:
        raise LookupError(f"an image is built on Linux, on {' or '.join(names)}")
    return names[platform.machine()]


class Compiler:
    """Compiles by the Python of a base, which runs from a folder.

    Args:
        base: the base of this machine's architecture.
    """

    def __init__(self, base: Tree) -> None:
        self._base = base
        self._made: dict[tuple[str, bytes], bytes] = {}

    def compiled(self, tree: Tree) -> Tree:
        """Return the compiled files of a tree; what was compiled before, for another architecture, is not again."""
        sources = {path: file.content for path, file in sorted(tree.items()) if _is_module(path, file)}
        missing = {key: content for key, content in sources.items() if (key, content) not in self._made and content}
        if missing:
            self._compile({path: content for path, content in missing.items() if content is not None})
        return {
            _cached(path): File(self._made[path, content])
            for path, content in sources.items()
            if content is not None and (path, content) in self._made
        }

    def _compile(self, sources: dict[str, bytes]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            _written(self._base, root)
            _written({path: File(content) for path, content in sources.items()}, root)
            loader = next((root / "usr").glob("lib*/ld-linux-*.so.?"))
            libraries = next((root / "usr/lib").glob("*-linux-gnu"))
            subprocess.run(
                [loader, "--library-path", libraries, root / f"usr/bin/python{PYTHON}", "-I", "-S", "-c", _COMPILE],
                input="\n".join(sources), text=True, cwd=root, check=True,
                env={"PYTHONHASHSEED": "0", "PYTHONHOME": str(root / "usr")},
            )  # fmt: skip
            for path, content in sources.items():
                made = root / _cached(path)
                if made.exists():
                    self._made[path, content] = made.read_bytes()


def _is_module(path: str, file: File) -> bool:
    return path.endswith(".py") and bool(file.content) and "/lib/python" in path


def _cached(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/__pycache__/{name.removesuffix('.py')}.cpython-{PYTHON.replace('.', '')}.pyc"


def _written(tree: Tree, root: Path) -> None:
    for path, file in sorted(with_folders(tree).items()):
        place = root / path
        if file.target:
            if not place.is_symlink():
                place.symlink_to(file.target)
        elif file.content is None:
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.write_bytes(file.content)
            place.chmod(file.mode | 0o600)
