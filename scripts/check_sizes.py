"""Limits of sizes: a module has 800 lines, a function 60, unless its first line gives a reason; a folder 12 entries.

The reason is a comment: `def collect(self) -> None:  # long: one line for each metric`. Modules that
protobuf generates are left out. Entries are counted where our packages are, without `__init__.py`. Standard library
only.
"""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

MODULE_LINES = 800
FUNCTION_LINES = 60
FOLDER_ENTRIES = 12
OUR_PACKAGES = ("libs/", "services/", "tools/", "scripts/")
REASON = "# long: "


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, check=True).stdout.split()
    problems = [problem for name in listed if "_pb2" not in name for problem in problems_of(Path(name))]
    problems += crowded(listed)
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0


def crowded(listed: Iterable[str]) -> Iterator[str]:
    """Say which folders with modules have too many entries to be looked through: git's files, and folders of them."""
    entries: defaultdict[Path, set[str]] = defaultdict(set)
    modules = {Path(name).parent for name in listed if name.startswith(OUR_PACKAGES)}
    of_all = subprocess.run(["git", "ls-files", *OUR_PACKAGES], capture_output=True, text=True, check=True).stdout
    for path in map(Path, of_all.splitlines()):
        for entry in (path, *path.parents[:-1]):
            entries[entry.parent].add(entry.name)
    for folder in sorted(modules):
        count = len(entries[folder] - {"__init__.py"})
        if count > FOLDER_ENTRIES:
            yield f"{folder}: {count} entries, more than {FOLDER_ENTRIES}: join what belongs together, or add a folder"


def problems_of(path: Path) -> Iterator[str]:
    text = path.read_text("utf-8")
    lines = text.splitlines()
    if len(lines) > MODULE_LINES and not lines[0].startswith(REASON):
        yield (
            f"{path}: {len(lines)} lines, more than {MODULE_LINES}: "
            f"if it is two ideas, make it two modules; else give a reason: `{REASON}...`"
        )
    if not may_be_long(lines):
        return
    for node in functions_of(ast.parse(text)):
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        signature = lines[node.lineno - 1 : node.body[0].lineno]
        if length > FUNCTION_LINES and not any(REASON in line for line in signature):
            yield (
                f"{path}:{node.lineno}: {node.name} has {length} lines, more than {FUNCTION_LINES}: "
                f"make it two, or give a reason: `{REASON}...`"
            )


def may_be_long(lines: list[str]) -> bool:
    """True if a module may have a function of too many lines: to parse all 1,500 modules takes seconds.

    Whatever follows a `def` is counted up to the next `def` or `class` that stands as far to the left.
    """
    starts: list[tuple[int, int]] = []
    for number, line in enumerate([*lines, "def end():"]):
        text = line.lstrip()
        if text.startswith(("def ", "async def ", "class ")):
            indent = len(line) - len(text)
            while starts and starts[-1][0] >= indent:
                if number - starts.pop()[1] > FUNCTION_LINES:
                    return True
            if not text.startswith("class "):
                starts.append((indent, number))
    return False


def functions_of(parent: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods, however deep; no expression has any, and these are most of a tree."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for node in getattr(parent, field, ()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node
            yield from functions_of(node)


if __name__ == "__main__":
    sys.exit(main())
